"""RunnerActor: an env runner in another process, and the messages to it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import torch
from gymnasium.envs.registration import EnvSpec
from torch import Tensor

from rlmodule.data.rollout import Rollout
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.groups.env_runner_group import Spec
from rlmodule.modules.spec import MultiRLModuleSpec


@dataclass(frozen=True, eq=False)
class PolicyChanges:
    """Modules of a multi-agent env, as :meth:`EnvRunnerGroup.set_policies` sets them, for runners in other processes.

    Attributes:
        spec: Describes the modules; in a message to a runner, only the modules that the runner lacks.
        trained: Ids of the modules that are trained.
        mapping_fn: The function that maps agents to modules; None keeps that of the settings.
        removed: In a message to a runner: ids of the modules to remove.
        states: In a message to a runner: states of modules that act but are not trained, as far as the runner lacks
            them.
    """

    spec: MultiRLModuleSpec
    trained: Collection[str]
    mapping_fn: Callable[..., str] | None
    removed: Sequence[str] = ()
    states: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)


class ModuleFailed(RuntimeError):
    """Raised if a runner cannot build its module or set its weights. A restart of the runner does not help."""


class RunnerActor:
    """The env runner in another process, as a worker of :class:`RayWorkers`.

    Args:
        make: Builds the runner.
        num_envs: Number of envs of each runner.
        env_spec: Gymnasium's spec of an env that is given by its id, to register the env in this process as well; None
            for other envs.
        counter_prefix: Beginning of the path of the file with the runner's step counter.
        host: Name of the main process's machine. The main process attaches the counter and removes the file. On any
            other machine, the counter has no file.
        index: Index of the runner.
        incarnation: Number of times the runner was restarted.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        num_envs: int,
        env_spec: EnvSpec | None,
        counter_prefix: str,
        host: str,
        index: int,
        incarnation: int,
    ) -> None:
        if env_spec is not None:
            gym.registry.setdefault(env_spec.id, env_spec)
        is_here, path = host == socket.gethostname(), f"{counter_prefix}-{index}-{incarnation}"
        self._runner = make(
            first_env_index=index * num_envs,
            incarnation=incarnation,
            step_counter=SharedCounter.create(path) if is_here else SharedCounter(),
        )
        self.reset, self.stop = self._runner.reset, self._runner.stop
        self.get_state, self.set_state = self._runner.get_state, self._runner.set_state

    @property
    def progress(self) -> int:
        return self._runner.progress

    def get_spaces(self) -> tuple[Any, Any]:
        return self._runner.observation_space, self._runner.action_space

    def sample(
        self,
        num_steps: int,
        explore: bool,
        policy_version: int,
        spec: Spec | None,
        news: PolicyChanges | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> Rollout:
        """Sample a rollout with :meth:`EnvRunner.sample`.

        Args:
            num_steps, explore, policy_version: See :meth:`EnvRunner.sample`.
            spec: Describes the module; passed with the first call only, else None.
            news: Changes to the modules of a multi-agent env; None if nothing has changed.
            weights: New weights of the module; None keeps the current weights.

        Raises:
            ModuleFailed: If the module cannot be built, or the weights do not fit.
        """
        try:
            if spec is not None:
                with torch.random.fork_rng(devices=[]):
                    self._runner.set_module(spec.build(inference_only=True).to(self._runner.device))
            if news is not None:
                self._change_modules(news)
            if weights is not None:
                self._runner.module.set_state(weights)
        except Exception as error:
            raise ModuleFailed(f"{type(error).__name__}: {error}") from error
        self._runner.recycle()
        return self._runner.sample(num_steps, explore=explore, policy_version=policy_version)

    def _change_modules(self, news: PolicyChanges) -> None:
        module = self._runner.module
        for module_id in news.removed:
            module.remove(module_id)
        with torch.random.fork_rng(devices=[]):
            for module_id, module_spec in news.spec.rl_module_specs.items():
                module.add(module_id, module_spec.build(inference_only=True))
        module.set_state(news.states)
        self._runner.set_policies(news.trained, news.mapping_fn)
