"""EnvRunner: steps a vector env with a module and fills a rollout.

A vector step is one forward pass, one env step and a handful of whole-array copies. What can wait for the end of the
fragment (log-probabilities, episode statistics, the search for NaN) is done there, once, over all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
import tree
from gymnasium.vector import AutoresetMode
from torch import Tensor

from catalog.base import Tree
from rlmodule.columns import Columns
from rlmodule.envs import autoreset_mode, check_finite, guard_for, make_vector_env
from rlmodule.module import RLModule, greedy_actions
from rlmodule.randomness import int_seed, numpy_stream, torch_stream
from rlmodule.rollout import Rollout, allocate_observations, as_tensors, take_slot, write_row
from rlmodule.settings import RunnerSettings


@dataclass
class _Fragment:
    """The arrays one call of ``sample`` fills; ``obs`` has a row more than the rest."""

    obs: Tree
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
        self._module: RLModule | None = None
        self._obs: Tree | None = None
        self._resets = 0
        self._steps = 0
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, dtype=np.int64)

    def set_module(self, module: RLModule) -> None:
        """Act with ``module`` from now on; it is put into eval mode once, here."""
        self._module = module.eval()

    @property
    def module(self) -> RLModule:
        """The module that acts."""
        assert self._module is not None, "set_module() comes first"
        return self._module

    def reset(self) -> None:
        """Start a new episode in every env, each from its own next seed."""
        indices = range(self._first, self._first + self.num_envs)
        seeds = [int_seed(self._run_seed, self._role, index, self._resets) for index in indices]
        single = self._guard is not None  # a ready VectorEnv takes one seed, not one per env
        self._obs, _ = self.env.reset(seed=seeds[0] if single else seeds)
        if self._guard is not None:
            self._guard.check_reset(self._obs)
        self._resets += 1
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
        check_finite(data.obs, data.rewards, self._steps)
        columns = {
            Columns.OBS: tree.map_structure(lambda x: x[:-1], as_tensors(data.obs)),
            Columns.ACTIONS: actions,
            Columns.REWARDS: torch.from_numpy(data.rewards),
            Columns.TERMINATEDS: torch.from_numpy(data.terminateds),
            Columns.TRUNCATEDS: torch.from_numpy(data.truncateds),
            Columns.VALID: torch.from_numpy(data.valid),
            Columns.ACTION_DIST_INPUTS: dist_inputs,
        }
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
            final_obs=self._stack_finals(data.final_obs),
            policy_version=policy_version,
            stats=stats,
        )

    def _interact(
        self, data: _Fragment, num_steps: int, explore: bool, noise: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, float]]:
        """The loop: fill ``data``; returns actions, distribution inputs and seconds."""
        module, env = self.module, self.env
        forward = module.forward_exploration if explore else module.forward_inference
        convert = module.action_converter.forward
        all_obs = as_tensors(data.obs)
        nested = not isinstance(all_obs, Tensor)
        actions: list[Tensor] = []
        dist_inputs: list[Tensor] = []
        in_env = in_forward = 0.0
        with torch.inference_mode():
            for t in range(num_steps):
                before = perf_counter()
                obs = tree.map_structure(lambda x, t=t: x[t], all_obs) if nested else all_obs[t]
                out = forward({Columns.OBS: obs})
                logits = out[Columns.ACTION_DIST_INPUTS]
                if not explore:
                    action = greedy_actions(module, out)
                elif noise is not None:
                    action = module.action_dist_cls.from_logits(logits).sample_from(noise[t])
                else:
                    action = module.action_dist_cls.from_logits(logits).sample(self._generator)
                env_action = convert(action).numpy()
                actions.append(action)
                dist_inputs.append(logits)
                decided = perf_counter()
                try:
                    obs, rewards, terminateds, truncateds, info = env.step(env_action)
                except Exception:
                    # an env that chokes on the action of a NaN observation is not the culprit
                    check_finite(tree.map_structure(lambda x, t=t: x[: t + 1], data.obs), data.rewards[:t], self._steps)
                    raise
                stepped = perf_counter()
                in_forward += decided - before
                in_env += stepped - decided
                if self._guard is not None:
                    self._guard.check_step(obs, rewards, terminateds, truncateds)
                data.rewards[t] = rewards
                data.terminateds[t] = terminateds
                data.truncateds[t] = truncateds
                obs = self._handle_ends(data, t, obs, info)
                write_row(data.obs, t + 1, obs)
        self._obs = obs
        # stacked out here, since tensors made in inference mode cannot enter a loss
        return torch.stack(actions), torch.stack(dist_inputs), {"env_step": in_env, "forward": in_forward}

    def _handle_ends(self, data: _Fragment, t: int, obs: Tree, info: dict[str, Any]) -> Tree:
        """Note true final observations, mark reset rows, reset where the env does not; returns what to act on next."""
        if self._autoreset == AutoresetMode.NEXT_STEP:
            np.logical_not(self._ended, out=data.valid[t])
            if self._ended.any():
                data.rewards[t][self._ended] = 0
        ended = data.terminateds[t] | data.truncateds[t]
        self._ended = ended
        if not ended.any():
            return obs
        finals = info["final_obs"] if self._autoreset == AutoresetMode.SAME_STEP else obs
        for slot in np.flatnonzero(data.truncateds[t] & ~data.terminateds[t]):
            data.final_index.append((t, int(slot)))
            data.final_obs.append(tree.map_structure(np.array, take_slot(finals, slot)))
        if self._autoreset == AutoresetMode.DISABLED:
            obs, _ = self.env.reset(options={"reset_mask": ended.copy()})
        return obs

    def _allocate(self, num_steps: int) -> _Fragment:
        obs = allocate_observations(self.observation_space, num_steps + 1, self.num_envs)
        write_row(obs, 0, self._obs)
        shape = (num_steps, self.num_envs)
        flags = [np.zeros(shape, dtype=bool) for _ in range(2)]
        return _Fragment(obs, np.zeros(shape, np.float32), *flags, np.ones(shape, dtype=bool), [], [])

    def _draw_noise(self, num_steps: int) -> Tensor | None:
        """Noise ``[T, N, ...]``, each env's from its own stream; None if the distribution draws for itself."""
        dist_cls = self.module.action_dist_cls
        width = dist_cls.required_input_dim(self.action_space)
        blocks = [dist_cls.draw_noise(rng, num_steps, width) for rng in self._noise]
        drawn = [block for block in blocks if block is not None]
        return torch.stack(drawn, dim=1) if len(drawn) == len(blocks) else None

    def _stack_finals(self, finals: list[Tree]) -> Tree:
        stacked = allocate_observations(self.observation_space, len(finals))
        for row, final in enumerate(finals):
            write_row(stacked, row, final)
        return as_tensors(stacked)

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
