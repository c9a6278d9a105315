"""Abilities a module may have and a learner may require, one abstract method each.

A learner lists what it needs in ``required_apis``; :func:`check_apis` compares that with the module when it is built.
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
    """The module predicts state values."""

    @abstractmethod
    def compute_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        """State values in units of reward, ``[...]`` for ``batch["obs"]`` ``[..., *obs_shape]``.

        Args:
            batch: Columns; ``obs`` is read unless ``embeddings`` is given.
            embeddings: The ``embeddings`` of a ``forward_train`` on the same batch; always given to a recurrent module,
                whose values cannot be told from ``obs`` alone.
        """

    def value_scale(self) -> Tensor:
        """Unit in which the value loss measures errors, so that the scale of returns cannot drown the policy loss.
        Default: 1; a module that normalises values returns the standard deviation of recent targets."""
        return torch.ones(())

    def update_value_statistics(self, targets: Tensor) -> None:
        """Take in value targets ``[B]`` when they are formed; for running normalisers. Default: none to update."""


class QNetAPI(ABC):
    """The module predicts the value of every action of a Discrete space."""

    @abstractmethod
    def compute_q_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        """Action values in units of reward, ``[..., num_actions]`` for ``batch["obs"]`` ``[..., *obs_shape]``.

        Args:
            batch: Columns; ``obs`` is read unless ``embeddings`` is given.
            embeddings: The ``embeddings`` of a ``forward_train`` on the same batch.
        """


class DistributionalQNetAPI(QNetAPI):
    """The module predicts for every action a distribution of returns over fixed atoms (Bellemare et al. 2017)."""

    @abstractmethod
    def compute_q_logits(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        """Logits over the atoms ``[..., num_actions, num_atoms]``; arguments as for ``compute_q_values``."""

    @abstractmethod
    def q_support(self) -> Tensor:
        """Return of each atom, ``[num_atoms]``, in ascending order at equal distances."""


class EpsilonGreedyAPI(ABC):
    """The module explores with a random action now and then."""

    @abstractmethod
    def set_epsilon(self, epsilon: float) -> None:
        """Set the share of steps whose action is drawn from all allowed ones alike."""


class NoisyNetAPI(ABC):
    """The module explores with noise in its weights (Fortunato et al. 2018)."""

    @abstractmethod
    def resample_noise(self, generator: torch.Generator) -> None:
        """Draw the noise that all passes but inference use from now on. Without a call there is none."""


class ExtraLoss(NamedTuple):
    """One term that a module adds to the algorithm's loss.

    Attributes:
        value: Scalar, with gradient; reported as ``{name}_loss``.
        weight: What it is multiplied by before it is added.
        metrics: Further tensors to report, by their own names: scalars or one entry per row.
    """

    value: Tensor
    weight: float = 1.0
    metrics: Mapping[str, Tensor] = MappingProxyType({})


class ExtraLossAPI(ABC):
    """The module adds losses of its own, such as a prediction error, to those of whatever algorithm trains it."""

    @abstractmethod
    def compute_extra_losses(self, batch: Mapping[str, Tree], fwd_out: Mapping[str, Tree]) -> dict[str, ExtraLoss]:
        """Losses by name, the same names at every call.

        Args:
            batch: Columns ``[B, ...]`` of one minibatch, as the algorithm's loss sees them: rows, also for a
                recurrent module.
            fwd_out: What ``forward_train`` made of them, ``[B, ...]``.
        """


class InferenceOnlyAPI(ABC):
    """Parts of the module are needed for learning only and are dropped from inference-only copies."""

    @abstractmethod
    def get_non_inference_attributes(self) -> list[str]:
        """Dotted names of the submodules an inference-only copy does without."""


def check_apis(module: nn.Module, required: Sequence[type], learner: str, module_id: str) -> None:
    """Make sure ``module`` has every ability in ``required``.

    Raises:
        TypeError: Naming the learner, the module and each missing class with its methods.
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
    """The methods to write for an ability: its abstract ones, or all public ones of a class without any."""
    if inspect.isabstract(api):
        return sorted(api.__abstractmethods__)
    return [name for name, value in vars(api).items() if inspect.isfunction(value) and not name.startswith("_")]
