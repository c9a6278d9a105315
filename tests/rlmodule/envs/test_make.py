"""Vector envs from every source, and the guards that name a bad value with its env, step and leaf."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given
from hypothesis import strategies as st

from catalog.copies import frozen_copy
from rlmodule.envs import checks, vector_guard
from rlmodule.envs.checks import EnvError, EnvGuard, check_finite, check_member, is_due
from rlmodule.envs.make import autoreset_mode, guard_for, make_vector_env
from rlmodule.envs.vector_guard import VectorGuard

# Python 3.12 and later warn of every fork of a process with threads, which torch has; it is Gymnasium that forks.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

BOX = spaces.Box(-1, 1, (2,), np.float32)


class Toy(gym.Env):
    """Returns what its arguments say: `result` overrides the step's, `fault_at` raises there."""

    def __init__(
        self,
        observation_space: spaces.Space | None = None,
        result: Callable[[int, Any], Any] | None = None,
        reset_result: Any = None,
        length: int = 5,
        fault_at: int | None = None,
    ) -> None:
        self.observation_space = observation_space or BOX
        self.action_space = spaces.Discrete(2)
        self.result, self.reset_result, self.length, self.fault_at = result, reset_result, length, fault_at
        self.steps = self.in_episode = self.closed = 0

    def obs(self) -> Any:
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.in_episode = 0
        return (self.obs(), {}) if self.reset_result is None else self.reset_result

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.in_episode += 1
        if self.steps == self.fault_at:
            raise ZeroDivisionError("of all things")
        good = (self.obs(), 1.0, False, self.in_episode >= self.length, {})
        return good if self.result is None else self.result(self.steps, good)

    def close(self) -> None:
        self.closed += 1


class ToyVector(VectorEnv):
    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int = 2, space: spaces.Space = BOX, **settings: Any) -> None:
        self.num_envs, self.settings = num_envs, settings
        self.single_observation_space, self.single_action_space = space, spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gym.register("RlmoduleToy-v0", entry_point=Toy, vector_entry_point=ToyVector, disable_env_checker=True)
    gym.register("RlmoduleSingle-v0", entry_point=Toy)
    yield
    del gym.registry["RlmoduleToy-v0"], gym.registry["RlmoduleSingle-v0"]


def run(env: VectorEnv, steps: int) -> None:
    env.reset(seed=0)
    for _ in range(steps):
        env.step(np.zeros(env.num_envs, dtype=np.int64))


# Sources.


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("source", ["CartPole-v1", "gymnasium:CartPole-v1", Toy, lambda config: Toy(**config)])
def test_single_envs_become_a_guarded_vector_env(source: Any, mode: Any) -> None:
    env = make_vector_env(source, {}, 3, mode)
    try:
        assert isinstance(env, SyncVectorEnv if mode == "sync" else AsyncVectorEnv)
        assert env.num_envs == 3
        assert autoreset_mode(env) == AutoresetMode.SAME_STEP
        assert env.get_attr("env_index") == (0, 1, 2)
        assert guard_for(env) is None
        run(env, 12)
    finally:
        env.close()


@pytest.mark.parametrize("source", ["RlmoduleToy-v0", Toy, lambda config: Toy(**config)])
def test_env_config_reaches_the_env(source: Any) -> None:
    env = make_vector_env(source, {"length": 77}, 2)
    assert env.get_attr("length") == (77, 77)


def test_env_config_is_fresh_for_each_factory_call() -> None:
    def factory(config: dict[str, Any]) -> gym.Env:
        assert config.pop("once") == 1
        return Toy()

    make_vector_env(factory, {"once": 1}, 3)


class Configured(Toy):
    """Takes its settings out of what it is given."""

    def __init__(self, sim: dict[str, Any], layers: list[int], nested: tuple[dict[str, Any]], shared: object) -> None:
        super().__init__()
        self.dt, self.shared = sim.pop("dt"), id(shared)
        nested[0]["more"] = layers.append(1)
        self.layers = len(layers)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("source", ["Configured-v0", Configured, lambda config: Configured(**config)])
def test_env_config_is_fresh_at_every_depth(source: Any, mode: Any) -> None:
    gym.register("Configured-v0", Configured)
    shared = object()
    config = frozen_copy({"sim": {"dt": 0.2}, "layers": [], "nested": ({},), "shared": shared})
    try:
        env = make_vector_env(source, config, 3, mode)
        try:
            assert env.get_attr("dt") == (0.2,) * 3
            assert env.get_attr("layers") == (1,) * 3
            if mode == "sync":
                assert env.get_attr("shared") == (id(shared),) * 3
        finally:
            env.close()
    finally:
        del gym.registry["Configured-v0"]
    assert config == {"sim": {"dt": 0.2}, "layers": [], "nested": ({},), "shared": shared}


