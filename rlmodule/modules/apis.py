"""Interfaces that a neural module may implement and a learner may require.

A learner lists the interfaces that it requires in ``required_apis``. :func:`check_apis` checks the learner's modules
when the learner is built.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from catalog.base import Tree
from catalog.hooks import Hooks
from catalog.return_heads import Number, ReturnHead


class ValueFunctionAPI(Hooks, ABC):
    """Interface of modules that predict state values."""

    @abstractmethod
    def compute_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        """Return state values in units of reward, ``[...]`` for ``batch["obs"]`` ``[..., *obs_shape]``.

        Args:
            batch: Columns by name. ``obs`` is read unless ``embeddings`` is given.
            embeddings: The ``embeddings`` that ``forward_train`` returned for the same batch. A recurrent module always
                gets them, because its values do not depend on ``obs`` alone.
        """

    def value_scale(self) -> Tensor:
        """Return the unit in which the value loss measures errors, as a positive scalar tensor. It keeps large returns
        from outweighing the policy loss. The default is 1; a module that normalises values returns the standard
        deviation of recent targets."""
        return torch.ones(())

    def has_value_statistics(self) -> Tensor:
        """Return whether the scale of the values is known, as a scalar tensor of bool. Until then, values count as 0 in
        the targets, because an untrained head's outputs of about 1 would hide small rewards. The default is True; a
        module that normalises values returns False before the first call of :meth:`update_value_statistics`."""
        return torch.ones((), dtype=torch.bool)

    def update_value_statistics(self, targets: Tensor) -> None:
        """Update running normalisers with new value targets ``[B]``, before the gradient steps. The default does
        nothing."""


class StateValueAPI(ValueFunctionAPI):
    """Interface of modules that predict state values with a net of their own, next to critics."""

    @abstractmethod
    def value_names(self) -> tuple[str, ...]:
        """Return the dotted names of the submodules that only the loss of state values trains."""


class QNetAPI(Hooks, ABC):
    """Interface of modules that predict the value of every action of a Discrete space."""

    @abstractmethod
    def compute_q_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        """Return action values in units of reward, ``[..., num_actions]`` for ``batch["obs"]`` ``[..., *obs_shape]``.

        Args:
            batch: Columns by name. ``obs`` is read unless ``embeddings`` is given.
            embeddings: The ``embeddings`` that ``forward_train`` returned for the same batch.
        """

    def return_head(self) -> ReturnHead:
        """Return what the outputs for an action say about its return; by default, that each is the mean return."""
        return Number()

    def compute_q_outputs(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        """Return the outputs for every action, ``[..., num_actions, *return_head().shape]``; by default, the action
        values. Those of forbidden actions are arbitrary. The arguments are those of ``compute_q_values``."""
        return self.compute_q_values(batch, embeddings)


class ActionValueAPI(Hooks, ABC):
    """Interface of modules with critics, which are an ensemble of nets that predict the value of an action for an
    observation."""

    @property
    @abstractmethod
    def values_all_actions(self) -> bool:
        """Whether each critic predicts the values of all joint actions in one pass, instead of taking the action as an
        input."""

    @abstractmethod
    def critic_names(self) -> tuple[str, ...]:
        """Return the dotted names of the submodules that only the critics' loss trains."""

    @abstractmethod
    def compute_action_values(
        self,
        batch: Mapping[str, Tree],
        actions: Tree | None,
        embeddings: Tensor | None = None,
        *,
        frozen: bool = False,
        num_critics: int | None = None,
    ) -> Tensor:
        """Return the values that each critic predicts, ``[critics, B]`` in units of reward.

        Args:
            batch: Columns by name. ``obs`` ``[B, ...]`` is read unless ``embeddings`` is given.
            actions: Sampled actions ``[B, ...]``, in which discrete choices are numbers or one-hot vectors. If
                ``values_all_actions``, None returns the values of every joint action, ``[critics, B, joint actions]``.
            embeddings: The ``embeddings`` that ``forward_train`` returned for the same batch. A recurrent module always
                gets them, because its values do not depend on ``obs`` alone.
            frozen: Let gradients flow only to ``actions``, and not to the critics' weights or ``embeddings``.
            num_critics: Number of critics to compute, the first ones; None computes all.
        """

    def return_head(self) -> ReturnHead:
        """Return what the outputs of a critic say about the return; by default, that each is the mean return."""
        return Number()

    def compute_action_outputs(
        self, batch: Mapping[str, Tree], actions: Tree | None, embeddings: Tensor | None = None
    ) -> Tensor:
        """Return the outputs of each critic, ``[critics, B, *return_head().shape]``; by default, the values. The
        arguments are those of ``compute_action_values``."""
        return self.compute_action_values(batch, actions, embeddings)


