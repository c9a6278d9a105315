"""Callbacks: what is called when and with what, what it costs, and what goes wrong by name."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from algorithms import Algorithm
from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOConfig
from algorithms.registry import ALGORITHMS, config_class
from algorithms.run import evaluation
from algorithms.run.callbacks import (
    CALLBACK_SETTINGS,
    CALLBACKS,
    CallbackCaller,
    Callbacks,
    FinishedEpisode,
    finished_episodes,
)
from catalog.settings import settings_of
from catalog_rl import remedies
from rlmodule import EnvRunner, Rollout
from rlmodule.testing.data import differences


class Lengths(gym.Env[Any, Any]):
    """Its n-th episode has n steps, of reward 1 each; wins the even ones."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)  # type: ignore[assignment]
    episode = 0
    closed: ClassVar[list[Any]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        ends = self.t >= self.episode
        return np.zeros(2, np.float32), 1.0, ends, False, {"won": self.episode % 2 == 0} if ends else {}

    def close(self) -> None:
        self.closed.append(self)


def parameters_of(name: str) -> list[str]:
    """What the callback ``name`` is called with, by keyword."""
    return [*inspect.signature(vars(Callbacks)[name]).parameters][1:]


def config_for(env: Any = "CartPole-v1", **settings: Any) -> PPOConfig:
    settings = {"num_envs_per_env_runner": 2, "train_batch_size_per_learner": 32, "seed": 3} | settings
    settings = {"minibatch_size": 16, "num_epochs": 1, "model_config": {"fcnet_hiddens": [8]}} | settings
    return PPOConfig(env=env, evaluation_duration=2, **settings)


class Seen:
    """A function for each callback, and what they were called with, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def functions(self, *names: str) -> dict[str, Callable[..., None]]:
        return {name: functools.partial(self._note, name) for name in names or CALLBACKS}

    def _note(self, name: str, **arguments: Any) -> None:
        self.calls.append((name, arguments))

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def of(self, name: str) -> list[dict[str, Any]]:
        return [arguments for called, arguments in self.calls if called == name]


# --- when and with what -----------------------------------------------------------------------------------------------


def test_everything_is_called_in_its_order(tmp_path: Path) -> None:
    seen = Seen()
    with config_for(Lengths, evaluation_interval=1, **seen.functions()).build() as algorithm:
        assert seen.names() == ["on_environment_created"]
        algorithm.train()
        algorithm.save(tmp_path / "c")
    names = seen.names()
    # in 16 steps of each of two envs the episodes of 1, 2, 3, 4 and 5 steps end
    expected = ["on_environment_created", "on_sample_end", *["on_episode_end"] * 10]
    # an evaluation makes its envs, and plays an episode in each
    expected += ["on_environment_created", "on_episode_end", "on_episode_end", "on_evaluate_end"]
    assert names == [*expected, "on_train_result", "on_checkpoint"]
    for name, arguments in seen.calls:
        assert set(arguments) == {*parameters_of(name)}


def test_what_they_are_told() -> None:
    seen = Seen()
    with config_for(Lengths, evaluation_interval=1, **seen.functions()).build() as algorithm:
        result = algorithm.train()
        (rollout,) = (message["rollout"] for message in seen.of("on_sample_end"))
        assert isinstance(rollout, Rollout)
        assert rollout.shape == (16, 2)
        made = seen.of("on_environment_created")
        assert [message["in_evaluation"] for message in made] == [False, True]
        assert made[0]["env"] is algorithm.env_runner_group.local_runner.env
        assert all(message.get("algorithm", algorithm) is algorithm for _, message in seen.calls)
        assert seen.of("on_train_result")[0]["result"] is result
        assert seen.of("on_evaluate_end")[0]["evaluation"] is result["evaluation"]


def test_episodes_come_with_their_last_info_in_order_of_time() -> None:
    episodes: list[FinishedEpisode] = []
    config = config_for(Lengths, on_episode_end=lambda algorithm, episode: episodes.append(episode))
    with config.build() as algorithm:
        algorithm.train()
        message = [(e.env_index, e.length, e.episode_return, e.info) for e in episodes]
        assert message == [(env, n, float(n), {"won": n % 2 == 0}) for n in range(1, 6) for env in (0, 1)]
        assert not any(e.in_evaluation for e in episodes)
        episodes.clear()
        algorithm.evaluate(num_episodes=3)
    # the first env plays two of the three
    assert [(e.env_index, e.length, e.info) for e in episodes] == [
        (0, 1, {"won": False}),
        (1, 1, {"won": False}),
        (0, 2, {"won": True}),
    ]
    assert all(e.in_evaluation for e in episodes)


def test_episodes_have_the_index_of_their_env_in_the_run() -> None:
    """Runners of two envs each: those of the third have the indices 4 and 5."""
    with config_for(Lengths).build() as algorithm:
        runner = EnvRunner(algorithm.config, run_seed=3, first_env_index=4)
        runner.set_module(algorithm.env_runner_group.module)
        rollout = runner.sample(3)
        runner.stop()
    assert [(e.env_index, e.length) for e in finished_episodes(rollout, in_evaluation=False)] == [
        (4, 1), (5, 1), (4, 2), (5, 2),
    ]  # fmt: skip


def test_one_object_is_made_for_a_run_when_it_is_built() -> None:
    class Counting(Callbacks):
        made: ClassVar[list[Counting]] = []
        heard: ClassVar[list[Any]] = []

        def __init__(self) -> None:
            self.made.append(self)

        def on_episode_end(self, *, algorithm: Algorithm, episode: FinishedEpisode) -> None:
            self.heard.append(self)

        def on_evaluate_end(self, *, algorithm: Algorithm, evaluation: dict[str, Any]) -> None:
            self.heard.append(self)

    config = config_for(Lengths).callbacks(Counting)
    config.validate()
    assert config.records_episode_infos
    config.copy().freeze()
    config.for_evaluation()
    assert not Counting.made
    with config.build() as algorithm:
        algorithm.train()
        algorithm.evaluate()
    assert len(Counting.made) == 1
    assert len(Counting.heard) == 10 + 2 + 1
    assert all(heard is Counting.made[0] for heard in Counting.heard)


def test_a_class_and_functions_go_together_the_class_first() -> None:
    called = []

    class Both(Callbacks):
        def on_train_result(self, *, algorithm: Algorithm, result: dict[str, Any]) -> None:
            called.append("class")
            result["from class"] = 1

    def after(algorithm: Algorithm, result: dict[str, Any]) -> None:
        called.append("function")
        result["from function"] = result["from class"] + 1

    with config_for().callbacks(Both, on_train_result=after).build() as algorithm:
        result = algorithm.train()
    assert called == ["class", "function"]
    assert result["from function"] == 2


def test_static_class_and_inherited_methods_listen_too() -> None:
    called = []

    class Mixin:
        def on_train_result(self, **message: Any) -> None:
            called.append("mixin")

    class Base(Callbacks):
        @staticmethod
        def on_sample_end(algorithm: Algorithm, rollout: Rollout) -> None:  # type: ignore[override]
            called.append("static")

    class Derived(Mixin, Base):
        @classmethod
        def on_evaluate_end(cls, *, algorithm: Algorithm, evaluation: dict[str, Any]) -> None:
            called.append(cls.__name__)

    with config_for(evaluation_interval=1).callbacks(Derived).build() as algorithm:
        algorithm.train()
    assert called == ["static", "Derived", "mixin"]


# --- what it costs, and what it changes -------------------------------------------------------------------------------


def test_a_run_without_callbacks_calls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def count(self: CallbackCaller, name: str, **arguments: Any) -> None:
        calls.append(name)

    with config_for().build() as algorithm:
        assert not algorithm.config.records_episode_infos
        monkeypatch.setattr(CallbackCaller, "call", count)
        monkeypatch.setattr("algorithms.run.callbacks.finished_episodes", calls.append)
        monkeypatch.setattr(evaluation, "FinishedEpisode", calls.append)
        algorithm.training_step()
        assert calls == []
        rollouts = [algorithm.sample() for _ in range(4)]
    assert any(len(rollout.stats["episode_returns"]) for rollout in rollouts)
    assert not any("episode_infos" in rollout.stats for rollout in rollouts)


def test_only_who_hears_of_episodes_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("algorithms.run.callbacks.finished_episodes", made.append)
    seen = Seen()
    with config_for(**seen.functions("on_sample_end", "on_train_result")).build() as algorithm:
        algorithm.train()
    assert seen.names() == ["on_sample_end", "on_train_result"]
    assert not made


@pytest.mark.parametrize("algo", [PPOConfig, DQNConfig])
def test_callbacks_change_no_weight(algo: Any) -> None:
    def disturb(**message: Any) -> None:
        torch.rand(3)
        np.random.rand(3)

    def play(algorithm: Algorithm, result: dict[str, Any]) -> None:
        algorithm.evaluate(num_episodes=1)
        algorithm.policy.act(np.zeros(4), explore=False)

    settings = settings_of(algo)
    quick = {"num_steps_sampled_before_learning_starts": 40, "num_env_steps_per_iteration": 60, "minibatch_size": 16}
    small = {name: value for name, value in quick.items() if name in settings}
    states = []
    for functions in ({}, {**dict.fromkeys(CALLBACKS, disturb), "on_train_result": play}):
        config = algo(env="CartPole-v1", train_batch_size_per_learner=32, num_envs_per_env_runner=2, seed=5, **small)
        with config.callbacks(**functions).build() as algorithm:
            for _ in range(3):
                algorithm.train()
            states.append(algorithm.get_state()["learners"])
    assert differences(*states) == []


# --- numbers of your own ---------------------------------------------------------------------------------------------


def test_what_is_logged_in_an_iteration_is_its_mean() -> None:
    def note(algorithm: Algorithm, episode: FinishedEpisode) -> None:
        algorithm.metrics.log_value("won", episode.info["won"])
        algorithm.metrics.log_value("length", episode.length)

    with config_for(Lengths, evaluation_interval=2, on_episode_end=note).build() as algorithm:
        first, second = algorithm.train(), algorithm.train()
    # two envs play 1, 2, 3, 4, 5 steps in the first 16, then 6 and 7 in the next; an evaluation plays 1 in each
    assert first["custom_metrics"] == {"won": 2 / 5, "length": 3.0}
    assert second["custom_metrics"] == {"won": 1 / 2, "length": 6.5}
    assert second["evaluation"]["custom_metrics"] == {"won": 0.0, "length": 1.0}


def test_what_is_logged_when_a_result_is_complete_is_part_of_it() -> None:
    def early(algorithm: Algorithm, rollout: Rollout) -> None:
        algorithm.metrics.log_value("steps", rollout.num_env_steps)

    def late(algorithm: Algorithm, result: dict[str, Any]) -> None:
        assert result["custom_metrics"] == {"steps": 32.0}
        algorithm.metrics.log_value("late", 7)

    def judged(algorithm: Algorithm, evaluation: dict[str, Any]) -> None:
        algorithm.metrics.log_value("judged", 9)

    config = config_for(evaluation_interval=2, on_sample_end=early, on_train_result=late, on_evaluate_end=judged)
    with config.build() as algorithm:
        first, second = algorithm.train(), algorithm.train()
    assert first["custom_metrics"] == second["custom_metrics"] == {"steps": 32.0, "late": 7.0}
    assert second["evaluation"]["custom_metrics"] == {"judged": 9.0}


def test_what_is_logged_between_iterations_belongs_to_the_next(tmp_path: Path) -> None:
    with config_for().build() as algorithm:
        algorithm.metrics.log_value("mine", 1)
        assert algorithm.train()["custom_metrics"] == {"mine": 1.0}
        assert "custom_metrics" not in algorithm.train()
        algorithm.metrics.log_value("mine", 2)
        assert "custom_metrics" not in algorithm.evaluate()
        algorithm.save(tmp_path / "c")
        assert algorithm.train()["custom_metrics"] == {"mine": 2.0}
    with Algorithm.from_checkpoint(tmp_path / "c") as other:
        assert "custom_metrics" not in other.train()


def test_what_callbacks_change_in_means_stays() -> None:
    def note(algorithm: Algorithm, episode: FinishedEpisode) -> None:
        algorithm.metrics.log_value("won", 0.5)

    def in_percent(result: dict[str, Any]) -> None:
        result["custom_metrics"]["won"] *= 100

    config = config_for(
        Lengths,
        evaluation_interval=1,
        on_episode_end=note,
        on_train_result=lambda algorithm, result: in_percent(result),
        on_evaluate_end=lambda algorithm, evaluation: in_percent(evaluation),
    )
    with config.build() as algorithm:
        result = algorithm.train()
    assert result["custom_metrics"] == result["evaluation"]["custom_metrics"] == {"won": 50.0}


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_a_callback_ends_learning_after_its_iteration() -> None:
    def enough(algorithm: Algorithm, result: dict[str, Any]) -> None:
        if result["training_iteration"] == 3:
            algorithm.stop_learning()

    with config_for(run_dir=None, on_train_result=enough).build() as algorithm:
        assert algorithm.learn(num_env_steps=10_000)["training_iteration"] == 3
        # a later call begins again
        assert algorithm.learn(num_env_steps=64)["training_iteration"] == 5


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_misspelt_method_is_named_where_its_class_is_defined() -> None:
    with pytest.raises(
        TypeError, match=r"Mine: expected one of .*, got on_episode_ended\. .*Did you mean 'on_episode_e"
    ):
        type("Mine", (Callbacks,), {"on_episode_ended": lambda self: None})

    class Mixin:
        def on_trained(self) -> None: ...

    with pytest.raises(TypeError, match="got on_trained"):
        type("Mine", (Mixin, Callbacks), {})


@pytest.mark.parametrize(
    "method",
    [
        lambda self, algo, result: None,
        lambda algorithm, result: None,
        staticmethod(lambda self, algorithm, result: None),
        lambda self: None,
    ],
)
def test_a_method_of_other_arguments_is_named_where_its_class_is_defined(method: Any) -> None:
    with pytest.raises(TypeError) as caught:
        type("Mine", (Callbacks,), {"on_train_result": method})
    text = str(caught.value)
    assert text.startswith("callback on_train_result: expected a def that takes algorithm, result by keyword, got ")
    assert re.search(r"<lambda>, test_callbacks\.py:\d+", text)


def test_a_method_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match=r"callback on_train_result: expected a def that takes .*, got None: "):
        type("Mine", (Callbacks,), {"on_train_result": None})


def test_a_function_of_other_arguments_is_named_before_the_run() -> None:
    def report(algo: Any, result: Any) -> None: ...

    config = config_for(on_train_result=report)
    expected = (
        r"callback on_train_result: expected a def that takes algorithm, result by keyword, got "
        r"tests\.algorithms\.run\.test_callbacks\..*report, test_callbacks\.py:\d+: missing a required argument: 'algo'"
    )
    for check in (config.validate, config.build):
        with pytest.raises(TypeError, match=expected):
            check()


@pytest.mark.parametrize("name", CALLBACKS)
def test_the_arguments_that_a_setting_names_are_those_it_is_called_with(name: str) -> None:
    doc = settings_of(PPOConfig)[name].doc
    assert f"fn({', '.join(parameters_of(name))})" in doc


def test_an_object_in_place_of_the_class_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"callbacks_class.*type\[Callbacks\] \| None, got <.*A class derived from Callb"
    ):
        config_for().callbacks(Callbacks())  # type: ignore[arg-type]


def run(config: PPOConfig, tmp_path: Path) -> None:
    with config.build() as algorithm:
        for _ in range(3):  # in which episodes end
            algorithm.train()
        algorithm.save(tmp_path / "c")


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_that_raises_is_named_and_its_error_is_the_cause(name: str, tmp_path: Path) -> None:
    def fails(**message: Any) -> None:
        raise KeyError("won")

    line = fails.__code__.co_firstlineno
    expected = rf"callback {name} \(.*fails, test_callbacks\.py:{line}\): expected no error, got KeyError: 'won'"
    with pytest.raises(RuntimeError, match=expected + rf"\. .*\.callbacks\({name}=None\)") as caught:
        run(config_for(evaluation_interval=1, **{name: fails}), tmp_path)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_that_returns_something_is_named_and_pointed_to_stop_learning(name: str) -> None:
    def listener(**arguments: Any) -> bool:
        return False

    caller = CallbackCaller(config_for(**{name: listener}))
    message = (
        rf"^callback {name} \(.+listener, test_callbacks.py:\d+\): expected one that returns None, got .{{1,80}}\. "
    )
    with pytest.raises(
        TypeError, match=message + r"Return nothing\. To end learn\(\), call algorithm\.stop_learning\(\)\.$"
    ):
        caller.call(name)


def test_a_class_that_raises_is_left_out_as_a_class() -> None:
    class Failing(Callbacks):
        def on_train_result(self, *, algorithm: Algorithm, result: dict[str, Any]) -> None:
            raise ValueError("no")

    expected = r"Failing\.on_train_result, .* ValueError: no\. .*callbacks_class=None"
    with config_for().callbacks(Failing).build() as algorithm, pytest.raises(RuntimeError, match=expected):
        algorithm.train()


def test_a_callback_that_calls_itself_gets_one_error() -> None:
    def again(algorithm: Algorithm, evaluation: dict[str, Any]) -> None:
        algorithm.evaluate(num_episodes=1)

    with config_for(on_evaluate_end=again).build() as algorithm, pytest.raises(RuntimeError) as caught:
        algorithm.evaluate(num_episodes=1)
    assert str(caught.value).count("expected no error, got RecursionError") == 1
    assert str(caught.value).count("on_evaluate_end (") == 1


def test_a_partial_or_an_object_is_named_as_it_is() -> None:
    class Loud:
        def __call__(self, **message: Any) -> None:
            raise ValueError("no")

        def __repr__(self) -> str:
            return "<Loud>"

    expected = r"callback on_train_result \(<Loud>\)"
    with config_for(on_train_result=Loud()).build() as algorithm, pytest.raises(RuntimeError, match=expected):
        algorithm.train()


def test_envs_are_closed_if_who_is_told_of_them_raises() -> None:
    def refuse(env: Any, in_evaluation: bool) -> None:
        if in_evaluation == refused:
            raise ValueError("not this one")

    Lengths.closed.clear()
    refused = False
    with pytest.raises(RuntimeError, match="not this one"):
        config_for(Lengths, on_environment_created=refuse).build()
    assert len(Lengths.closed) == 2
    Lengths.closed.clear()
    refused = True
    with config_for(Lengths, on_environment_created=refuse).build() as algorithm:
        with pytest.raises(RuntimeError, match="not this one"):
            algorithm.evaluate()
        assert len(Lengths.closed) == 2
        refused = False
        assert algorithm.evaluate()["env_runners"]["num_episodes"] == 2
    assert len(Lengths.closed) == 6


def test_a_run_goes_on_after_a_callback_raised() -> None:
    """DQN, whose replay joins each rollout to the one before it: a lost one must not leave a step over a gap."""
    raised: list[int] = []

    def fail_once(algorithm: Algorithm, rollout: Rollout) -> None:
        if algorithm.env_steps == 8 and not raised:
            raised.append(1)
            raise ValueError("once")

    config = DQNConfig(env=Clock, num_envs_per_env_runner=2, seed=1, on_sample_end=fail_once)
    config.update({"train_batch_size_per_learner": 8, "num_steps_sampled_before_learning_starts": 16})
    with config.update({"num_env_steps_per_iteration": 16, "n_step": 1}).build() as algorithm:
        with pytest.raises(RuntimeError, match="once"):
            algorithm.train()
        # the rollout that it saw was sampled, but not kept
        assert (algorithm.env_steps, algorithm.replay.num_transitions) == (8, 6)  # type: ignore[attr-defined]
        result = algorithm.train()
        assert result["training_iteration"] == 1
        assert (result["env_runners"]["num_env_steps_sampled"], algorithm.env_steps) == (16, 24)
        for _ in range(20):
            batch = algorithm.replay.sample(8).batch  # type: ignore[attr-defined]
            assert torch.equal(batch["next_obs"], batch["obs"] + 1)


class Clock(gym.Env[Any, Any]):
    """Observes how many steps it is old."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.array([self.t], np.float32), 0.0, False, False, {}


# --- checkpoints ------------------------------------------------------------------------------------------------------


def announce(algorithm: Algorithm, result: dict[str, Any]) -> None:
    """A function that can be imported."""


def test_callbacks_that_cannot_be_had_again_are_named_at_once(tmp_path: Path) -> None:
    config = config_for(on_train_result=announce, on_episode_end=lambda algorithm, episode: None)
    with config.build() as algorithm:
        algorithm.save(tmp_path / "c")
        weights = algorithm.get_state()["learners"]
    with pytest.raises(ValueError, match="on_episode_end") as caught:
        Algorithm.from_checkpoint(tmp_path / "c")
    place = __name__
    assert str(caught.value) == (
        f"checkpoint '{tmp_path / 'c'}': PPOConfig.on_episode_end and on_train_result: expected the object itself, "
        "which could not be saved or "
        f"an import path that you allow, got '{place}."
        "test_callbacks_that_cannot_be_had_again_are_named_at_once.<locals>.<lambda>' and "
        f"'{place}:announce'. If you trust it, pass allow=[{place!r}], or pass it again by "
        "keyword (on_episode_end=..., on_train_result=...). To do without callbacks: on_episode_end=None, "
        "on_train_result=None."
    )
    with Algorithm.from_checkpoint(tmp_path / "c", on_episode_end=None, on_train_result=None) as other:
        assert differences(other.get_state()["learners"], weights) == []
    with Algorithm.from_checkpoint(tmp_path / "c", on_episode_end=None, allow=[place]) as other:
        assert other.config.on_train_result is announce


def test_all_callbacks_are_left_out_by_one_list_of_names(tmp_path: Path) -> None:
    with config_for(Lengths, **Seen().functions()).callbacks(Callbacks).build() as algorithm:
        algorithm.save(tmp_path / "c")
    nothing: dict[str, Any] = dict.fromkeys(CALLBACK_SETTINGS)
    with Algorithm.from_checkpoint(tmp_path / "c", env=Lengths, **nothing) as other:
        assert not other.config.records_episode_infos
        assert other.train()["training_iteration"] == 1


def test_envs_are_closed_if_a_checkpoint_does_not_fit(tmp_path: Path) -> None:
    with config_for(Lengths).build() as algorithm:
        algorithm.save(tmp_path / "c")
    Lengths.closed.clear()
    with pytest.raises(ValueError, match="names, shapes and dtypes"):
        Algorithm.from_checkpoint(tmp_path / "c", env=Lengths, model_config={"fcnet_hiddens": [9]})
    assert len(Lengths.closed) == 2


# --- around it --------------------------------------------------------------------------------------------------------


def test_a_config_for_evaluation_differs_in_what_it_should() -> None:
    class Factory:
        def __call__(self, env_config: dict[str, Any]) -> Lengths:
            return Lengths()

    factory, widths = Factory(), [1, 2]
    config = config_for(factory, env_config={"a": 1, "widths": widths}, on_train_result=announce)
    frozen: Any = config.copy().freeze()
    alike = frozen.for_evaluation()
    assert alike.to_dict() == frozen.to_dict()
    assert alike.env is factory
    changed = frozen.copy().evaluation(evaluation_env_config={"a": 2}, evaluation_num_envs=5).for_evaluation()
    assert (changed.env_config, changed.num_envs_per_env_runner) == ({"a": 2}, 5)
    for each in (alike, changed):
        with pytest.raises(AttributeError, match="frozen"):
            each.env_config = {}


def test_hints_to_users_of_other_libraries_name_settings_there_are() -> None:
    known: dict[str, Any] = {}
    for algorithm in ALGORITHMS:
        known |= settings_of(config_class(algorithm))
    for hint in remedies()["setting"].values():
        for section, arguments in re.findall(r"\.(\w+)\(((?:\w+=[^()]*)+)\)", hint):
            for name in re.findall(r"(?:^|, )(\w+)=", arguments):
                assert known[name].section == section, hint
    for name in ("eval_freq", "callback", "checkpoint_frequency", "log_level", "on_episode_start"):
        with pytest.raises(TypeError) as caught:
            PPOConfig().update({name: 1})
        assert str(caught.value).endswith(remedies()["setting"][name])


def test_a_run_says_what_it_is() -> None:
    with config_for(Lengths).build() as algorithm:
        assert repr(algorithm) == f"<PPO on Lengths, seed 3, 0 env steps>\n{algorithm.config!r}"
        algorithm.train()
        assert repr(algorithm).startswith("<PPO on Lengths, seed 3, 32 env steps>\n")
    assert math.isfinite(algorithm.metrics.seconds)


def test_a_coroutine_is_refused() -> None:
    async def later(algorithm: Any, result: Any) -> None:
        """Never awaited by anybody."""

    with pytest.raises(TypeError, match=r"callback on_train_result: expected a def .*: an async def"):
        PPOConfig(env="CartPole-v1", on_train_result=later).validate()


def test_callbacks_that_are_assigned_are_refused_since_nobody_would_hear_them() -> None:
    class Assigning(Callbacks):
        def __init__(self) -> None:
            self.on_train_result = print

    with pytest.raises(
        TypeError, match=r"Assigning: expected callbacks that are methods, got on_train_result assigned"
    ):
        PPOConfig(env="CartPole-v1", callbacks_class=Assigning).build()


def test_a_class_that_needs_arguments_is_refused_with_what_to_do() -> None:
    class Watch(Callbacks):
        def __init__(self, limit: float) -> None:
            self.limit = limit

    expected = r"callbacks_class .*Watch: expected a class that can be called without arguments.*got \(limit: .*default"
    with pytest.raises(TypeError, match=expected):
        PPOConfig(env="CartPole-v1", callbacks_class=Watch).build()