def test_the_guard_replaces_the_checker_of_gymnasium() -> None:
    env = make_vector_env("CartPole-v1", {}, 1)
    assert isinstance(env, SyncVectorEnv)
    assert "PassiveEnvChecker" not in str(env.envs[0])
    assert isinstance(env.envs[0], EnvGuard)


def test_the_first_env_is_not_wasted() -> None:
    made: list[Toy] = []

    def factory(config: dict[str, Any]) -> gym.Env:
        made.append(Toy())
        return made[-1]

    env = make_vector_env(factory, {}, 3)
    assert isinstance(env, SyncVectorEnv)
    assert [single.unwrapped for single in env.envs] == made
    made.clear()
    make_vector_env(factory, {}, 2, "async").close()
    assert [toy.closed for toy in made] == [1]  # The workers made their own, in processes of their own.


def test_a_ready_vector_env_is_used_as_it_is() -> None:
    ready = ToyVector(4)
    env = make_vector_env(lambda config: ready, {}, 4)
    assert env is ready
    assert autoreset_mode(env) == AutoresetMode.NEXT_STEP
    assert isinstance(guard_for(env), VectorGuard)
    assert guard_for(gym.make_vec("CartPole-v1", 2)) is not None


def test_a_vector_env_class_is_given_num_envs() -> None:
    env = make_vector_env(ToyVector, {"color": "red"}, 5)
    assert isinstance(env, ToyVector)
    assert (env.num_envs, env.settings) == (5, {"color": "red"})


def test_vector_entry_point_keeps_its_own_mode() -> None:
    env = make_vector_env("RlmoduleToy-v0", {"color": "red"}, 3, "vector_entry_point")
    assert isinstance(env, ToyVector)
    assert (env.num_envs, env.settings) == (3, {"color": "red"})
    assert autoreset_mode(env) == AutoresetMode.NEXT_STEP
    assert guard_for(env) is not None


def no_env(config: dict[str, Any]) -> None:
    return None


class DummyVecEnv:
    """Has the methods of a vector env of Stable-Baselines3."""

    num_envs = 2

    def step_async(self, actions: Any) -> None: ...

    def step_wait(self) -> Any: ...


def an_sb3_vector(config: Any) -> Any:
    return DummyVecEnv()


def an_old_env(config: dict[str, Any]) -> object:
    return object()


def a_broken_env(config: dict[str, Any]) -> gym.Env:
    raise KeyError("map_name")


SHARED = Toy()


class Spaceless(gym.Env):
    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


class SpacelessVector(VectorEnv):
    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs


def wrapped(env: gym.Env) -> gym.Env:
    return gym.wrappers.TimeLimit(env, 5)


def second_without_spaces() -> Callable[..., gym.Env]:
    envs = iter([Toy(), Spaceless()])
    return lambda config: next(envs)


