"""Base class of neural modules with a policy and critics that predict the value of an observation and an action."""

from collections.abc import Mapping

from torch import Tensor

from catalog.base import Tree
from catalog.critics import ActionCriticCatalog
from catalog.return_heads import ReturnHead
from rlmodule.modules.actor_critic import ActorCriticModule
from rlmodule.modules.apis import ActionValueAPI


class ActionCriticModule(ActorCriticModule, ActionValueAPI):
    """Base class of modules with a policy, and critics that predict the value of an observation and an action.

    From the ``embeddings`` that ``forward_train`` returns, :meth:`compute_action_values` computes values. If the policy
    and the critics share an encoder, the policy's loss does not train it.
    """

    catalog: ActionCriticCatalog
    policy_trains_shared_encoder = False

    def setup_heads(self) -> None:
        catalog = self.catalog
        self.pi_head = self._probed(catalog.build_pi_head(), "policy", catalog.action_head_dim, "build_pi_head()")
        self.qf = catalog.build_qf()
        self.returns = catalog.model_config.build_return_head()

    def get_non_inference_attributes(self) -> list[str]:
        return [*super().get_non_inference_attributes(), "qf"]

    def net_names(self) -> dict[str, str]:
        return super().net_names() | {"critics": "qf"}

    @property
    def values_all_actions(self) -> bool:
        return self.catalog.values_all

    def critic_names(self) -> tuple[str, ...]:
        return ("qf", "encoder" if self.encoder.shared else "encoder.critic_encoder")

    def compute_action_values(
        self,
        batch: Mapping[str, Tree],
        actions: Tree | None,
        embeddings: Tensor | None = None,
        *,
        frozen: bool = False,
        num_critics: int | None = None,
    ) -> Tensor:
        outputs = self._critic_outputs(batch, actions, embeddings, frozen=frozen, num_critics=num_critics)
        return self.returns.mean(outputs)

    def return_head(self) -> ReturnHead:
        return self.returns

    def compute_action_outputs(
        self, batch: Mapping[str, Tree], actions: Tree | None, embeddings: Tensor | None = None
    ) -> Tensor:
        return self._critic_outputs(batch, actions, embeddings)

    def _critic_outputs(
        self,
        batch: Mapping[str, Tree],
        actions: Tree | None,
        embeddings: Tensor | None,
        *,
        frozen: bool = False,
        num_critics: int | None = None,
    ) -> Tensor:
        """Return what :meth:`compute_action_outputs` does, for the critics that ``num_critics`` says."""
        latents = self._critic_latents(batch, embeddings)
        if latents.dim() > 2:
            raise ValueError(
                f"{type(self).__name__}.compute_action_values(): expected rows, with embeddings [B, D], got sequences "
                f"with embeddings {tuple(latents.shape)}. Flatten both: embeddings.flatten(0, 1), and the actions."
            )
        return self.qf(latents, actions, frozen=frozen, num_critics=num_critics)
