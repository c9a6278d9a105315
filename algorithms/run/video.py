"""Episodes to look at: recorded, or shown in a window.

They are played one after the other in an env of their own, made to be rendered, from seeds of their own. Nothing is
measured by them and nothing of a run changes.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import HumanRendering

from algorithms.run.run_folder import env_name
from catalog.copies import mutable_copy
from rlmodule.envs.atari import AtariGame, importing_id, is_atari
from rlmodule.envs.make import install_remedy
from rlmodule.modules.policy import Policy
from rlmodule.seeding import int_seed, torch_stream

if TYPE_CHECKING:
    from rlmodule.settings import RunnerSettings

Env: TypeAlias = gym.Env[Any, Any]

MODE = "rgb_array"
"""The render mode: pictures, which go into a video or a window."""
FRAMES = 3_000
"""Frames of a video, the first of its episode. They are in memory until it is written, 0.7 MB each at 600 x 400."""
FPS = 30
"""Frames per second where the env's metadata has no ``render_fps``."""
LIMIT = 200_000
"""Steps without the end of an episode after which no end is waited for."""


@dataclass(frozen=True)
class Video:
    """One recorded episode.

    Attributes:
        path: The MP4.
        episode_return: Sum of its rewards.
        length: Its steps.
    """

    path: Path
    episode_return: float
    length: int


def record_videos(
    policy: Policy,
    settings: RunnerSettings,
    *,
    num_episodes: int,
    seed: int,
    folder: Path,
    explore: bool = False,
    show: Callable[[int], None] = lambda done: None,
) -> list[Video]:
    """Play episodes in one env made to be rendered, and write each as an MP4 into ``folder``.

    Args:
        policy: Whose module acts; nothing is drawn from its generator.
        settings: Which env, with what config. An id and a class are made with ``render_mode="rgb_array"``, a factory
            finds it in its ``env_config``.
        num_episodes: Episodes to record.
        seed: Of the videos; each episode has a seed of its own, by its number.
        folder: Made if there is none. A video is called ``episode-<number>-return-<return>.mp4``, and takes the place
            of one of the same name.
        explore: Whether to sample actions instead of taking the most likely ones.
        show: Told how many are written.

    Raises:
        ImportError: If there is no package to write videos with, or to render with; says how to install it.
        RuntimeError: If the env cannot be made to be rendered, or an episode does not end within :data:`LIMIT` steps.
        OSError: If ``folder`` cannot be written to.
    """
    _require_writer()
    _make_folder(folder)
    from moviepy import ImageSequenceClip

    videos: list[Video] = []
    with _in_memory(), _rendering(settings) as env:
        for index in range(num_episodes):
            frames: list[Any] = []
            take_frame = partial(_take_frame, env, frames)
            episode_return, length = _play(env, policy, int_seed(seed, "video", index), explore, take_frame)
            path = folder / f"episode-{index}-return-{_plain(episode_return)}.mp4"
            ImageSequenceClip(frames, fps=env.metadata["render_fps"]).write_videofile(str(path), logger=None)
            videos.append(Video(path, episode_return, length))
            show(index + 1)
    return videos


def watch(
    policy: Policy, settings: RunnerSettings, *, num_episodes: int, seed: int, explore: bool = False
) -> list[tuple[float, int]]:
    """Show episodes in a window, at the env's own speed: the same episodes that :func:`record_videos` records.

    Args:
        policy: See :func:`record_videos`, as for the following.
        settings: Which env.
        num_episodes: Episodes to show.
        seed: Of the episodes.
        explore: Whether to sample actions instead of taking the most likely ones.

    Returns:
        Return and length of each.

    Raises:
        ImportError, RuntimeError: See :func:`record_videos`; also if there is no display.
    """
    with _rendering(settings, _window) as window:
        return [_play(window, policy, int_seed(seed, "video", index), explore) for index in range(num_episodes)]


def check_recording(settings: RunnerSettings) -> None:
    """Raise what :func:`record_videos` would, before a run begins, which should not end at its first video.

    Raises:
        ImportError, RuntimeError: See :func:`record_videos`.
    """
    _require_writer()
    with _in_memory(), _rendering(settings):
        pass


def never_ends(where: str, got: str, instead: str) -> RuntimeError:
    """What to raise where episodes do not end; ``instead`` is what to do but limit their length."""
    return RuntimeError(
        f"{where}: expected episodes that end, got {got}. Limit their length: "
        f"gymnasium.wrappers.TimeLimit, or max_episode_steps; or {instead}."
    )


def _play(
    env: Env, policy: Policy, seed: int, explore: bool, take_frame: Callable[[], None] = lambda: None
) -> tuple[float, int]:
    """Play one episode; return its return and length."""
    # one of its own, since where the policy's generator stands is part of its run
    policy = Policy(policy.module, torch_stream(seed, "policy"))
    obs, _ = env.reset(seed=seed)
    take_frame()
    state, reward, episode_return = None, None, 0.0
    for length in range(1, LIMIT + 1):
        action, state = policy.act(obs, state, reward=reward, explore=explore)
        obs, reward, terminated, truncated, _ = env.step(action)
        take_frame()
        reward = float(reward)
        episode_return += reward
        if terminated or truncated:
            return episode_return, length
    raise never_ends("record_videos()", f"one that did not in {LIMIT:,} steps", "record none: num_videos=0")


