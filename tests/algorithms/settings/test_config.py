"""Settings: where they are checked, how they are shown, copied, frozen and written down."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import math
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from algorithms.config import AlgorithmConfig
from algorithms.loggers.csv import CsvLogger
from algorithms.ppo import PPOCatalog, PPOConfig, PPOLearner, PPOModule
from algorithms.run.callbacks import Callbacks
from catalog import Categorical
from catalog.checks import Bounds, Schedule, check_value, is_schedule, type_text
from catalog.model_config import DefaultModelConfig
from catalog.settings import Section, Settings, sections_of, setting, settings_of
from rlmodule.encoding import Decoder, encode
from rlmodule.learning.learner import Learner
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.settings import Training


class Built:
    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config


class MyTraining(Training):
    gamma = 0.9
    clip_param: float = setting(0.2, "How far the ratio may leave 1.", gt=0, lt=1)
    layers: list[int] = setting([1, 2], "Widths.", ge=1)


class Extras(Settings):
    """Things the base class does not have."""

    mode: str | list[str] = setting("a", "Mode or modes.")
    explorer: type[Built] | None = setting(None, "A class; None for none.")
    pair: tuple[int, float] = setting((1, 2.0), "Two numbers.")
    on_step: Callable[[int], None] | None = setting(None, "A function; None for none.")


class MyConfig(MyTraining, Extras, AlgorithmConfig):
    """An algorithm's config, as an author would write it."""

    training = Section(MyTraining)
    extras = Section(Extras)

    evaluation_duration: int = 3

    @property
    def algo_class(self) -> Any:
        return Built

    def default_learner_class(self) -> type[Learner]:
        return PPOLearner

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec()


class MyEnv(gym.Env[Any, Any]):
    pass


def make_env(env_config: dict[str, Any]) -> MyEnv:
    return MyEnv()


def ready() -> MyConfig:
    return MyConfig().environment("CartPole-v1")


def reads_well(error: BaseException, *parts: str) -> bool:
    """The four parts: where, what was expected, what came, what to do."""
    text = str(error)
    return bool(re.fullmatch(r"(?s)\S.*: expected .+, got .+\. \S.*[.?]", text)) and all(part in text for part in parts)


# --- telling ---------------------------------------------------------------------------------------------------------


def test_every_setting_has_a_sentence_and_a_section() -> None:
    for name, known in settings_of(MyConfig).items():
        assert known.doc[0].isupper(), name
        assert known.doc.endswith("."), name
        assert callable(getattr(MyConfig, known.section)), name


def test_sections_come_from_the_fields_of_the_class() -> None:
    assert "clip_param" in inspect.signature(MyConfig.training).parameters
    assert "clip_param" not in inspect.signature(AlgorithmConfig.training).parameters
    by_section = {
        name: section
        for section in {known.section for known in settings_of(MyConfig).values()}
        for name in inspect.signature(getattr(MyConfig, section)).parameters
        if name != "self"
    }
    assert by_section == {name: known.section for name, known in settings_of(MyConfig).items()}


