"""Interfaces that a module may implement and a learner may require.

A learner lists them in ``required_apis``; :func:`check_apis` checks its modules when it is built.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from catalog.base import Tree


class ValueFunctionAPI(ABC):
    """Interface of modules that predict state values."""

    @abstractmethod
    def compute_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        """Return state values in units of reward, ``[...]`` for ``batch["obs"]`` ``[..., *obs_shape]``.

        Args:
            batch: Columns; ``obs`` is read unless ``embeddings`` is given.
            embeddings: The ``embeddings`` that ``forward_train`` returned for the same batch. A recurrent module always
                gets them, since its values do not depend on ``obs`` alone.
        """

    def value_scale(self) -> Tensor:
        """Return the unit in which the value loss measures errors, so that large returns do not outweigh the policy
        loss. Default: 1. A module that normalises values returns the standard deviation of recent targets."""
        return torch.ones(())

    def update_value_statistics(self, targets: Tensor) -> None:
        """Update running normalisers with new value targets ``[B]``, before the gradient steps. Default: nothing."""


class QNetAPI(ABC):
    """Interface of modules that predict the value of every action of a Discrete space."""

    @abstractmethod
    def compute_q_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        """Return action values in units of reward, ``[..., num_actions]`` for ``batch["obs"]`` ``[..., *obs_shape]``.

        Args:
            batch: Columns; ``obs`` is read unless ``embeddings`` is given.
            embeddings: The ``embeddings`` that ``forward_train`` returned for the same batch.
        """


class DistributionalQNetAPI(QNetAPI):
    """Interface of modules that predict a distribution of returns over fixed atoms for every action (Bellemare et al.
    2017, section 4)."""

    @abstractmethod
    def compute_q_logits(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        """Return logits of the atoms ``[..., num_actions, num_atoms]``; arguments as for ``compute_q_values``."""

    @abstractmethod
    def q_support(self) -> Tensor:
        """Return the return that each atom stands for, ``[num_atoms]``: ascending and evenly spaced."""


class ActionValueAPI(ABC):
    """Interface of modules with critics: an ensemble of nets that predict the value of an observation and an action."""

    @property
    @abstractmethod
    def values_all_actions(self) -> bool:
        """Whether each critic predicts the values of all joint actions at once."""

    @abstractmethod
    def critic_names(self) -> tuple[str, ...]:
        """Return the names of the submodules that only the loss of the critics trains."""

    @abstractmethod
    def compute_action_values(
        self,
        batch: Mapping[str, Tree],
        actions: Tree | None,
        embeddings: Tensor | None = None,
        *,
        frozen: bool = False,
    ) -> Tensor:
        """Return the values that each critic predicts, ``[critics, B]`` in units of reward.

        Args:
            batch: Columns; ``obs`` ``[B, ...]`` is read unless ``embeddings`` is given.
            actions: Sampled actions ``[B, ...]``, choices as numbers or as one-hot codes. None for the values of every
                joint action, ``[critics, B, joint actions]``, if ``values_all_actions``.
            embeddings: The ``embeddings`` that ``forward_train`` returned for the same batch. A recurrent module always
                gets them, since its values do not depend on ``obs`` alone.
            frozen: Give a gradient to the actions only, and none to critics and embeddings.
        """


class TemperatureAPI(ABC):
    """Interface of modules that weigh the entropy of their policy by a learned temperature."""

    @abstractmethod
    def log_temperature(self) -> Tensor:
        """Return the logarithm of the temperature, a scalar parameter that nothing else reads."""


class EpsilonGreedyAPI(ABC):
    """Interface of modules that explore by taking a random action with probability epsilon."""

    @abstractmethod
    def set_epsilon(self, epsilon: float) -> None:
        """Set the probability that an action is drawn uniformly from all allowed ones."""


class ExplorationNoiseAPI(ABC):
    """Interface of modules that explore by adding normal noise to actions in [-1, 1]."""

    @abstractmethod
    def set_exploration_noise(self, scale: float) -> None:
        """Set the standard deviation of the noise."""


class NoisyNetAPI(ABC):
    """Interface of modules that explore with noise in their weights (Fortunato et al. 2018, section 3)."""

    @abstractmethod
    def resample_noise(self, generator: torch.Generator) -> None:
        """Draw the noise that the exploration and training passes use from now on; before the first call it is zero."""


class ExtraLoss(NamedTuple):
    """A term that a module adds to the algorithm's loss.

    Attributes:
        value: Scalar, with gradient; reported as ``{name}_loss``.
        weight: Factor of the value in the total loss.
        metrics: Additional tensors to report by name: scalars or one entry per row.
    """

    value: Tensor
    weight: float = 1.0
    metrics: Mapping[str, Tensor] = MappingProxyType({})


class ExtraLossAPI(ABC):
    """Interface of modules that add losses, such as a prediction error, to the loss of any algorithm."""

    @abstractmethod
    def compute_extra_losses(self, batch: Mapping[str, Tree], fwd_out: Mapping[str, Tree]) -> dict[str, ExtraLoss]:
        """Return losses by name, with the same names at every call.

        Args:
            batch: Columns ``[B, ...]`` of one minibatch, as the algorithm's loss gets them; a recurrent module's
                sequences are flattened into such rows.
            fwd_out: The outputs of ``forward_train`` for these rows, ``[B, ...]``.
        """


class InferenceOnlyAPI(ABC):
    """Interface of modules with parts that only learning needs; inference-only copies drop them."""

    @abstractmethod
    def get_non_inference_attributes(self) -> list[str]:
        """Return the dotted names of the submodules that an inference-only copy drops."""


def check_apis(module: nn.Module, required: Sequence[type], learner: str, module_id: str) -> None:
    """Raise unless ``module`` implements every interface in ``required``.

    Raises:
        TypeError: If an interface is missing; names the learner, the module, and each missing class with its methods.
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
    """Return the methods that an interface requires: its abstract ones, or if it has none, all public ones."""
    if inspect.isabstract(api):
        return sorted(api.__abstractmethods__)
    return [name for name, value in vars(api).items() if inspect.isfunction(value) and not name.startswith("_")]
