"""Evaluation: what is played and counted, that training does not notice, and what is asked of its arguments."""

import io
import math
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import algorithms.run.evaluation as evaluation_module
import algorithms.run.progress as progress_module
from algorithms import Algorithm
from algorithms.dqn import DQNConfig
from algorithms.ppo import PPO, PPOConfig
from algorithms.run.callbacks import FinishedEpisode
from algorithms.run.evaluation import evaluation_config
from rlmodule.testing.data import clone, differences

KEYS = [
    "episode_return_mean", "episode_return_min", "episode_return_max", "episode_len_mean", "episode_return_std",
    "num_episodes", "num_env_steps",
]  # fmt: skip


def build(env: Any = "CartPole-v1", **settings: Any) -> PPO:
    small: dict[str, Any] = {
        "num_envs_per_env_runner": 2,
        "train_batch_size_per_learner": 64,
        "seed": 3,
        "minibatch_size": 32,
    }
    small |= {"num_epochs": 2, "model_config": {"fcnet_hiddens": [8]}}
    algorithm = PPOConfig(env=env, **small | settings).build()
    assert isinstance(algorithm, PPO)
    return algorithm


class Lengths(gym.Env):
    """Env i plays episodes of its own length; each made one gets the next number. An action is worth its number."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 30}
    lengths: ClassVar[tuple[float, ...]] = (2, 7, 30)
    made: ClassVar[int] = 0
    seeds: ClassVar[list[int | None]] = []
    actions: ClassVar[set[int]] = set()
    closed: ClassVar[int] = 0
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, reward: float = 1.0) -> None:
        self.render_mode, self.reward = render_mode, reward
        self.length = self.lengths[type(self).made % len(self.lengths)]
        type(self).made += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.seeds.append(seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.actions.add(int(action))
        return np.zeros(2, np.float32), self.reward, self.t >= self.length, False, {"t": self.t}

    def render(self) -> Any:
        return np.zeros((16, 16, 3), np.uint8)

    def close(self) -> None:
        type(self).closed += 1


def new_lengths(*lengths: float) -> type[Lengths]:
    own = {"made": 0, "closed": 0, "seeds": [], "actions": set(), "lengths": lengths or Lengths.lengths}
    return type("Lengths", (Lengths,), own)


@pytest.fixture
def lengths() -> type[Lengths]:
    return new_lengths()


# --- what is played ---------------------------------------------------------------------------------------------------


def test_it_is_in_the_results_of_its_iterations() -> None:
    with build(evaluation_interval=2, evaluation_duration=2) as algorithm:
        results = [algorithm.train() for _ in range(4)]
    assert ["evaluation" in result for result in results] == [False, True, False, True]
    assert list(results[1]["evaluation"]) == ["env_runners"]
    evaluated = results[1]["evaluation"]["env_runners"]
    assert list(evaluated) == KEYS
    assert evaluated["num_episodes"] == 2


def test_each_env_plays_an_equal_share(lengths: type[Lengths]) -> None:
    with build(lengths, num_envs_per_env_runner=3, train_batch_size_per_learner=66, evaluation_duration=7) as algorithm:
        result = algorithm.evaluate()["env_runners"]
    # three in the first env, two in each other one
    assert result["num_episodes"] == 7
    assert result["episode_len_mean"] == pytest.approx((3 * 2 + 2 * 7 + 2 * 30) / 7)
    assert (result["episode_return_min"], result["episode_return_max"]) == (2, 30)
    squares = [(length - result["episode_len_mean"]) ** 2 for length in (2, 2, 2, 7, 7, 30, 30)]
    assert result["episode_return_std"] == pytest.approx((sum(squares) / 7) ** 0.5)
    assert result["num_env_steps"] == 3 * evaluation_module.FRAGMENT  # played, whether they count or not


@hypothesis_settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 12), st.integers(1, 7))
def test_the_share_of_each_env_is_its_first_episodes(lengths: list[int], count: int, fragment: int) -> None:
    env, envs = new_lengths(*lengths), len(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation_module, "FRAGMENT", fragment)
        seen: list[FinishedEpisode] = []
        with build(
            env,
            num_envs_per_env_runner=envs,
            train_batch_size_per_learner=8 * envs,
            minibatch_size=8,
            on_episode_end=lambda algorithm, episode: seen.append(episode),
        ) as algorithm:
            result = algorithm.evaluate(num_episodes=count)["env_runners"]
    shares = [count // envs + (i < count % envs) for i in range(envs)]
    played = [length for length, share in zip(lengths, shares, strict=True) for _ in range(share)]
    assert sorted(e.length for e in seen) == sorted(played)
    assert [sum(e.env_index == i for e in seen) for i in range(envs)] == shares
    assert all(e.in_evaluation and e.info == {"t": e.length} for e in seen)
    assert (result["num_episodes"], result["episode_len_mean"]) == (count, pytest.approx(sum(played) / count))
    # the env whose share takes longest decides how many steps are played
    longest = max(length * share for length, share in zip(lengths, shares, strict=True))
    assert result["num_env_steps"] == envs * fragment * math.ceil(longest / fragment)


@pytest.mark.parametrize(("asked", "steps"), [(1, 3), (12, 12), (13, 15), (300, 300)])
def test_steps_are_those_of_all_envs_together_and_count_what_ends_in_them(
    asked: int, steps: int, lengths: type[Lengths]
) -> None:
    with build(lengths, num_envs_per_env_runner=3, train_batch_size_per_learner=66, minibatch_size=33) as algorithm:
        result = algorithm.evaluate(num_env_steps=asked)["env_runners"]
    each = steps // 3
    assert result["num_env_steps"] == steps
    assert result["num_episodes"] == each // 2 + each // 7 + each // 30
    if asked == 1:
        assert math.isnan(result["episode_return_mean"])


def test_the_settings_say_how_long_unless_the_call_does(lengths: type[Lengths]) -> None:
    with build(lengths, evaluation_duration=40, evaluation_duration_unit="timesteps") as algorithm:
        assert algorithm.evaluate()["env_runners"]["num_env_steps"] == 40
        assert algorithm.evaluate(num_episodes=3)["env_runners"]["num_episodes"] == 3
        assert algorithm.evaluate(num_env_steps=np.int64(10))["env_runners"]["num_env_steps"] == 10  # type: ignore[arg-type]
    with build(lengths, evaluation_duration=3) as algorithm:
        assert algorithm.evaluate()["env_runners"]["num_episodes"] == 3
        assert algorithm.evaluate(num_env_steps=10)["env_runners"]["num_env_steps"] == 10


def test_steps_in_which_an_env_is_only_reset_are_none() -> None:
    lengths = new_lengths(2, 3)

    def vector(env_config: dict[str, Any]) -> SyncVectorEnv:
        return SyncVectorEnv([lengths, lengths], autoreset_mode=AutoresetMode.NEXT_STEP)

    with build(vector) as algorithm:
        result = algorithm.evaluate(num_env_steps=24)["env_runners"]
    # the first env rests in every third row, the second in every fourth: rows 0 to 16 hold 12 and 13 steps
    assert (result["num_env_steps"], result["num_episodes"]) == (25, 6 + 4)


def test_it_has_its_own_envs_and_fresh_seeds(lengths: type[Lengths]) -> None:
    with build(lengths, evaluation_duration=2) as algorithm:
        algorithm.train()
        assert lengths.made == 2
        trained = len(lengths.seeds)
        for _ in range(2):
            algorithm.evaluate()
        assert lengths.made == 4
        assert len(lengths.seeds) == len(set(lengths.seeds)) > trained
    assert lengths.closed == 4


def test_it_may_have_another_number_of_envs(lengths: type[Lengths]) -> None:
    with build(lengths, evaluation_num_envs=3, evaluation_duration=3) as algorithm:
        algorithm.train()
        algorithm.evaluate()
        assert lengths.made == 2 + 3
        assert algorithm.env_runner_group.local_runner.num_envs == 2


@pytest.mark.parametrize("how", ["class", "factory"])
def test_it_may_have_another_env_config(how: str) -> None:
    lengths, given = new_lengths(5), []

    def factory(env_config: dict[str, Any]) -> Lengths:
        given.append(dict(env_config))
        return lengths(**env_config)

    env: Any = lengths if how == "class" else factory
    with build(env, env_config={"reward": 2.0}, evaluation_env_config={"reward": 3.0}) as algorithm:
        assert algorithm.train()["env_runners"]["episode_return_mean"] == 10
        assert algorithm.evaluate(num_episodes=2)["env_runners"]["episode_return_mean"] == 15
        assert algorithm.train()["env_runners"]["episode_return_mean"] == 10
    assert given == ([] if how == "class" else [{"reward": 2.0}] * 2 + [{"reward": 3.0}] * 2)


def test_another_gravity_is_another_env() -> None:
    gravities: list[float] = []

    def note(env: gym.vector.VectorEnv, in_evaluation: bool) -> None:
        assert isinstance(env, SyncVectorEnv)
        gravities.extend(each.unwrapped.g for each in env.envs)  # type: ignore[attr-defined]

    config: dict[str, Any] = {"env_config": {"g": 10.0}, "evaluation_env_config": {"g": 1.5}, "evaluation_duration": 2}
    with build("Pendulum-v1", on_environment_created=note, **config) as algorithm:
        algorithm.evaluate()
    assert gravities == [10.0, 10.0, 1.5, 1.5]


class Sized(Lengths):
    """Its spaces depend on its config."""

    def __init__(self, obs: int = 2, high: float = 1.0, actions: int = 2) -> None:
        super().__init__()
        self.num_obs = obs
        self.observation_space = spaces.Dict({"seen": spaces.Box(-1, high, (obs,), np.float32)})
        self.action_space = spaces.Discrete(actions)

    def reset(self, **kwargs: Any) -> Any:
        return self.wide(super().reset(**kwargs))

    def step(self, action: Any) -> Any:
        return self.wide(super().step(action))

    def wide(self, result: tuple[Any, ...]) -> Any:
        return {"seen": np.zeros(self.num_obs, np.float32)}, *result[1:]


@pytest.mark.parametrize(
    ("env_config", "got"),
    [({"obs": 3}, r"got Tuple\(Dict\(seen: Box\(3\) .*, Discrete\(2\)\)"), ({"actions": 5}, r"got .*Discrete\(5\)\)")],
)
def test_an_env_with_other_spaces_is_refused_and_closed_each_time(env_config: dict[str, int], got: str) -> None:
    sized: Any = type("Sized", (Sized,), {"made": 0, "closed": 0, "lengths": (3,)})
    with build(sized, evaluation_env_config=env_config, evaluation_duration=2) as algorithm:
        for number in (1, 2):
            with pytest.raises(ValueError, match=rf"^evaluation_env_config: expected an env with the spaces .*, {got}"):
                algorithm.evaluate()
            assert (sized.made, sized.closed) == (2 + 2 * number, 2 * number)
        assert algorithm.get_state()["evaluation"] is None
        algorithm.train()


def test_the_bounds_of_observations_may_differ() -> None:
    sized: Any = type("Sized", (Sized,), {"made": 0, "closed": 0, "lengths": (3,)})
    with build(sized, evaluation_env_config={"high": 9.0}) as algorithm:
        assert algorithm.evaluate(num_episodes=2)["env_runners"]["episode_len_mean"] == 3


@pytest.mark.parametrize("explore", [True, False])
def test_it_is_greedy_unless_told(explore: bool) -> None:
    lengths = new_lengths(20)
    with build(lengths, evaluation_explore=explore, evaluation_duration=4) as algorithm:
        algorithm.evaluate()
        assert len(lengths.actions) == (2 if explore else 1)
        algorithm.evaluate(explore=True)
        assert len(lengths.actions) == 2


@pytest.mark.parametrize("ends", [False, True])
def test_episodes_that_do_not_end_are_given_up_even_if_others_do(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_module, "LIMIT", 640)
    with build(new_lengths(3 if ends else math.inf, math.inf)) as algorithm:
        with pytest.raises(
            RuntimeError,
            match=r"evaluate\(\): expected episodes that end, got none that counts .+ 640 steps .+TimeLimit",
        ):
            algorithm.evaluate(num_episodes=4)
        result = algorithm.evaluate(num_env_steps=100)["env_runners"]  # which is what the error names
    assert result["num_env_steps"] == 100


# --- training does not notice -----------------------------------------------------------------------------------------


def everything(state: dict[str, Any]) -> dict[str, Any]:
    """A state but for how long things took, and what an evaluation itself leaves."""
    untimed = {"seconds": 0.0, "best_evaluation": None, "last_evaluation": None, "evaluated_at": None}
    return {**state, "metrics": state["metrics"] | untimed, "evaluation": None}


def test_training_is_the_same_to_the_bit_with_evaluations_and_videos(tmp_path: Path) -> None:
    watched: dict[str, Any] = {
        "evaluation_interval": 1,
        "evaluation_duration": 2,
        "evaluation_num_videos": 1,
        "run_dir": None,
    }
    states = []
    for settings in ({}, watched | {"run_dir": str(tmp_path / "run"), "evaluation_explore": True}):
        with build(**settings) as algorithm:
            for _ in range(3):
                algorithm.train()
            states.append(clone(everything(algorithm.get_state())))
    assert differences(*states) == []
    assert len([*tmp_path.glob("run/videos/*/*.mp4")]) == 3


def test_noisy_nets_train_the_same_too(tmp_path: Path) -> None:
    states = []
    for look in (False, True):
        config = DQNConfig(
            env="CartPole-v1", num_envs_per_env_runner=2, seed=1, noisy=True, train_batch_size_per_learner=8
        )
        config.update({"num_steps_sampled_before_learning_starts": 20, "num_env_steps_per_iteration": 40})
        config.training(training_intensity=None)
        with config.build() as algorithm:
            for index in range(3):
                algorithm.train()
                if look:
                    algorithm.evaluate(num_episodes=2, explore=True, num_videos=1, video_dir=tmp_path / str(index))
            states.append(clone(everything(algorithm.get_state())))
    assert differences(*states) == []


def test_videos_change_no_figure(tmp_path: Path) -> None:
    results = []
    for num_videos in (0, 2):
        with build(evaluation_explore=True, run_dir=str(tmp_path)) as algorithm:
            results.append([algorithm.evaluate(num_episodes=3, num_videos=num_videos) for _ in range(2)])
    plain, recorded = results
    assert [list(result) for result in recorded] == [["env_runners", "videos"]] * 2
    assert [result["env_runners"] for result in recorded] == [result["env_runners"] for result in plain]


# --- videos -----------------------------------------------------------------------------------------------------------


def test_videos_stand_in_the_run_folder_by_step(tmp_path: Path) -> None:
    lengths = new_lengths(4)
    with build(lengths, run_dir=str(tmp_path / "run"), evaluation_interval=1, evaluation_num_videos=2) as algorithm:
        results = [algorithm.train()["evaluation"] for _ in range(2)]
        assert lengths.made == 2 + 1 + 1 + 2 + 1  # one is looked at before the run begins
    for result, step in zip(results, ("step-0000000064", "step-0000000128"), strict=True):
        paths = [tmp_path / "run" / "videos" / step / f"episode-{i}-return-4.mp4" for i in range(2)]
        assert result["videos"] == [{"path": str(path), "episode_return": 4.0, "episode_len": 4} for path in paths]
        assert all(path.stat().st_size for path in paths)
    assert lengths.closed == lengths.made


def test_videos_go_where_the_call_says(tmp_path: Path) -> None:
    with build(new_lengths(4), run_dir=str(tmp_path / "run"), evaluation_duration=1) as algorithm:
        (video,) = algorithm.evaluate(num_videos=1, video_dir=tmp_path / "videos")["videos"]
    assert video["path"] == str(tmp_path / "videos" / "episode-0-return-4.mp4")
    assert not (tmp_path / "run").exists()


def test_a_run_that_could_not_be_recorded_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind(Lengths):
        def render(self) -> None:
            return None

    settings: dict[str, Any] = {"run_dir": str(tmp_path / "run"), "evaluation_interval": 9, "evaluation_num_videos": 1}
    with (
        build(Blind, **settings) as algorithm,
        pytest.raises(RuntimeError, match=r"videos of env Blind: expected a single env .* got a pict"),
    ):
        algorithm.train()
    monkeypatch.setitem(sys.modules, "moviepy", None)
    with build(**settings) as algorithm, pytest.raises(ImportError, match=r"catalog-rl\[video\]"):
        algorithm.train()
    assert algorithm.env_steps == 0
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_recorded_is_found_before_anything_is_played(tmp_path: Path, lengths: type[Lengths]) -> None:
    (tmp_path / "file").write_text("")
    with build(lengths) as algorithm:
        with pytest.raises(OSError, match=r"File exists: '.+file'"):
            algorithm.evaluate(num_videos=1, video_dir=tmp_path / "file")
        assert not lengths.actions


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"num_episodes": 2, "num_env_steps": 5}, r"evaluate\(\): expected one of num_episodes and num_env_steps"),
        ({"num_episodes": 0}, r"evaluate\(num_episodes=\): expected finite int, >= 1, got 0\."),
        ({"num_episodes": True}, r"num_episodes=\): expected int, >= 1, got True"),
        ({"num_episodes": 2.0}, r"num_episodes=\): expected int, >= 1, got 2\.0"),
        ({"num_env_steps": -3}, r"num_env_steps=\): expected finite int, >= 1, got -3"),
        ({"num_videos": -1}, r"num_videos=\): expected finite int, >= 0, got -1"),
        ({"num_videos": "2"}, r"num_videos=\): expected int, >= 0, got '2'"),
        ({"explore": "no"}, r"evaluate\(explore=\): expected bool, got 'no'"),
        ({"num_videos": 1}, r"video_dir=\): expected a folder for the videos, got None\. Pass video_dir='videos'"),
        ({"video_dir": "videos"}, r"num_videos=\): expected videos for video_dir='videos', got none\. Pass num"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_refused(wrong: dict[str, Any], text: str, lengths: type[Lengths]) -> None:
    with build(lengths) as algorithm:
        with pytest.raises((TypeError, ValueError), match=text):
            algorithm.evaluate(**wrong)
        assert lengths.made == 2


def test_the_settings_fill_up_what_the_call_leaves_out() -> None:
    config = PPOConfig(run_dir="run", evaluation_num_videos=2, evaluation_explore=True, evaluation_duration=7)
    assert evaluation_config(config, None, None, None, None, None) == config
    given = evaluation_config(config, None, 9, False, 0, None)
    changed = {"evaluation_duration": 9, "evaluation_duration_unit": "timesteps", "evaluation_explore": False}
    assert given == config.copy().update(changed | {"evaluation_num_videos": 0})
    assert evaluation_config(given, 3, None, None, None, None).evaluation_duration_unit == "episodes"


# --- state ------------------------------------------------------------------------------------------------------------


def test_it_has_fresh_seeds_after_loading(tmp_path: Path, lengths: type[Lengths]) -> None:
    with build(lengths, evaluation_duration=2) as algorithm:
        algorithm.evaluate()
        algorithm.save(tmp_path / "c")
    with Algorithm.from_checkpoint(tmp_path / "c", env=lengths) as other:
        other.evaluate()
    assert len(lengths.seeds) == len(set(lengths.seeds))


def test_a_checkpoint_may_be_evaluated_in_another_number_of_envs(tmp_path: Path, lengths: type[Lengths]) -> None:
    with build(lengths, evaluation_duration=2) as algorithm:
        algorithm.evaluate()
        algorithm.save(tmp_path / "c")
    with Algorithm.from_checkpoint(tmp_path / "c", env=lengths, evaluation_num_envs=5) as other:
        assert other.evaluate(num_episodes=5)["env_runners"]["num_episodes"] == 5
    assert len(lengths.seeds) == len(set(lengths.seeds))  # those of before go on, and repeat nothing


def test_going_back_to_a_state_goes_back_in_the_evaluations_too() -> None:
    with build() as algorithm:
        states = [clone(algorithm.get_state())]
        results = []
        for _ in range(2):
            results.append(algorithm.evaluate(num_episodes=4, explore=True))
            states.append(clone(algorithm.get_state()))
        for state, expected in zip(states[:2], results, strict=True):
            algorithm.set_state(state)
            assert algorithm.evaluate(num_episodes=4, explore=True) == expected


# --- progress ---------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with build(new_lengths(40)) as algorithm:
        algorithm.evaluate(num_episodes=4, num_videos=2, video_dir=tmp_path, progress=True)
        assert capfd.readouterr() == ("", "")
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(progress_module, "SECONDS_BETWEEN_REDRAWS", 0.0)
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setenv("TERM", "xterm")
        algorithm.evaluate(num_episodes=4, num_videos=2, video_dir=tmp_path, progress=True)
        algorithm.evaluate(num_env_steps=200, progress=True)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    printed = [
        "recorded 1/2 episodes", "recorded 2/2 episodes", "evaluated 2/4 episodes", "evaluated 4/4 episodes",
        "evaluated 128/200 steps", "evaluated 200/200 steps",
    ]  # fmt: skip
    assert [shown.index(text) for text in printed] == sorted(shown.index(text) for text in printed)