@pytest.mark.parametrize(
    ("source", "config", "num_envs", "mode", "error", "words"),
    [
        ("CartPol-v1", {}, 2, "sync", ValueError, ["'CartPol-v1'", "Did you mean 'CartPole-v1'?"]),
        ("CartPole-v77", {}, 2, "sync", ValueError, ["registered id", "CartPole-v1"]),
        ("gymnasium:CartPol-v1", {}, 2, "sync", ValueError, ["Did you mean 'CartPole-v1'?"]),
        ("no_such_module_at_all:Env-v0", {}, 2, "sync", ImportError, ["no_such_module_at_all", "imported. Install"]),
        ("CartPole-v1", {"num_envs": 4}, 2, "sync", RuntimeError, ["'num_envs'", "env_config"]),
        ("CartPole-v1", {"colour": 4}, 2, "sync", RuntimeError, ["TypeError", "colour", "env_config"]),
        ("RlmoduleSingle-v0", {}, 2, "vector_entry_point", RuntimeError, ["vector entry point"]),
        (Toy(), {}, 2, "sync", RuntimeError, ["factory", "lambda env_config"]),
        (no_env, {}, 2, "sync", TypeError, ["no_env", "got None", "Return the env"]),
        (an_old_env, {}, 2, "sync", TypeError, ["an_old_env", "builtins.object", "shimmy"]),
        (an_sb3_vector, {}, 2, "sync", TypeError, ["DummyVecEnv", "Return one env", "num_envs_per_env_runner"]),
        (a_broken_env, {}, 2, "sync", RuntimeError, ["a_broken_env", "KeyError: 'map_name'"]),
        (lambda: Toy(), {}, 2, "sync", RuntimeError, ["takes 0 positional arguments", "lambda env_config: MyEnv()"]),
        (Toy, {"colour": 4}, 2, "sync", RuntimeError, ["Toy", "colour", "cls(**env_config)"]),
        (Toy, {}, 2, "vector_entry_point", ValueError, ["Toy", "'vector_entry_point'", "Leave the mode out"]),
        (lambda config: SHARED, {}, 2, "sync", ValueError, ["new env", "inside the factory"]),
        (Spaceless, {}, 2, "sync", ValueError, ["Spaceless, observation_space: expected a space", "Set it in"]),
        (Spaceless, {"observation_space": BOX}, 2, "async", ValueError, ["Spaceless, action_space: expected a space"]),
        (lambda config: wrapped(Spaceless()), {}, 2, "sync", ValueError, ["observation_space: expected a space"]),
        (
            Spaceless,
            {"observation_space": BOX, "action_space": 2},
            2,
            "sync",
            ValueError,
            ["Spaceless, action_space: expected a space", "got an object of builtins.int"],
        ),
        (second_without_spaces(), {}, 2, "sync", ValueError, ["env 1, observation_space: expected a space"]),
        (SpacelessVector, {}, 2, "sync", ValueError, ["SpacelessVector, single_observation_space: expected a space"]),
        (lambda config: ToyVector(3), {}, 2, "sync", ValueError, ["3", "Set num_envs_per_env_runner=3"]),
        (
            lambda config: ToyVector(2),
            {},
            2,
            "async",
            ValueError,
            ["a ready ToyVector", "='async'", "Leave the setting out"],
        ),
    ],
)
def test_bad_sources(source: Any, config: dict[str, Any], num_envs: Any, mode: Any, error: Any, words: Any) -> None:
    with pytest.raises(error) as caught:
        make_vector_env(source, config, num_envs, mode)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_original_of_a_failing_factory_is_chained() -> None:
    with pytest.raises(RuntimeError) as caught:
        make_vector_env(a_broken_env, {}, 2)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.filterwarnings("ignore")  # Gymnasium also logs the worker's traceback as a warning.
def test_a_factory_that_fails_in_a_worker_is_reported() -> None:
    calls: list[int] = []

    def factory(config: dict[str, Any]) -> gym.Env:
        calls.append(1)
        if len(calls) > 1:  # The first call is made here, those after it in the workers.
            raise OSError("no free port")
        return Toy()

    with pytest.raises(RuntimeError, match=r"factory: .* OSError: no free port"):
        make_vector_env(factory, {}, 2, "async")


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (gym.error.DependencyNotInstalled("MuJoCo is not installed"), 'pip install "catalog-rl[mujoco]"'),
        (ModuleNotFoundError("No module named 'mujoco'"), 'pip install "catalog-rl[mujoco]"'),
        (ModuleNotFoundError("No module named 'ale_py'"), 'pip install "catalog-rl[atari]"'),
        (gym.error.DependencyNotInstalled("Box2D is not installed"), 'pip install "catalog-rl[box2d]"'),
        (ModuleNotFoundError("No module named 'my_simulator'"), "Install the package that is missing"),
    ],
)
def test_missing_packages_come_with_the_command_that_installs_them(error: Exception, remedy: str) -> None:
    def entry_point(**config: Any) -> gym.Env:
        raise error

    gym.register("RlmoduleNeedy-v0", entry_point=entry_point)
    try:
        with pytest.raises(ImportError, match=re.escape(remedy)) as caught:
            make_vector_env("RlmoduleNeedy-v0", {}, 2)
        assert caught.value.__cause__ is error
        with pytest.raises(ImportError, match=re.escape(remedy)):
            make_vector_env(lambda config: entry_point(), {}, 2)
    finally:
        del gym.registry["RlmoduleNeedy-v0"]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.filterwarnings("ignore")