def _take_frame(env: Env, frames: list[Any]) -> None:
    if len(frames) < FRAMES:
        frames.append(env.render())


# --- the env ----------------------------------------------------------------------------------------------------------


@contextmanager
def _rendering(settings: RunnerSettings, wrap: Callable[[Env], Env] = lambda env: env) -> Iterator[Env]:
    """One env of ``settings`` that was seen to render pictures, in what ``wrap`` makes of it; closed in the end."""
    where = f"videos of env {env_name(settings.env)}"
    with warnings.catch_warnings():
        # errors of ours say it; glfw is what MuJoCo looks for a display with
        for library in ("gymnasium", "glfw"):
            warnings.filterwarnings("ignore", module=library)
        env = _make(settings, mutable_copy(dict(settings.env_config)) | {"render_mode": MODE}, where)
        try:
            _look_at(env, where)
            env.metadata = {"render_modes": [], "render_fps": FPS, **env.metadata}
            env = wrap(env)
            yield env
        finally:
            env.close()


def _make(settings: RunnerSettings, env_config: dict[str, Any], where: str) -> Env:
    made: Any = None
    source: Any = settings.env
    try:
        if is_atari(source) and settings.gym_env_vectorize_mode in (None, "vector_entry_point"):
            made = AtariGame(source, env_config)
        elif isinstance(source, str):
            made = gym.make(importing_id(source), disable_env_checker=True, **env_config)
        elif not isinstance(source, type):
            made = source(env_config)
        elif not issubclass(source, VectorEnv):
            made = source(**env_config)
    except Exception as error:
        raise _cannot_render(where, "an env that can be made with", error) from error
    if isinstance(made, gym.Env):
        return made
    if isinstance(made, VectorEnv):
        made.close()
    got = source.__name__ if isinstance(source, type) else type(made).__name__
    raise RuntimeError(
        f"{where}: expected a single env, got {got}. Return one from the factory where env_config "
        "has a render_mode, or record none: num_videos=0."
    )


def _look_at(env: Env, where: str) -> None:
    """Render one frame, so that an env that cannot is found before an episode is played."""
    if env.render_mode != MODE:
        raise RuntimeError(
            f"{where}: expected an env whose render_mode is {MODE!r}, got {env.render_mode!r}. "
            "Hand env_config['render_mode'] on to the env that the factory makes; a class takes "
            "render_mode and keeps it as self.render_mode."
        )
    try:
        env.reset(seed=0)
        frame: Any = env.render()
    except Exception as error:
        raise _cannot_render(where, "an env that renders with", error) from error
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise RuntimeError(
            f"{where}: expected pictures, uint8 [H, W, 3], got {got}. Return one in render(), if "
            f"self.render_mode is {MODE!r}."
        )


def _cannot_render(where: str, expected: str, error: Exception) -> Exception:
    kind: type[Exception] = RuntimeError
    got = f"{type(error).__name__}: {error}"
    if isinstance(error, ImportError | gym.error.DependencyNotInstalled):
        kind, remedy = ImportError, install_remedy(error)
    elif type(error).__module__.startswith("mujoco"):
        remedy = "Where there is no display, set MUJOCO_GL=egl or MUJOCO_GL=osmesa before Python starts."
    else:
        remedy = f"An env is recorded if it takes render_mode={MODE!r}, and render() then returns a picture."
    return kind(f"{where}: expected {expected} render_mode={MODE!r}, got {got}. {remedy}")


def _window(env: Env) -> Env:
    import pygame

    window, got = HumanRendering(env), ""
    try:
        window.reset(seed=0)
    except pygame.error as error:
        got = str(error)
    else:
        if "SDL_VIDEODRIVER" in os.environ or pygame.display.get_driver() not in ("dummy", "offscreen"):
            return window
    raise RuntimeError(
        f"watch(): expected a display to open a window on, got {got or 'none'}. Record it instead: "
        "rlmodule evaluate CKPT --video videos, or algo.evaluate(num_videos=1)."
    )


@contextmanager
def _in_memory() -> Iterator[None]:
    """Tell SDL, with which pygame draws, to look for no display: it would complain aloud where there is none."""
    chosen = os.environ.get("SDL_VIDEODRIVER")
    os.environ["SDL_VIDEODRIVER"] = chosen or "dummy"
    try:
        yield
    finally:
        if chosen is None:
            del os.environ["SDL_VIDEODRIVER"]


# --- the files --------------------------------------------------------------------------------------------------------


def _require_writer() -> None:
    if importlib.util.find_spec("moviepy") is None:
        raise ImportError('videos: expected the package moviepy, got none. Run: pip install "catalog-rl[video]"')


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # it can be written to
    except OSError as error:
        got = (error.strerror or str(error)).partition("\n")[0]
        raise OSError(
            f"video_dir {str(folder)!r}: expected a folder to write to, got {got}. Choose another "
            "video_dir, or run_dir."
        ) from error


def _plain(number: float) -> str:
    """A number as it stands in the name of a file: two decimals at most, no exponent."""
    return np.format_float_positional(number, precision=2, trim="-")
