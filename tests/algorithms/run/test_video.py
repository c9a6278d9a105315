"""Videos: what is played, what is written, what is refused."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pygame
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from imageio_ffmpeg import count_frames_and_secs

import algorithms.run.video as video_module
from algorithms.ppo import PPO, PPOConfig
from algorithms.run.video import check_recording, record_videos, watch
from rlmodule.modules.policy import Policy
from rlmodule.seeding import int_seed


class Painted(gym.Env):
    """Episodes of ``length`` steps; what it rewards depends on the action, and its picture is as bright as time."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 5}
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    closed: ClassVar[int] = 0
    seeds: ClassVar[list[int | None]] = []

    def __init__(self, render_mode: str | None = None, length: int = 4) -> None:
        self.render_mode, self.length = render_mode, length

    def _obs(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs(), 1.0 + int(action) / 4, self.t >= self.length, False, {}

    def render(self) -> Any:
        return np.full((32, 48, 3), 10 * self.t % 256, np.uint8)

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def painted() -> type[Painted]:
    return type("Painted", (Painted,), {"closed": 0, "seeds": []})


def config_for(env: Any, **settings: Any) -> Any:
    small: dict[str, Any] = {
        "num_envs_per_env_runner": 1,
        "train_batch_size_per_learner": 8,
        "minibatch_size": 8,
        "seed": 3,
    }
    small |= {"model_config": {"fcnet_hiddens": [8]}}
    return PPOConfig(env=env, **small | settings)


def policy_for(env: Any, **settings: Any) -> Policy:
    with config_for(env, **settings).build() as algorithm:
        assert isinstance(algorithm, PPO)
        return algorithm.policy


def shoot(
    env: Any, folder: Path, policy: Policy | None = None, num_episodes: int = 1, **how: Any
) -> list[dict[str, Any]]:
    """Videos of ``env`` with the policy of an untrained PPO."""
    settings = {name: how.pop(name) for name in ("env_config", "model_config") if name in how}
    policy = policy or policy_for(env, **settings)
    how = {"seed": 1} | how
    return record_videos(policy, config_for(env, **settings), num_episodes=num_episodes, folder=folder, **how)


def assert_frames(path: Path, expected: int) -> float:
    """That a video has so many frames, or one less, which moviepy leaves out at some lengths; its seconds."""
    frames, seconds = count_frames_and_secs(str(path))
    assert expected - 1 <= frames <= expected
    return seconds


def played(make: Callable[[], gym.Env], policy: Policy, seed: int) -> tuple[float, int]:
    """Return and length of an episode, played by hand."""
    env, state, reward, total, length, over = make(), None, None, 0.0, 0, False
    obs, _ = env.reset(seed=seed)
    while not over:
        action, state = policy.act(obs, state, reward=reward)
        obs, reward, terminated, truncated, _ = env.step(action)
        reward = float(reward)
        total, length, over = total + reward, length + 1, terminated or truncated
    env.close()
    return total, length


# --- what is written --------------------------------------------------------------------------------------------------


def test_an_id_is_recorded_at_the_speed_of_its_env(tmp_path: Path) -> None:
    (one,) = shoot("CartPole-v1", tmp_path)
    assert one["episode_len"] == one["episode_return"] >= 8
    assert Path(one["path"]) == tmp_path / f"episode-0-return-{one['episode_len']}.mp4"
    assert assert_frames(Path(one["path"]), one["episode_len"] + 1) == pytest.approx(
        one["episode_len"] / 50, abs=0.03
    )  # metadata["render_fps"]
    assert [*tmp_path.iterdir()] == [Path(one["path"])]


@pytest.mark.parametrize("how", ["class", "factory"])
def test_classes_and_factories_are_recorded_with_their_config(how: str, tmp_path: Path, painted: type[Painted]) -> None:
    given: list[dict[str, Any]] = []

    def factory(env_config: dict[str, Any]) -> Painted:
        given.append(env_config)
        return painted(**env_config)

    env_config = {"length": 7}
    (one,) = shoot(painted if how == "class" else factory, tmp_path, env_config=env_config)
    assert one["episode_len"] == 7
    assert_frames(Path(one["path"]), 8)
    assert env_config == {"length": 7}
    assert given == ([] if how == "class" else [{"length": 7}, {"length": 7, "render_mode": "rgb_array"}])
    assert painted.closed == 2  # that of the policy's run, and that of the videos, each once


def test_a_factory_may_take_its_config_apart(tmp_path: Path, painted: type[Painted]) -> None:
    def factory(env_config: dict[str, Any]) -> Painted:
        return painted(env_config.get("render_mode"), env_config["how"].pop("long"))

    config = config_for(factory, env_config={"how": {"long": 7}}).freeze()
    with config.build() as algorithm:
        (one,) = record_videos(algorithm.policy, config, num_episodes=1, seed=1, folder=tmp_path)
    assert one["episode_len"] == 7


def test_an_env_that_names_no_speed_has_one(tmp_path: Path, painted: type[Painted]) -> None:
    painted.metadata = {}
    (one,) = shoot(painted, tmp_path, env_config={"length": 29})
    assert assert_frames(Path(one["path"]), 30) == pytest.approx(1.0, abs=0.05)


def test_each_episode_is_told_when_it_is_written(tmp_path: Path, painted: type[Painted]) -> None:
    seen: list[tuple[int, int]] = []
    videos = shoot(
        painted, tmp_path / "deep" / "videos", num_episodes=3, show=lambda done: seen.append((done, len(os.listdir(
            tmp_path / "deep" / "videos"
        ))))
    )  # fmt: skip
    assert [done for done, _ in seen] == [1, 2, 3]
    assert [count for _, count in seen] == [1, 2, 3]
    assert [Path(one["path"]).name.partition("-return-")[0] for one in videos] == [
        "episode-0",
        "episode-1",
        "episode-2",
    ]


def test_a_video_of_the_same_name_is_replaced(tmp_path: Path, painted: type[Painted]) -> None:
    policy = policy_for(painted)
    (first,) = shoot(painted, tmp_path, policy)
    Path(first["path"]).write_bytes(b"")
    (second,) = shoot(painted, tmp_path, policy)
    assert second == first
    assert Path(second["path"]).stat().st_size > 0


def test_a_long_episode_is_recorded_from_its_beginning(
    tmp_path: Path, painted: type[Painted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video_module, "FRAMES", 10)
    videos = shoot(painted, tmp_path, num_episodes=2, env_config={"length": 25})
    assert [one["episode_len"] for one in videos] == [25, 25]
    for one in videos:
        assert_frames(Path(one["path"]), 10)


def test_an_env_may_paint_all_pictures_into_one_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Canvas(Painted):
        canvas = np.zeros((32, 48, 3), np.uint8)

        def render(self) -> Any:
            self.canvas[:] = super().render()
            return self.canvas

    class Writer:
        def __init__(self, frames: list[Any], fps: int) -> None:
            shades.extend(frame[0, 0, 0] for frame in frames)

        def write_videofile(self, path: str, logger: None) -> None:
            pass

    shades: list[int] = []
    monkeypatch.setattr(video_module, "_writer", lambda: Writer)
    shoot(Canvas, tmp_path)
    assert shades == [0, 10, 20, 30, 40]


def test_nothing_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shoot("CartPole-v1", tmp_path)
    shoot("LunarLander-v3", tmp_path)
    assert capfd.readouterr() == ("", "")


def test_an_id_that_renders_is_recorded_whatever_its_metadata_say(
    tmp_path: Path, painted: type[Painted], monkeypatch: pytest.MonkeyPatch
) -> None:
    painted.metadata = {"render_modes": []}  # of which gymnasium.make would warn
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    gym.register("Painted-v0", painted)
    assert shoot("Painted-v0", tmp_path, policy_for(painted))[0]["episode_len"] == 4


# --- what is played ---------------------------------------------------------------------------------------------------


def test_the_seed_decides_and_each_episode_has_its_own(tmp_path: Path, painted: type[Painted]) -> None:
    policy = policy_for(painted)
    painted.seeds.clear()
    for seed, count in ((1, 3), (1, 2), (2, 1)):
        shoot(painted, tmp_path, policy, count, seed=seed)
    # the first of each is that of the look at its picture
    assert painted.seeds == [
        0, *(int_seed(1, "video", index) for index in (0, 1, 2)),
        0, *(int_seed(1, "video", index) for index in (0, 1)),
        0, int_seed(2, "video", 0),
    ]  # fmt: skip


def test_what_is_recorded_is_what_the_policy_does(tmp_path: Path) -> None:
    policy = policy_for("Pendulum-v1")
    videos = shoot("Pendulum-v1", tmp_path, policy, 2, env_config={"max_episode_steps": 20})
    for index, one in enumerate(videos):
        assert played(lambda: gym.make("Pendulum-v1", max_episode_steps=20), policy, int_seed(1, "video", index)) == (
            one["episode_return"],
            one["episode_len"],
        )


class Recalling(Painted):
    """Rewards an action by the last reward and action, so that a wrong memory shows in the return; masks one action."""

    observation_space = spaces.Dict(  # type: ignore[assignment]
        {"action_mask": spaces.MultiBinary(3), "observations": spaces.Box(-1, 1, (2,), np.float32)}
    )
    action_space = spaces.Discrete(3)  # type: ignore[assignment]

    def _obs(self) -> Any:
        self.mask = np.ones(3, np.int8)
        self.mask[self.np_random.integers(3)] = 0
        return {"action_mask": self.mask, "observations": super()._obs()}

    def step(self, action: Any) -> Any:
        assert self.mask[action]
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(self.np_random.uniform(-1, 1) + action), terminated, truncated, info


def test_memory_previous_rewards_and_masks_are_kept_up(tmp_path: Path) -> None:
    model = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4, "lstm_use_prev_action": True}
    model |= {"lstm_use_prev_reward": True, "action_mask_key": "action_mask", "fcnet_hiddens": [8]}
    policy = policy_for(Recalling, model_config=model, env_config={"length": 40})
    with torch.no_grad():  # so that its actions differ with what it remembers
        for p in policy.module.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    videos = shoot(Recalling, tmp_path, policy, 2, model_config=model, env_config={"length": 40})
    for index, one in enumerate(videos):
        by_hand = played(lambda: Recalling(length=40), policy, int_seed(1, "video", index))
        assert by_hand == (one["episode_return"], one["episode_len"])


def test_sampled_actions_come_from_the_seed_and_not_from_the_policys_generator(
    tmp_path: Path, painted: type[Painted]
) -> None:
    policy, env_config = policy_for(painted), {"length": 30}
    before = policy.generator.get_state()
    first, again = (shoot(painted, tmp_path, policy, env_config=env_config, explore=True) for _ in range(2))
    (greedy,) = shoot(painted, tmp_path, policy, env_config=env_config)
    assert first == again
    assert first[0]["episode_return"] != greedy["episode_return"]
    assert torch.equal(policy.generator.get_state(), before)


# --- what is refused --------------------------------------------------------------------------------------------------


class Blind(Painted):
    def __init__(self) -> None:
        super().__init__()


class Deaf(Painted):
    """Ignores its argument."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(None)


class Wordy(Painted):
    def render(self) -> Any:
        return "a picture"


class Flat(Painted):
    def render(self) -> Any:
        return np.zeros((3, 3), np.uint8)


class Broken(Painted):
    def render(self) -> Any:
        raise RuntimeError("no more colours")


class Unequipped(Painted):
    def render(self) -> Any:
        raise gym.error.DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[box2d]"`')


def plain_factory(env_config: dict[str, Any]) -> gym.Env:
    return Painted()


def vector_factory(env_config: dict[str, Any]) -> SyncVectorEnv:
    return SyncVectorEnv([Painted])


class Vector(SyncVectorEnv):
    def __init__(self, num_envs: int) -> None:
        super().__init__([Painted] * num_envs)


RENDERS = r"expected an env that renders with render_mode='rgb_array'"
SINGLE = r"expected a single env whose render_mode is 'rgb_array' and whose render\(\) returns uint8 \[H, W, 3\]"


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (Blind, rf"videos of env Blind: {RENDERS}, got TypeError: .+'render_mode'. An env is recorded if it takes"),
        (Deaf, rf"env Deaf: {SINGLE}, got render_mode None. .* passes env_config\['rend"),
        (plain_factory, rf"env plain_factory: {SINGLE}, got render_mode None"),
        (Wordy, rf"env Wordy: {SINGLE}, got a picture of <U9"),
        (Flat, rf"env Flat: {SINGLE}, got a picture of uint8 \(3, 3\)"),
        (Broken, rf"env Broken: {RENDERS}, got RuntimeError: no more colours. An env is recorded if"),
        (vector_factory, rf"env vector_factory: {SINGLE}, got SyncVectorEnv"),
        (Vector, rf"env Vector: {RENDERS}, got TypeError: Vector is no single env"),
        ("CliffWalking-v7", rf"videos of env CliffWalking-v7: {RENDERS}, got "),
    ],
)  # fmt: skip
def test_an_env_that_cannot_be_recorded_is_refused(env: Any, text: str, tmp_path: Path) -> None:
    policy = policy_for(Painted)
    for attempt in (
        lambda: shoot(env, tmp_path, policy),
        lambda: check_recording(config_for(env)),
        lambda: watch(policy, config_for(env), num_episodes=1, seed=1),
    ):
        with pytest.raises(RuntimeError, match=text):
            attempt()
    assert not [*tmp_path.iterdir()]


class Growing(Painted):
    """Renders a larger picture from step to step."""

    def render(self) -> Any:
        picture = super().render()
        self.row = getattr(self, "row", 0) + 1
        return np.concatenate([picture, picture[: self.row]])


def test_pictures_of_several_shapes_are_refused(tmp_path: Path) -> None:
    text = (
        r"videos of env Growing: expected render\(\) to return pictures of one shape, got \(.+\) and then \(.+\)\. Ren"
    )
    with pytest.raises(RuntimeError, match=text):
        shoot(Growing, tmp_path, policy_for(Painted))


def test_a_package_that_the_env_misses_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ImportError, match=r'got DependencyNotInstalled: pygame.+ Run: pip install "catalog-rl\[box2d\]"'
    ):
        shoot(Unequipped, tmp_path, policy_for(Painted))


CHECK = """
from algorithms.ppo import PPOConfig
from algorithms.run.video import check_recording
check_recording(PPOConfig(env="HalfCheetah-v5"))
"""


@pytest.mark.end_to_end
@pytest.mark.skipif("DISPLAY" in os.environ or "MUJOCO_GL" in os.environ, reason="it may render here")
def test_mujoco_without_a_display_names_its_setting() -> None:
    """A new process has not loaded the library of OpenGL yet, as windows of other tests do."""
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False, timeout=300)
    (error,) = re.findall("^RuntimeError: (.*)", done.stderr, re.MULTILINE)
    assert error.startswith("videos of env HalfCheetah-v5: ")
    assert " set MUJOCO_GL=egl or MUJOCO_GL=osmesa" in error


def test_a_missing_recorder_is_named_before_anything_is_played(
    tmp_path: Path, painted: type[Painted], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_for(painted)
    painted.seeds.clear()
    monkeypatch.setitem(sys.modules, "moviepy", None)
    for attempt in (lambda: shoot(painted, tmp_path / "videos", policy), lambda: check_recording(config_for(painted))):
        with pytest.raises(
            ImportError,
            match=r'videos: expected the package moviepy, got .+ Run: pip install "catalog-rl\[video\]"$',
        ):
            attempt()
    assert painted.seeds == []
    assert not [*tmp_path.iterdir()]


def test_an_episode_that_never_ends_is_given_up(
    tmp_path: Path, painted: type[Painted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video_module, "LIMIT", 50)
    assert shoot(painted, tmp_path, env_config={"length": 50})[0]["episode_len"] == 50
    with pytest.raises(
        RuntimeError, match=r"record_videos\(\): expected episodes .*, got one that did not in 50 steps"
    ):
        shoot(painted, tmp_path, env_config={"length": 51})
    assert painted.closed == 4
    assert [path.suffix for path in tmp_path.iterdir()] == [".mp4"]  # what was begun is gone


def test_the_choice_of_a_display_is_left_alone(
    tmp_path: Path, painted: type[Painted], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_for(painted)
    for chosen in (None, "dummy"):
        monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
        if chosen is not None:
            monkeypatch.setenv("SDL_VIDEODRIVER", chosen)
        shoot(painted, tmp_path, policy)
        assert os.environ.get("SDL_VIDEODRIVER") == chosen


# --- watching ---------------------------------------------------------------------------------------------------------


def test_what_is_watched_is_what_would_be_recorded(
    tmp_path: Path, painted: type[Painted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    painted.metadata = {"render_fps": 1000}
    policy = policy_for(painted)
    shown = watch(policy, config_for(painted), num_episodes=2, seed=1)
    assert shown == [(one["episode_return"], one["episode_len"]) for one in shoot(painted, tmp_path, policy, 2)]
    assert painted.closed == 3


def test_a_window_needs_a_display(painted: type[Painted], monkeypatch: pytest.MonkeyPatch) -> None:
    pygame.display.quit()  # SDL looks for a display when it is started, which another test may have done
    monkeypatch.setenv("SDL_VIDEODRIVER", "no such driver")
    with pytest.raises(
        RuntimeError, match=r"watch\(\): expected a display to open a window on, got .+ Record it instead"
    ):
        watch(policy_for(painted), config_for(painted), num_episodes=1, seed=1)
    assert painted.closed == 2


@pytest.mark.skipif("DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ, reason="there is a display")
def test_a_window_that_nobody_sees_is_none(painted: type[Painted], monkeypatch: pytest.MonkeyPatch) -> None:
    pygame.display.quit()
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    with pytest.raises(RuntimeError, match=r"watch\(\): expected a display"):
        watch(policy_for(painted), config_for(painted), num_episodes=1, seed=1)
