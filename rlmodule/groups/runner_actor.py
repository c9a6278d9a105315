"""RunnerActor: an env runner in another process, and the messages to it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from gymnasium.envs.registration import EnvSpec
from torch import Tensor

from rlmodule.data.rollout import Rollout
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.groups.env_runner_group import Spec
from rlmodule.modules.rl_module import MultiRLModule
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


class Weights(NamedTuple):
    """Weights that are sent to runners.

    Attributes:
        sending: Their number. Later ones have a higher number.
        policy_version: Their version, for the rollouts.
        state: The state of the module.
    """

    sending: int
    policy_version: int
    state: Mapping[str, Any]


class ModuleFailed(RuntimeError):
    """Raised if a runner cannot build its module or set its weights. A restart of the runner does not help."""


class RunnerActor:
    """The env runner in another process, as a worker of :class:`RayWorkers`.

    Args:
        make: Builds the runner.
        num_envs: Number of envs of each runner.
        env_spec: Gymnasium's spec of an env that is given by its id, to register the env in this process as the main
            process has it; None for other envs.
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
            gym.registry[env_spec.id] = env_spec  # a script may have changed one of Gymnasium's own
        is_here, path = host == socket.gethostname(), f"{counter_prefix}-{index}-{incarnation}"
        self._runner = make(
            first_env_index=index * num_envs,
            incarnation=incarnation,
            step_counter=SharedCounter.create(path) if is_here else SharedCounter(),
        )
        self._weights = self._acting = Weights(0, 0, {})  # the latest ones, and those that the module has
        self._returned_at: float | None = None
        self.reset, self.stop = self._runner.reset, self._runner.stop
        self.get_state, self.set_state = self._runner.get_state, self._runner.set_state

    @property
    def progress(self) -> int:
        return self._runner.progress

    def get_spaces(self) -> tuple[Any, Any]:
        return self._runner.observation_space, self._runner.action_space

    def receive(self, weights: Weights) -> None:
        """Act with ``weights`` from the next rollout on, unless later ones have been received."""
        if weights.sending > self._weights.sending:
            self._weights = weights

    def sample(
        self,
        num_steps: int,
        explore: bool,
        spec: Spec | None,
        news: PolicyChanges | None = None,
        weights: Weights | None = None,
    ) -> Rollout:
        """Sample a rollout with :meth:`EnvRunner.sample` and the latest weights. Its ``stats`` also have
        ``env_runner_waited_s``, the seconds since the last rollout was returned; 0 for the first one.

        Args:
            num_steps, explore: See :meth:`EnvRunner.sample`.
            spec: Describes the module; passed with the first call only, else None.
            news: Changes to the modules of a multi-agent env; None if nothing has changed.
            weights: New weights of the module; None if there are none, or they were posted.

        Raises:
            ModuleFailed: If the module cannot be built, or the weights do not fit.
        """
        waited = 0.0 if self._returned_at is None else perf_counter() - self._returned_at
        try:
            if spec is not None:
                with torch.random.fork_rng(devices=[]):
                    self._runner.set_module(spec.build(inference_only=True).to(self._runner.device))
            if news is not None:
                self._change_modules(news)
            if weights is not None:
                self.receive(weights)
            if self._weights is not self._acting:
                self._set_weights()
        except Exception as error:
            raise ModuleFailed(f"{type(error).__name__}: {error}") from error
        self._runner.recycle()
        version = self._acting.policy_version
        rollout = self._runner.sample(num_steps, explore=explore, policy_version=version)
        rollout.stats["env_runner_waited_s"] = waited
        self._returned_at = perf_counter()
        return rollout

    def _set_weights(self) -> None:
        """Give the module the latest weights."""
        module, state = self._runner.module, self._weights.state
        if isinstance(module, MultiRLModule):  # those of a module that was removed may have been posted before
            state = {module_id: part for module_id, part in state.items() if module_id in module}
        module.set_state(state)
        self._weights = self._acting = self._weights._replace(state={})  # free the memory of the message

    def _change_modules(self, news: PolicyChanges) -> None:
        module = self._runner.module
        for module_id in news.removed:
            module.remove(module_id)
        with torch.random.fork_rng(devices=[]):
            for module_id, module_spec in news.spec.rl_module_specs.items():
                module.add(module_id, module_spec.build(inference_only=True))
        module.set_state(news.states)
        self._runner.set_policies(news.trained, news.mapping_fn)