def test_signature_shows_defaults_and_kinds() -> None:
    parameters = inspect.signature(MyConfig.environment).parameters
    assert list(parameters)[:2] == ["self", "env"]
    assert parameters["env"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert parameters["env_config"].kind is inspect.Parameter.KEYWORD_ONLY
    assert inspect.signature(MyConfig.training).parameters["gamma"].default == 0.9


def test_text_of_a_section_gives_type_default_range_and_sentence() -> None:
    text = " ".join(str(MyConfig.training.__doc__).split())
    assert text.startswith("Train batches, the optimizer and the loss. ")
    assert "clip_param (float, > 0 and < 1, default 0.2): How far the ratio may leave 1." in text
    assert "layers (list[int], >= 1, default [1, 2]): Widths." in text


def test_methods_know_their_names() -> None:
    assert MyConfig.training.__qualname__ == "MyConfig.training"
    assert MyConfig.training.__module__ == __name__


def test_new_defaults_keep_the_rest() -> None:
    config = MyConfig()
    assert (config.gamma, config.evaluation_duration) == (0.9, 3)
    ours, theirs = settings_of(MyConfig), settings_of(AlgorithmConfig)
    assert (ours["gamma"], ours["evaluation_duration"]) == (theirs["gamma"], theirs["evaluation_duration"])
    with pytest.raises(ValueError, match="gamma"):
        config.gamma = 1.5


def test_the_base_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        AlgorithmConfig()  # type: ignore[abstract]


# --- making config classes -------------------------------------------------------------------------------------------


def test_a_setting_needs_no_sentence() -> None:
    class Bare(Settings):
        x: int = 3

    assert Bare(x=4).x == 4
    with pytest.raises(TypeError, match=r"Bare\(x=\): expected int, got '4' \(str\)\. Give it a value that fits\."):
        Bare(x="4")  # type: ignore[arg-type]


def test_a_setting_has_to_be_in_a_section_that_the_config_derives_from() -> None:
    class Loose(MyConfig):
        bonus: float = 0.0

    class Named(MyConfig):
        extras = Section(type("More", (Extras,), {"__annotations__": {"bonus": float}, "bonus": 0.0}))

    for config in (Loose, Named):
        with pytest.raises(TypeError, match="bonus of only one of both") as caught:
            config()
        assert reads_well(caught.value, "training = Section(MyTraining)")


def test_a_config_may_derive_from_another_one_with_other_defaults() -> None:
    class Gentle(MyConfig):
        """Smaller steps."""

        clip_param = 0.1
        env_config = {"a": [1]}  # noqa: RUF012

    class More(MyTraining):
        bonus: float = setting(0.0, "Bonus.")

    class Both(More, Gentle):
        training = Section(More)

    assert (Both().clip_param, Both().gamma, Both().training(bonus=1).bonus) == (0.1, 0.9, 1.0)
    Both().env_config["a"].append(2)
    assert Both().env_config == {"a": [1]}
    assert list(sections_of(Both)) == list(sections_of(MyConfig))
    with pytest.raises(ValueError, match=r"clip_param=\): expected finite float, > 0 and < 1"):
        Both().training(clip_param=1)


def test_a_method_written_by_hand_stays() -> None:
    class Own(MyConfig):
        def training(self, **values: Any) -> Own:  # type: ignore[override]
            return self.update({"lr": 7, **values})

    class Below(Own):
        gamma = 0.5

    assert Own().training().lr == 7
    assert Below().training(clip_param=0.3).lr == 7


def test_a_wrong_default_fails_with_the_first_config() -> None:
    class Wrong(MyConfig):
        seed = -1

    with pytest.raises(ValueError, match=r"Wrong\.seed"):
        Wrong()


# --- setting ---------------------------------------------------------------------------------------------------------


def test_sections_chain_and_set() -> None:
    config = MyConfig().environment("A-v0", env_config={"n": 1}).training(lr=1, clip_param=0.5).debugging(seed=3)
    assert (config.env, config.env_config, config.lr, config.clip_param, config.seed) == ("A-v0", {"n": 1}, 1.0, 0.5, 3)
    assert type(config.lr) is float
    assert config.training() is config
    assert MyConfig(lr=0.1, seed=3).seed == 3


def test_what_is_left_out_keeps_its_value() -> None:
    assert MyConfig(gamma=0.5).training(lr=0.1).gamma == 0.5


def test_mutable_defaults_are_not_shared() -> None:
    one = MyConfig()
    one.env_config["x"] = 1
    one.layers.append(3)
    assert (MyConfig().env_config, MyConfig().layers) == ({}, [1, 2])


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"lrr": 1}, ("MyConfig.training()", "'lrr'", "Did you mean 'lr'?", "clip_param")),
        ({"clip_parm": 1}, ("Did you mean 'clip_param'?",)),
        ({"env": "x"}, ("'env'", ".environment(env=...)")),
        ({"num_env_runers": 1}, ("Did you mean 'num_env_runners'?",)),
        ({"zzzzzz": 1}, ("'zzzzzz'", "help()")),
        ({"use_lstm": True}, ("'use_lstm'", "It is a model setting: write .rl_module(model_config={'use_lstm': ...})")),
    ],
)
def test_unknown_keywords(values: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(TypeError) as caught:
        MyConfig().training(**values)
    assert reads_well(caught.value, *parts)


def test_unknown_names_elsewhere() -> None:
    for call in (MyConfig, MyConfig.overrides, lambda **kw: MyConfig().update(kw), lambda **kw: MyConfig.from_dict(kw)):
        with pytest.raises(TypeError) as caught:
            call(gama=1)
        assert reads_well(caught.value, "MyConfig", "'gama'", "Did you mean 'gamma'?")
    with pytest.raises(AttributeError) as unknown:
        MyConfig().gama = 1  # type: ignore[attr-defined]
    assert reads_well(unknown.value, "MyConfig.gama", "Did you mean 'gamma'?")


def test_positions() -> None:
    for call in (
        lambda: MyConfig().environment("a", "b"),  # type: ignore[call-arg]
        lambda: MyConfig().environment("a", env="b"),
        lambda: MyConfig().training(0.1),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert reads_well(caught.value, "by position")
    with pytest.raises(TypeError) as caught:
        MyConfig("CartPole-v1")  # type: ignore[call-arg]
    assert reads_well(caught.value, "MyConfig()", "Write MyConfig().environment('CartPole-v1').")


def test_all_or_nothing() -> None:
    config = MyConfig()
    with pytest.raises(ValueError, match="clip_param"):
        config.training(gamma=0.1, clip_param=2)
    with pytest.raises(TypeError, match="seed"):
        config.update({"gamma": 0.1, "seed": "x"})
    assert config == MyConfig()


WRONG_TYPES: list[tuple[str, Any, str]] = [
    ("gamma", "0.9", "float"),
    ("gamma", True, "float"),
    ("gamma", None, "float"),
    ("seed", 1.0, "int | None"),
    ("seed", False, "int | None"),
    ("evaluation_explore", 1, "bool"),
    ("gym_env_vectorize_mode", "snyc", "'sync' | 'async' | 'vector_entry_point'"),
    ("env", 3, "str | type[Env] | type[VectorEnv] | callable | None"),
    ("env_config", [1], "dict[str, Any]"),
    ("env_config", {1: 2}, "dict[str, Any]"),
    ("layers", [1, 2.5], "list[int]"),
    ("layers", 3, "list[int]"),
    ("explorer", int, "type[Built] | None"),
    ("explorer", Built(MyConfig()), "type[Built] | None"),
    ("pair", (1, 2, 3), "tuple[int, float]"),
    ("pair", 3, "tuple[int, float]"),
    ("on_step", "print", "callable | None"),
    ("mode", 3, "str | list[str]"),
    ("model_config", 3, "DefaultModelConfig | dict[str, Any] | None"),
    ("rl_module_spec", RLModuleSpec, "RLModuleSpec | None"),
    ("lr", "1e-3", "float | [[0, value], [env_step, value], ...]"),
    ("lr", [0.1, 0.2], "float | [[0, value], [env_step, value], ...]"),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG_TYPES)
def test_wrong_types(name: str, value: Any, expected: str) -> None:
    section = settings_of(MyConfig)[name].section
    for where, call in {
        f"MyConfig.{name}": lambda: setattr(MyConfig(), name, value),
        f"MyConfig.{section}({name}=)": lambda: getattr(MyConfig(), section)(**{name: value}),
        f"MyConfig({name}=)": lambda: MyConfig(**{name: value}),
        f"MyConfig.update({name}=)": lambda: MyConfig().update({name: value}),
        f"MyConfig.overrides({name}=)": lambda: MyConfig.overrides(**{name: value}),
    }.items():
        with pytest.raises(TypeError) as caught:
            call()
        assert reads_well(caught.value, expected, repr(value), settings_of(MyConfig)[name].doc), where
        assert str(caught.value).startswith(f"{where}: ")


@pytest.mark.parametrize(
    ("name", "value", "bad"),
    [
        ("gamma", 1.01, "1.01"),
        ("gamma", -1, "-1.0"),
        ("gamma", math.nan, "nan"),
        ("lr", math.inf, "inf"),
        ("lr", 10**400, "inf"),
        ("lr", -1e-3, "-0.001"),
        ("grad_clip", 0, "0.0"),
        ("clip_param", 1, "1.0"),
        ("seed", -1, "-1"),
        ("evaluation_interval", 0, "0"),
        ("layers", [3, 0], "0 in [3, 0]"),
        ("pair", (1, math.nan), "nan"),
        ("lr", [[0, 1], [5, -1]], "-1.0 in"),
        ("lr", [[0, 1], [5, math.nan]], "nan in"),
    ],
)
def test_out_of_range(name: str, value: Any, bad: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is looked at below
        setattr(MyConfig(), name, value)
    bounds = str(settings_of(MyConfig)[name].bounds)
    assert reads_well(caught.value, f"MyConfig.{name}", f"got {bad}", bounds, "finite")


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        ([], "too few points"),
        ([[0, 1]], "too few points"),
        ([[1, 1], [2, 1]], "first step 1"),
        ([[0, 1], [0, 1]], "do not increase"),
        ([[0, 1], [5, 1], [3, 1]], "do not increase"),
        ([[0, 1], [math.inf, 1]], "not finite"),
        ([[0, 1], [1]], "not a pair"),
        ([[0, 1], [1, 2, 3]], "not a pair"),
    ],
)
def test_no_schedules(points: list[list[float]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        MyConfig().training(lr=points)
    assert reads_well(caught.value, "MyConfig.training(lr=)", "[[0, value], [env_step, value], ...]", "two points")


def test_schedule_steps_are_not_values() -> None:
    assert MyConfig().training(lr=[(0, 1), (10**9, 0)]).lr == [[0.0, 1.0], [1e9, 0.0]]
    assert is_schedule(Schedule | None)
    assert not is_schedule(float | None)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1)), min_size=1, max_size=5), st.floats(0, 1))
