"""EnvRunner: steps a vector env with a module and fills a rollout.

A vector step is one forward pass, one env step and a few copies of whole arrays. All other work is done once for many
steps. Log-probabilities, episode statistics and the check for NaN follow at the end of a fragment. Action noise is
drawn and memory allocated ahead of time, so that a fragment of one step costs little more than a step of a long
fragment.

The same loop runs envs that return arrays and envs that return tensors, which stay on their device.
:class:`RolloutStorage` and :class:`TensorStorage` implement the difference.

For a recurrent module, the runner passes the states on from row to row, marks the rows that start an episode, and
records the states at the start of each training sequence. A module that sees earlier observations, actions or rewards
gets them as fields next to the observation. The fields are zero for steps before the start of the episode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor
from typing_extensions import Never

from catalog.base import Tree
from rlmodule.data.columns import Columns
from rlmodule.data.device import moved
from rlmodule.data.rollout import Rollout, allocate_observations, as_tensors, entry_of, map_leaves, write_row
from rlmodule.envs.checks import EnvError, check_finite, received, to_send
from rlmodule.envs.make import autoreset_mode, guard_for, make_vector_env
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.envs.subprocesses import close_vector_env, end_processes, error_of_ended_process, is_broken
from rlmodule.envs.sync_vector_env import SyncEnvs
from rlmodule.envs.vector_guard import VectorGuard
from rlmodule.modules.apis import NoisyNetAPI
from rlmodule.modules.recurrent import initial_states, state_out_of
from rlmodule.modules.rl_module import RLModule
from rlmodule.sampling.accounts import BaseRunner, EpisodeStats, own_gradients
from rlmodule.sampling.devices import check_device, tensors_on
from rlmodule.sampling.open_episodes import describe_row, join_rows
from rlmodule.sampling.random_streams import RandomStreams
from rlmodule.sampling.storage import RolloutStorage, TensorStorage
from rlmodule.seeding import int_seed
from rlmodule.settings import FinalObs, RunnerSettings

logger = logging.getLogger("rlmodule.envs.make")

OnEnv = Callable[[VectorEnv], None]
"""Callback that is called with a new vector env."""
Forward = Callable[[Mapping[str, Tree]], dict[str, Tree]]
"""Forward pass of the module, called for one row after another."""
Choose = Callable[[Tensor, int], Tree]
"""Function that chooses the actions of one row, given the action distribution inputs and the number of the row."""


class EnvRunner(BaseRunner):
    """Collects rollouts from ``num_envs_per_env_runner`` envs. An episode that is open at the end of a call of
    :meth:`sample` continues in the next call.

    A ready vector env whose observations, rewards and flags are tensors on one device is sampled on that device. Random
    actions are drawn on the device, from one generator for all envs, so they depend on the number of envs and the kind
    of device. With same-step autoreset, such an env must return ``info["final_obs"]`` as tensors ``[N, ...]`` from
    every step that truncates an episode, or that ends one if ``settings.records_final_obs`` is ``"ended"``. It should
    return them from every step, because finding out whether an episode ended would mean waiting for the device. Entries
    of envs whose episode continues are ignored. An env that cannot return them says so: with ``info["time_outs"]`` in
    every step, or ``metadata["final_obs"] = False``; see :attr:`Rollout.finals_known`.

    A rollout's data is changed by no later call, unless :meth:`recycle` is called. If the settings record action
    distributions, it has the column ``action_dist_inputs`` and, with ``explore``, ``action_logp``. Its ``stats`` are:

    - ``episode_returns``, ``episode_lengths``, ``episode_slots`` (env indices): of finished episodes, in order.
    - ``env_step``, ``forward``, ``bookkeeping``: seconds per phase; on a GPU, seconds to queue the work.
    - ``episode_infos``: the ``info`` of the last step of each finished episode, if the settings record infos.
    - ``num_env_steps_lost``: lost steps by cause, if an env raised and was restarted. Its open episode is truncated and
      does not count as finished, because the error, not the task, cut its return short. ``no_final_obs`` counts the
      truncated steps of an env without true final observations, if the settings record no action distributions:
      learners from single transitions do without them, see :meth:`Rollout.cut_before_unknown`.
    - ``env_log``: means of the numbers in ``info["log"]`` of a ready vector env, if there are any.

    The class has no methods to override. Put transforms into env wrappers or the module.

    Args:
        settings: The env, the number of envs, how they are vectorised, and whether to record action distributions and
            which final observations.
        run_seed: Seed of the run; the random streams of each env and its action noise derive from it.
        first_env_index: Index of this runner's first env among all envs of the run.
        role: ``"env"``, or ``"evaluation_env"`` for random streams that differ from those of training.
        on_env: Called with each new vector env, which is closed if the call raises. The runner makes a new vector env
            at the next reset if the process of an env ended, or an interrupt cut off one of its messages.
        incarnation: Number of earlier runners of the same envs. The random streams of each incarnation differ.
        step_counter: Counts the calls of ``env.step``, including calls that raise. It is incremented before each call
            for envs in this process, and before each vector step for other envs. None creates a counter.

    Attributes:
        device: The device on which the runner acts: the device of the env's tensors, or the CPU.
        module: The module that acts; set by :meth:`set_module`.

    Raises:
        ValueError, TypeError, ImportError, RuntimeError: If the env cannot be made, see :func:`make_vector_env`; or if
            the env returns tensors and has no autoreset.
    """

    rollout_class: ClassVar[type] = Rollout
    module: RLModule

    def __init__(
        self,
        settings: RunnerSettings,
        *,
        run_seed: int,
        first_env_index: int = 0,
        role: str = "env",
        on_env: OnEnv | None = None,
        incarnation: int = 0,
        step_counter: SharedCounter | None = None,
    ) -> None:
        super().__init__(settings, first_env_index, role, step_counter)
        self._on_env = on_env
        # read once: settings may compute them
        self._records_infos = settings.records_episode_infos
        self._records_final_obs: FinalObs = settings.records_final_obs
        self._first_seed = int_seed(run_seed, role, first_env_index, 0, *((incarnation,) if incarnation else ()))
        with own_gradients():
            self._make_env()
        self.observation_space = self.env.single_observation_space
        self.action_space = self.env.single_action_space
        tensors_on = self._tensors_on
        self._has_tensors = tensors_on is not None
        self.device = tensors_on or torch.device("cpu")
        self._storage_class = TensorStorage if self._has_tensors else RolloutStorage
        envs = range(first_env_index, first_env_index + self.num_envs)
        self._streams = RandomStreams(run_seed, role, envs, incarnation=incarnation, device=tensors_on)
        self._row: dict[str, Any] = {}  # first row of the next rollout
        self._seeds: list[int] = []  # seeds of the last reset
        self._totals = EpisodeStats(self.num_envs, self._resets_in_a_step)
        if self._guard is not None:  # the envs within a ready vector env cannot be reached
            self._keeps_episodes = False

    def _make_env(self) -> None:
        settings = self._settings
        assert settings.env is not None
        self.env = make_vector_env(
            settings.env,
            settings.env_config,
            self.num_envs,
            settings.gym_env_vectorize_mode,
            first_env_index=self._first,
            step_counter=self.step_counter,
            restart=settings.restart_failed_sub_environments,
        )
        try:
            if self._on_env is not None:
                self._on_env(self.env)
            self._mode = autoreset_mode(self.env)
            # the step after the last of an episode does nothing but reset the env
            self._resets_in_a_step = self._mode is AutoresetMode.NEXT_STEP
            self._tensors_on = tensors_on(self.env, self._mode, self._first_seed)
        except BaseException:
            close_vector_env(self.env)
            raise
        self._guard = guard_for(self.env, self._first)
        # an EnvGuard in this process counts the steps itself
        self._counts_steps = self._guard is not None or isinstance(self.env, AsyncVectorEnv)

    def set_module(self, module: RLModule) -> None:
        """Act with ``module``, which is on the runner's device, from now on, and put it into eval mode."""
        self.module = module.eval()
        converter = module.action_converter
        self._convert = None if converter.is_identity else converter.forward
        self._is_stateful = module.is_stateful()
        if not self._has_tensors:
            self._streams.noise.use(module.action_dist_cls, module.num_dist_inputs)
        no_obs = as_tensors(allocate_observations(module.input_space, 0))
        self._no_obs = moved(no_obs, self.device)
        self._data: Any = None  # the RolloutStorage of the last rollout
        self._free: RolloutStorage | None = None  # of a rollout that is not read any more
        self._state: Tree | None = None
        self._row["previous"] = {}  # a new module starts without the past that the last one saw

    def _reset(self, seeds: list[int]) -> None:
        self._seeds = seeds
        # a ready VectorEnv takes one seed, not one per env
        seed: Any = seeds if self._guard is None else seeds[0]
        obs, info = self._begin_episodes(lambda: self.env.reset(seed=seed))
        if self._guard is not None:
            self._guard.check_reset(obs, info)
        if self._has_tensors:
            check_device(f"{type(self.env.unwrapped).__name__}.reset()", obs, self.device)
        self._row, self._state = {"obs": obs, "starts": True, "ended": False, "previous": {}}, None

    def _begin_episodes(self, begin: Callable[[], Any]) -> Any:
        """Return ``begin()``, which begins or continues an episode in every env. If the process of an env has ended,
        make a new vector env first."""
        if isinstance(self.env.unwrapped, AsyncVectorEnv) and is_broken(self.env.unwrapped):
            close_vector_env(self.env)
            self._make_env()
        try:
            return begin()
        except BaseException as error:
            if (ended := self._ended_process(error)) is not None:
                raise ended from error
            raise

    def _begin(self, num_steps: int) -> None:
        data, self._free = self._free, None
        self._data = None  # freed before more is allocated
        if data is None or len(data.rewards) != num_steps:
            data = self._storage_class(
                self.module, self._no_obs, num_steps, self.env, self._mode, self._records_final_obs
            )
        self._data = data
        data.begin(self._row)
        self._faults = data.faults
        if self._is_stateful:
            if self._state is None:
                self._state = moved(initial_states(self.module, self.num_envs), self.device)
            count = -(-num_steps // self.module.max_seq_len)  # the states before each training sequence
            data.state_in = map_leaves(lambda x: x.new_empty(count, *x.shape), self._state)

    def recycle(self) -> None:
        self._free, self._data = self._data, None

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _interact(self, num_steps: int, explore: bool) -> dict[str, float]:
        data: RolloutStorage = self._data
        env, guard, convert, inference_mode = self.env, self._guard, self._convert, self._inference_mode
        module = self.module
        forward: Forward = module._forward_exploration if explore else module._forward_inference
        if data.state_in is not None:
            forward = self._carrying_state(forward, data)
        noisy = module if explore and isinstance(module, NoisyNetAPI) else None
        choose = self._chooser(data, num_steps, explore)
        counter = self.step_counter.cell if self._counts_steps else None
        after_step = self._after_step_of(data)
        marks_each_row = data.state_in is not None or data.previous or self._resets_in_a_step
        in_env = in_forward = 0.0
        may_rest = self._resets_in_a_step and not self._has_tensors  # whether a step may do no more than reset all envs
        for t in range(num_steps):
            before = perf_counter()
            with inference_mode:
                if noisy is not None and not (may_rest and data.ended[t].all()):
                    noisy.resample_noise(self._streams.generator)
                logits = forward({Columns.OBS: data.seen[t]})[Columns.ACTION_DIST_INPUTS]
                action = choose(logits, t)
                fitted = action if convert is None else convert(action)
            # leave inference mode: an env can neither change its tensors in place nor differentiate them later
            sent = data.write_action(t, action, fitted)
            data.dist_inputs.append(logits)
            if counter is not None:
                counter[0] += self.num_envs
            decided = perf_counter()
            obs, rewards, terminateds, truncateds, info = env.step(sent)
            stepped = perf_counter()
            self.progress += 1
            in_forward += decided - before
            in_env += stepped - decided
            if guard is not None:
                guard.check_step(obs, rewards, terminateds, truncateds, info)
            data.write_step(t, obs, rewards, terminateds, truncateds)
            for note in after_step:
                note(t, info)
            if marks_each_row:
                data.mark(t, t + 1)
                data.write_previous(t)
        if not marks_each_row:
            data.mark(0, num_steps)
        self._row = data.last_row()
        return {"env_step": in_env, "forward": in_forward}

    def _chooser(self, data: RolloutStorage, num_steps: int, explore: bool) -> Choose:
        """Return a function that chooses the actions of a row, given its distribution inputs and its index ``t``. Call
        it once for each of the ``num_steps`` rows of ``data``, in order. Without ``explore``, it takes the most likely
        actions."""
        module, noise, generator = self.module, self._streams.noise, self._streams.generator
        from_logits = module.action_dist_cls.from_logits
        if not explore:
            return lambda logits, t: from_logits(logits).to_deterministic().sample()
        if noise.is_drawn and not self._resets_in_a_step:
            rows = iter(noise.take(num_steps))
            return lambda logits, t: from_logits(logits).sample_from(next(rows))
        if noise.is_drawn:  # an env that only resets uses up no noise
            everyone = np.arange(self.num_envs)
            return lambda logits, t: from_logits(logits).sample_from(noise.take_of(everyone, ~data.ended[t]))
        return lambda logits, t: from_logits(logits).sample(generator)

    def _carrying_state(self, forward: Forward, data: RolloutStorage) -> Forward:
        """Wrap the ``forward`` of a recurrent module. The wrapper passes the states on from row to row, and records in
        ``data`` the states at the start of each training sequence."""
        length, starts = self.module.max_seq_len, torch.as_tensor(data.starts).unsqueeze(1)

        def step(batch: Mapping[str, Tree]) -> dict[str, Tree]:
            t = data.filled
            if t % length == 0:
                write_row(data.state_in, t // length, self._state)
            obs = entry_of(batch[Columns.OBS], None)
            out = forward({Columns.OBS: obs, Columns.STARTS: starts[t], Columns.STATE_IN: self._state})
            self._state = state_out_of(self.module, out)
            return {Columns.ACTION_DIST_INPUTS: out[Columns.ACTION_DIST_INPUTS][0]}

        return step

    def _after_step_of(self, data: RolloutStorage) -> Sequence[Callable[[int, dict[str, Any]], None]]:
        """Return functions of ``(t, info)`` to call after row ``t``: they store infos and final obs, or reset envs."""
        notes = [data.note_infos] if self._records_infos else []
        if self._resets_in_a_step:  # the next row holds the final observation
            return notes
        if self._mode is AutoresetMode.DISABLED:
            return [*notes, lambda t, info: self._reset_ended(data, t)]
        return [*notes, data.note_faults if self._settings.restart_failed_sub_environments else data.note_finals]

    def _reset_ended(self, data: RolloutStorage, t: int) -> None:
        """Reset the envs whose episode ended in row ``t``, and store their final observations. Used if the vector env
        has no autoreset."""
        ended = data.terminateds[t] | data.truncateds[t]
        if np.count_nonzero(ended):
            data.note_finals(t, {"final_obs": entry_of(data.env_obs, t + 1)})
            obs, info = self.env.reset(options={"reset_mask": ended})
            if self._guard is not None:
                self._guard.check_reset(obs, info)
            write_row(data.env_obs, t + 1, obs)

    # --- after it -----------------------------------------------------------------------------------------------------

    def _rollout_of(self, num_steps: int, explore: bool, policy_version: int) -> Rollout:
        data: RolloutStorage = self._data
        columns = dict(data.columns)
        rewards, terminateds, truncateds = data.settle(self._steps, self._first)
        ended = terminateds | truncateds
        stats = self._totals.finished(rewards, ended, self._steps, data.faults)
        if data.faults:
            data.cut_at_faults()
        stats |= data.episode_infos(ended)
        found = np.argwhere(data.has_final(terminateds, truncateds))  # after the cuts at faults
        final_index = torch.from_numpy(found).to(self.device)
        final_obs = self._finals_of(data, found, final_index) if len(found) else self._no_obs
        if self._settings.records_action_dist:
            # stack outside inference mode, whose tensors cannot enter a loss
            columns[Columns.ACTION_DIST_INPUTS] = dist_inputs = torch.stack(data.dist_inputs)
            if explore:
                with torch.no_grad():
                    dist = self.module.action_dist_cls.from_logits(dist_inputs)
                    columns[Columns.ACTION_LOGP] = dist.logp(columns[Columns.ACTIONS])
        rollout = Rollout(
            columns=columns,
            last_obs=data.seen[num_steps],
            final_index=final_index,
            final_obs=final_obs,
            state_in=data.state_in,
            policy_version=policy_version,
            first_env_index=self._first,
            stats=stats,
        )
        rollout.views = data.views
        if self._guard is not None:
            return self._of_ready_env(rollout, self._guard, num_steps)
        return rollout

    def _of_ready_env(self, rollout: Rollout, guard: VectorGuard, num_steps: int) -> Rollout:
        """Complete the rollout of a ready vector env: with what the env logged, and for an env that returns no true
        final observations."""
        if self._resets_in_a_step:
            self._uncount_resets(num_steps)
        if log := guard.end_fragment():
            rollout.stats["env_log"] = log
        rollout.finals_known = not self._lacks_finals()
        if rollout.finals_known or self._settings.records_action_dist:
            return rollout
        # a learner from single transitions gets only those whose next observation is known
        if num_cut := len(rollout.final_index):
            rollout.stats.setdefault("num_env_steps_lost", {})["no_final_obs"] = num_cut
        return rollout.cut_before_unknown()

    def _lacks_finals(self) -> bool:
        """Return whether the observation before each truncated step stands in for the true final one."""
        if self._guard is None or not self._guard.lacks_finals:
            return False
        return self._mode is AutoresetMode.SAME_STEP and self._records_final_obs == "truncated"

    def _finals_of(self, data: RolloutStorage, found: np.ndarray, final_index: Tensor) -> Tree:
        """Return the true final observations ``[K, ...]`` of the episodes whose last steps are ``found``, row and slot
        ``[K, 2]``, which ``final_index`` has as a tensor. Raise ValueError if one is not finite."""
        if self._lacks_finals():
            return entry_of(data.columns[Columns.OBS], final_index.unbind(1))
        final_obs = data.finals(found, final_index)
        if not self._resets_in_a_step:  # otherwise they are rows, which were checked
            check_finite(self.module.env_part(final_obs), "obs", self._steps + 1, self._first, found)
        return final_obs

    def _uncount_resets(self, num_steps: int) -> None:
        """Subtract the rows in which an env only reset from the step counter. It includes them at first, because to
        find them in each step would mean waiting for the device of an env of tensors."""
        self.step_counter.cell[0] -= int(self._data.ended[:num_steps].sum())

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def _lose(self, error: BaseException, calls_before: int) -> Never:
        if self._resets_in_a_step:
            self._data.mark(0, len(self._data.rewards))
            self._uncount_resets((self.step_counter.count - calls_before) // self.num_envs)
        super()._lose(error, calls_before)

    def _culprit(self, error: BaseException) -> BaseException:
        error = super()._culprit(error)
        return self._ended_process(error) or error

    def _check_values(self, error: Exception) -> None:
        self._data.check(self._steps, self._first)
        if self._guard is not None:
            self._guard.check_last()
        elif isinstance(self.env, SyncEnvs) and not isinstance(error, EnvError):
            self.env.call("check_last")

    def _ended_process(self, error: BaseException) -> EnvError | None:
        """Return the error to raise instead of ``error`` if the process of an env ended, otherwise None. If ``error``
        is an interrupt, end all env processes, because a message may have been cut off, and return None."""
        env = self.env.unwrapped
        if not isinstance(env, AsyncVectorEnv):
            return None
        if not isinstance(error, Exception):  # an interrupt may have cut off a message
            end_processes(env)
        is_about_one = isinstance(error, EOFError | ConnectionError)
        return error_of_ended_process(env, self._first, self._seeds) if is_about_one else None

    # --- the rest -----------------------------------------------------------------------------------------------------

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        if self._guard is not None and self._role == "env" and self._steps:
            logger.warning(
                "envs %d to %d: expected single envs, whose open episodes continue in a resumed run, got a ready %s. "
                "New episodes begin.", self._first, self._first + self.num_envs - 1, type(self.env.unwrapped).__name__,
            )  # fmt: skip

    def _call(self, method: str, *args: Any) -> Sequence[Any]:
        """Call a method of every sub-env of the vector env. Return one result per sub-env."""
        assert isinstance(self.env, SyncVectorEnv | AsyncVectorEnv)
        return self.env.call(method, *args)

    def _episodes(self) -> Iterable[Mapping[str, Any]]:
        for slot, episode in enumerate(self._call("get_open_episode")):
            yield received(episode) | describe_row(self._row, self._state, slot)

    def _continue(self, plans: Sequence[Mapping[str, Any]]) -> Sequence[tuple[Any, bool]]:
        self._seeds = [plan["seed"] for plan in plans]
        sent = dict(enumerate(map(to_send, plans), self._first))
        return self._begin_episodes(lambda: self._call("continue_episode", sent))

    def _take_up(self, episodes: Sequence[Mapping[str, Any]], observations: Sequence[Any]) -> None:
        self._row, self._state = join_rows(self.env, self.module, self._no_obs, episodes, observations)

    def stop(self) -> None:
        """Close the envs within a few seconds, and end all their processes."""
        close_vector_env(self.env)
