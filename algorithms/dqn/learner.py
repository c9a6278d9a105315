"""DQN's learner: targets from the target network, the loss of action values, and target updates."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional

from algorithms.off_policy.learner import (
    ReplayLearner,
    check_return_head,
    discounts_after,
    following,
    valid_rows,
)
from algorithms.ops.distributional import return_losses, return_targets, take_actions
from catalog.base import Tree
from rlmodule.data.columns import Batch, Columns
from rlmodule.learning.reports import Metrics
from rlmodule.modules.apis import ExplorationAPI, NoisyNetAPI, QNetAPI, check_apis
from rlmodule.modules.rl_module import MultiRLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec

if TYPE_CHECKING:
    from algorithms.dqn.dqn import DQNConfig


class DQNLearner(ReplayLearner):
    """Learns action values from one batch of replayed steps at a time.

    In addition to the online net, it has two copies in eval mode: ``target`` has older weights, and ``choosing``
    shares the tensors of the online net and chooses the actions of double Q-learning.

    Override points: ``compute_loss_for_module``, ``compute_targets``, and those of :class:`ReplayLearner`.
    """

    required_apis = (QNetAPI, ExplorationAPI)
    settings: "DQNConfig"

    def __init__(self, settings: "DQNConfig", spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        self.choosing = MultiRLModule({}).eval()
        super().__init__(settings, spec, run_seed=run_seed)

    def _register_module(self, module_id: str, spec: RLModuleSpec, *, train: bool) -> None:
        super()._register_module(module_id, spec, train=train)
        if not train:  # a module that is not trained chooses no targets
            return
        module, settings = self.module[module_id], self.settings
        assert isinstance(module, QNetAPI)
        check_return_head(module.return_head(), settings, module_id)
        if settings.noisy:
            check_apis(module, (NoisyNetAPI,), f"{type(self).__name__} with noisy=True", module_id)
        self.choosing.add(module_id, spec.build().to(self.device))
        self.choosing[module_id].share_tensors_of(module)

    def _forget_module(self, module_id: str) -> None:
        super()._forget_module(module_id)
        if module_id in self.choosing:
            self.choosing.remove(module_id)

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        """Return the loss and its metrics. The loss is the mean over rows of the error of the taken action's value.
        With prioritized replay, each error is multiplied by its importance weight.

        With ``cql_alpha``, the loss contains by how much the values of all actions exceed those of the actions taken
        (Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", eq. 4).

        The error of a number is a Huber or squared error (Mnih et al. 2015, eq. 1). Those of atoms and quantiles are
        described in :func:`return_losses`.

        An override must report ``td_error`` ``[B]`` if replay is prioritized. It may report ``qf`` ``[B]``, the values
        of the actions taken, for the metrics ``qf_mean``, ``qf_min`` and ``qf_max``.
        """
        module, embeddings = self.module[module_id], fwd_out.get(Columns.EMBEDDINGS)
        assert isinstance(module, QNetAPI)
        taken = take_actions(module.compute_q_outputs(batch, embeddings), batch[Columns.ACTIONS])
        distance = functional.smooth_l1_loss if self.settings.td_error_loss_fn == "huber" else functional.mse_loss
        if Columns.WEIGHTS in batch:
            distance = partial(distance, reduction="none")  # else its own mean: a separate one takes longer
        losses, values, td_error = return_losses(module.return_head(), taken, batch[Columns.VALUE_TARGETS], distance)
        if Columns.WEIGHTS in batch:
            losses = losses * batch[Columns.WEIGHTS]
        loss = losses.mean() if losses.dim() else losses
        metrics = {"qf_loss": loss, "td_error": td_error, "qf": values}
        if self.settings.cql_alpha:
            of_all = module.compute_q_values(batch, embeddings)
            gaps = of_all.logsumexp(-1) - take_actions(of_all, batch[Columns.ACTIONS])
            metrics["cql_loss"] = cql_loss = gaps.mean()
            loss = loss + self.settings.cql_alpha * cql_loss
        return loss, metrics

    def before_gradient_step(self, module_id: str) -> None:
        """Draw new noise for all noisy nets. All learners draw the same noise."""
        for net in (self.module[module_id], self.target[module_id], self.choosing[module_id]):
            if isinstance(net, NoisyNetAPI):
                net.resample_noise(self.generator)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one row's target: ``()`` for a number, ``(K,)`` for the probabilities of atoms or for quantiles."""
        return self.settings.return_shape

    def compute_targets(self, module_id: str, batch: Batch) -> Tensor:
        """Return the target of each row's action value: its n-step reward plus the discounted value of ``next_obs``.

        The target net gives that value, for the action that the online net prefers (double Q-learning, van Hasselt et
        al. 2016, eq. 4), or with ``double_q=False`` for the action that the target net itself prefers.

        Args:
            module_id: The module that learns.
            batch: Columns of :meth:`ReplayBuffer.sample`.

        Returns:
            Targets ``[B, *target_shape]``. For sequences, ``B`` is the number of valid rows.
        """
        target, rows = self.target[module_id], valid_rows(batch)
        assert isinstance(target, QNetAPI)
        seen = following(target, batch)
        embeddings = seen.get(Columns.EMBEDDINGS)
        outputs = target.compute_q_outputs(seen, embeddings)
        if self.settings.double_q:
            choosing = self.choosing[module_id]
            assert isinstance(choosing, QNetAPI)
            chosen_from = following(choosing, batch)
            preferences = choosing.compute_q_values(chosen_from, chosen_from.get(Columns.EMBEDDINGS))
        else:
            preferences = target.compute_q_values(seen, embeddings)
        best = take_actions(outputs, preferences.argmax(-1))
        return return_targets(target.return_head(), best, rows[Columns.REWARDS], discounts_after(target, rows, seen))