def test_rising_points_are_schedules(points: list[tuple[int, float]], first: float) -> None:
    steps = np.cumsum([step for step, _ in points]).tolist()
    schedule = [[0, first], *([step, value] for step, (_, value) in zip(steps, points, strict=True))]
    assert MyConfig(lr=schedule).lr == schedule


def test_numbers_of_numpy_become_plain() -> None:
    config = MyConfig(seed=np.int64(3), gamma=np.float32(0.5))
    assert (type(config.seed), type(config.gamma)) == (int, float)


@given(st.one_of(st.integers(), st.floats(), st.booleans(), st.text(), st.none()))
def test_a_float_is_taken_or_refused_never_bent(value: Any) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value <= 1
    if good:
        assert MyConfig(gamma=value).gamma == value
    else:
        with pytest.raises((TypeError, ValueError), match="gamma"):
            MyConfig(gamma=value)


@pytest.mark.parametrize(
    ("value", "hint", "fitted"),
    [
        (3, int | float, 3),
        (3, float | int, 3),
        (3, float, 3.0),
        ((1, 2), list[float], [1.0, 2.0]),
        ([1, 2], tuple[float, ...], (1.0, 2.0)),
        ((1, 2), list[int] | tuple[int, ...], (1, 2)),
        ([1], list, [1]),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ("x", Any, "x"),
        (int, type, int),
        (True, Literal[True, "x"], True),
        (None, None, None),
    ],
)
def test_fitting(value: Any, hint: Any, fitted: Any) -> None:
    got = check_value("x", value, hint, Bounds(), "X.")
    assert got == fitted
    assert type(got) is type(fitted)