class TemperatureAPI(Hooks, ABC):
    """Interface of modules that learn a temperature, the weight of the policy's entropy in the loss."""

    @abstractmethod
    def log_temperature(self) -> Tensor:
        """Return the logarithm of the temperature, a scalar parameter that no other part of the module reads."""


class ExplorationAPI(Hooks, ABC):
    """Interface of modules whose amount of exploration is one number, which the algorithm sets before it samples.

    The algorithm says what the number is. For DQN it is epsilon, the probability that an action is drawn uniformly from
    all allowed actions. For TD3 it is the standard deviation of the noise that is added to actions in [-1, 1].

    Attributes:
        exploration_buffers: Dotted names of the buffers that :meth:`set_exploration` fills. Training does not change
            them, so several learners need not average them.
    """

    exploration_buffers: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def set_exploration(self, value: float) -> None:
        """Set how much the module explores. Fill a buffer in place, since the copy that acts shares its memory."""


class NoisyNetAPI(Hooks, ABC):
    """Interface of modules that explore with noise in their weights (Fortunato et al. 2018, section 3)."""

    @abstractmethod
    def resample_noise(self, generator: torch.Generator) -> None:
        """Draw new noise for the weights, which the exploration and training passes use until the next call. Before the
        first call, the noise is zero."""


class ExtraLoss(NamedTuple):
    """A term that a module adds to the algorithm's loss.

    Attributes:
        value: The loss, a scalar tensor with gradient. It is reported as ``{name}_loss``.
        weight: Factor that multiplies ``value`` in the total loss.
        metrics: Additional tensors to report, by name. A metric is a scalar or has one entry per row.
    """

    value: Tensor
    weight: float = 1.0
    metrics: Mapping[str, Tensor] = MappingProxyType({})


class ExtraLossAPI(Hooks, ABC):
    """Interface of modules that add losses, such as a prediction error, to the loss of any algorithm."""

    @abstractmethod
    def compute_extra_losses(self, batch: Mapping[str, Tree], fwd_out: Mapping[str, Tree]) -> dict[str, ExtraLoss]:
        """Return the extra losses of one minibatch by name. The names must be the same at every call.

        Args:
            batch: Columns ``[B, ...]`` of the minibatch, as the algorithm's loss gets them. The sequences of a
                recurrent module have been flattened into valid rows.
            fwd_out: The outputs of ``forward_train`` for these rows, ``[B, ...]``.
        """


class InferenceOnlyAPI(Hooks, ABC):
    """Interface of modules with parts that only learning needs. Inference-only copies of the module drop these
    parts."""

    @abstractmethod
    def get_non_inference_attributes(self) -> list[str]:
        """Return the dotted names of the submodules that an inference-only copy drops."""


def check_apis(module: nn.Module, required: Sequence[type], learner: str, module_id: str) -> None:
    """Check that ``module`` implements every interface in ``required``.

    Raises:
        TypeError: If it does not. The message names ``learner``, ``module_id``, and each missing interface with its
            methods.
    """
    missing = [api for api in required if not isinstance(module, api)]
    if missing:
        wanted = ", ".join(f"{api.__name__} ({', '.join(_methods_of(api))})" for api in missing)
        raise TypeError(
            f"{learner} with module {module_id!r}: expected a module that implements {wanted}, got "
            f"{type(module).__name__}, which does not. Derive it from "
            f"{' and '.join(api.__name__ for api in missing)} too and write these methods."
        )


def _methods_of(api: type) -> list[str]:
    """Return the names of the methods that an interface requires: its abstract methods, or all public methods if it has
    no abstract ones."""
    if inspect.isabstract(api):
        return sorted(api.__abstractmethods__)
    return [name for name, value in vars(api).items() if inspect.isfunction(value) and not name.startswith("_")]
