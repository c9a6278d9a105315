"""Ids of Atari's games become ale-py's own vector env, with rewards as the game gives them."""

from __future__ import annotations

import re
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlmodule.envs.atari import AtariGame, importing_id, is_atari
from rlmodule.envs.make import autoreset_mode, make_vector_env

ale_py = pytest.importorskip("ale_py")


@pytest.mark.parametrize(
    ("env", "is_one"),
    [
        ("ALE/Pong-v5", True),
        ("ale_py:ALE/Pong-v5", True),
        ("CartPole-v1", False),
        ("my_module:Pong", False),
        (dict, False),
    ],
)
def test_a_game_is_known_by_its_id(env: object, is_one: bool) -> None:
    assert is_atari(env) is is_one


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "ale_py:ALE/Pong-v5"])
def test_an_id_alone_is_prepared_and_stepped_as_one(env_id: str) -> None:
    env = make_vector_env(env_id, {}, 2)
    assert isinstance(env.unwrapped, ale_py.vector_env.AtariVectorEnv)
    assert env.single_observation_space == gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    assert env.single_action_space == gym.spaces.Discrete(6)
    assert autoreset_mode(env) is AutoresetMode.SAME_STEP
    env.close()


def test_its_options_are_those_of_env_config() -> None:
    options = {
        "stack_num": 2,
        "img_height": 42,
        "img_width": 40,
        "full_action_space": True,
        "autoreset_mode": "NextStep",
    }
    env = make_vector_env("ALE/Pong-v5", {**options, "repeat_action_probability": 0.0, "episodic_life": True}, 2)
    assert env.single_observation_space.shape == (2, 42, 40)
    assert env.single_action_space == gym.spaces.Discrete(18)
    assert autoreset_mode(env) is AutoresetMode.NEXT_STEP
    env.close()


def first_rewards(**env_config: object) -> set[float]:
    """Rewards of Asteroids, where anything hit pays more than 1."""
    env = make_vector_env("ALE/Asteroids-v5", {"img_height": 10, "img_width": 10, **env_config}, 2)
    env.reset(seed=1)
    rng, found = np.random.default_rng(0), set[float]()
    for _ in range(150):
        found |= {*env.step(rng.integers(0, 14, 2))[1].tolist()}
    env.close()
    return found


def test_rewards_are_the_games_unless_asked_otherwise() -> None:
    assert max(first_rewards()) > 1
    assert max(first_rewards(reward_clipping=True)) == 1


def test_the_same_seed_plays_the_same_game() -> None:
    def play(seed: int) -> np.ndarray:
        env = make_vector_env("ALE/Pong-v5", {"img_height": 10, "img_width": 10}, 2)
        env.reset(seed=seed)
        seen = [env.step(np.array([2, 3]))[0].copy() for _ in range(40)]
        env.close()
        return np.stack(seen)

    assert np.array_equal(play(3), play(3))
    assert not np.array_equal(play(3), play(4))


def test_one_game_plays_as_the_vector_env_does_and_shows_its_newest_frame() -> None:
    config = {"img_height": 12, "img_width": 10, "max_num_frames_per_episode": 120}
    game = AtariGame("ALE/Pong-v5", {**config, "render_mode": "rgb_array"})
    env = make_vector_env("ALE/Pong-v5", config, 1)
    assert (game.observation_space, game.action_space) == (env.single_observation_space, env.single_action_space)
    obs, _ = game.reset(seed=5)
    assert np.array_equal(obs, env.reset(seed=5)[0][0])
    terminated = truncated = False
    while not (terminated or truncated):
        obs, reward, terminated, truncated, _ = game.step(2)
        theirs = env.step(np.array([2]))
        ended = terminated or truncated
        assert (reward, terminated, truncated) == (theirs[1][0], theirs[2][0], theirs[3][0])
        assert np.array_equal(obs, theirs[4]["final_obs"][0] if ended else theirs[0][0])
    assert truncated
    picture = game.render()
    assert picture.shape == (48, 40, 3)
    assert np.array_equal(picture[::4, ::4, 1], obs[-1])
    game.close()
    env.close()


def test_a_picture_before_the_game_began_is_refused() -> None:
    game = AtariGame("ALE/Pong-v5", {"img_height": 10, "img_width": 10, "render_mode": "rgb_array"})
    with pytest.raises(
        RuntimeError, match=r"^AtariGame\.render\(\): expected a game that has started, got .* Call reset"
    ):
        game.render()
    game.reset(seed=3)
    assert game.render().shape[-1] == 3
    game.close()


def test_a_seed_may_be_one_of_numpys_integers() -> None:
    game = AtariGame("ALE/Pong-v5", {"img_height": 10, "img_width": 10})
    first, same = (game.reset(seed=seed)[0].copy() for seed in (3, np.int64(3)))  # type: ignore[arg-type]
    assert np.array_equal(first, same)
    game.close()


def test_in_turn_by_name_are_the_games_as_gymnasium_makes_them() -> None:
    env = make_vector_env("ALE/Pong-v5", {"obs_type": "grayscale"}, 1, "sync")
    assert isinstance(env, SyncVectorEnv)
    assert env.single_observation_space.shape == (210, 160)
    env.close()


@pytest.mark.parametrize("setting", ["frame_skip", "obs_type"])
def test_an_unknown_option_is_named(setting: str) -> None:
    suggests = setting == "frame_skip" and sys.version_info >= (3, 13)  # Python itself, as part of its error
    suggestion = r" Did you mean 'frameskip'\." if suggests else ""
    remedy = r"Check env_config .* or for a game as it is, set another mode"
    with pytest.raises(RuntimeError, match=rf"'{setting}'\.{suggestion} {remedy}"):
        make_vector_env("ALE/Pong-v5", {setting: 2}, 1)


def test_an_unknown_game_is_told_the_closest() -> None:
    with pytest.raises(ValueError, match=r"env 'ALE/Pongg-v5': .* Did you mean 'ALE/Pong-v5'\?"):
        make_vector_env("ALE/Pongg-v5", {}, 1)


def test_without_ale_py_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    for name in [name for name in gym.registry if name.startswith("ALE/")]:
        monkeypatch.delitem(gym.registry, name)
    assert importing_id("ALE/Pong-v5") == "ale_py:ALE/Pong-v5"
    with pytest.raises(ImportError, match=re.escape('pip install "catalog-rl[atari]"')):
        make_vector_env("ALE/Pong-v5", {}, 1)