def test_what_is_auto_elsewhere_is_none_here() -> None:
    with pytest.raises(TypeError, match=r"got 'auto' \(str\)\. Use None: X\."):
        check_value("x", "auto", int | None, Bounds(), "X.")
    with pytest.raises(TypeError, match=r"Give it a value that fits: X\."):
        check_value("x", "auto", int, Bounds(), "X.")


def test_literals_compare_types() -> None:
    with pytest.raises(TypeError):
        check_value("x", 1, Literal[True], Bounds(), "X.")


def test_annotations_in_words() -> None:
    assert type_text(Schedule | None) == "float | [[0, value], [env_step, value], ...] | None"
    assert type_text(tuple[int, ...]) == "tuple[int, ...]"
    assert type_text(Any) == "Any"


def test_overrides_apply_later() -> None:
    changes = MyConfig.overrides(lr=1, seed=4)
    assert changes == {"lr": 1.0, "seed": 4}
    assert MyConfig().update(changes).seed == 4


# --- copies and frozen configs ---------------------------------------------------------------------------------------


def deep() -> MyConfig:
    return ready().update(
        {
            "env_config": {"a": [1, {"b": 2}], "t": (1, [2])},
            "rl_module_spec": RLModuleSpec(model_config={"fcnet_hiddens": [8]}),
            "lr": [[0, 1], [10, 0]],
        }
    )


def test_copy_is_deep() -> None:
    one = deep()
    two = one.copy()
    assert one == two
    two.env_config["a"][1]["b"] = 3
    two.env_config["t"][1].append(3)
    assert two.rl_module_spec is not None
    two.rl_module_spec.model_config["fcnet_hiddens"].append(9)
    assert one == deep()