def test_an_env_with_a_space_of_its_own_is_named(mode: Any, tmp_path: Path) -> None:
    made, parent = [], os.getpid()

    def make(config: Any) -> Toy:
        made.append(None)
        size = 2
        if len(made) == 3 or os.getpid() != parent:
            with contextlib.suppress(FileExistsError):  # of several processes only one makes another env
                (tmp_path / "made").mkdir()
                size = 3
        return Toy(spaces.Box(-1, 1, (size,), np.float32))

    who = "env 12" if mode == "sync" else r"env 1\d"
    with pytest.raises(ValueError, match=rf"{who}, spaces: .* env 10, \(Box\(.*\(2,\).* got \(Box\(.*\(3,\)"):
        make_vector_env(make, {}, 3, mode, first_env_index=10)


@pytest.mark.parametrize("kind", ["cannot be made", "other space", "the same env"])
def test_envs_are_closed_if_a_later_one_is_refused(kind: str) -> None:
    made: list[Toy] = []

    def make(config: Any) -> Toy:
        if len(made) == 2 and kind == "cannot be made":
            raise OSError("no port")
        if len(made) == 2 and kind == "the same env":
            return made[0]
        made.append(Toy(spaces.Box(-1, 1, (3 if len(made) == 2 else 2,), np.float32)))
        return made[-1]

    with pytest.raises((RuntimeError, ValueError), match=r"no port|env 2, spaces|got the same one"):
        make_vector_env(make, {}, 3)
    assert [env.closed for env in made] == {"cannot be made": [1, 1], "other space": [1, 1, 1]}.get(kind, [2, 1])


# Autoreset mode.


@pytest.mark.parametrize("said", [AutoresetMode.DISABLED, "Disabled"])
def test_autoreset_mode_is_read_from_metadata(said: Any) -> None:
    env = ToyVector()
    env.metadata = {"autoreset_mode": said}
    assert autoreset_mode(env) == AutoresetMode.DISABLED


def test_autoreset_mode_prefers_the_attribute() -> None:
    env = SyncVectorEnv([Toy], autoreset_mode=AutoresetMode.SAME_STEP)
    env.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    assert autoreset_mode(env) == AutoresetMode.SAME_STEP
    assert autoreset_mode(gym.vector.VectorWrapper(env)) == AutoresetMode.SAME_STEP


@pytest.mark.parametrize("metadata", [{}, {"autoreset_mode": "sometimes"}, {"autoreset_mode": 3}])
def test_unknown_autoreset_mode(metadata: dict[str, Any]) -> None:
    env = ToyVector()
    env.metadata = metadata
    with pytest.raises(ValueError, match=r"autoreset mode of ToyVector.*SAME_STEP"):
        autoreset_mode(env)
    with pytest.raises(ValueError, match="autoreset mode of ToyVector"):
        make_vector_env(lambda config: env, {}, 2)


# EnvGuard.

NESTED = spaces.Dict(
    {"pose": BOX, "camera": spaces.Box(0, 255, (2, 2, 1), np.uint8), "gear": spaces.Discrete(3, start=1)}
)


def changed(position: int, value: Any) -> Callable[[int, Any], Any]:
    """A step result with the entry at `position` replaced, from the third step on."""
    return lambda step, good: (*good[:position], value, *good[position + 1 :]) if step >= 3 else good


def nested(**parts: Any) -> dict[str, Any]:
    good = {"pose": np.zeros(2, np.float32), "camera": np.zeros((2, 2, 1), np.uint8), "gear": 1}
    return {key: value for key, value in {**good, **parts}.items() if value is not None}


