"""EnvRunner: steps a vector env with a module and fills a rollout.

A vector step is one forward pass, one env step and a handful of whole-array copies. What can wait for the end of the
fragment (log-probabilities, episode statistics, the search for NaN) is done there, once, over all rows.

A module may want more than the observation. For a recurrent one the runner carries its states, tells it which rows
start an episode, and records the states that its training sequences begin with. One that sees the previous action and
reward finds them beside the observation, zeros in the first row of an episode.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from catalog.base import Tree
from catalog.errors import explain_error
from catalog.masks import ActionMask
from catalog.memory import PREV_ACTION
from rlmodule.columns import Columns
from rlmodule.envs import autoreset_mode, check_finite, guard_for, make_vector_env
from rlmodule.module import RLModule, greedy_actions, nothing_to_choose
from rlmodule.randomness import int_seed, numpy_stream, torch_stream
from rlmodule.rollout import (
    Rollout,
    allocate_observations,
    as_tensors,
    map_leaves,
    stack_rows,
    take_slot,
    unbind_rows,
    write_row,
)
from rlmodule.sequences import initial_states, state_out_of
from rlmodule.settings import RunnerSettings

Forward = Callable[[Mapping[str, Tree]], dict[str, Tree]]


@dataclass
class _Fragment:
    """The arrays one call of ``sample`` fills; ``obs`` and ``starts`` have a row more than the rest.

    Attributes:
        obs: What the module observes.
        env_obs: The env's part of it: ``obs`` itself for most modules.
        previous: The rest of it by name: previous actions and rewards.
        starts: Which rows are the first of an episode; None if the module need not know.
        state_in: States before rows ``0, L, 2L, …`` of a recurrent module.
    """

    obs: Tree
    env_obs: Tree
    previous: dict[str, Tree]
    starts: np.ndarray | None
    state_in: Tree | None
    rewards: np.ndarray
    terminateds: np.ndarray
    truncateds: np.ndarray
    valid: np.ndarray
    final_index: list[tuple[int, int]]
    final_obs: list[Tree]


class EnvRunner:
    """Collects rollouts from ``num_envs_per_env_runner`` envs, which live on from call to call.

    Override points: none; user transforms belong into env wrappers or the module.

    Args:
        settings: Which env, how many, how vectorised.
        run_seed: Seed of the run; every env and its action noise derive their own stream from it.
        first_env_index: Global index of this runner's first env.
        role: ``"env"``, or ``"evaluation_env"`` for streams apart from those of training.

    Raises:
        ValueError, TypeError, RuntimeError: If the env cannot be made; see :func:`make_vector_env`.
    """

    def __init__(self, settings: RunnerSettings, *, run_seed: int, first_env_index: int = 0, role: str = "env") -> None:
        assert settings.env is not None
        self.num_envs = settings.num_envs_per_env_runner
        self.env = make_vector_env(settings.env, settings.env_config, self.num_envs, settings.gym_env_vectorize_mode)
        self.observation_space = self.env.single_observation_space
        self.action_space = self.env.single_action_space
        self._autoreset = autoreset_mode(self.env)
        self._guard = guard_for(self.env)
        self._run_seed, self._role, self._first = run_seed, role, first_env_index
        noise_role = "action" if role == "env" else "evaluation_action"
        self._noise = [numpy_stream(run_seed, noise_role, first_env_index + i) for i in range(self.num_envs)]
        self._generator = torch_stream(run_seed, noise_role, first_env_index)
        self._after_step = {
            AutoresetMode.SAME_STEP: self._after_same_step,
            AutoresetMode.NEXT_STEP: self._after_next_step,
            AutoresetMode.DISABLED: self._after_disabled,
        }
        self._module: RLModule | None = None
        self._obs: Tree | None = None
        self._starts = np.ones(self.num_envs, dtype=bool)
        self._previous: dict[str, Tree] = {}
        self._state: Tree | None = None
        self._resets = 0
        self._steps = 0
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, dtype=np.int64)

    def set_module(self, module: RLModule) -> None:
        """Act with ``module`` from now on; it is put into eval mode once, here."""
        self._module = module.eval()
        self._previous, self._state = {}, None

    @property
    def module(self) -> RLModule:
        """The module that acts."""
        assert self._module is not None, "set_module() comes first"
        return self._module

    def reset(self) -> None:
        """Start a new episode in every env, each from its own next seed."""
        indices = range(self._first, self._first + self.num_envs)
        seeds = [int_seed(self._run_seed, self._role, index, self._resets) for index in indices]
        seed: Any = seeds if self._guard is None else seeds[0]  # a ready VectorEnv takes one seed, not one per env
        self._obs, _ = self.env.reset(seed=seed)
        if self._guard is not None:
            self._guard.check_reset(self._obs)
        self._resets += 1
        self._starts[:] = True
        self._previous, self._state = {}, None
        self._ended[:] = False
        self._returns[:] = 0
        self._lengths[:] = 0

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> Rollout:
        """Step every env ``num_steps`` times.

        Args:
            num_steps: ``T``, rows of the rollout.
            explore: Sample actions; False takes the most likely one.
            policy_version: Noted in the rollout.

        Returns:
            A rollout of fresh arrays; what it holds never changes afterwards. ``stats`` has ``episode_returns``,
            ``episode_lengths``, ``episode_slots`` (finished episodes in order of time) and the seconds
            ``env_step``, ``forward``, ``bookkeeping``.

        Raises:
            ValueError: If an observation or reward is wrong or not finite; names env and step.
            RuntimeError: If an env raises.
        """
        start = perf_counter()
        if self._obs is None:
            self.reset()
        data = self._allocate(num_steps)
        noise = self._draw_noise(num_steps) if explore else None
        actions, dist_inputs, seconds = self._interact(data, num_steps, explore, noise)
        check_finite(data.env_obs, data.rewards, self._steps)
        self._check_finals(data)
        columns = {
            Columns.OBS: tree.map_structure(lambda x: x[:-1], as_tensors(data.obs)),
            Columns.ACTIONS: actions,
            Columns.REWARDS: torch.from_numpy(data.rewards),
            Columns.TERMINATEDS: torch.from_numpy(data.terminateds),
            Columns.TRUNCATEDS: torch.from_numpy(data.truncateds),
            Columns.VALID: torch.from_numpy(data.valid),
            Columns.ACTION_DIST_INPUTS: dist_inputs,
        }
        if data.state_in is not None:
            columns[Columns.STARTS] = torch.from_numpy(data.starts)[:-1]
        with torch.no_grad():
            dist = self.module.action_dist_cls.from_logits(dist_inputs)
            columns[Columns.ACTION_LOGP] = dist.logp(actions)
        self._steps += num_steps
        stats = self._finished_episodes(data) | seconds
        stats["bookkeeping"] = perf_counter() - start - seconds["env_step"] - seconds["forward"]
        return Rollout(
            columns=columns,
            last_obs=tree.map_structure(lambda x: x[-1], as_tensors(data.obs)),
            final_index=torch.tensor(data.final_index, dtype=torch.int64).reshape(-1, 2),
            final_obs=self._stack_finals(data, actions),
            state_in=data.state_in,
            policy_version=policy_version,
            stats=stats,
        )

    def _interact(
        self, data: _Fragment, num_steps: int, explore: bool, noise: Tensor | None
    ) -> tuple[Tree, Tensor, dict[str, float]]:
        """The loop: fill ``data``; returns actions, distribution inputs and seconds."""
        module, env = self.module, self.env
        forward: Forward = module._forward_exploration if explore else module._forward_inference  # no gradient below
        if data.state_in is not None:
            forward = self._carrying_state(forward, data)
        if module.action_mask is not None:
            forward = self._checking_choice(forward, module.action_mask)
        convert = module.action_converter.forward
        seen, obs = unbind_rows(as_tensors(data.obs)), self._obs
        noise_rows = [] if noise is None else noise.unbind()
        after_step = self._after_step[self._autoreset]
        from_logits = module.action_dist_cls.from_logits
        # an env may write into an array it is given; single envs get a Discrete action as a number
        may_be_written = self._guard is not None or not isinstance(self.action_space, spaces.Discrete)
        nested = isinstance(self.action_space, spaces.Dict | spaces.Tuple)
        actions: list[Tree] = []
        dist_inputs: list[Tensor] = []
        in_env = in_forward = 0.0
        t = 0
        try:
            with torch.inference_mode():
                for t in range(num_steps):
                    before = perf_counter()
                    out = forward({Columns.OBS: seen[t]})
                    logits = out[Columns.ACTION_DIST_INPUTS]
                    if not explore:
                        action = greedy_actions(module, out)
                    elif noise is not None:
                        action = from_logits(logits).sample_from(noise_rows[t])
                    else:
                        action = from_logits(logits).sample(self._generator)
                    fitted = convert(action)
                    env_action = _own_arrays(fitted) if nested else fitted.numpy()
                    if fitted is action and may_be_written and not nested:
                        env_action = env_action.copy()
                    actions.append(action)
                    dist_inputs.append(logits)
                    decided = perf_counter()
                    obs, rewards, terminateds, truncateds, info = env.step(env_action)
                    stepped = perf_counter()
                    in_forward += decided - before
                    in_env += stepped - decided
                    if self._guard is not None:
                        self._guard.check_step(obs, rewards, terminateds, truncateds)
                    data.rewards[t] = rewards
                    data.terminateds[t] = terminateds
                    data.truncateds[t] = truncateds
                    obs = after_step(data, t, obs, info)
                    write_row(data.env_obs, t + 1, obs)
                    if data.previous:
                        self._write_previous(data, t, action)
        except Exception:
            self._obs = None  # the envs are ahead of what was recorded: the next call starts new episodes
            # a module or an env that chokes on a NaN observation is not the culprit
            check_finite(tree.map_structure(lambda x: x[: t + 1], data.env_obs), data.rewards[:t], self._steps)
            raise
        self._obs = obs
        self._previous = {n: tree.map_structure(lambda x: x[-1].copy(), part) for n, part in data.previous.items()}
        if data.starts is not None:
            self._starts = data.starts[-1].copy()
        # stacked out here, since tensors made in inference mode cannot enter a loss
        return stack_rows(actions), torch.stack(dist_inputs), {"env_step": in_env, "forward": in_forward}

    def _carrying_state(self, forward: Forward, data: _Fragment) -> Forward:
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

    @staticmethod
    def _write_previous(data: _Fragment, t: int, action: Tree) -> None:
        """Put what was done in row ``t`` and what it gave beside the next observation, if the episode goes on."""
        assert data.starts is not None
        started = data.starts[t + 1]
        for name, part in data.previous.items():
            write_row(part, t + 1, action if name == PREV_ACTION else data.rewards[t])
            if np.count_nonzero(started):
                _clear(part, (t + 1, started))

    def _after_same_step(self, data: _Fragment, t: int, obs: Tree, info: dict[str, Any]) -> Tree:
        if data.starts is not None:
            data.starts[t + 1] = data.terminateds[t] | data.truncateds[t]
        if "final_obs" in info:
            self._note_finals(data, t, info["final_obs"])
        return obs

    def _after_next_step(self, data: _Fragment, t: int, obs: Tree, info: dict[str, Any]) -> Tree:
        if np.count_nonzero(self._ended):  # these envs were reset in this step, which is no transition
            data.valid[t] = ~self._ended
            data.rewards[t][self._ended] = 0
        if data.starts is not None:
            data.starts[t + 1] = self._ended
        self._ended = data.terminateds[t] | data.truncateds[t]
        self._note_finals(data, t, obs)
        return obs

    def _after_disabled(self, data: _Fragment, t: int, obs: Tree, info: dict[str, Any]) -> Tree:
        ended = data.terminateds[t] | data.truncateds[t]
        if data.starts is not None:
            data.starts[t + 1] = ended
        if np.count_nonzero(ended):
            self._note_finals(data, t, obs)
            obs, _ = self.env.reset(options={"reset_mask": ended})
        return obs

    @staticmethod
    def _note_finals(data: _Fragment, t: int, finals: Tree) -> None:
        """Keep the true final observation of every episode that was truncated in row ``t``."""
        if np.count_nonzero(data.truncateds[t]):
            for slot in np.flatnonzero(data.truncateds[t] & ~data.terminateds[t]):
                data.final_index.append((t, int(slot)))
                data.final_obs.append(tree.map_structure(np.array, take_slot(finals, int(slot))))

    def _allocate(self, num_steps: int) -> _Fragment:
        module, shape = self.module, (num_steps, self.num_envs)
        obs = env_obs = allocate_observations(self.observation_space, num_steps + 1, self.num_envs)
        write_row(env_obs, 0, self._obs)
        previous, starts, state_in = {}, None, None
        if module.sees_more_than_the_env:
            obs = self._beside(env_obs, num_steps + 1, self.num_envs)
            previous = {name: part for name, part in obs.items() if name != Columns.OBS}
            for name, part in previous.items():
                if name in self._previous:
                    write_row(part, 0, self._previous[name])
                else:
                    _clear(part, 0)
        if module.is_stateful():
            if self._state is None:
                self._state = initial_states(module, self.num_envs)
            count = -(-num_steps // module.max_seq_len)
            state_in = map_leaves(lambda x: x.new_empty(count, *x.shape), self._state)
        if previous or state_in is not None:
            starts = np.empty((num_steps + 1, self.num_envs), dtype=bool)
            starts[0] = self._starts
        return _Fragment(
            obs=obs,
            env_obs=env_obs,
            previous=previous,
            starts=starts,
            state_in=state_in,
            rewards=np.zeros(shape, np.float32),
            terminateds=np.zeros(shape, dtype=bool),
            truncateds=np.zeros(shape, dtype=bool),
            valid=np.ones(shape, dtype=bool),
            final_index=[],
            final_obs=[],
        )

    def _draw_noise(self, num_steps: int) -> Tensor | None:
        """Noise ``[T, N, ...]``, each env's from its own stream; None if the distribution draws for itself."""
        dist_cls = self.module.action_dist_cls
        width = dist_cls.required_input_dim(self.action_space)
        blocks = [dist_cls.draw_noise(rng, num_steps, width) for rng in self._noise]
        drawn = [block for block in blocks if block is not None]
        return torch.stack(drawn, dim=1) if len(drawn) == len(blocks) else None

    def _check_finals(self, data: _Fragment) -> None:
        missing = np.count_nonzero(data.truncateds & ~data.terminateds) - len(data.final_index)
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

    def _stack_finals(self, data: _Fragment, actions: Tree) -> Tree:
        """The true final observations ``[K, ...]``, beside them the last action and reward of each episode."""
        stacked = allocate_observations(self.observation_space, len(data.final_obs))
        for row, final in enumerate(data.final_obs):
            write_row(stacked, row, final)
        if data.previous:
            rows, slots = np.array(data.final_index, dtype=np.int64).reshape(-1, 2).T
            stacked = self._beside(stacked, len(rows))
            for name in data.previous:
                column = actions if name == PREV_ACTION else torch.from_numpy(data.rewards)
                write_row(stacked[name], slice(None), map_leaves(lambda x: x[rows, slots], column))
        return as_tensors(stacked)

    def _beside(self, env_obs: Tree, *leading: int) -> dict[str, Tree]:
        """What the module observes: ``env_obs``, and empty arrays ``[*leading, ...]`` for the rest."""
        space = self.module.input_space
        assert isinstance(space, spaces.Dict)
        return {
            name: env_obs if name == Columns.OBS else allocate_observations(part, *leading)
            for name, part in space.spaces.items()
        }

    def _finished_episodes(self, data: _Fragment) -> dict[str, Any]:
        """Returns and lengths of the episodes that ended in ``data``; carries the open ones over."""
        ended = data.terminateds | data.truncateds
        rewards = np.cumsum(data.rewards, axis=0, dtype=np.float64) + self._returns
        lengths = np.cumsum(data.valid, axis=0) + self._lengths
        slots, rows = np.nonzero(ended.T)  # by slot, then by time
        first = np.diff(slots, prepend=-1) != 0
        totals, counts = rewards[rows, slots], lengths[rows, slots]
        returns = totals - np.where(first, 0, np.roll(totals, 1))
        sizes = counts - np.where(first, 0, np.roll(counts, 1))
        self._returns, self._lengths = rewards[-1].copy(), lengths[-1].copy()
        last = np.diff(slots, append=-1) != 0
        self._returns[slots[last]] -= totals[last]
        self._lengths[slots[last]] -= counts[last]
        order = np.argsort(rows, kind="stable")
        return {
            "episode_returns": returns[order],
            "episode_lengths": sizes[order],
            "episode_slots": slots[order],
        }

    def get_state(self) -> dict[str, Any]:
        """Counters and random streams. Envs are not saved: after ``set_state`` new episodes start."""
        return {
            "resets": self._resets,
            "steps": self._steps,
            "noise": [rng.bit_generator.state for rng in self._noise],
            "generator": self._generator.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_state` gave."""
        self._resets, self._steps = state["resets"], state["steps"]
        for rng, saved in zip(self._noise, state["noise"], strict=True):
            rng.bit_generator.state = saved
        self._generator.set_state(state["generator"])
        self._obs = None

    def stop(self) -> None:
        """Close the envs."""
        self.env.close()


def _own_arrays(actions: Tree) -> Tree:
    """Copies of nested actions as arrays, which the env may write into."""
    return tree.map_structure(lambda x: x.numpy().copy(), actions)


def _clear(column: Tree, index: Any) -> None:
    """Set the entries at ``index`` of all arrays to zero."""
    for array in tree.flatten(column):
        array[index] = 0