def test_copy_shares_objects() -> None:
    class Factory:
        def __call__(self, env_config: dict[str, Any]) -> MyEnv:
            return MyEnv()

    factory = Factory()
    assert MyConfig(env=factory).copy().env is factory


def test_frozen_refuses_and_names_the_remedy() -> None:
    config = deep()
    assert config.freeze() is config
    assert config == deep()
    for call in (
        lambda: setattr(config, "lr", 0.1),
        lambda: config.training(lr=0.1),
        lambda: config.update({"lr": 0.1}),
    ):
        with pytest.raises(AttributeError) as caught:
            call()
        assert reads_well(caught.value, "frozen", "config.copy()")


def test_frozen_refuses_inside() -> None:
    config = deep().freeze()
    spec = config.rl_module_spec
    assert spec is not None
    inside = [
        lambda: config.env_config.update(a=1),
        lambda: config.env_config.__setitem__("a", 1),
        lambda: config.env_config.pop("a"),
        lambda: config.env_config["a"].append(1),
        lambda: config.env_config["a"][1].clear(),
        lambda: config.env_config["t"][1].sort(),
        lambda: config.layers.__iadd__([1]),
        lambda: config.env_config.__ior__({"a": 1}),
        lambda: spec.model_config["fcnet_hiddens"].append(1),
    ]
    for change in inside:
        with pytest.raises(TypeError) as caught:
            change()
        assert reads_well(caught.value, "frozen", "config.copy()")
    assert config == deep()


def test_freezing_leaves_what_the_user_gave() -> None:
    model = {"fcnet_hiddens": [8]}
    MyConfig(rl_module_spec=RLModuleSpec(model_config=model)).freeze()
    model["fcnet_hiddens"].append(9)


def test_copy_of_a_frozen_config_changes() -> None:
    config = deep().freeze().copy()
    config.env_config["a"].append(1)
    config.layers.append(1)
    assert config.training(lr=0.1).lr == 0.1
    assert type(config.layers) is list


def test_frozen_configs_travel() -> None:
    frozen = deep().freeze()
    assert json.loads(json.dumps(frozen.to_dict())) == deep().to_dict()
    again = pickle.loads(pickle.dumps(frozen))
    assert again == frozen
    with pytest.raises(AttributeError, match="frozen"):
        again.lr = 0.1
    with pytest.raises(TypeError, match="frozen"):
        again.layers.append(1)
    plain = copy.deepcopy(frozen.env_config)
    plain["a"].append(1)
    assert type(plain) is dict


# --- validate and build ----------------------------------------------------------------------------------------------


