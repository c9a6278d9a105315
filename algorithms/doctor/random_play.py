"""What random play shows of rewards, observations, ends of episodes, times and memory."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from algorithms.doctor.findings import Found
from algorithms.doctor.play import Moment
from algorithms.run.text import return_text

# What is too much: of a reward, of an observation, of a reset in steps, and of memory in bytes, in all and for a step.
_LARGE_REWARD, _LARGE_NUMBER, _SLOW_RESET = 1e4, 1e3, 20
_GROWTH, _GROWTH_OF_STEP = 8e6, 1e3


def episodes_of(play: Sequence[Moment]) -> list[Sequence[Moment]]:
    """Return the steps of each episode that ended."""
    starts = [number for number, moment in enumerate(play) if not moment.is_step]
    return [play[start + 1 : end] for start, end in pairwise(starts)]


def returns_of(play: Sequence[Moment]) -> list[float]:
    """Return the returns of the episodes that ended, summed over agents."""
    return [sum(sum(moment.rewards) for moment in episode) for episode in episodes_of(play)]


def findings_of(play: Sequence[Moment], is_raw: bool) -> Iterator[Found]:
    """Yield what is wrong. ``is_raw`` says whether the nets get observations as they are, not standardised."""
    steps = [moment for moment in play if moment.is_step]
    resets = [moment for moment in play if not moment.is_step]
    lengths = [len(episode) for episode in episodes_of(play)]
    if not lengths:
        yield "no-end", f"no episode ended in {len(steps):,} steps"
    elif max(lengths) == 1:
        yield "short-episodes", f"all {len(lengths):,} episodes ended after one step"
    elif len(lengths) > 2 and len({*lengths}) == 1 and not any(moment.is_cut for moment in steps):
        yield "time-out", f"all {len(lengths):,} episodes were terminated after {lengths[0]} steps"
    rewards = {reward for moment in steps for reward in moment.rewards}
    if len(rewards) == 1 and len({*lengths}) < 2:
        yield "constant-reward", f"each of {len(steps):,} steps had the reward {max(rewards):g}"
    largest = max(map(abs, rewards), default=0.0)
    if largest > _LARGE_REWARD or 0 < largest < 1 / _LARGE_REWARD:
        yield "reward-scale", f"the largest reward is {return_text(largest)}"
    if len({moment.obs for moment in play}) == 1:
        yield "constant-observation", f"the observation was the same {len(play):,} times"
    largest = max(moment.largest for moment in play)
    if is_raw and largest > _LARGE_NUMBER:
        yield "observation-scale", f"the largest number in an observation is {return_text(largest)}"
    # medians, as other processes may delay a call
    step, reset = median(moment.seconds for moment in steps), median(moment.seconds for moment in resets)
    if reset > _SLOW_RESET * step and reset * len(resets) > step * len(steps):
        text = f"a reset takes {reset * 1e3:.2g} ms, as long as {reset / step:,.0f} steps"
        yield "reset-cost", f"{text}, and all resets take longer than all steps"
    late = steps[len(steps) // 3 :]  # what is loaded first does not count
    growth = late[-1].memory - late[0].memory
    if growth > max(_GROWTH, _GROWTH_OF_STEP * len(late)):
        text = f"the process grew by {growth / 1e6:.0f} MB, {growth / len(late):,.0f} bytes a step"
        yield "memory", text
