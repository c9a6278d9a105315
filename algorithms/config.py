"""The base class of algorithm configs: the settings of every run, their checks against one another, and ``build()``."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
from gymnasium.vector import VectorEnv
from typing_extensions import Self

from algorithms.loggers.base import check_loggers
from algorithms.presets import Preset, find_preset
from algorithms.run.callbacks import CALLBACK_SETTINGS, CALLBACKS, check_callback, overrides
from algorithms.run.threads import building
from algorithms.sections import (
    CallbackFunctions,
    Checkpointing,
    Debugging,
    Evaluation,
    Learners,
    Networks,
    Reporting,
)
from algorithms.settings.base import SettingsBase, on_the_class
from catalog.copies import mutable_copy
from catalog.model_config import DefaultModelConfig
from catalog.settings import Section, settings_of
from catalog_rl import closest
from rlmodule.encoding import encode
from rlmodule.envs.atari import AtariGame, importing_id, is_atari
from rlmodule.envs.make import make_vector_env
from rlmodule.groups.learner_group import LearnerGroup
from rlmodule.learning.learner import Learner
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.settings import (
    Environment,
    EnvRunners,
    FaultTolerance,
    LearnerSettings,
    RunnerSettings,
    Training,
)

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm


class AlgorithmConfig(
    RunnerSettings,
    LearnerSettings,
    Learners,
    Networks,
    Evaluation,
    CallbackFunctions,
    Reporting,
    Checkpointing,
    Debugging,
    SettingsBase,
    ABC,
):
    """Settings of a run, set section by section. ``build()`` makes the algorithm from a frozen copy.

    Setting a value checks its name, type and range at once; see :class:`SettingsBase`. ``build()`` also calls
    :meth:`validate`, which checks settings against one another.
    """

    environment = Section(Environment)
    env_runners = Section(EnvRunners)
    learners = Section(Learners)
    training = Section(Training)
    rl_module = Section(Networks)
    evaluation = Section(Evaluation)
    callbacks = Section(CallbackFunctions)
    reporting = Section(Reporting)
    checkpointing = Section(Checkpointing)
    fault_tolerance = Section(FaultTolerance)
    debugging = Section(Debugging)

    presets: ClassVar[Mapping[str, Preset]] = {}
    """Env id, or a pattern of env ids, → preset; see :meth:`preset`."""
    default_search: ClassVar[Sequence[str]] = ()
    """What ``rlmodule tune --search default`` searches; see :mod:`algorithms.tuning.search`."""

    @property
    @abstractmethod
    def algo_class(self) -> type[Algorithm]:
        """The class of the algorithm that :meth:`build` makes."""

    @abstractmethod
    def default_learner_class(self) -> type[Learner]:
        """Return the learner class to use if ``learner_class`` is None."""

    @abstractmethod
    def default_rl_module_spec(self) -> RLModuleSpec:
        """Return a spec with the algorithm's own module and catalog classes, which are used where ``rl_module_spec``
        leaves a class open."""

    @on_the_class
    def preset(cls, env_id: str) -> Self:
        """Return a new config with the env ``env_id`` and the settings of its preset.

        Raises:
            ValueError: If the env has no preset; names the envs that have one.
            TypeError: If called on a config instead of the class.
        """
        preset = find_preset(cls.presets, env_id)
        if preset is None:
            raise ValueError(
                f"{cls.__name__}.preset(): expected an env with a preset ({', '.join(cls.presets) or 'none yet'}), got "
                f"{env_id!r}. Begin with {cls.__name__}().{closest(env_id, cls.presets)}"
            )
        return cls(env=env_id, **preset.settings)

    not_for_learners: ClassVar[tuple[str, ...]] = (*CALLBACK_SETTINGS, "env", "loggers")
    """Settings that learners do not read, and that may be too large for other processes, or not picklable."""

    can_sample: ClassVar[bool] = True
    """Whether the algorithm can sample env steps to learn from."""

    @property
    def needs_env(self) -> bool:
        """Whether :meth:`build` needs an env."""
        return True

    @property
    def records_episode_infos(self) -> bool:
        """Whether rollouts hold the last ``info`` of every finished episode: True if a callback handles
        ``on_episode_end``."""
        return self.on_episode_end is not None or overrides(self.callbacks_class, "on_episode_end")

    def make_env(self, **changed: Any) -> Any:
        """Make one environment from the settings, for use outside a run.

        Args:
            **changed: Entries that replace those of ``env_config``.

        Raises:
            TypeError: If the setting ``env`` is a class of vector envs.
        """
        source: Any = self.env
        env_config = mutable_copy(dict(self.env_config)) | changed
        if is_atari(source) and self.gym_env_vectorize_mode in (None, "vector_entry_point"):
            return AtariGame(source, env_config)
        if isinstance(source, str):
            return gym.make(importing_id(source), disable_env_checker=True, **env_config)
        if not isinstance(source, type):
            return source(env_config)
        if issubclass(source, VectorEnv):
            raise TypeError(f"{source.__name__} is no single env")
        return source(**env_config)

    def for_evaluation(self) -> Self:
        """Return a frozen copy of this config for the env runner of evaluations, which is in this process. In the copy,
        ``evaluation_env_config`` and ``evaluation_num_envs``, if set, replace the settings of training."""
        changed: dict[str, Any] = {"num_env_runners": 0}
        if self.evaluation_env_config is not None:
            changed["env_config"] = self.evaluation_env_config
        if self.evaluation_num_envs is not None:
            changed["num_envs_per_env_runner"] = self.evaluation_num_envs
        return self.copy().update(changed).freeze()

    def for_learners(self) -> Self:
        """Return a frozen copy for learners in other processes. The settings
        :attr:`not_for_learners` are None."""
        return self.copy().update(dict.fromkeys(self.not_for_learners)).freeze()

    @property
    def model_config_class(self) -> type[DefaultModelConfig]:
        """The class of the model settings, whose defaults are those of the algorithm."""
        catalog_class = self.default_rl_module_spec().catalog_class
        return DefaultModelConfig if catalog_class is None else catalog_class.model_config_class

    @property
    def net_settings(self) -> tuple[str, ...]:
        """Names of the settings that this config shares with its model config, such as DQN's ``dueling``. Their values
        are copied into ``model_config``."""
        shared = settings_of(self.model_config_class)
        return tuple(name for name in settings_of(type(self)) if name in shared)

    def get_rl_module_spec(
        self, observation_space: gym.Space, action_space: gym.Space, spec: RLModuleSpec | None = None
    ) -> RLModuleSpec:
        """Return the spec of the module: ``rl_module_spec``, completed with the algorithm's defaults and the spaces,
        and with the :attr:`net_settings` in its ``model_config``.

        Args:
            observation_space, action_space: Spaces of the env, or of an agent.
            spec: The spec of one of several policies, which takes precedence over ``rl_module_spec``, and whose dict
                ``model_config`` takes precedence over that of the run, setting by setting. If it names a catalog that
                does not read the net settings, they do not apply to its policy.

        Raises:
            ValueError: If ``model_config`` has a different value for a net setting, or a net setting was changed that
                the catalog does not read.
        """
        own = spec or RLModuleSpec()
        default = replace(
            self.default_rl_module_spec(),
            observation_space=observation_space,
            action_space=action_space,
            model_config=self.model_config,
        )
        if isinstance(own.model_config, Mapping) and self.model_config is not None:
            given = self.model_config if isinstance(self.model_config, Mapping) else self.model_config.given()
            own = replace(own, model_config={**given, **own.model_config})
        spec = own.filled(self.rl_module_spec or RLModuleSpec()).filled(default)
        return self._with_net_settings(spec, own.catalog_class is not None) if self.net_settings else spec

    def _with_net_settings(self, spec: RLModuleSpec, has_own_catalog: bool) -> RLModuleSpec:
        """Return ``spec`` with the :attr:`net_settings` in its ``model_config``, or unchanged if its catalog does not
        read them. Raise as :meth:`get_rl_module_spec`. With ``has_own_catalog``, the run's settings need not apply."""
        own = self.default_rl_module_spec().catalog_class
        assert own is not None
        chosen = {name: getattr(self, name) for name in self.net_settings}
        config_class = spec.catalog_class.model_config_class if spec.catalog_class else None
        if config_class is None or not issubclass(config_class, own.model_config_class):
            # The user's module or catalog does not read these settings, so they must not be set.
            defaults = own.model_config_class()
            for name, value in chosen.items():
                if value != getattr(defaults, name) and not has_own_catalog:
                    raise self._invalid(
                        name, f"a catalog_class derived from {own.__name__}", "Leave it out, or derive yours."
                    )
            return spec
        given = config_class.from_any(spec.model_config)
        for name, value in given.given().items():
            if chosen.get(name, value) != value:
                raise self._invalid(name, "one value", f"model_config has {value!r}: take it out of there.")
        return replace(spec, model_config=replace(given, **chosen))

    def get_module_spec(self, observation_space: Any, action_space: Any) -> RLModuleSpec | MultiRLModuleSpec:
        """Return the spec of the module, or in a multi-agent run, the specs of all policies.

        Args:
            observation_space, action_space: Spaces of a single env; for a multi-agent env, dicts of spaces by agent.

        Raises:
            ValueError: As :meth:`get_rl_module_spec`, or if settings of the section ``multi_agent`` contradict each
                other or do not fit the agents.
        """
        return self.get_rl_module_spec(observation_space, action_space)

    def build(self) -> Algorithm:
        """Build the algorithm from a frozen copy of this config. In the copy, ``run_dir`` is absolute: a relative path
        counts from the current working directory, which an env may change later.

        Raises:
            ValueError, TypeError: If no env is set, or the settings are invalid (see :meth:`validate`).
        """
        if self.env is None and self.needs_env:
            raise self._without_env()
        config = self.copy()
        config.validate()
        if config.run_dir is not None:
            config.run_dir = str(Path(config.run_dir).absolute())
        return config.algo_class(config.freeze())

    def build_learner_group(
        self,
        *,
        env: gym.Env | VectorEnv | None = None,
        spaces: tuple[gym.Space, gym.Space] | None = None,
        rl_module_spec: RLModuleSpec | None = None,
    ) -> LearnerGroup:
        """Build only the learners, for your own training loop. Their initial weights are those that ``build()`` makes
        with the same ``seed``.

        Args:
            env: Environment that provides the spaces. None makes an env from the settings and closes it.
            spaces: Observation space and action space, instead of ``env``; in a multi-agent run, two dicts by agent.
            rl_module_spec: The module to build; None uses the setting.

        Raises:
            ValueError, TypeError: If the settings are invalid (see :meth:`validate`), or the spaces are unknown.
        """
        config = self.copy()
        if rl_module_spec is not None:
            config.update({"rl_module_spec": rl_module_spec})
        config.validate()
        config.freeze()
        if spaces is None:
            spaces = config.spaces_of(env)
        run_seed = secrets.randbits(31) if self.seed is None else self.seed
        with building(run_seed):
            return config.learner_group_for(config.get_module_spec(*spaces), run_seed)

    def learner_group_for(self, spec: RLModuleSpec | MultiRLModuleSpec, run_seed: int) -> LearnerGroup:
        """Build the learners of the modules in ``spec``. Their random streams derive from ``run_seed``. This config
        must be frozen."""
        learner_class = self.learner_class or self.default_learner_class()
        specs = spec if isinstance(spec, MultiRLModuleSpec) else spec.as_multi()
        settings = self.for_learners() if self.num_learners else self
        return LearnerGroup.create(settings, learner_class, specs, run_seed=run_seed)

    def spaces_of(self, env: gym.Env | VectorEnv | None = None) -> tuple[gym.Space, gym.Space]:
        """Return the observation and action space of a single env; for a multi-agent env, two dicts by agent.

        Args:
            env: The env that has the spaces. None makes an env from the settings and closes it.

        Raises:
            ValueError: If ``env`` is None and the settings name no env.
        """
        if isinstance(env, gym.Env):
            return env.observation_space, env.action_space
        if env is not None:
            return env.single_observation_space, env.single_action_space
        if self.env is None:
            raise self._without_env()
        with closing(make_vector_env(self.env, self.env_config, 1, self.gym_env_vectorize_mode)) as made:
            return made.single_observation_space, made.single_action_space

    def _without_env(self) -> ValueError:
        remedy = "Name one: .environment('CartPole-v1'), an Env class, or a factory fn(env_config)."
        return self._invalid("env", "an environment", remedy)

    def validate(self) -> None:
        """Check settings against one another. A subclass adds its own checks and calls ``super().validate()``.

        Raises:
            ValueError: If settings contradict each other, or a setting needs another one that is not set.
            TypeError: If a callback does not accept its arguments.
        """
        spec = self.rl_module_spec
        if self.model_config is not None and spec is not None and spec.model_config is not None:
            raise self._invalid(
                "model_config",
                "a model config in one place",
                "It is also in rl_module_spec, and one would be ignored: take it out of there or out of here.",
            )
        if self.num_learners > self.num_envs:
            expected = f"at most as many as there are environments, {self.num_envs}"
            raise self._invalid("num_learners", expected, "Learn with fewer, or sample more environments.")
        if self.torch_cuda_graphs and not self.num_gpus_per_learner:
            expected = "False without num_gpus_per_learner=1, since only GPUs have such graphs"
            raise self._invalid("torch_cuda_graphs", expected, "Leave it out, or learn on a GPU.")
        for name in CALLBACKS:
            if (function := getattr(self, name)) is not None:
                check_callback(name, function)
        if self.run_dir == "":
            raise self._invalid("run_dir", "the path of a folder", "Write '.' for the one you are in, or None.")
        check_loggers(self.loggers, self.run_dir)
        for name, other in (("checkpoint_interval", "None"), ("evaluation_num_videos", "0")):
            if getattr(self, name) and self.run_dir is None:
                remedy = "Set one: .reporting(run_dir='runs/mine')."
                raise self._invalid(name, f"{other}, since there is no run_dir to write to", remedy)
        self.get_rollout_fragment_length()

    @property
    def train_batch_size(self) -> int:
        """Env steps in each train batch, summed over all learners."""
        return self.train_batch_size_per_learner * max(1, self.num_learners)

    def get_rollout_fragment_length(self) -> int:
        """Return the number of steps per env in each rollout with which all envs together fill the train batch exactly.

        Raises:
            ValueError: If no such number exists; suggests the nearest batch size that works.
        """
        learners, runners = max(1, self.num_learners), max(1, self.num_env_runners)
        slots, fragment = self.num_envs, self.rollout_fragment_length
        steps_each = fragment or self.train_batch_size // slots
        if steps_each * slots == self.train_batch_size:
            return steps_each
        if fragment is not None and fragment * slots % learners == 0:
            nearest = fragment * slots // learners
        else:
            # batch * learners must be a multiple of slots, so batch is a multiple of slots / gcd(slots, learners)
            unit = slots // gcd(slots, learners)
            nearest = max(1, (2 * self.train_batch_size_per_learner + unit) // (2 * unit)) * unit
        steps = "a whole number of steps" if fragment is None else f"rollout_fragment_length={fragment} steps"
        raise self._invalid(
            "train_batch_size_per_learner",
            f"{steps} from each of {slots} environments ({runners} runner{'s' if runners > 1 else ''} x "
            f"{self.num_envs_per_env_runner}) to fill the batch{'es' if learners > 1 else ''} of {learners} "
            f"learner{'s' if learners > 1 else ''}",
            f"The nearest batch size that works is {nearest}"
            + (", or leave rollout_fragment_length=None." if fragment is not None else "."),
        )

    def _set(self, values: Mapping[str, Any], where: str, section: str | None = None) -> Self:
        if isinstance(model_config := values.get("model_config"), dict):
            for name in filter(model_config.__contains__, self.net_settings):
                raise ValueError(
                    f"{where[:-1]}model_config=): expected settings of the nets alone, got {name!r}, a setting "
                    f"of the algorithm. Write .training({name}=...)."
                )
            DefaultModelConfig.from_any(model_config)  # raises for a wrong name or value
        if isinstance(env := values.get("env"), gym.Env | VectorEnv):
            name = repr(env.spec.id) if env.spec is not None else type(env.unwrapped).__name__
            raise TypeError(
                f"{where[:-1]}env=): expected an id, a class or a factory, since a run makes several envs, got an env "
                f"of class {type(env.unwrapped).__name__}. Write .environment({name}), or .environment(make) with "
                "def make(env_config) that makes and returns a new one."
            )
        if isinstance(spec := values.get("rl_module_spec"), MultiRLModuleSpec):
            raise TypeError(
                f"{where[:-1]}rl_module_spec=): expected one RLModuleSpec, got a MultiRLModuleSpec of "
                f"{', '.join(spec.rl_module_specs) or 'none'}. Pass one of its specs, or for several agents all of "
                "them: .multi_agent(policies=...)."
            )
        return super()._set(values, where, section)

    def _invalid(self, name: str, expected: str, remedy: str) -> ValueError:
        """Return a ``ValueError`` about the setting ``name``. Its message says which values are ``expected``, shows
        the setting's value, and ends with ``remedy``, a sentence that says what to do."""
        return ValueError(f"{type(self).__name__}.{name}: expected {expected}, got {getattr(self, name)!r}. {remedy}")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], /, *, allow: Sequence[str] | None = None, **objects: Any) -> Self:
        given, saved = objects.get("rl_module_spec"), data.get("rl_module_spec")
        if isinstance(given, RLModuleSpec) and isinstance(saved, dict) and isinstance(saved.get("fields"), dict):
            # The given spec replaces the saved one. Decode only the fields that it leaves open: the others may name
            # code that is not allowed.
            left = {name: value for name, value in saved["fields"].items() if vars(given).get(name, ...) is None}
            form = {**encode(RLModuleSpec()), "fields": left}
            kept = super().from_dict({"rl_module_spec": form}, allow=allow).rl_module_spec
            objects["rl_module_spec"] = given.filled(kept or given)
        return super().from_dict(data, allow=allow, **objects)