def test_build_takes_a_frozen_copy() -> None:
    config = ready()
    built = config.build()
    assert built.config == config
    config.lr = 0.5
    assert built.config.lr != 0.5
    with pytest.raises(AttributeError, match="frozen"):
        built.config.lr = 0.5


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"env": None}, ("MyConfig.env", ".environment('CartPole-v1')")),
        ({"num_learners": 9}, ("num_learners", "at most as many as there are environments, 8", "got 9")),
        ({"torch_cuda_graphs": True}, ("torch_cuda_graphs", "num_gpus_per_learner=1")),
        ({"train_batch_size_per_learner": 1003}, ("got 1003", "8 environments", "1000")),
        ({"rollout_fragment_length": 100}, ("got 2048", "rollout_fragment_length=100", "800")),
        (
            {"model_config": {}, "rl_module_spec": RLModuleSpec(model_config=DefaultModelConfig())},
            ("model_config", "rl_module_spec"),
        ),
    ],
)
def test_contradictions(values: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is looked at below
        ready().update(values).build()
    assert reads_well(caught.value, *parts)


def test_a_model_config_in_one_place_is_fine() -> None:
    ready().rl_module(model_config={"fcnet_hiddens": [8]}, rl_module_spec=RLModuleSpec()).validate()
    ready().rl_module(rl_module_spec=RLModuleSpec(model_config={})).validate()


@pytest.mark.parametrize(
    ("batch", "learners", "runners", "envs", "fragment", "length"),
    [
        (2048, 0, 0, 8, None, 256),
        (2048, 0, 0, 8, 256, 256),
        (512, 2, 4, 8, None, 32),  # 512 * 2 / (4 * 8)
        (3, 2, 1, 6, None, 1),
    ],
)
def test_fragment_length(batch: int, learners: int, runners: int, envs: int, fragment: int | None, length: int) -> None:
    config = MyConfig(
        train_batch_size_per_learner=batch,
        num_learners=learners,
        num_env_runners=runners,
        num_envs_per_env_runner=envs,
        rollout_fragment_length=fragment,
    )
    assert config.get_rollout_fragment_length() == length


@given(st.integers(1, 300), st.integers(0, 4), st.integers(0, 5), st.integers(1, 12), st.none() | st.integers(1, 20))
def test_the_nearest_batch_size_works(batch: int, learners: int, runners: int, envs: int, fragment: int | None) -> None:
    config = MyConfig(
        train_batch_size_per_learner=batch,
        num_learners=learners,
        num_env_runners=runners,
        num_envs_per_env_runner=envs,
        rollout_fragment_length=fragment,
    )
    try:
        length = config.get_rollout_fragment_length()
    except ValueError as error:
        found = re.search(r"that works is (\d+)", str(error))
        assert found
        config.train_batch_size_per_learner = nearest = int(found[1])
        if fragment is not None and fragment * max(1, runners) * envs % max(1, learners):
            config.rollout_fragment_length = fragment = None
        length = config.get_rollout_fragment_length()
        if fragment is None:
            unit = min(n for n in range(1, nearest + 1) if n * max(1, learners) % (max(1, runners) * envs) == 0)
            assert abs(nearest - batch) <= unit
    total = config.train_batch_size_per_learner * max(1, learners)
    assert length * max(1, runners) * envs == total


# --- writing down ----------------------------------------------------------------------------------------------------

SPACES = [
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    spaces.Box(np.array([0.1, -np.inf], np.float32), np.array([0.3, 5], np.float32)),
    spaces.Box(0, 255, (2, 2, 3), np.uint8),
    spaces.Box(0, 1, ()),
    spaces.Discrete(5),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 0], [0, 1]]), dtype=np.int32),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 3]),
    spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Tuple([spaces.Box(0, 1, (1,)), spaces.Discrete(3)]))]),
    spaces.Tuple([]),
]


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_spaces_return(space: gym.Space[Any]) -> None:
    again = Decoder("X", []).read(json.loads(json.dumps(encode(space), allow_nan=False)), "x")
    assert again == space
    assert (again.shape, again.dtype) == (space.shape, space.dtype)
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)
    if isinstance(space, spaces.Box):
        np.testing.assert_array_equal(again.low, space.low)
        np.testing.assert_array_equal(again.high, space.high)


def test_big_uniform_spaces_are_short() -> None:
    assert len(json.dumps(encode(spaces.Box(0, 255, (84, 84, 4), np.uint8)))) < 150


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.just("__tuple__"), inner)
    ),
    max_leaves=10,
)


@given(PLAIN)
def test_plain_values_return(value: Any) -> None:
    text = json.dumps(encode(value), allow_nan=False)
    again = Decoder("X", []).read(json.loads(text), "x")
    assert again == value
    assert repr(again) == repr(value)  # True is not 1, nor a tuple a list


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"env": MyEnv, "env_config": {"a": (1, [2.5]), "b": math.inf}},
        {"env": make_env, "explorer": Built},
        {"model_config": DefaultModelConfig(fcnet_hiddens=(3, 4), vf_share_layers=True)},
        {"model_config": {"fcnet_hiddens": [3, 4]}},
        {"rl_module_spec": RLModuleSpec(observation_space=SPACES[0], action_space=SPACES[-2])},
        {"lr": [[0, 1e-3], [1e6, 1e-5]], "pair": (3, 4.0), "mode": ["a", "b"]},
    ],
)
def test_configs_return(values: dict[str, Any]) -> None:
    config = MyConfig(**values)
    data = json.loads(json.dumps(config.to_dict(), allow_nan=False))
    assert MyConfig.from_dict(data) == config
    assert MyConfig.from_dict(data, allow=[__name__]) == config


def test_every_field_is_written() -> None:
    assert {*MyConfig().to_dict()} == {field.name for field in fields(MyConfig)}  # type: ignore[arg-type]