BAD_STEPS: list[tuple[Callable[[int, Any], Any], type[Exception], list[str]]] = [
    (lambda step, good: good[:3] + good[4:] if step >= 3 else good, ValueError, ["tuple of 4", "truncated", "old gym"]),
    (lambda step, good: None if step >= 3 else good, ValueError, ["step()", "got NoneType"]),
    (changed(0, np.zeros(2)), ValueError, ["obs: ", "dict with keys", "'camera'", "got shape (2,)"]),
    (changed(0, nested(camera=None)), ValueError, ["'camera'", "got one with keys ['pose', 'gear']"]),
    (changed(0, nested(sonar=1)), ValueError, ["got one with keys", "'sonar'"]),
    (changed(0, nested(pose=np.zeros(3))), ValueError, ["obs['pose']", "shape (2,)", "got shape (3,)", "float64"]),
    (changed(0, nested(pose=np.array([0, 2.5]))), ValueError, ["obs['pose']", "[-1.0, 1.0]", "2.5 at index (1,)"]),
    (changed(0, nested(pose=np.array([0, "1"], object))), ValueError, ["obs['pose']", "float32", "object"]),
    (changed(0, nested(pose=[[1.0], 2.0])), ValueError, ["obs['pose']", "list [[1.0], 2.0]"]),
    (changed(0, nested(camera=np.zeros((2, 2, 1)))), ValueError, ["obs['camera']", "uint8", "float64"]),
    (changed(0, nested(camera=np.zeros((2, 2, 1), np.int64))), ValueError, ["obs['camera']", "uint8", "int64"]),
    (changed(0, nested(gear=0)), ValueError, ["obs['gear']", "[1, 3]", "got 0"]),
    (changed(0, nested(gear=4)), ValueError, ["obs['gear']", "[1, 3]", "got 4"]),
    (changed(0, nested(gear=1.0)), ValueError, ["obs['gear']", "int64", "got float 1.0"]),
    (changed(1, None), TypeError, ["reward", "one real number", "NoneType"]),
    (changed(1, "1"), TypeError, ["reward", "str '1'", "float(reward)"]),
    (changed(1, 1j), TypeError, ["reward", "complex 1j"]),
    (changed(1, np.zeros(2)), TypeError, ["reward", "shape (2,)"]),
    (changed(1, [1.0]), TypeError, ["reward", "list [1.0]"]),
    (changed(2, 0), TypeError, ["terminated", "int 0", "bool(terminated)"]),
    (changed(3, None), TypeError, ["truncated", "NoneType"]),
    (changed(4, None), TypeError, ["info", "a dict", "Return {}"]),
    (
        changed(0, nested(pose=torch.zeros(2, requires_grad=True))),
        ValueError,
        ["obs['pose']", "gradient", "obs.detach()"],
    ),
]


@pytest.mark.parametrize(("result", "error", "words"), BAD_STEPS)
def test_bad_step_results(result: Callable[[int, Any], Any], error: type[Exception], words: list[str]) -> None:
    env = make_vector_env(Toy, {"observation_space": NESTED, "result": result}, 2)
    with pytest.raises(error) as caught:
        run(env, 5)
    assert all(word in str(caught.value) for word in ["env 0, step 3", *words]), str(caught.value)


@pytest.mark.parametrize(
    ("reset_result", "error", "words"),
    [
        (np.zeros(2, np.float32), TypeError, ["tuple (obs, info)", "float32"]),
        ((np.zeros(2), {}, 1), TypeError, ["tuple of 3", "Return obs, {}"]),
        ((np.zeros(2), None), TypeError, ["info", "a dict"]),
        ((np.full(2, 9.0), {}), ValueError, ["obs", "9.0 at index (0,)"]),
    ],
)
def test_bad_reset_results(reset_result: Any, error: type[Exception], words: list[str]) -> None:
    env = make_vector_env(Toy, {"reset_result": reset_result}, 2)
    with pytest.raises(error) as caught:
        env.reset()
    assert all(word in str(caught.value) for word in ["env 0, reset after step 0", *words]), str(caught.value)


@pytest.mark.filterwarnings("ignore")  # Gymnasium also logs the worker's traceback as a warning.
def test_an_error_of_the_guard_crosses_from_a_worker() -> None:
    class Late(Toy):
        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return (obs + 7 if action == 1 else obs, *rest)

    env = make_vector_env(Late, {}, 3, "async")
    try:
        env.reset()
        env.step(np.array([0, 0, 0]))
        with pytest.raises(ValueError, match=r"env 2, step 2, obs: expected values in \[-1.0, 1.0\]"):
            env.step(np.array([0, 0, 1]))
    finally:
        env.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.filterwarnings("ignore")
def test_an_error_of_the_env_names_env_step_type_and_message(mode: Any) -> None:
    env = make_vector_env(Toy, {"fault_at": 4}, 1, mode)
    try:
        with pytest.raises(
            RuntimeError, match=r"env 0 raised ZeroDivisionError at its step 4: of all things"
        ) as caught:
            run(env, 5)
        if mode == "sync":
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
    finally:
        env.close()


def test_an_error_in_reset_is_named_and_an_interrupt_let_through() -> None:
    class Bad(Toy):
        error: BaseException = OSError()

        def reset(self, **settings: Any) -> Any:
            raise self.error

    guard = EnvGuard(Bad(), 5)
    with pytest.raises(RuntimeError, match=r"env 5 raised OSError in reset\(\) after its step 0: \(no message\)"):
        guard.reset()
    Bad.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        guard.reset()


