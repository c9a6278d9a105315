"""The base of replay algorithms that set how much their modules explore."""

from abc import abstractmethod
from typing import Any, ClassVar

from algorithms.off_policy.algorithm import ReplayAlgorithm, ReplayConfig
from rlmodule.modules.apis import ExplorationAPI


class ExploringAlgorithm(ReplayAlgorithm):
    """Base of replay algorithms whose modules implement :class:`ExplorationAPI`. It sets the number that says how much
    a module explores before each rollout, and reports it with the metrics of the learners.

    Attributes:
        exploration_name: Name of the number in the results.
    """

    exploration_name: ClassVar[str]

    def __init__(self, config: ReplayConfig) -> None:
        super().__init__(config)
        self._explorations: dict[str, float] = {}  # the numbers set in this iteration, by module id

    @abstractmethod
    def exploration_of(self, module_id: str) -> float:
        """Return how much a module has to explore in the next rollout."""

    def before_sampling(self) -> None:
        for module_id in self.configs:
            value = self.exploration_of(module_id)
            # setting it takes as long as stepping an env; states from learners in other processes replace it
            if self.config.num_learners or value != self._explorations.get(module_id):
                self._set_exploration(module_id, value)

    def training_step(self) -> dict[str, dict[str, Any]]:
        self._explorations.clear()  # between iterations, a loaded state or a user may have changed the modules
        result = super().training_step()
        for module_id in self.configs.keys() & self._explorations:  # a callback may have changed the policies
            value = self._explorations[module_id]
            # the state from learners in other processes has replaced it, and they do not know it
            self._set_exploration(module_id, value)
            if module_id in result["learners"]:
                result["learners"][module_id][self.exploration_name] = value
        return result

    def _set_exploration(self, module_id: str, value: float) -> None:
        module = self.get_module(module_id)
        assert isinstance(module, ExplorationAPI)  # the learner requires this API
        module.set_exploration(value)
        self._explorations[module_id] = value
