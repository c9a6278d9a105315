"""TensorEnvRunner: samples a vector env that computes with torch, without leaving the env's device.

The loop only queues work. Nothing in it depends on a number that the device has yet to compute, so the host runs ahead
of a GPU and never waits for it: what an :class:`EnvRunner` decides at every step (which episodes were truncated, which
rows are transitions, whether a mask leaves a choice) is found out for all rows at once at the end, from one copy of
rewards and flags to the host. The checks of :class:`VectorGuard` read from the device while they are due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
import torch
import tree
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from catalog.base import Tree
from catalog.errors import explain_error
from catalog.past import PREV_ACTION, PREV_OBS
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout, map_leaves, write_row
from rlmodule.envs.infos import last_infos
from rlmodule.envs.make import VectorGuard, autoreset_mode, check_finite
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.envs.subprocesses import close_vector_env
from rlmodule.modules.apis import NoisyNetAPI
from rlmodule.modules.recurrent import initial_states, state_out_of
from rlmodule.modules.rl_module import RLModule, greedy_actions, nothing_to_choose
from rlmodule.sampling.env_runner import EnvRunner, Forward
from rlmodule.sampling.episode_stats import EpisodeStats
from rlmodule.sampling.own_draws import OwnDraws
from rlmodule.sampling.random_streams import RandomStreams
from rlmodule.sampling.tensor_storage import OnHost, TensorRolloutStorage
from rlmodule.seeding import int_seed
from rlmodule.settings import RunnerSettings


def make_env_runner(
    settings: RunnerSettings,
    *,
    run_seed: int,
    first_env_index: int = 0,
    role: str = "env",
    on_env: Callable[[VectorEnv[Any, Any, Any]], None] | None = None,
    incarnation: int = 0,
    step_counter: SharedCounter | None = None,
) -> EnvRunner | TensorEnvRunner:
    """The runner for the env of ``settings``: a :class:`TensorEnvRunner` if a reset of it gives tensors.

    Arguments and errors are those of :class:`EnvRunner`. A ready vector env is reset once to find out, with the seed of
    its first reset.

    Raises:
        ValueError: If an env gives tensors and does what a :class:`TensorEnvRunner` is not made for.
    """
    same: dict[str, Any] = {"run_seed": run_seed, "first_env_index": first_env_index, "role": role}
    same |= {"incarnation": incarnation, "step_counter": SharedCounter() if step_counter is None else step_counter}
    runner = EnvRunner(settings, on_env=on_env, **same)
    env, again = runner.env, (incarnation,) if incarnation else ()
    if isinstance(env, SyncVectorEnv | AsyncVectorEnv):  # which gather what they return in arrays
        return runner
    try:
        obs, _ = env.reset(seed=int_seed(run_seed, role, first_env_index, 0, *again))
        leaves = tree.flatten(obs)
        if not any(isinstance(leaf, Tensor) for leaf in leaves):
            return runner
        return TensorEnvRunner(env, settings, device=_device_of(env, obs), **same)
    except BaseException:
        runner.stop()
        raise


class TensorEnvRunner:
    """Collects rollouts from a vector env whose observations, rewards and flags are tensors of one device.

    It does what an :class:`EnvRunner` does and gives the same columns, as tensors of that device: these are for a
    learner there to use as they are. Three things differ. Random actions are drawn on the device, from one generator
    for all envs, so that they depend on the number of envs and the kind of device. A mask that leaves no choice is told
    of at the end of a fragment. And the seconds in ``stats`` are what it took to queue the work, not to do it.

    Final observations are read from ``info["final_obs"]``, which same-step autoreset must give as tensors ``[N, ...]``
    with every step that truncates an episode, and best with every step at all, as to leave it out the env must wait for
    the device. Entries of envs whose episode goes on may hold anything.

    Override points: none.

    Args:
        env: A ready vector env.
        settings: Whether action distributions and infos are recorded.
        device: Of the env's tensors.
        run_seed, first_env_index, role, incarnation: As for an :class:`EnvRunner`.
        step_counter: Counts ``N`` before each vector step. The resets of next-step autoreset, which are no steps, are
            subtracted at the end of a fragment.

    Attributes:
        device: As given.
        progress: Vector steps made; grows while :meth:`sample` runs.
        num_env_steps_lost: Steps of fragments that ended in an error, by cause, which is ``fragment``.

    Raises:
        ValueError: If the env does not reset itself.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        settings: RunnerSettings,
        *,
        device: torch.device,
        run_seed: int,
        first_env_index: int = 0,
        role: str = "env",
        incarnation: int = 0,
        step_counter: SharedCounter | None = None,
    ) -> None:
        self.env, self.device, self.num_envs = env, device, env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        mode = autoreset_mode(env)
        if mode is AutoresetMode.DISABLED:
            remedy = "Reset envs within step(), in the step that ends their episode or in the next."
            where, got = f"autoreset mode of {type(env.unwrapped).__name__}, which gives tensors", str(mode)
            raise ValueError(explain_error(where, expected="SAME_STEP or NEXT_STEP", got=got, remedy=remedy))
        self._resets_in_a_step = mode is AutoresetMode.NEXT_STEP
        self._guard = VectorGuard(env, first_env_index)
        self._records_action_dist = settings.records_action_dist
        self._records_infos = settings.records_episode_infos
        self._first = first_env_index
        self._step_counter = SharedCounter() if step_counter is None else step_counter
        self._steps_counted_before = self._step_counter.count
        self.progress = 0
        self.num_env_steps_lost: dict[str, int] = {}
        envs = range(first_env_index, first_env_index + self.num_envs)
        self._streams = RandomStreams(run_seed, role, envs, incarnation=incarnation, device=device)
        self._own_draws: OwnDraws | None = None
        self._inference_mode = torch.inference_mode()  # to make one costs more than to enter it
        self._module: RLModule | None = None
        self._obs: Tree | None = None
        self._finals: Tree | None = None
        self._previous: dict[str, Tree] = {}
        self._state: Tree | None = None
        self._totals = EpisodeStats(self.num_envs, self._resets_in_a_step)
        self._num_resting = 0
        self._steps = 0

    def set_module(self, module: RLModule) -> None:
        """Act with ``module`` from now on; it is put into eval mode once, here.

        Raises:
            ValueError: If it is not on the env's device.
        """
        tensors = [*module.named_parameters(), *module.named_buffers()]
        if elsewhere := [name for name, tensor in tensors if tensor.device != self.device]:
            where, got = f"{type(module).__name__} that acts", f"{elsewhere[0]} elsewhere"
            remedy = "Move a copy of its own there: module.to(runner.device)."
            expected = f"its tensors on {self.device}, as those of the env"
            raise ValueError(explain_error(where, expected=expected, got=got, remedy=remedy))
        self._module = module.eval()
        self._resample_noise = module.resample_noise if isinstance(module, NoisyNetAPI) else None
        self._previous, self._state, self._finals = {}, None, None
        self._begin_draws()

    @property
    def module(self) -> RLModule:
        """The module that acts."""
        assert self._module is not None, "set_module() comes first"
        return self._module

    def reset(self) -> None:
        """Start a new episode in every env, from one seed."""
        self._obs = None
        obs, _ = self.env.reset(seed=self._streams.next_seeds()[0])
        self._guard.check_reset(obs)
        self._check_device("reset()", obs)
        self._obs = obs
        self._ended = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._starts, self._num_resting = ~self._ended, 0
        self._previous, self._state = {}, None
        self._totals.begin(self._steps)
        self._begin_draws()

    def _begin_draws(self) -> None:
        """Let all envs continue with numbers that none has used."""
        if self._resets_in_a_step:
            self._own_draws = OwnDraws(self.num_envs, self.device)

    @property
    def num_env_step_calls(self) -> int:
        """Steps that the envs were asked for."""
        return self._step_counter.count - self._steps_counted_before

    def _note_lost(self, data: TensorRolloutStorage, calls_before: int) -> None:
        """Account for the steps of a fragment that ended in an error."""
        if self._resets_in_a_step:
            data.mark(0, len(data.has_finals), True)
            num_steps = (self._step_counter.count - calls_before) // self.num_envs
            self._step_counter.cell[0] -= int(data.ended[:num_steps].sum())
        if lost := self._step_counter.count - calls_before:
            self.num_env_steps_lost["fragment"] = self.num_env_steps_lost.get("fragment", 0) + lost

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> Rollout:
        """Step every env ``num_steps`` times; see :meth:`EnvRunner.sample`."""
        start = perf_counter()
        if self._obs is None:
            self.reset()
        data, calls_before = self._next_storage(num_steps), self._step_counter.count
        try:
            seconds = self._interact(data, num_steps, explore)
            on_host = self._settle(data)
            final_index, final_obs = self._finals_of(data, on_host)
        except BaseException:
            self._obs = None  # the envs are ahead of what was recorded: the next call starts new episodes
            self._note_lost(data, calls_before)
            raise
        if self._resets_in_a_step:
            self._step_counter.cell[0] -= self._num_resting + int(np.count_nonzero(on_host.ended[:-1]))
            self._num_resting = int(np.count_nonzero(on_host.ended[-1]))
        columns = {
            Columns.OBS: map_leaves(lambda x: x[:-1], data.obs),
            Columns.STARTS: data.starts[:-1],
            Columns.REWARDS: data.rewards,
            Columns.TERMINATEDS: data.terminateds,
            Columns.TRUNCATEDS: data.truncateds,
            Columns.VALID: data.valid,
            Columns.ACTIONS: data.all_actions(),
        }
        if self._records_action_dist:
            columns[Columns.ACTION_DIST_INPUTS] = dist_inputs = torch.stack(data.dist_inputs)
            if explore:
                with torch.no_grad():
                    dist = self.module.action_dist_cls.from_logits(dist_inputs)
                    columns[Columns.ACTION_LOGP] = dist.logp(columns[Columns.ACTIONS])
        stats: dict[str, Any] = self._totals.finished(on_host.rewards, on_host.ended, self._steps)
        stats |= self._infos_of(data, on_host) | seconds
        self._steps += num_steps
        stats["bookkeeping"] = perf_counter() - start - seconds["env_step"] - seconds["forward"]
        return Rollout(
            columns=columns,
            last_obs=data.seen[num_steps],
            final_index=final_index,
            final_obs=final_obs,
            state_in=data.state_in,
            policy_version=policy_version,
            first_env_index=self._first,
            stats=stats,
        )

    # --- the loop: nothing here reads from the device ----------------------------------------------------------------

    @torch.no_grad()
    def _interact(self, data: TensorRolloutStorage, num_steps: int, explore: bool) -> dict[str, float]:
        """Fill ``data``; returns seconds."""
        module, env, guard, convert = self.module, self.env, self._guard, self.module.action_converter.forward
        forward, from_logits = self._forward_along(data, explore), module.action_dist_cls.from_logits
        generator, inference_mode, count = self._streams.generator, self._inference_mode, self._step_counter.cell
        resample_noise, own_draws = (self._resample_noise, self._own_draws) if explore else (None, None)
        if own_draws is not None:
            own_draws.begin_fragment(num_steps)
        needs_marks = data.state_in is not None or bool(data.previous) or own_draws is not None
        in_env = in_forward = 0.0
        t = 0
        try:
            for t in range(num_steps):
                before = perf_counter()
                with inference_mode:
                    if resample_noise is not None:
                        resample_noise(generator)
                    out = forward({Columns.OBS: data.seen[t]})
                    logits = out[Columns.ACTION_DIST_INPUTS]
                    if not explore:
                        action = greedy_actions(module, out)
                    elif own_draws is not None:
                        action = own_draws.sample(from_logits(logits), generator, ~data.ended[t])
                    else:
                        action = from_logits(logits).sample(generator)
                    fitted = convert(action)
                # Copied, as an env may write into what it is given; and out here, as is the step itself, since what is
                # made in inference mode could not be changed outside of it, say in the env's next reset.
                sent = map_leaves(Tensor.clone, fitted)
                data.actions.append(action)
                data.dist_inputs.append(logits)
                count[0] += self.num_envs
                decided = perf_counter()
                obs, rewards, terminateds, truncateds, info = env.step(sent)
                stepped = perf_counter()
                self.progress += 1
                in_forward += decided - before
                in_env += stepped - decided
                guard.check_step(obs, rewards, terminateds, truncateds)
                if t == 0:
                    self._check_device("step()", (obs, rewards, terminateds, truncateds))
                write_row(data.env_obs, t + 1, obs)
                data.rewards[t] = rewards
                data.terminateds[t] = terminateds
                data.truncateds[t] = truncateds
                self._keep(data, t, info)
                if needs_marks:
                    data.mark(t, t + 1, self._resets_in_a_step)
                    data.write_previous(t)
        except Exception:
            # a module or an env that chokes on a NaN observation is not the culprit
            env_obs = tree.map_structure(lambda x: x[: t + 1], data.env_obs)
            check_finite(env_obs, data.rewards[:t], self._steps, self._first)
            raise
        if not needs_marks:
            data.mark(0, num_steps, self._resets_in_a_step)
        self._obs = map_leaves(lambda x: x[num_steps], data.env_obs)
        self._starts, self._ended = data.starts[num_steps], data.ended[num_steps]
        self._previous = {name: map_leaves(lambda x: x[num_steps], part.whole) for name, part in data.previous.items()}
        return {"env_step": in_env, "forward": in_forward}

    def _forward_along(self, data: TensorRolloutStorage, explore: bool) -> Forward:
        """The module's pass for one row of ``data`` after another; a recurrent module's hands its states on from each
        to the next, and records those that training sequences begin with."""
        module = self.module
        forward: Forward = module._forward_exploration if explore else module._forward_inference
        if data.state_in is None:
            return forward
        length, rows = module.max_seq_len, enumerate(data.starts.unsqueeze(1))

        def step(batch: Mapping[str, Tree]) -> dict[str, Tree]:
            t, starts = next(rows)
            if t % length == 0:
                write_row(data.state_in, t // length, self._state)
            obs = map_leaves(lambda x: x[None], batch[Columns.OBS])
            out = forward({Columns.OBS: obs, Columns.STARTS: starts, Columns.STATE_IN: self._state})
            self._state = state_out_of(module, out)
            return {Columns.ACTION_DIST_INPUTS: out[Columns.ACTION_DIST_INPUTS][0]}

        return step

    def _keep(self, data: TensorRolloutStorage, t: int, info: dict[str, Any]) -> None:
        """Copy of ``info`` what is needed at the end of the fragment: an env may use its memory again."""
        has_finals = not self._resets_in_a_step and "final_obs" in info
        data.has_finals.append(has_finals)
        if has_finals:
            finals, num_steps = info["final_obs"], len(data.rewards)
            if self._finals is None or len(tree.flatten(self._finals)[0]) != num_steps:
                self._check_device("step(), info['final_obs']", finals)
                self._finals = map_leaves(lambda x: torch.empty_like(x[1:]), data.env_obs)
            write_row(self._finals, t, finals)
        if self._records_infos:
            names = info.keys() if self._resets_in_a_step else info.keys() & {"final_info"}
            data.infos.append({name: tree.map_structure(_copied, info[name]) for name in names})

    # --- before and after it -----------------------------------------------------------------------------------------

    def _next_storage(self, num_steps: int) -> TensorRolloutStorage:
        """The next tensors to fill, with what is known of row 0."""
        module = self.module
        data = TensorRolloutStorage.allocate(module, num_steps, self.num_envs, self.device)
        write_row(data.env_obs, 0, self._obs)
        data.starts[0], data.ended[0] = self._starts, self._ended
        for name, part in data.previous.items():
            zeros = map_leaves(lambda x: torch.zeros_like(x[0]), part.whole)
            write_row(part.whole, 0, self._previous.get(name, zeros))
        if module.is_stateful():
            if self._state is None:
                self._state = map_leaves(lambda x: x.to(self.device), initial_states(module, self.num_envs))
            count = -(-num_steps // module.max_seq_len)
            data.state_in = map_leaves(lambda x: x.new_empty(count, *x.shape), self._state)
        return data

    def _settle(self, data: TensorRolloutStorage) -> OnHost:
        """Find out which rows are transitions, and what the host must know.

        Raises:
            ValueError: If an observation or a reward is not finite, or a mask left no choice.
        """
        if self._resets_in_a_step:
            data.mark_resets()
        floats = [leaf for leaf in tree.flatten(data.env_obs) if leaf.is_floating_point()]
        stuck = self._stuck(data)
        verdicts = [~leaf.isfinite().all() for leaf in (*floats, data.rewards)]
        on_host = OnHost.of(data, verdicts if stuck is None else [*verdicts, stuck.any()])
        if any(on_host.verdicts):
            check_finite(data.env_obs, data.rewards, self._steps, self._first)
            raise self._nothing_to_choose(data)
        return on_host

    def _stuck(self, data: TensorRolloutStorage) -> Tensor | None:
        """Which rows had to act and could not ``[T, N]``; None without a mask."""
        mask = self.module.action_mask
        if mask is None:
            return None
        return mask.rows_without_choice(map_leaves(lambda x: x[:-1], data.env_obs)) & data.valid

    def _nothing_to_choose(self, data: TensorRolloutStorage) -> ValueError:
        mask, stuck = self.module.action_mask, self._stuck(data)
        assert mask is not None
        assert stuck is not None
        row, slot = stuck.nonzero()[0].tolist()
        return nothing_to_choose(f"env {self._first + slot}, step {self._steps + row}, obs", mask)

    def _finals_of(self, data: TensorRolloutStorage, on_host: OnHost) -> tuple[Tensor, Tree]:
        """Row and slot of each truncation ``[K, 2]`` and the true final observations ``[K, ...]``, next to them what
        each episode saw, did and was given last."""
        found = np.argwhere(on_host.truncateds & ~on_host.terminateds)
        missing = 0 if self._resets_in_a_step else np.count_nonzero(~np.array(data.has_finals)[found[:, 0]])
        if missing:
            raise ValueError(
                explain_error(
                    f"info of {type(self.env.unwrapped).__name__}.step()",
                    expected="final_obs whenever an episode ends, as same-step autoreset has it",
                    got=f"{missing} truncated episodes without it",
                    remedy="Put the last observation of each ended episode into info['final_obs'], or declare another "
                    "autoreset mode in the env's metadata.",
                )
            )
        index = torch.tensor(found, device=self.device)
        rows, slots = index.unbind(1)
        source, finals_at = (data.env_obs, rows + 1) if self._resets_in_a_step else (self._finals, rows)
        if source is None:  # none was ever given, and so none is asked for
            source = data.env_obs
        final_obs = map_leaves(lambda x: x[finals_at, slots], source)
        if not self.module.sees_more_than_the_env:
            return index, final_obs
        columns = {PREV_OBS: data.env_obs, PREV_ACTION: data.all_actions()}
        past = data.previous.items()
        more = {name: part.after(rows, slots, columns.get(name, data.rewards)) for name, part in past}
        return index, {name: final_obs if name == Columns.OBS else more[name] for name in data.obs}

    def _infos_of(self, data: TensorRolloutStorage, on_host: OnHost) -> dict[str, Any]:
        """``episode_infos`` of the episodes that ended, if they are asked for and any did."""
        ended = on_host.ended
        if not data.infos or not ended.any():
            return {}
        infos: list[dict[str, Any]] = []
        for row in np.flatnonzero(ended.any(1)):
            told = {name: tree.map_structure(_as_array, part) for name, part in data.infos[row].items()}
            infos += last_infos(told, ended[row], not self._resets_in_a_step)
        return {"episode_infos": infos}

    def _check_device(self, what: str, value: Any) -> None:
        """See that all of ``value`` are tensors on the env's device."""
        for leaf in tree.flatten(value):
            if not isinstance(leaf, Tensor) or leaf.device != self.device:
                raise _mixed(self.env, what, self.device, leaf)

    def get_state(self) -> dict[str, Any]:
        """Counters and the random stream, by global index of the first env. Envs are not saved: after ``set_state`` new
        episodes start."""
        return {index: one | {"steps": self._steps} for index, one in self._streams.get_state().items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_state` gave, of this runner or of others; see :meth:`RandomStreams.set_state`."""
        self._streams.set_state(state)
        self._steps = max((one.get("steps", 0) for one in state.values()), default=0)
        self._obs = None

    def stop(self) -> None:
        """Close the env, in a few seconds at most."""
        close_vector_env(self.env)


def _device_of(env: VectorEnv[Any, Any, Any], obs: Tree) -> torch.device:
    """Of the tensors that a reset of ``env`` gave."""
    leaves = tree.flatten(obs)
    device = next(leaf.device for leaf in leaves if isinstance(leaf, Tensor))
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or leaf.device != device:
            raise _mixed(env, "reset()", device, leaf)
    return device


def _mixed(env: VectorEnv[Any, Any, Any], what: str, device: torch.device, leaf: Any) -> ValueError:
    got = f"a tensor on {leaf.device}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__} among them"
    where = f"{type(env.unwrapped).__name__}.{what}"
    remedy = "Make all observations, rewards and flags tensors there, or all of them arrays."
    return ValueError(explain_error(where, expected=f"tensors on {device} alone", got=got, remedy=remedy))


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _as_array(value: Any) -> Any:
    return value.numpy(force=True) if isinstance(value, Tensor) else value