def test_missing_settings_keep_their_defaults() -> None:
    assert MyConfig.from_dict({"gamma": 0.5}) == MyConfig(gamma=0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("env", lambda env_config: MyEnv()),
        ("env", functools.partial(make_env)),
        ("env_config", {"inside": [object()]}),
        ("rl_module_spec", RLModuleSpec(observation_space=type("Mine", (spaces.Discrete,), {})(3))),
    ],
)
def test_what_cannot_be_written_is_passed_again(name: str, value: Any) -> None:
    config = MyConfig(seed=3, **{name: value})
    data = json.loads(json.dumps(config.to_dict()))
    with pytest.raises(ValueError, match="Pass it again") as caught:
        MyConfig.from_dict(data)
    assert reads_well(caught.value, f"MyConfig.{name}", f"by keyword ({name}=...)")
    assert MyConfig.from_dict(data, **{name: value}) == config


def test_objects_replace_what_was_written() -> None:
    data = MyConfig(env=MyEnv).to_dict()
    assert MyConfig.from_dict(data, allow=[], env=make_env).env is make_env
    with pytest.raises(TypeError, match="Did you mean 'env'"):
        MyConfig.from_dict(data, envs=make_env)


@pytest.mark.parametrize(
    "form",
    [
        {"__import__": "evil_module:run"},
        {"__import__": "os:system"},
        {"__import__": "algorithms_evil:run"},
        {"__dataclass__": "evil_module:Thing", "fields": {}},
        "evil_module:Env-v0",
    ],
)
def test_untrusted_paths_are_refused_before_import(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_import(name: str) -> None:
        raise AssertionError(f"imported {name}")

    monkeypatch.setattr("rlmodule.encoding.resolve_name", no_import)
    for allow in ([], ["evil", "evil_module.below", "evil_module:other"]):
        with pytest.raises(ValueError, match="import path") as caught:
            MyConfig.from_dict({"env": form}, allow=allow)
        assert reads_well(caught.value, "MyConfig.env", "allow=[", "env=...")


@pytest.mark.parametrize(
    "path",
    [
        "algorithms.settings.base:settings_of",  # a name that our module merely imports
        "rlmodule.encoding:inspect.signature",
        "rlmodule.encoding:sys",
        "algorithms.config:Nothing",
        "algorithms.nowhere:Thing",
        "algorithms.config",
        "",
    ],
)
def test_paths_lead_to_where_things_are_defined(path: str) -> None:
    with pytest.raises(ValueError, match=r"MyConfig\.env") as caught:
        MyConfig.from_dict({"env": {"__import__": path}}, allow=["", "algorithms"])
    assert reads_well(caught.value, "env=...")


def test_our_own_kinds_and_allowed_paths_resolve() -> None:
    config = MyConfig(
        learner_class=PPOLearner,
        callbacks_class=Callbacks,
        loggers=[CsvLogger],
        model_config={"fcnet_activation": nn.ReLU, "custom_action_dist": {"a": Categorical}},
        rl_module_spec=RLModuleSpec(PPOModule, catalog_class=PPOCatalog),
        run_dir="run",
    )
    assert config.modules_to_allow() == {}
    assert MyConfig.from_dict(json.loads(json.dumps(config.to_dict())), allow=[]) == config
    for allow in ([__name__], [f"{__name__}:MyEnv"]):
        assert MyConfig.from_dict({"env": {"__import__": f"{__name__}:MyEnv"}}, allow=allow).env is MyEnv
    assert MyConfig.from_dict({"env": "my_envs:A-v0"}, allow=["my_envs"]).env == "my_envs:A-v0"
    assert MyConfig.from_dict({"env": "A-v0"}, allow=[]).env == "A-v0"


@pytest.mark.parametrize("name", ["evil_module:Net", "evil_module.Net", "algorithms.cli:os.system"])
@pytest.mark.parametrize(
    "wrap", [lambda m: m, lambda m: {"leaf_overrides": {"a": m}}, lambda m: {"functions": {"value": m}}]
)
@pytest.mark.parametrize("typed", [True, False])
def test_models_named_in_a_checkpoint_are_held_to_the_same_rule(name: str, wrap: Any, typed: bool) -> None:
    settings_ = wrap({"custom_model": name})
    model: Any = DefaultModelConfig(**settings_) if typed else settings_
    for config in (
        MyConfig().rl_module(model_config=model),
        MyConfig().rl_module(rl_module_spec=RLModuleSpec(model_config=model)),
    ):
        data = json.loads(json.dumps(config.to_dict(), allow_nan=False))
        with pytest.raises(ValueError, match=r"MyConfig\.(model_config|rl_module_spec)\..*custom_model"):
            MyConfig.from_dict(data, allow=[])
        assert MyConfig.from_dict(data).to_dict() == data, "a dict of your own is trusted"


def test_a_dict_written_in_pairs_hides_no_name() -> None:
    inner = {"__items__": [["custom_model", "evil_module:Net"]]}
    for settings_ in (inner, {"leaf_overrides": {"__items__": [["a", inner]]}}):
        with pytest.raises(
            ValueError,
            match=r"MyConfig\.model_config\.(leaf_overrides\.a\.)?custom_model: expected an import path that you",
        ):
            MyConfig.from_dict({"model_config": settings_}, allow=[])


def test_distributions_named_in_a_checkpoint_are_held_to_the_same_rule() -> None:
    for named in ("evil_module:Dist", {"a": "evil_module:Dist"}, {"__items__": [["a", "evil_module:Dist"]]}):
        data = {"model_config": {"custom_action_dist": named}}
        with pytest.raises(ValueError, match=r"MyConfig\.model_config\.custom_action_dist"):
            MyConfig.from_dict(data, allow=[])
    for named in ("SquashedGaussian", "catalog.distributions.categorical:Categorical"):
        assert MyConfig.from_dict({"model_config": {"custom_action_dist": named}}, allow=[])


@dataclass
class Point:
    x: int = 0


@pytest.mark.parametrize(
    "form",
    [
        {"__dataclass__": f"{__name__}:MyEnv", "fields": {}},
        {"__dataclass__": f"{__name__}:Point", "fields": {"y": 1}},
        {"__space__": "Nothing"},
        {"__space__": "Box"},
        {"__space__": "Box", "low": 0, "high": 300, "shape": [2], "dtype": "uint8"},
        {"__space__": "Discrete", "n": -1, "start": 0, "dtype": "int64"},
        {"__space__": "Dict", "spaces": [1]},
        {"__float__": "abc"},
        {"__items__": [1]},
        {"__items__": [[1]]},
        {"__items__": [[[1], 2]]},
        {"__new_form__": 1},
    ],
)
def test_unknown_forms(form: Any) -> None:
    with pytest.raises(ValueError, match=r"MyConfig\.env_config") as caught:
        MyConfig.from_dict({"env_config": {"a": form}})
    assert reads_well(caught.value, "env_config=...")


def test_what_is_read_is_checked() -> None:
    with pytest.raises(ValueError, match="gamma"):
        MyConfig.from_dict({"gamma": 2.0})
    with pytest.raises(TypeError, match="seed"):
        MyConfig.from_dict({"seed": "x"})


class SetsItself(PPOConfig):
    def __init__(self) -> None:
        super().__init__()
        self.lr = 1e-3


def test_a_subclass_may_set_defaults_when_it_is_made() -> None:
    config = SetsItself()
    assert config.copy().lr == 1e-3
    config.training(lr=5e-4)
    assert type(config.copy()) is SetsItself
    assert config.copy().lr == 5e-4
    assert config.copy().freeze().copy().training(lr=2e-4).lr == 2e-4


def test_a_folder_may_be_a_path(tmp_path: Path) -> None:
    assert PPOConfig().reporting(run_dir=tmp_path).run_dir == str(tmp_path)  # type: ignore[arg-type]


def test_arrays_are_told_as_any_other_wrong_value() -> None:
    with pytest.raises(TypeError, match=r"PPOConfig\(lr=\): expected float .* got array"):
        PPOConfig(lr=np.zeros((2, 2)))


# --- printed ----------------------------------------------------------------------------------------------------------


def test_a_printed_config_shows_what_differs_from_the_defaults_and_how_to_see_all() -> None:
    config = PPOConfig(env="CartPole-v1", seed=1, lr=PPOConfig().lr)
    for shown in (str(config), repr(config), repr(config.copy().freeze())):
        assert shown == f"PPOConfig(env='CartPole-v1', seed=1)  # to_dict() has all {len(config.to_dict())} settings"


def test_a_printed_model_config_shows_what_was_given_even_if_it_is_a_default() -> None:
    given = DefaultModelConfig(fcnet_hiddens=DefaultModelConfig().fcnet_hiddens, use_lstm=True)
    assert repr(given) == "DefaultModelConfig(fcnet_hiddens=(64, 64), use_lstm=True)"
    assert repr(DefaultModelConfig()) == "DefaultModelConfig()"
