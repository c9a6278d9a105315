"""The base class of env runners, and their accounts: which steps are in rollouts, which were lost, and which episodes
ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from typing_extensions import Never

from rlmodule.envs.checks import EnvError
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.sampling.random_streams import RandomStreams

_NOTHING_FINISHED: dict[str, Any] = {
    "episode_returns": np.empty(0),
    "episode_lengths": np.empty(0, np.int64),
    "episode_slots": np.empty(0, np.int64),
}


class EpisodeStats:
    """Computes returns and lengths of finished episodes. Keeps the sums of unfinished episodes from one fragment to the
    next.

    Args:
        num_envs: Number of envs, ``N``.
        resets_in_a_step: Whether the row after the last row of an episode only resets the env, as with next-step
            autoreset.
    """

    def __init__(self, num_envs: int, resets_in_a_step: bool) -> None:
        self._returns = np.zeros(num_envs)
        self._began = np.zeros(num_envs, np.int64)
        self._pause = int(resets_in_a_step)

    def begin(self, steps: int) -> None:
        """Begin a new episode in every env, after the runner has taken ``steps`` steps of each env."""
        self._returns[:] = 0
        self._began[:] = steps

    def open(self, steps: int) -> list[tuple[float, int]]:
        """Return the return and the length so far of each env's open episode, after ``steps`` steps of each env."""
        return list(zip(self._returns.tolist(), (steps - self._began).tolist(), strict=True))

    def resume(self, steps: int, episodes: Sequence[tuple[float, int]]) -> None:
        """Continue ``episodes``, one return and length per env from :meth:`open`, after ``steps`` steps of each env."""
        self._returns[:], lengths = np.array(episodes).T
        self._began[:] = steps - lengths.astype(np.int64)

    def finished(
        self, rewards: np.ndarray, ended: np.ndarray, steps: int, faults: Collection[tuple[int, int]] = ()
    ) -> dict[str, Any]:
        """Return ``episode_returns``, ``episode_lengths`` and ``episode_slots`` of the episodes that end in the given
        rows, in order of time. Add the rewards of unfinished episodes to their sums.

        Args:
            rewards: Rewards ``[T, N]`` of the rows; 0 where a row is not a transition.
            ended: Whether a row is the last row of an episode, ``[T, N]``.
            steps: Number of steps of each env before these rows.
            faults: Row and slot of each step that raised. The episode that it ended is left out, because the error, not
                the task, cut its return short. If there are any, the result has their number as
                ``num_env_steps_lost["env_raised"]``.
        """
        totals = np.add.accumulate(rewards, 0, np.float64)
        totals += self._returns
        if not np.count_nonzero(ended):  # most fragments of one step
            self._returns = totals[-1]
            return _NOTHING_FINISHED.copy()
        counted = np.zeros_like(self._returns)  # rewards of episodes that have ended
        returns: list[float] = []
        lengths: list[int] = []
        slots: list[int] = []
        for (row, slot), total in zip(np.argwhere(ended).tolist(), totals[ended].tolist(), strict=True):
            end = steps + row + 1
            if (row, slot) not in faults:
                returns.append(total - counted[slot])
                lengths.append(end - self._began[slot])
                slots.append(slot)
            counted[slot] = total
            self._began[slot] = end + self._pause
        self._returns = totals[-1] - counted
        finished: dict[str, Any] = {
            "episode_returns": np.array(returns, np.float64),
            "episode_lengths": np.array(lengths, np.int64),
            "episode_slots": np.array(slots, np.int64),
        }
        return finished | {"num_env_steps_lost": {"env_raised": len(faults)}} if faults else finished


