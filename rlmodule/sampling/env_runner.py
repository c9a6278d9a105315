"""EnvRunner: steps a vector env with a module and fills a rollout.

A vector step is one forward pass, one env step and a handful of whole-array copies. What can wait for the end of the
fragment (log-probabilities, episode statistics, the search for NaN) is done there, once, over all rows. What can be
done for many steps ahead (action noise, arrays) is, so that fragments of one step cost little more than long ones.

A module may want more than the observation. For a recurrent one the runner carries its states, tells it which rows
start an episode, and records the states that its training sequences begin with. One that sees earlier observations,
actions or rewards finds them next to the observation, zeros for what lies before the first row of an episode.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from torch import Tensor

from catalog.actions.masks import ActionMask
from catalog.base import Tree
from catalog.errors import explain_error
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout, allocate_observations, allocate_rows, as_tensors, map_leaves, write_row
from rlmodule.envs.checks import EnvError, check_finals_finite
from rlmodule.envs.infos import last_infos
from rlmodule.envs.make import autoreset_mode, check_finite, guard_for, last_error, make_vector_env
from rlmodule.envs.restarting import FAULT
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.envs.subprocesses import close_vector_env, end_processes, error_of_ended_process, is_broken
from rlmodule.envs.sync_vector_env import SyncEnvs
from rlmodule.modules.apis import NoisyNetAPI
from rlmodule.modules.recurrent import initial_states, state_out_of
from rlmodule.modules.rl_module import RLModule, greedy_actions, nothing_to_choose
from rlmodule.sampling.episode_stats import EpisodeStats
from rlmodule.sampling.random_streams import RandomStreams
from rlmodule.sampling.storage import RolloutStorage, allocate_storages
from rlmodule.settings import RunnerSettings

Forward = Callable[[Mapping[str, Tree]], dict[str, Tree]]


class EnvRunner:
    """Collects rollouts from ``num_envs_per_env_runner`` envs, which live on from call to call.

    Every step that an env makes is accounted for: ``num_env_step_calls`` is what the rollouts have of valid rows, what
    their ``stats`` have of lost steps, and ``num_env_steps_lost``.

    Override points: none; user transforms belong into env wrappers or the module.

    Args:
        settings: Which env, how many, how vectorised; whether action distributions are recorded.
        run_seed: Seed of the run; every env and its action noise derive their own stream from it.
        first_env_index: Global index of this runner's first env.
        role: ``"env"``, or ``"evaluation_env"`` for streams apart from those of training.
        on_env: Told of the vector env once it is made; if it raises, that is closed again. Where an env ended in a
            process of its own a new vector env is made with the next episodes.
        incarnation: How often a runner of these envs was made before: random streams differ in each.
        step_counter: Counts the calls of ``env.step``: for envs in this process before each call, for others before
            each vector step. None makes a counter of its own.

    Attributes:
        progress: Vector steps made; grows while :meth:`sample` runs.
        num_env_steps_lost: Steps of fragments that ended in an error, by cause: ``env_raised``, the step that did or
            that ended the process of its env, and ``fragment``, all others.

    Raises:
        ValueError, TypeError, RuntimeError: If the env cannot be made; see :func:`make_vector_env`.
    """

    device: ClassVar[torch.device] = torch.device("cpu")
    """Where it acts."""

    def __init__(
        self,
        settings: RunnerSettings,
        *,
        run_seed: int,
        first_env_index: int = 0,
        role: str = "env",
        on_env: Callable[[VectorEnv[Any, Any, Any]], None] | None = None,
        incarnation: int = 0,
        step_counter: SharedCounter | None = None,
    ) -> None:
        self._settings, self._on_env = settings, on_env
        self._first = first_env_index
        self._step_counter = SharedCounter() if step_counter is None else step_counter
        self._steps_counted_before = self._step_counter.count
        self.progress = 0
        self.num_env_steps_lost: dict[str, int] = {}
        self.num_envs = settings.num_envs_per_env_runner
        self._make_env()
        self.observation_space = self.env.single_observation_space
        self.action_space = self.env.single_action_space
        self._records_action_dist = settings.records_action_dist
        self._records_infos = settings.records_episode_infos
        self._nested_actions = isinstance(self.action_space, spaces.Dict | spaces.Tuple)
        # an env may write into an array it is given; single envs get a Discrete action as a number
        self._copies_actions = self._guard is not None or not isinstance(self.action_space, spaces.Discrete)
        envs = range(first_env_index, first_env_index + self.num_envs)
        self._streams = RandomStreams(run_seed, role, envs, incarnation=incarnation)
        self._inference_mode = torch.inference_mode()  # to make one costs more than to enter it
        self._module: RLModule | None = None
        self._storages: list[RolloutStorage] = []
        self._obs: Tree | None = None
        self._cut_off = False
        self._starts = np.ones(self.num_envs, dtype=bool)
        self._previous: dict[str, Tree] = {}
        self._state: Tree | None = None
        self._seeds: list[int] = []  # of the last reset
        self._steps = 0
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._totals = EpisodeStats(self.num_envs, self._resets_in_a_step)

    def _make_env(self) -> None:
        settings, had_gradients = self._settings, torch.is_grad_enabled()
        assert settings.env is not None
        self.env = make_vector_env(
            settings.env,
            settings.env_config,
            self.num_envs,
            settings.gym_env_vectorize_mode,
            first_env_index=self._first,
            step_counter=self._step_counter,
            mends=settings.restart_failed_sub_environments,
        )
        try:
            self._check_gradients(had_gradients, "when they were made")
            if self._on_env is not None:
                self._on_env(self.env)
        except BaseException:
            close_vector_env(self.env)
            raise
        self._guard = guard_for(self.env, self._first)
        self._counts_steps = self._guard is not None or isinstance(self.env, AsyncVectorEnv)
        mode = autoreset_mode(self.env)
        self._resets_in_a_step = mode is AutoresetMode.NEXT_STEP
        self._resets_at_once = mode is AutoresetMode.SAME_STEP
        self._after_step = {
            AutoresetMode.SAME_STEP: self._after_same_step,
            AutoresetMode.NEXT_STEP: self._after_next_step,
            AutoresetMode.DISABLED: self._after_disabled,
        }[mode]

    def set_module(self, module: RLModule) -> None:
        """Act with ``module`` from now on; it is put into eval mode once, here."""
        self._module = module.eval()
        self._convert, self._stateful = module.action_converter.forward, module.is_stateful()
        self._resample_noise = module.resample_noise if isinstance(module, NoisyNetAPI) else None
        self._streams.noise.use(module.action_dist_cls, module.action_dist_cls.required_input_dim(self.action_space))
        no_finals = as_tensors(allocate_observations(module.input_space, 0))
        self._no_finals = torch.empty(0, 2, dtype=torch.int64), no_finals
        self._storages = []
        self._previous, self._state = {}, None

    @property
    def module(self) -> RLModule:
        """The module that acts."""
        assert self._module is not None, "set_module() comes first"
        return self._module

    def reset(self) -> None:
        """Start a new episode in every env, each from its own next seed."""
        if self._cut_off:
            got, remedy = "an interrupt in the middle of one", "Build another, or load one: from_checkpoint(path)."
            raise RuntimeError(explain_error("async envs", expected="whole steps", got=got, remedy=remedy))
        if isinstance(self.env.unwrapped, AsyncVectorEnv) and is_broken(self.env.unwrapped):
            close_vector_env(self.env)
            self._make_env()
        self._seeds, had_gradients = self._streams.next_seeds(), torch.is_grad_enabled()
        # a ready VectorEnv takes one seed, not one per env
        seed: Any = self._seeds if self._guard is None else self._seeds[0]
        self._obs = None
        try:
            obs, _ = self.env.reset(seed=seed)
            self._check_gradients(had_gradients, "in a reset")
        except BaseException as error:
            if (ended := self._note_error(error)) is not None:
                raise ended from error
            raise
        if self._guard is not None:
            self._guard.check_reset(obs)
        self._obs = obs
        self._starts = np.ones(self.num_envs, dtype=bool)
        self._previous, self._state = {}, None
        self._ended[:] = False
        self._totals.begin(self._steps)

    def _check_gradients(self, were_on: bool, when: str) -> None:
        """See that torch's gradients, which learners in this process need, were not switched off by an env."""
        if not were_on or torch.is_grad_enabled():
            return
        torch.set_grad_enabled(True)
        places = self.env.get_attr("gradients_off") if isinstance(self.env, SyncEnvs) else ()
        unknown = f"envs {self._first} to {self._first + self.num_envs - 1}, {when}"
        where = next((place for place in places if place is not None), unknown)
        remedy = "Write 'with torch.no_grad():' in the env around what needs none."
        expected, got = "torch's gradients left on", "torch.set_grad_enabled(False)"
        raise RuntimeError(explain_error(where, expected=expected, got=got, remedy=remedy))

    def _note_error(self, error: BaseException) -> EnvError | None:
        """What to raise instead, if the process of an env ended."""
        env = self.env.unwrapped
        if not isinstance(env, AsyncVectorEnv):
            return None
        # processes that were interrupted in the middle of a message cannot be talked to any more
        self._cut_off |= not isinstance(error, Exception)
        is_about_one = isinstance(error, EOFError | ConnectionError)
        return error_of_ended_process(env, self._first, self._seeds) if is_about_one else None

    @property
    def num_env_step_calls(self) -> int:
        """Calls of ``env.step`` that this runner made, those included that raised."""
        return self._step_counter.count - self._steps_counted_before

    def _note_lost(self, num: int, error: BaseException, faults: int) -> None:
        """Account for ``num`` steps of a fragment that ended in ``error``, after ``faults`` that were mended."""
        raised = min(num, faults + (isinstance(error, EnvError) and error.place.get("call") != "reset()"))
        for cause, lost in (("env_raised", raised), ("fragment", num - raised)):
            if lost:
                self.num_env_steps_lost[cause] = self.num_env_steps_lost.get(cause, 0) + lost

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> Rollout:
        """Step every env ``num_steps`` times.

        Args:
            num_steps: ``T``, rows of the rollout.
            explore: Sample actions; False takes the most likely one.
            policy_version: Noted in the rollout.

        Returns:
            A rollout of its own arrays; what it holds never changes afterwards. It has the column
            ``action_dist_inputs`` if the settings ask for it, and then ``action_logp`` if it explored. ``stats`` has
            ``episode_returns``, ``episode_lengths``, ``episode_slots`` (finished episodes in order of time) and the
            seconds ``env_step``, ``forward``, ``bookkeeping``; if the settings ask for them and an episode
            ended, ``episode_infos``: the ``info`` of its last step for each; and ``num_env_steps_lost``, by cause, if
            an env raised and was made anew. The episode it was in is cut off and not among the finished ones: its
            return is not one of the task.

        Raises:
            ValueError: If an observation or reward is wrong or not finite; names env and step.
            EnvError: If a single env raises or its process ends; after that, the next call starts new episodes.
            RuntimeError: If envs in processes of their own were interrupted in a step before; if an env in this process
                switched torch's gradients off.
        """
        start = perf_counter()
        if self._obs is None:
            self.reset()
        data, calls_before = self._next_storage(num_steps), self._step_counter.count
        had_gradients = torch.is_grad_enabled()
        try:
            rollout = self._collect(data, num_steps, explore)
            self._check_gradients(had_gradients, f"steps {self._steps - num_steps + 1} to {self._steps}")
        except BaseException as error:
            self._obs = None  # the envs are ahead of what was recorded: the next call starts new episodes
            ended = self._note_error(error)
            self._note_lost(self._step_counter.count - calls_before, ended or error, len(data.faults))
            if ended is not None:
                raise ended from error
            raise
        rollout.policy_version = policy_version
        stats = rollout.stats
        stats["bookkeeping"] = perf_counter() - start - stats["env_step"] - stats["forward"]
        return rollout

    def _collect(self, data: RolloutStorage, num_steps: int, explore: bool) -> Rollout:
        """Fill ``data``, and make a rollout of it."""
        infos: list[dict[str, Any]] | None = [] if self._records_infos else None
        dist_inputs, seconds = self._interact(data, num_steps, explore, infos)
        check_finite(data.env_obs, data.rewards, self._steps, self._first)
        stats = self._stats_of(data, infos) | seconds
        if data.faults:
            data.cut_at_faults()
        if np.count_nonzero(data.truncateds):
            data.check_finals(type(self.env.unwrapped).__name__)
        final_index, final_obs = data.finals(self.module) if data.final_index else self._no_finals
        if data.final_index:
            check_finals_finite(self.module.env_part(final_obs), data.final_index, self._steps, self._first)
        columns = data.columns
        columns[Columns.ACTIONS] = actions = as_tensors(data.actions)
        if dist_inputs is not None:
            columns[Columns.ACTION_DIST_INPUTS] = dist_inputs
        if dist_inputs is not None and explore:
            with torch.no_grad():
                columns[Columns.ACTION_LOGP] = self.module.action_dist_cls.from_logits(dist_inputs).logp(actions)
        self._steps += num_steps
        return Rollout(
            columns=columns,
            last_obs=data.seen[num_steps],
            final_index=final_index,
            final_obs=final_obs,
            state_in=data.state_in,
            first_env_index=self._first,
            stats=stats,
        )

    def _stats_of(self, data: RolloutStorage, infos: list[dict[str, Any]] | None) -> dict[str, Any]:
        """What the rollout tells of finished episodes, with their ``infos``, and of steps that were lost."""
        ended = data.terminateds | data.truncateds
        stats: dict[str, Any] = self._totals.finished(data.rewards, ended, self._steps)
        if data.faults:  # which end an episode, but finish none
            faults = {*data.faults}
            kept = [place not in faults for place in zip(*map(np.ndarray.tolist, np.nonzero(ended)), strict=True)]
            stats = {name: values[np.array(kept)] for name, values in stats.items()}
            stats["num_env_steps_lost"] = {"env_raised": len(faults)}
            infos = infos and [info for info in infos if FAULT not in info]
        return stats | {"episode_infos": infos} if infos else stats

    def _interact(
        self, data: RolloutStorage, num_steps: int, explore: bool, infos: list[dict[str, Any]] | None
    ) -> tuple[Tensor | None, dict[str, float]]:
        """The loop: fill ``data``, and ``infos`` unless it is None; returns distribution inputs, if they are recorded,
        and seconds."""
        module, env, convert, guard, after_step = self.module, self.env, self._convert, self._guard, self._after_step
        forward, from_logits, seen = self._forward_along(data, explore), module.action_dist_cls.from_logits, data.seen
        noise = self._noise_along(num_steps) if explore else None
        resample_noise, generator = self._resample_noise if explore else None, self._streams.generator
        nested, copies = self._nested_actions, self._copies_actions
        count, inference_mode = self._step_counter.cell if self._counts_steps else None, self._inference_mode
        needs_starts = data.state_in is not None or bool(data.previous)
        dist_inputs: list[Tensor] = []
        in_env = in_forward = 0.0
        obs, t = self._obs, 0
        try:
            for t in range(num_steps):
                before = perf_counter()
                with inference_mode:
                    if resample_noise is not None:
                        resample_noise(generator)
                    out = forward({Columns.OBS: seen[t]})
                    logits = out[Columns.ACTION_DIST_INPUTS]
                    if not explore:
                        action = greedy_actions(module, out)
                    elif noise is not None:
                        action = from_logits(logits).sample_from(next(noise))
                    else:
                        action = from_logits(logits).sample(generator)
                    fitted = convert(action)
                # out here, as what an env makes in inference mode could not be changed elsewhere, nor have gradients
                sampled: Any = tree.map_structure(Tensor.numpy, action) if nested else action.numpy()
                sent = sampled
                if fitted is not action:
                    sent = tree.map_structure(lambda x: x.numpy().copy(), fitted) if nested else fitted.numpy()
                elif copies:
                    sent = sampled.copy()
                if t == 0:
                    data.actions = allocate_rows(sampled, num_steps)
                write_row(data.actions, t, sampled)
                dist_inputs.append(logits)
                if count is not None:
                    count[0] += self.num_envs - np.count_nonzero(self._ended)
                decided = perf_counter()
                obs, rewards, terminateds, truncateds, info = env.step(sent)
                stepped = perf_counter()
                self.progress += 1
                in_forward += decided - before
                in_env += stepped - decided
                if guard is not None:
                    guard.check_step(obs, rewards, terminateds, truncateds)
                data.rewards[t] = rewards
                data.terminateds[t] = terminateds
                data.truncateds[t] = truncateds
                if infos is not None:
                    infos += last_infos(info, data.terminateds[t] | data.truncateds[t], self._resets_at_once)
                obs = after_step(data, t, obs, info)
                write_row(data.env_obs, t + 1, obs)
                if needs_starts:
                    self._mark_starts(data, t, t + 1)
                    data.write_previous(t)
        except Exception as error:
            # a module or an env that chokes on a NaN observation is not the culprit
            env_obs = tree.map_structure(lambda x: x[: t + 1], data.env_obs)
            check_finite(env_obs, data.rewards[:t], self._steps, self._first)
            found = None if isinstance(error, EnvError) else last_error(env, guard)
            if found is not None and str(found) != str(error):
                raise found from error
            raise
        self._obs = obs
        self._previous = {
            n: tree.map_structure(lambda x: x[-1].copy(), part.whole) for n, part in data.previous.items()
        }
        if not needs_starts:
            self._mark_starts(data, 0, num_steps)
        self._starts = data.starts[num_steps]
        # stacked out here, since tensors made in inference mode cannot enter a loss
        recorded = torch.stack(dist_inputs) if self._records_action_dist else None
        return recorded, {"env_step": in_env, "forward": in_forward}

    def _noise_along(self, num_steps: int) -> Iterator[Tensor] | None:
        """Noise for one row after another; None if the distribution draws for itself."""
        noise = self._streams.noise
        if self._resets_in_a_step and noise.is_drawn:  # envs that only reset use none
            return (noise.take_own(~self._ended) for _ in range(num_steps))
        rows = noise.take(num_steps)
        return None if rows is None else iter(rows)

    def _forward_along(self, data: RolloutStorage, explore: bool) -> Forward:
        """The module's pass for one row of ``data`` after another; under inference mode, so without gradient."""
        module = self.module
        forward: Forward = module._forward_exploration if explore else module._forward_inference
        if data.state_in is not None:
            forward = self._carrying_state(forward, data)
        return forward if module.action_mask is None else self._checking_choice(forward, module.action_mask)

    def _carrying_state(self, forward: Forward, data: RolloutStorage) -> Forward:
        """``forward`` for one row after another of a recurrent module: hands its states on from each to the next, and
        records those that training sequences begin with."""
        length, rows = self.module.max_seq_len, enumerate(torch.from_numpy(data.starts).unsqueeze(1))

        def step(batch: Mapping[str, Tree]) -> dict[str, Tree]:
            t, starts = next(rows)
            if t % length == 0:
                write_row(data.state_in, t // length, self._state)
            obs = map_leaves(lambda x: x[None], batch[Columns.OBS])
            out = forward({Columns.OBS: obs, Columns.STARTS: starts, Columns.STATE_IN: self._state})
            self._state = state_out_of(self.module, out)
            return {Columns.ACTION_DIST_INPUTS: out[Columns.ACTION_DIST_INPUTS][0]}

        return step

    def _checking_choice(self, forward: Forward, mask: ActionMask) -> Forward:
        """``forward`` for one row after another, where the mask must leave each env that acts something to choose."""
        steps = itertools.count(self._steps)

        def step(batch: Mapping[str, Tree]) -> dict[str, Tree]:
            number = next(steps)
            stuck = mask.rows_without_choice(self.module.env_part(batch[Columns.OBS])).numpy()
            if np.count_nonzero(stuck) and len(envs := np.flatnonzero(stuck & ~self._ended)):
                raise nothing_to_choose(f"env {self._first + envs[0]}, step {number}, obs", mask)
            return forward(batch)

        return step

    def _mark_starts(self, data: RolloutStorage, begin: int, end: int) -> None:
        """Tell of what comes after each of the rows from ``begin`` to ``end`` whether it starts an episode."""
        rows = slice(begin, end)
        if self._resets_in_a_step:  # which is the row that is no transition
            np.logical_not(data.valid[rows], out=data.starts[begin + 1 : end + 1])
        else:
            np.logical_or(data.terminateds[rows], data.truncateds[rows], out=data.starts[begin + 1 : end + 1])

    def _after_same_step(self, data: RolloutStorage, t: int, obs: Tree, info: dict[str, Any]) -> Tree:
        if "final_obs" in info:
            if self._settings.restart_failed_sub_environments:
                data.note_faults(t, info)
            data.note_finals(t, info["final_obs"])
        return obs

    def _after_next_step(self, data: RolloutStorage, t: int, obs: Tree, info: dict[str, Any]) -> Tree:
        if np.count_nonzero(self._ended):  # these envs were reset in this step, which is no transition
            data.valid[t] = ~self._ended
            data.rewards[t][self._ended] = 0
        self._ended = data.terminateds[t] | data.truncateds[t]
        data.note_finals(t, obs)
        return obs

    def _after_disabled(self, data: RolloutStorage, t: int, obs: Tree, info: dict[str, Any]) -> Tree:
        ended = data.terminateds[t] | data.truncateds[t]
        if np.count_nonzero(ended):
            data.note_finals(t, obs)
            obs, _ = self.env.reset(options={"reset_mask": ended})
        return obs

    def _next_storage(self, num_steps: int) -> RolloutStorage:
        """The next arrays to fill, with what is known of row 0."""
        if not self._storages or len(self._storages[-1].rewards) != num_steps:
            self._storages = allocate_storages(self.module, num_steps, self.num_envs)
        data, module = self._storages.pop(), self.module
        write_row(data.env_obs, 0, self._obs)
        data.starts[0] = self._starts
        data.begin_previous(self._previous)
        if self._stateful:
            if self._state is None:
                self._state = initial_states(module, self.num_envs)
            count = -(-num_steps // module.max_seq_len)
            data.state_in = map_leaves(lambda x: x.new_empty(count, *x.shape), self._state)
        return data

    def get_state(self) -> dict[str, Any]:
        """Counters and random streams, by global index of the env. Envs are not saved: after ``set_state`` new episodes
        start."""
        return {index: one | {"steps": self._steps} for index, one in self._streams.get_state().items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_state` gave, of this runner or of others; see :meth:`RandomStreams.set_state`."""
        self._streams.set_state(state)
        self._steps = max((one.get("steps", 0) for one in state.values()), default=0)
        self._obs = None

    def stop(self) -> None:
        """Close the envs, in a few seconds at most; none of their processes is left."""
        if self._cut_off:
            assert isinstance(self.env.unwrapped, AsyncVectorEnv)
            end_processes(self.env.unwrapped)
        close_vector_env(self.env)