def test_a_reset_of_the_old_gym_is_named_with_the_arguments_it_needs() -> None:
    class OldReset(Toy):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    text = r"env 3 raised TypeError in reset.*last seed 1\. Define reset\(self, \*, seed=None, options=None\), as"
    for env in (OldReset(), wrapped(OldReset())):
        with pytest.raises(EnvError, match=text):
            EnvGuard(env, 3).reset(seed=1)


GOOD_REWARDS = [1, 1.5, True, np.float32(1), np.int64(1), np.bool_(True), np.array(1.0), np.array([1.0]), torch.ones(1)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_every_form_of_a_real_number_is_a_reward(mode: Any) -> None:
    def result(step: int, good: Any) -> Any:
        return good[0], GOOD_REWARDS[step % len(GOOD_REWARDS)], np.bool_(good[2]), *good[3:]

    env = make_vector_env(Toy, {"result": result}, 2, mode)
    try:
        env.reset()
        for step in range(1, 220):
            rewards = env.step(np.zeros(2, np.int64))[1]
            assert rewards.shape == (2,)
            assert rewards[0] == rewards[1] == np.asarray(GOOD_REWARDS[step % len(GOOD_REWARDS)]).item()
    finally:
        env.close()


BUFFERS: dict[str, Callable[[], Any]] = {
    "array": lambda: np.zeros(1, np.float32),
    "tensor": lambda: torch.zeros(1),
    "list": lambda: [0.0],
}


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("count", [1, 5])  # five take turns: one is the same at the end of each episode of five steps
def test_an_env_that_reuses_its_buffer_keeps_its_final_observation(mode: Any, buffer: str, count: int) -> None:
    class Reuser(Toy):
        def __init__(self) -> None:
            super().__init__(spaces.Dict({"x": spaces.Box(0, 100, (1,), np.float32)}))
            self.buffers = [{"x": BUFFERS[buffer]()} for _ in range(count)]

        def obs(self) -> Any:
            chosen = self.buffers[self.in_episode % count]
            chosen["x"][0] = self.in_episode
            return chosen

    env = make_vector_env(Reuser, {}, 2, mode)
    try:
        env.reset()
        for step in range(1, 241):
            obs, *_, info = env.step(np.zeros(2, np.int64))
            assert obs["x"][0] == step % 5
            if step % 5 == 0:
                assert [final["x"][0] for final in info["final_obs"]] == [5, 5]
    finally:
        env.close()


def test_the_check_runs_on_100_steps_and_then_on_every_hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    inner = checks.check_member
    guard = EnvGuard(Toy(length=10**9))
    monkeypatch.setattr(
        checks, "check_member", lambda *given, **more: checked.append(guard._steps) or inner(*given, **more)
    )
    guard.reset()
    for _ in range(450):
        guard.step(0)
    assert checked == [0, *range(1, 101), 200, 300, 400]
    assert [call for call in range(1, 450) if is_due(call)] == checked[1:]


def test_floats_beyond_their_bounds_are_an_error_in_20_steps_and_then_noted_once_without_alarm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def flying(after: int) -> EnvGuard:
        space = spaces.Dict(x=spaces.Box(0, 6.25, (1,)))
        guard = EnvGuard(
            Toy(space, lambda step, good: ({"x": np.full(1, 9.0 * (step > after))}, *good[1:]), length=10**9)
        )
        guard.reset()
        for _ in range(after):
            guard.step(0)
        return guard

    with pytest.raises(ValueError, match=r"step 20, obs\['x'\]: expected values in \[0\.0, 6\.25\], got 9\.0"):
        flying(19).step(0)
    guard = flying(20)
    guard.step(0)
    guard.step(0)
    (record,) = caplog.records
    assert "step 21, obs['x']: 9.0 at index (0,) is outside of [0.0, 6.25]" in record.message
    assert "The run continues" in record.message
    assert "There is nothing to do" in record.message
    assert "Widen" not in record.message


def test_the_observation_of_a_step_that_ends_nothing_is_no_copy() -> None:
    results: list[Any] = []
    guard = EnvGuard(Toy(result=lambda step, good: results.append(good) or good, length=10**9))
    guard.reset()
    assert all(guard.step(0)[0] is results[-1][0] for _ in range(150))  # of one episode


# Values against spaces.


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BOX, np.zeros(2)),
        (BOX, np.zeros(2, np.int64)),
        (BOX, [0.5, -0.5]),
        (BOX, torch.zeros(2)),
        (BOX, np.array([1 + 1e-7, -1 - 1e-6])),
        (BOX, np.array([np.nan, np.inf])),
        (BOX, np.array([-1e300, np.nan])),
        (spaces.Box(0, np.float32(0.7), (1,)), np.array([0.7])),
        (spaces.Box(0, 5, (2,), np.int32), np.array([0, 5], np.int64)),
        (spaces.Discrete(3), np.array(2)),
        (spaces.Discrete(3, start=-1), -1),
        (spaces.Discrete(2), True),
        (spaces.MultiDiscrete([2, 3], start=[5, 0]), np.array([6, 2])),
        (spaces.MultiBinary((2, 2)), np.eye(2, dtype=bool)),
        (spaces.Tuple((BOX, spaces.Discrete(2))), [np.zeros(2), 1]),
        (spaces.Box(-1, 1, (0,)), np.zeros(0)),
    ],
)
def test_values_that_pass(space: spaces.Space, value: Any) -> None:
    check_member(space, value, str)


