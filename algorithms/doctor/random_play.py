"""What random play shows of rewards, observations, ends of episodes, times and memory."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import numpy as np
import psutil
import tree

from algorithms.doctor.findings import Finding, finding
from algorithms.doctor.subject import Moment
from algorithms.run.text import return_text
from rlmodule.envs.checks import to_array

# What is too much: of a reward, of an observation, of a reset in steps, and of memory in bytes, in all and for a step.
_LARGE_REWARD, _LARGE_NUMBER, _SLOW_RESET = 1e4, 1e3, 20
_GROWTH, _GROWTH_OF_STEP = 8e6, 1e3
_MEASURE_EVERY = 100  # steps between two looks at the memory

TRACE = 150
"""Number of resets and steps in which two plays of an env are compared, and of a play with extreme actions."""


class RandomPlay:
    """Collects the moments of random play.

    Attributes:
        returns, lengths: Of all episodes, the last of which is still open. Returns are sums over agents.
        step_seconds, reset_seconds: Of each call of the env.
        trace: Digests of the first moments.
    """

    def __init__(self) -> None:
        self.returns, self.lengths, self._num_cut = list[float](), list[int](), 0
        self.step_seconds, self.reset_seconds = list[float](), list[float]()
        self.trace, self._rewards, self._largest = list[list[list[bytes]]](), set[float](), 0.0
        self._memory, self._process = list[int](), psutil.Process()

    def add(self, moment: Moment) -> None:
        """Add a reset or a step."""
        if len(self.trace) < TRACE:
            self.trace.append(moment.digest())
        for leaf in map(to_array, tree.flatten(moment.obs)):
            if leaf.dtype.kind == "f":
                self._largest = max(self._largest, float(np.abs(leaf).max()))
        if not moment.is_step:
            self.reset_seconds.append(moment.seconds)
            self.returns.append(0.0)
            self.lengths.append(0)
            return
        self.step_seconds.append(moment.seconds)
        self._rewards.update(moment.rewards.values())
        self.returns[-1] += float(sum(moment.rewards.values()))
        self.lengths[-1] += 1
        self._num_cut += moment.is_cut
        if len(self.step_seconds) % _MEASURE_EVERY == 0:
            self._memory.append(self._process.memory_info().rss)

    def findings(self, is_raw: bool) -> Iterator[Finding]:
        """Yield what is wrong. ``is_raw`` says whether the nets get observations as they are, not standardised."""
        steps, lengths = len(self.step_seconds), self.lengths[:-1]
        if not lengths:
            yield finding("no-end", f"no episode ended in {steps:,} steps")
        elif max(lengths) == 1:
            yield finding("short-episodes", f"all {len(lengths):,} episodes ended after one step")
        elif len(lengths) > 2 and len({*lengths}) == 1 and not self._num_cut:
            yield finding("time-out", f"all {len(lengths):,} episodes were terminated after {lengths[0]} steps")
        if len(self._rewards) == 1 and len({*lengths}) < 2:
            yield finding("constant-reward", f"each of {steps:,} steps had the reward {max(self._rewards):g}")
        largest = max(map(abs, self._rewards), default=0.0)
        if largest > _LARGE_REWARD or 0 < largest < 1 / _LARGE_REWARD:
            yield finding("reward-scale", f"the largest reward is {return_text(largest)}")
        if all(obs == self.trace[0][0] for obs, _ in self.trace):
            yield finding("constant-observation", f"the observation was the same {len(self.trace)} times")
        if is_raw and self._largest > _LARGE_NUMBER:
            yield finding("observation-scale", f"the largest number in an observation is {return_text(self._largest)}")
        step, reset = fmean(self.step_seconds), fmean(self.reset_seconds)
        if reset > _SLOW_RESET * step and sum(self.reset_seconds) > sum(self.step_seconds):
            text = f"a reset takes {reset * 1e3:.2g} ms, as long as {reset / step:,.0f} steps"
            yield finding("reset-cost", f"{text}, and all resets take longer than all steps")
        memory = self._memory[len(self._memory) // 3 :]  # what is loaded first does not count
        growth = memory[-1] - memory[0] if memory else 0
        of_a_step = growth / len(memory or [0]) / _MEASURE_EVERY
        if growth > _GROWTH and of_a_step > _GROWTH_OF_STEP:
            yield finding("memory", f"the process grew by {growth / 1e6:.0f} MB, {of_a_step:,.0f} bytes a step")