class BaseRunner(ABC):
    """Base class of env runners. It accounts for every env step: the number in ``step_counter`` equals the steps of the
    rollouts, plus the lost steps in their ``stats``, plus ``num_env_steps_lost``.

    Args:
        settings: The settings of the runner.
        first_env_index: Index of the runner's first env among all envs of the run.
        role: ``"env"`` or ``"evaluation_env"``.
        step_counter: Counts the calls of ``env.step`` before each is made. None creates a counter.

    Attributes:
        num_envs: Number of envs.
        progress: Number of steps of each env so far. It also grows while a rollout is sampled.
        num_env_steps_lost: Steps of fragments that ended in an error, by cause. ``env_raised`` counts the steps that
            raised or ended the process of their env, ``fragment`` all other steps.
    """

    _streams: RandomStreams
    _totals: EpisodeStats
    _faults: list[tuple[int, int]]  # step and env of each step of the fragment that raised
    _has_tensors = False  # whether the envs return tensors

    def __init__(self, settings: Any, first_env_index: int, role: str, step_counter: SharedCounter | None) -> None:
        self._settings, self._first, self._role = settings, first_env_index, role
        self.step_counter = step_counter or SharedCounter()
        self.progress = self._steps = 0
        self.num_env_steps_lost: Counter[str] = Counter()
        self.num_envs: int = settings.num_envs_per_env_runner
        self._inference_mode = torch.inference_mode()  # creating one takes longer than entering it
        self._keeps_episodes = role == "env"  # evaluation begins with new episodes
        self._is_running = False  # if not, the next fragment starts new episodes, or continues those that were saved
        self._saved: dict[str, Any] = {}  # states of envs from which the next fragment continues

    # --- sampling -----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Start a new episode in every env. Each env gets the next seed of its own stream; envs that return tensors
        share one seed."""
        self._is_running, self._saved = False, {}
        with own_gradients():
            self._reset(self._streams.next_seeds())
        self._is_running = True
        self._totals.begin(self._steps)

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> Any:
        """Step every env ``num_steps`` times, and return the rollout, which the class describes.

        Args:
            num_steps: ``T``, number of steps of each env.
            explore: Sample actions; False takes the most likely ones.
            policy_version: Stored in the rollout.

        Raises:
            ValueError: If an observation or reward is wrong or not finite, or an action mask allows no action; names
                env and step. For a multi-agent env, also if an agent is mapped to a module that is unknown or has other
                spaces; names the agent.
            EnvError: If an env raises and is not restarted, or its process ends. The next call starts new episodes.
        """
        start = perf_counter()
        if self._saved:
            self._resume()
        elif not self._is_running:
            self.reset()
        self._begin(num_steps)
        calls_before = self.step_counter.cell[0]
        self._is_complete = False
        try:
            # keep the tensors of an env out of the autograd graph; an env that returns arrays may use gradients inside
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self._has_tensors):
                seconds = self._interact(num_steps, explore)
                self._is_complete = True
                rollout = self._rollout_of(num_steps, explore, policy_version)
        except BaseException as error:
            self._is_running = False  # the envs are ahead of the recorded rows, so start new episodes
            self._lose(error, calls_before)
        self._steps += num_steps
        bookkeeping = perf_counter() - start - seconds["env_step"] - seconds["forward"]
        rollout.stats |= seconds | {"bookkeeping": bookkeeping}
        return rollout

    def recycle(self) -> None:
        """Let the next call of ``sample`` overwrite the last rollout, which is not read any more. The default keeps
        it."""

    @abstractmethod
    def _reset(self, seeds: list[int]) -> None:
        """Reset every env with its seed; for envs that return tensors, there is a single seed."""

    @abstractmethod
    def _begin(self, num_steps: int) -> None:
        """Prepare to record a fragment of ``num_steps`` steps. Set ``_faults`` to the list that it will fill."""

    @abstractmethod
    def _interact(self, num_steps: int, explore: bool) -> dict[str, float]:
        """Step the envs ``num_steps`` times, and record the rows. Return the seconds of each phase."""

    @abstractmethod
    def _rollout_of(self, num_steps: int, explore: bool, policy_version: int) -> Any:
        """Return the rollout of the fragment. Raise ValueError if one of its values is wrong."""

    # --- errors -------------------------------------------------------------------------------------------------------

    def _lose(self, error: BaseException, calls_before: int) -> Never:
        """Add the steps of a fragment that ended in ``error`` to ``num_env_steps_lost``. Then raise ``error`` or its
        cause.

        Args:
            error: The error that is being handled, in an ``except`` block.
            calls_before: The count of ``step_counter`` before the fragment.
        """
        if torch.is_inference_mode_enabled():  # Ctrl-C can come between the end of a block and its exit
            self._inference_mode.__exit__(None, None, None)
        culprit = self._culprit(error)
        num = self.step_counter.count - calls_before
        is_step = isinstance(culprit, EnvError) and culprit.place.get("call") != "reset()"
        raised = min(num, len(self._faults) + is_step)
        self.num_env_steps_lost += Counter(env_raised=raised, fragment=num - raised)  # adding drops counts of 0
        if culprit is error:
            raise
        raise culprit from error

    def _culprit(self, error: BaseException) -> BaseException:
        """Return the cause of ``error``: the error about a wrong value if such a value made a module or an env fail,
        otherwise ``error`` itself."""
        if isinstance(error, Exception) and not self._is_complete:
            try:
                self._check_values(error)
            except (TypeError, ValueError) as found:
                return error if str(found) == str(error) else found
        return error

    @abstractmethod
    def _check_values(self, error: Exception) -> None:
        """Raise TypeError or ValueError if a recorded row, or one of the last results of the envs, is wrong. ``error``
        ended the fragment."""

    # --- state --------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return counters, random streams and the open episode of each env, by the env's index in the run.

        An open episode is described by its seed and its actions, or by the state of an env that has
        ``get_episode_state()``; see :meth:`Guard.continue_episode`. Evaluation runners and runners of ready vector envs
        save no episodes.
        """
        state = {
            index: self._saved.get(index, {}) | env_state | {"steps": self._steps}
            for index, env_state in self._streams.get_state().items()
        }
        if self._is_running and self._keeps_episodes:
            totals = self._totals.open(self._steps)
            for env_state, episode, (total, length) in zip(state.values(), self._episodes(), totals, strict=True):
                env_state["episode"] = {**episode, "return": total, "length": length}
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore states from :meth:`get_state` of this or other runners; see :meth:`RandomStreams.set_state`.

        Open episodes continue in the next fragment. An episode that cannot continue is cut, and a new episode begins.
        If an env raises or its process ends before that, the next call of :meth:`sample` tries again.
        """
        self._streams.set_state(state)
        self._steps = max((env_state.get("steps", 0) for env_state in state.values()), default=0)
        self._is_running, self._saved = False, {}
        if self._keeps_episodes:
            self._saved = {index: env_state for index, env_state in state.items() if "episode" in env_state}

    def _resume(self) -> None:
        """Bring the envs to the points at which their episodes were saved. In envs without a saved episode, begin a new
        one."""
        episodes: list[Mapping[str, Any]] = []
        for slot in range(self.num_envs):
            saved = self._saved.get(str(self._first + slot), {}).get("episode", {})
            episodes.append(saved if self._can_continue(slot, saved) else {})
        # If every episode was saved, no env needs a seed, and the streams must not move.
        seeds = self._streams.next_seeds() if {} in episodes else [0] * self.num_envs
        plans = [episode or {"seed": seed} for episode, seed in zip(episodes, seeds, strict=True)]
        with own_gradients():
            results = self._continue(plans)
        self._saved = {}
        episodes = [episode if goes_on else {} for episode, (_, goes_on) in zip(episodes, results, strict=True)]
        self._take_up(episodes, [obs for obs, _ in results])
        totals = [(episode.get("return", 0.0), episode.get("length", 0)) for episode in episodes]
        self._totals.resume(self._steps, totals)
        self._is_running = True

    @abstractmethod
    def _episodes(self) -> Iterable[Mapping[str, Any]]:
        """Return the open episode of each env, without its return and length so far."""

    def _can_continue(self, slot: int, saved: Mapping[str, Any]) -> bool:
        """Return whether the env in ``slot`` can continue its ``saved`` episode, before it is asked to."""
        return True

    @abstractmethod
    def _continue(self, plans: Sequence[Mapping[str, Any]]) -> Sequence[tuple[Any, bool]]:
        """Let each env continue an episode from :meth:`_episodes`, or begin a new one if its plan has only a ``seed``.
        Return the observation of each env, and whether the episode continues."""

    @abstractmethod
    def _take_up(self, episodes: Sequence[Mapping[str, Any]], observations: Sequence[Any]) -> None:
        """Let the next fragment begin with the ``observations`` of the envs, in which the saved ``episodes`` continue.
        An entry is empty for an env that begins a new episode."""


def own_gradients() -> torch.set_grad_enabled:
    """Return a context at whose end torch's grad mode is as it is now, even if an env in this process changes it.
    Learners in this process need that."""
    return torch.set_grad_enabled(torch.is_grad_enabled())
