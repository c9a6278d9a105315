"""IQL: its settings, and the algorithm, which learns from a data set and may go on with env steps."""

from __future__ import annotations

from algorithms.iql.learner import IQLLearner
from algorithms.iql.module import IQLCatalog, IQLModule
from algorithms.off_policy.action_critic import ActionCriticTraining
from algorithms.off_policy.algorithm import ReplayAlgorithm, ReplayConfig
from algorithms.replay.data_rollout import inside_bounds
from catalog.settings import Section, setting
from rlmodule.data.dataset import Dataset
from rlmodule.data.rollout import Rollout
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import RLModuleSpec


class IQLTraining(ActionCriticTraining):
    """Settings of IQL's losses."""

    expectile: float = setting(
        0.7,
        "Which expectile of the action values is the state value: 0.5 is their mean, near 1 their best.",
        gt=0,
        lt=1,
    )
    beta: float = setting(
        3.0, "How much better actions count for more, per unit of reward: near 0 clones all alike.", gt=0
    )
    max_weight: float = setting(100.0, "Largest weight of an action, exp(beta · advantage).", gt=0)


class IQLConfig(IQLTraining, ReplayConfig):
    """Settings of :class:`IQL`."""

    training = Section(IQLTraining)
    default_search = ("lr=log:1e-5..2e-3", "gamma=1-log:1e-3..0.03", "expectile=0.5..0.95", "beta=log:0.5..10.0")
    replay_capacity = 1_000_000

    @property
    def algo_class(self) -> type[IQL]:
        return IQL

    def default_learner_class(self) -> type[IQLLearner]:
        return IQLLearner

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=IQLModule, catalog_class=IQLCatalog)

    def validate(self) -> None:
        super().validate()
        self.check_critics()
        for name in ("num_atoms", "num_quantiles"):
            if vars(self)[name] > 1:
                expected = "1, since the targets of IQL's critics are numbers, not distributions of returns"
                raise self._invalid(name, expected, "Leave it out.")


class IQL(ReplayAlgorithm):
    """Implicit Q-learning (Kostrikov et al. 2022).

    Learn values of the actions in a data set, and clone the better ones more. Env steps may follow.
    """

    config: IQLConfig

    def _rollout_of(self, dataset: Dataset, module: RLModule) -> Rollout:
        return inside_bounds(super()._rollout_of(dataset, module), module.action_dist_cls)
