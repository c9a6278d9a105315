"""What random play shows of rewards, observations, ends of episodes and times."""

from collections.abc import Iterator
from statistics import median

from algorithms.doctor.findings import Found
from algorithms.doctor.play import Moment
from algorithms.run.text import return_text

# What is too much: of a reward, of an observation, and of a reset in seconds.
_LARGE_REWARD, _LARGE_NUMBER, _SLOW_RESET = 1e4, 1e3, 1e-3


def findings_of(play: list[Moment], is_raw: bool) -> Iterator[Found]:
    """Yield what is wrong. ``is_raw`` says whether the nets get observations as they are, not standardised."""
    steps = [moment for moment in play if moment.step]
    lengths = [moment.step for moment in play if moment.is_over]
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
    # a median, as other processes may delay a call
    resets = [moment.seconds for moment in play if not moment.step]
    reset = median(resets)
    if reset > _SLOW_RESET and reset * len(resets) > sum(moment.seconds for moment in steps):
        yield "reset-cost", f"a reset takes {reset * 1e3:.2g} ms, and all resets take longer than all steps"
