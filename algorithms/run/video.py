"""Record episodes as videos, or show them in a window.

The episodes are played one after the other in a separate env, with separate seeds. They change nothing in a run, and
its metrics do not count them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import HumanRendering

from algorithms.loggers.base import needed_package
from algorithms.run.run_folder import env_name
from algorithms.run.text import path_text
from rlmodule.envs.make import install_remedy
from rlmodule.modules.policy import Policy
from rlmodule.seeding import int_seed, torch_stream

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.config import AlgorithmConfig
    from algorithms.run.agent_video import Team

# The render mode in which `render()` returns an array.
MODE = "rgb_array"
# Most frames in a video; later frames are left out. Frames are kept in memory, 0.7 MB each at 600 x 400.
FRAMES = 3_000
# Frames per second if the env's metadata has no `render_fps`.
FPS = 30
# Number of steps within which an episode must end. Otherwise, playing it raises `RuntimeError`.
LIMIT = 200_000


def player_of(algorithm: Algorithm) -> Policy | Team:
    """Return the policy that plays in the videos of ``algorithm``; in a multi-agent run, a :class:`Team`, with the
    agents and the mapping of evaluations."""
    config: Any = algorithm.config
    if not config.is_multi_agent:
        return algorithm.policy
    from algorithms.run.agent_video import Team
    from algorithms.run.policies import evaluated_policies_of

    is_same = config.evaluation_policy_mapping_fn is None and config.evaluation_env_config is None
    return Team(algorithm.policies if is_same else evaluated_policies_of(algorithm))


def record_videos(
    policy: Policy | Team,
    config: AlgorithmConfig,
    *,
    num_episodes: int,
    seed: int,
    folder: Path,
    explore: bool = False,
    show: Callable[[int], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """Play episodes one after the other in an env that renders, and write each as an MP4 into ``folder``.

    Args:
        policy: The policy to play; its random generator is not used.
        config: The config with the env. An id or class gets ``render_mode="rgb_array"``; a factory gets it in its
            ``env_config``.
        num_episodes: Episodes to record.
        seed: Seed of the videos, from which the seed of each episode derives.
        folder: Created if it does not exist. The videos are named ``episode-<number>-return-<return>.mp4``, and replace
            files of the same name.
        explore: Whether to sample actions instead of taking the most likely ones.
        show: Called after each video with the number of videos written so far.

    Returns:
        ``path``, ``episode_return`` and ``episode_len`` of each video.

    Raises:
        ImportError: If a package to write videos or to render is missing; says how to install it.
        RuntimeError: If the env cannot be rendered, its pictures differ in shape, or an episode does not end within
            :data:`LIMIT` steps.
        OSError: If ``folder`` cannot be written to.
    """
    write = _writer()
    folder.mkdir(parents=True, exist_ok=True)
    videos: list[dict[str, Any]] = []
    with _in_memory(), _rendering(config) as env:
        for index in range(num_episodes):
            frames: list[Any] = []
            episode_return, length = _play(env, policy, int_seed(seed, "video", index), explore, frames)
            shapes = list(dict.fromkeys(np.shape(frame) for frame in frames))
            if len(shapes) > 1:
                raise RuntimeError(
                    f"videos of env {env_name(config.env)}: expected render() to return pictures of one shape, got "
                    f"{shapes[0]} and then {shapes[1]}. Render every step at the same size."
                )
            number = np.format_float_positional(episode_return, precision=2, trim="-")
            path = folder / f"episode-{index}-return-{number}.mp4"
            write(frames, fps=env.metadata["render_fps"]).write_videofile(str(path), logger=None)
            videos.append({"path": path_text(path), "episode_return": episode_return, "episode_len": length})
            show(index + 1)
    return videos


def watch(
    policy: Policy | Team, config: AlgorithmConfig, *, num_episodes: int, seed: int, explore: bool = False
) -> list[tuple[float, int]]:
    """Show episodes in a window, at the env's own speed: the same episodes that :func:`record_videos` records.

    Args:
        policy: The policy to play; its random generator is not used.
        config: The config with the env; see :func:`record_videos`.
        num_episodes: Episodes to show.
        seed: Seed of the episodes.
        explore: Whether to sample actions instead of taking the most likely ones.

    Returns:
        Return and length of each episode.

    Raises:
        ImportError, RuntimeError: As :func:`record_videos`. Also a RuntimeError if no display is available.
    """
    with _rendering(config, _window) as window:
        return [_play(window, policy, int_seed(seed, "video", index), explore) for index in range(num_episodes)]


def check_recording(config: AlgorithmConfig) -> None:
    """Check that the videos of a run can be recorded, before the run starts.

    Raises:
        ImportError, RuntimeError: As :func:`record_videos`.
    """
    _writer()
    with _in_memory(), _rendering(config):
        pass


def never_ends(where: str, got: str, instead: str) -> RuntimeError:
    """Return the error to raise if episodes do not end. Its text names the call ``where``, says in ``got`` what was
    observed, and proposes a time limit or the other remedy ``instead``, a phrase such as "record none"."""
    return RuntimeError(
        f"{where}: expected episodes that end, got {got}. Limit their length: "
        f"gymnasium.wrappers.TimeLimit, or max_episode_steps; or {instead}."
    )


def _writer() -> Any:
    """Return the class that makes a video from a list of frames."""
    with needed_package("videos", "moviepy", 'Run: pip install "catalog-rl[video]"'):
        from moviepy import ImageSequenceClip
    return ImageSequenceClip


def _play(
    env: gym.Env, policy: Policy | Team, seed: int, explore: bool, frames: list[Any] | None = None
) -> tuple[float, int]:
    """Play one episode, and return its return and length. If ``frames`` is given, append the first :data:`FRAMES`
    frames to it."""
    # a separate policy, as the generator of the other one is part of the state of its run
    policy = policy.with_generator(torch_stream(seed, "policy"))
    obs, _ = env.reset(seed=seed)
    state, reward, episode_return, ended = None, None, 0.0, False
    for length in range(LIMIT + 1):
        if frames is not None and len(frames) < FRAMES:
            frames.append(np.array(env.render()))  # a copy, as the env may paint into the same array again
        if ended:
            return episode_return, length
        action, state = policy.act(obs, state, reward=reward, explore=explore)
        obs, reward, terminated, truncated, _ = env.step(action)
        reward, ended = float(reward), terminated or truncated
        episode_return += reward
    raise never_ends("record_videos()", f"one that did not in {LIMIT:,} steps", "record none: num_videos=0")


# --- the env ----------------------------------------------------------------------------------------------------------


@contextmanager
def _rendering(config: AlgorithmConfig, wrap: Callable[[gym.Env], gym.Env] = lambda env: env) -> Iterator[gym.Env]:
    """Make an env, check that it renders, yield the result of ``wrap`` for it, and close it at the end. Raise
    ``ImportError`` or ``RuntimeError`` if the env does not render."""
    where = f"videos of env {env_name(config.env)}"
    with warnings.catch_warnings(), ExitStack() as opened:
        # our own errors say more; MuJoCo looks for a display with glfw
        for library in ("gymnasium", "glfw"):
            warnings.filterwarnings("ignore", module=library)
        try:
            env = config.make_env(render_mode=MODE)
            if config.is_multi_agent:
                from algorithms.run.agent_video import TeamEnv  # imports much that only several agents need

                env = TeamEnv(env)
            opened.callback(lambda: env.close())  # a closure, as wrap may replace env below
            got = _misfit(env)
        except Exception as error:
            raise _cannot_render(where, error) from error
        if got:
            raise RuntimeError(
                f"{where}: expected a single env whose render_mode is {MODE!r} and whose render() returns uint8 "
                f"[H, W, 3], got {got}. A class takes render_mode and keeps it as self.render_mode; a factory "
                "passes env_config['render_mode'] to the env that it makes."
            )
        env.metadata = {"render_modes": [], "render_fps": FPS, **env.metadata}
        env = wrap(env)
        yield env


def _misfit(env: object) -> str:
    """Return what makes ``env`` unfit for recording, or ``""`` if nothing does. Resets it and renders a frame."""
    if not isinstance(env, gym.Env):
        return type(env).__name__
    if env.render_mode != MODE:
        return f"render_mode {env.render_mode!r}"
    env.reset(seed=0)
    frame = np.asarray(env.render())
    fits = frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
    return "" if fits else f"a picture of {frame.dtype} {frame.shape}"


def _cannot_render(where: str, error: Exception) -> Exception:
    kind: type[Exception] = RuntimeError
    if isinstance(error, ImportError | gym.error.DependencyNotInstalled):
        kind, remedy = ImportError, install_remedy(error)
    elif type(error).__module__.startswith("mujoco"):
        remedy = "Where there is no display, set MUJOCO_GL=egl or MUJOCO_GL=osmesa before Python starts."
    else:
        remedy = f"An env is recorded if it takes render_mode={MODE!r}, and render() then returns a picture."
    got = f"{type(error).__name__}: {error}"
    return kind(f"{where}: expected an env that renders with render_mode={MODE!r}, got {got}. {remedy}")


def _window(env: gym.Env) -> gym.Env:
    import pygame

    window, got = HumanRendering(env), "none"
    try:
        window.reset(seed=0)
        if "SDL_VIDEODRIVER" in os.environ or pygame.display.get_driver() not in ("dummy", "offscreen"):
            return window
    except pygame.error as error:
        got = str(error)
    raise RuntimeError(
        f"watch(): expected a display to open a window on, got {got}. Record it instead: "
        "rlmodule evaluate CKPT --video videos, or algo.evaluate(num_videos=1)."
    )


@contextmanager
def _in_memory() -> Iterator[None]:
    """Within the block, keep SDL, with which pygame draws, from looking for a display. Without a display, SDL would
    print errors."""
    chosen = os.environ.get("SDL_VIDEODRIVER")
    os.environ["SDL_VIDEODRIVER"] = chosen or "dummy"
    try:
        yield
    finally:
        if chosen is None:
            del os.environ["SDL_VIDEODRIVER"]