@pytest.mark.parametrize(
    ("space", "value", "path", "got"),
    [
        (spaces.MultiDiscrete([2, 3]), np.array([1, 3]), "obs", "3 at index (1,)"),
        (spaces.MultiBinary(2), np.array([2, 0]), "obs", "2 at index (0,)"),
        (spaces.Discrete(3), np.array([1]), "obs", "shape (1,)"),
        (spaces.Tuple((BOX,)), (np.zeros(2), 1), "obs", "tuple of 2"),
        (spaces.Tuple((BOX,)), np.zeros((1, 2)), "obs", "shape (1, 2)"),
        (spaces.Tuple((BOX, spaces.Text(3))), (np.zeros(2), "long!"), "obs[1]", "str 'long!'"),
        (spaces.Sequence(spaces.Discrete(2)), (1, 2), "obs", "a tuple of 2"),
        (BOX, torch.zeros(2, dtype=torch.bfloat16), "obs", "bfloat16"),
        (spaces.Dict(b=BOX, a=spaces.Discrete(2)), {"a": np.zeros(2), "b": 1}, "obs['b']", "int 1"),
    ],
)
def test_values_that_do_not(space: spaces.Space, value: Any, path: str, got: str) -> None:
    with pytest.raises(ValueError, match=rf"^env 3, {re.escape(path)}: expected .*{re.escape(got)}"):
        check_member(space, value, lambda _: "env 3")


LEAVES = st.sampled_from(
    [
        BOX,
        spaces.Box(-np.inf, np.inf, (), np.float64),
        spaces.Box(0, 255, (2, 3), np.uint8),
        spaces.Discrete(4, start=-2),
        spaces.MultiDiscrete([2, 5]),
        spaces.MultiBinary(3),
    ]
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.text("zyxab", min_size=1, max_size=2), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=6,
)
WRONG: list[Any] = [None, "text", np.zeros((4, 4, 4)), np.zeros(2, complex), object()]


def corrupt(space: spaces.Space, value: Any, draw: Any, wrong: Any) -> tuple[Any, str]:
    """`value` with one leaf of the draw's choice replaced, and the path of that leaf."""
    if isinstance(space, spaces.Dict):
        key: Any = draw(st.sampled_from(list(space.spaces)))
        inner, path = corrupt(space.spaces[key], value[key], draw, wrong)
        return {**value, key: inner}, f"[{key!r}]{path}"
    if isinstance(space, spaces.Tuple):
        key = draw(st.integers(0, len(space.spaces) - 1))
        inner, path = corrupt(space.spaces[key], value[key], draw, wrong)
        return (*value[:key], inner, *value[key + 1 :]), f"[{key}]{path}"
    return wrong, ""


@given(TREES, st.integers(0, 2**31), st.sampled_from(WRONG), st.data())
def test_samples_pass_and_a_corrupted_leaf_is_named(space: spaces.Space, seed: int, wrong: Any, data: Any) -> None:
    space.seed(seed)
    value = space.sample()
    check_member(space, value, str)
    check_member(gym.vector.utils.batch_space(space, 3), batched(space, [value, value, space.sample()]), str)
    broken, path = corrupt(space, value, data.draw, wrong)
    with pytest.raises(ValueError, match=rf"^env 3, {re.escape(f'obs{path}')}: "):
        check_member(space, broken, lambda _: "env 3")


def batched(space: spaces.Space, values: list[Any]) -> Any:
    empty = gym.vector.utils.create_empty_array(space, len(values))
    return gym.vector.utils.concatenate(space, values, empty)


