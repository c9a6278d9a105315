"""Episodes to look at: filmed, or shown in a window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlmodule.policy import Policy

if TYPE_CHECKING:
    from rlmodule.settings import RunnerSettings


@dataclass(frozen=True)
class Film:
    """One filmed episode.

    Attributes:
        path: The MP4.
        episode_return: Sum of its rewards.
        length: Its steps.
    """

    path: Path
    episode_return: float
    length: int


def film(
    policy: Policy,
    settings: RunnerSettings,
    *,
    num_episodes: int,
    seed: int,
    folder: Path,
    explore: bool = False,
    show: Callable[[int], None] = lambda done: None,
) -> list[Film]:
    """Play episodes in one env made to be rendered, and write each as an MP4 into ``folder``."""
    raise NotImplementedError
