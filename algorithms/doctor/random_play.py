"""What random play shows of rewards, observations, ends of episodes, times and memory."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import numpy as np
import psutil
import tree

from algorithms.doctor.findings import Finding
from algorithms.doctor.subject import Moment
from algorithms.run.text import return_text
from rlmodule.envs.checks import to_array

# What is too much: of a reward, of an observation, of a reset in steps, and of memory in bytes, in all and for a step.
_LARGE_REWARD, _LARGE_NUMBER, _SLOW_RESET = 1e4, 1e3, 20
_GROWTH, _GROWTH_OF_STEP = 8e6, 1e3
_MEASURE_EVERY = 100  # steps between two looks at the memory


class RandomPlay:
    """Collects the moments of random play.

    Attributes:
        returns: Returns of the episodes that have ended, summed over agents.
        step_seconds, reset_seconds: Of each call of the env.
    """

    def __init__(self) -> None:
        self.returns, self.step_seconds, self.reset_seconds = list[float](), list[float](), list[float]()
        self._lengths, self._num_cut = list[int](), 0
        self._return, self._length = 0.0, 0  # of the open episode
        self._rewards, self._observations = set[float](), set[int]()
        self._largest = 0.0
        self._memory = list[int]()
        self._process = psutil.Process()

    def add(self, moment: Moment) -> None:
        """Add a reset or a step."""
        leaves = [to_array(leaf) for leaf in tree.flatten(moment.obs)]
        if len(self._observations) < 2:
            self._observations.add(hash(tuple(leaf.tobytes() for leaf in leaves)))
        for leaf in leaves:
            if leaf.dtype.kind == "f":
                self._largest = max(self._largest, float(np.abs(leaf).max()))
        if not moment.is_step:
            self.reset_seconds.append(moment.seconds)
            return
        self.step_seconds.append(moment.seconds)
        self._rewards.update(moment.rewards.values())
        self._return += sum(moment.rewards.values())
        self._length += 1
        if len(self.step_seconds) % _MEASURE_EVERY == 0:
            self._memory.append(self._process.memory_info().rss)
        if moment.is_over:
            self._num_cut += moment.is_cut
            self.returns.append(self._return)
            self._lengths.append(self._length)
            self._return, self._length = 0.0, 0

    def findings(self, *, has_time_limit: bool, is_raw: bool) -> Iterator[Finding]:
        """Yield what is wrong.

        Args:
            has_time_limit: Whether the env has one, so that its episodes end even if none has yet.
            is_raw: Whether the nets get observations as they are, not standardised.
        """
        steps, episodes = len(self.step_seconds), len(self.returns)
        if not episodes and not has_time_limit:
            yield Finding("no-end", f"no episode ended in {steps:,} steps")
        if episodes and max(self._lengths) == 1:
            yield Finding("short-episodes", f"all {episodes:,} episodes ended after one step")
        elif episodes > 2 and len({*self._lengths}) == 1 and not self._num_cut:
            yield Finding("time-out", f"all {episodes:,} episodes were terminated after {self._lengths[0]} steps")
        if len(self._rewards) == 1 and len({*self.returns}) < 2:
            yield Finding("constant-reward", f"each of {steps:,} steps had the reward {self._rewards.pop():g}")
        largest = max(map(abs, self._rewards), default=0.0)
        if largest > _LARGE_REWARD or 0 < largest < 1 / _LARGE_REWARD:
            yield Finding("reward-scale", f"the largest reward is {return_text(largest)}")
        if len(self._observations) == 1:
            yield Finding("constant-observation", f"the observation was the same in {steps:,} steps")
        if is_raw and self._largest > _LARGE_NUMBER:
            yield Finding("observation-scale", f"the largest number in an observation is {return_text(self._largest)}")
        step, reset = fmean(self.step_seconds), fmean(self.reset_seconds)
        if reset > _SLOW_RESET * step and sum(self.reset_seconds) > sum(self.step_seconds):
            text = f"a reset takes {reset * 1e3:.2g} ms, as long as {reset / step:,.0f} steps"
            yield Finding("reset-cost", f"{text}, and resets take more time than steps")
        memory = self._memory[len(self._memory) // 3 :]  # what is loaded first does not count
        if len(memory) > 2:
            growth, late = memory[-1] - memory[0], memory[-1] - memory[len(memory) // 2]
            of_a_step = growth / (len(memory) - 1) / _MEASURE_EVERY
            if growth > _GROWTH and of_a_step > _GROWTH_OF_STEP and late > growth / 4:
                yield Finding("memory", f"the process grew by {growth / 1e6:.0f} MB, {of_a_step:,.0f} bytes a step")