# VectorGuard.


def vector_step(**parts: Any) -> dict[str, Any]:
    good = {"obs": np.zeros((3, 2)), "rewards": np.zeros(3), "terminateds": np.zeros(3, bool)}
    return {**good, "truncateds": np.zeros(3, bool), "info": {}, **parts}


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ({"obs": np.array([[0, 0], [0, 5.0], [9, 0]])}, ValueError, ["env 1, step 2, obs", "5.0 at index (1, 1)"]),
        ({"obs": np.zeros((2, 2))}, ValueError, ["vector env, step 2, obs", "(3, 2)", "(2, 2)"]),
        ({"obs": np.zeros((3, 2), object)}, ValueError, ["vector env, step 2, obs", "object"]),
        ({"rewards": np.zeros((3, 1))}, TypeError, ["rewards", "(3,)", "(3, 1)"]),
        ({"rewards": np.zeros(3, complex)}, TypeError, ["rewards", "real numbers", "complex128"]),
        ({"rewards": [0.0, 0.0, 0.0]}, TypeError, ["rewards", "list"]),
        ({"terminateds": np.full(3, 2)}, TypeError, ["terminateds", "0s and 1s", "int64"]),
        ({"truncateds": np.zeros((), bool)}, TypeError, ["truncateds", "(3,)"]),
        ({"info": [{}, {}, {}]}, TypeError, ["vector env, step 2, info", "a dict", "list"]),
    ],
)
def test_bad_vector_steps(parts: dict[str, Any], error: type[Exception], words: list[str]) -> None:
    guard = VectorGuard(ToyVector(3))
    guard.check_step(**vector_step())
    with pytest.raises(error) as caught:
        guard.check_step(**vector_step(**parts))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_vector_guard_takes_tensors_and_checks_resets() -> None:
    guard = VectorGuard(ToyVector(3))
    guard.check_step(**tree.map_structure(torch.from_numpy, vector_step()))
    guard.check_reset(torch.zeros(3, 2), {})
    with pytest.raises(ValueError, match=r"env 2, reset after step 1, obs: .* got 4\.0"):
        guard.check_reset(torch.tensor([[0, 0], [0, 0], [0, 4.0]]), {})
    with pytest.raises(TypeError, match="vector env, reset after step 1, info: expected a dict"):
        guard.check_reset(torch.zeros(3, 2), None)


def test_vector_guard_checks_100_steps_and_then_every_hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(vector_guard, "check_member", lambda *given, **more: calls.append(len(seen)))
    guard, seen = VectorGuard(ToyVector(3)), []
    for step in range(1, 351):
        seen.append(step)
        guard.check_step(**vector_step())
    assert calls == [*range(1, 101), 200, 300]
    with pytest.raises(TypeError, match="vector env, step 351, info: expected a dict"):  # which costs nothing
        guard.check_step(**vector_step(info=None))


# Finiteness.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_check_finite_names_env_step_and_leaf(bad: float) -> None:
    obs = {"z": np.zeros((5, 3, 2), np.float32), "a": (np.zeros((5, 3), np.int64), np.zeros((5, 3, 2, 2)))}
    rewards = np.zeros((4, 3))
    check_finite(obs, "obs", 10)
    obs["a"][1][2, 1, 0, 1] = bad
    with pytest.raises(ValueError, match=re.escape(f"env 1, step 12, obs['a'][1]: expected finite numbers, got {bad}")):
        check_finite(obs, "obs", 10)
    with pytest.raises(ValueError, match=re.escape(f"env 8, step 15, obs[1]: expected finite numbers, got {bad}")):
        check_finite([np.zeros(3), np.array([0, 0, bad])], "obs", 11, 6, np.array([[0, 1], [3, 0], [4, 2]]))
    rewards[3, 2] = bad
    with pytest.raises(ValueError, match=rf"env 2, step 14, reward: .* got {bad}\. "):
        check_finite(torch.from_numpy(rewards), "reward", 11)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_check_finite_is_not_alarmed_by_sums_that_overflow(dtype: Any) -> None:
    largest = np.full((4, 3, 2), np.finfo(dtype).max, dtype)
    check_finite(largest, "obs", 0)
    largest[3, 2, 1] = np.inf
    with pytest.raises(ValueError, match=r"env 2, step 3, obs: .* inf at index \(1,\)"):
        check_finite(largest, "obs", 0)
