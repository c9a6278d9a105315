"""AgentMetrics: the counters of a multi-agent run, also by agent and by module."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Container, Mapping
from typing import Any

from algorithms.run.metrics import RunMetrics

KINDS = ("agent", "module")


class AgentMetrics(RunMetrics):
    """Counters of a multi-agent run: those of :class:`RunMetrics`, in which an episode's return is the sum over its
    agents, and in addition the steps and returns of each agent and of each module.

    Args:
        window: Number of most recent episodes over which returns and lengths are averaged. The episodes of the envs, of
            each agent, and of each module have separate windows.
    """

    def __init__(self, window: int) -> None:
        super().__init__(window)
        self._steps_of = {kind: Counter[Any]() for kind in KINDS}
        self._returns_of = {kind: defaultdict[Any, deque[float]](lambda: deque(maxlen=window)) for kind in KINDS}
        self._kept: Container[str] | None = None  # ids of the modules to count; None counts all

    def add_rollout(self, rollout: Any) -> None:
        super().add_rollout(rollout)
        for kind in KINDS:
            self._steps_of[kind].update(rollout.stats[f"{kind}_steps"])
        for agent_episode in rollout.stats["agent_episodes"]:
            self._returns_of["agent"][agent_episode.agent].append(agent_episode.episode_return)
            self._returns_of["module"][agent_episode.policy].append(agent_episode.episode_return)
        if self._kept is not None:
            self.keep_modules(self._kept)

    def steps_of(self, module_id: str) -> int:
        return self._steps_of["module"][module_id]

    def finish_iteration(self, seconds: float, sections: dict[str, Any]) -> dict[str, Any]:
        result = super().finish_iteration(seconds, sections)
        for kind in KINDS:
            means = {name: sum(returns) / len(returns) for name, returns in self._returns_of[kind].items()}
            result["env_runners"][f"{kind}_episode_returns_mean"] = means
            result["env_runners"][f"num_{kind}_steps_sampled_lifetime"] = dict(self._steps_of[kind])
        return result

    def keep_modules(self, module_ids: Container[str]) -> None:
        """Drop the counters of all modules that are not in ``module_ids``, now and after each rollout, in which open
        episodes with modules that were removed may have ended."""
        self._kept = module_ids
        for numbers in (self._steps_of["module"], self._returns_of["module"]):
            for module_id in [name for name in numbers if name not in module_ids]:
                del numbers[module_id]

    def get_state(self) -> dict[str, Any]:
        # lists of pairs, since JSON would turn the ids of agents that are numbers into strings
        steps = {kind: [[*pair] for pair in self._steps_of[kind].items()] for kind in KINDS}
        returns = {kind: [[name, [*values]] for name, values in self._returns_of[kind].items()] for kind in KINDS}
        return super().get_state() | {"steps_of": steps, "returns_of": returns}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        for kind in KINDS:
            self._steps_of[kind] = Counter(dict(state["steps_of"][kind]))
            self._returns_of[kind].clear()
            for name, values in state["returns_of"][kind]:
                self._returns_of[kind][name].extend(values)
