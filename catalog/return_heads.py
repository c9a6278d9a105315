"""Return heads: how the outputs of a value net describe the discounted return that follows an action."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from catalog.settings import Settings, setting


class ReturnSettings(Settings):
    """How value nets describe returns: by their mean alone, by atoms, or by quantiles."""

    num_atoms: int = setting(
        1, "Number of atoms of each action's distribution of returns; 1 predicts the mean alone.", ge=1
    )
    v_min: float | None = setting(None, "Discounted return of the lowest atom.")
    v_max: float | None = setting(None, "Discounted return of the highest atom.")
    num_quantiles: int = setting(
        1, "Number of quantiles of each action's distribution of returns; 1 predicts the mean alone.", ge=1
    )

    def check_returns(self, where: str) -> None:
        """Check that these settings do not contradict each other.

        Args:
            where: Name of the object with the settings, for error messages.

        Raises:
            ValueError: If there are both atoms and quantiles, or if ``v_min`` or ``v_max`` is missing for several
                atoms, or is set for one atom.
        """
        if self.num_atoms > 1 and self.num_quantiles > 1:
            raise ValueError(
                f"{where}.num_quantiles: expected 1, since num_atoms={self.num_atoms}, got {self.num_quantiles}. "
                "Describe returns by atoms or by quantiles: leave one of the two out."
            )
        for name, value in (("v_min", self.v_min), ("v_max", self.v_max)):
            if (value is None) == (self.num_atoms > 1):
                raise ValueError(
                    f"{where}.{name}: expected {'a number' if value is None else 'None'}, "
                    f"since num_atoms={self.num_atoms}, got {value}. Set v_min and v_max to the "
                    "range of discounted returns, or num_atoms to 1 to leave them out."
                )
        if self.v_min is not None and self.v_max is not None and self.v_min >= self.v_max:
            raise ValueError(
                f"{where}.v_min: expected less than v_max={self.v_max}, got {self.v_min}. Set "
                "them to the range of discounted returns."
            )

    @property
    def outputs_per_value(self) -> int:
        """Number of outputs of a net for each action that it values."""
        return max(self.num_atoms, self.num_quantiles)

    @property
    def return_shape(self) -> tuple[int, ...]:
        """The shape of the outputs for each action, as in :attr:`ReturnHead.shape`."""
        return (self.outputs_per_value,) if self.outputs_per_value > 1 else ()

    def build_return_head(self) -> "ReturnHead":
        """Build what these settings ask for."""
        if self.v_min is not None and self.v_max is not None:
            return Atoms(torch.linspace(self.v_min, self.v_max, self.num_atoms))
        return Quantiles(self.num_quantiles) if self.num_quantiles > 1 else Number()


class ReturnHead(nn.Module):
    """How the outputs of a value net describe the return of an action. It has no weights.

    A net has one output per action, ``[...]``, if it predicts the mean alone, else several, ``[..., K]``.

    Attributes:
        shape: The shape of the outputs for one action: ``()`` or ``(K,)``.
    """

    shape: tuple[int, ...]

    @abstractmethod
    def mean(self, outputs: Tensor) -> Tensor:
        """Return the mean returns ``[...]`` that ``outputs`` ``[..., *shape]`` describe, in units of reward."""


class Number(ReturnHead):
    """The output is the mean return."""

    shape = ()

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs


class Atoms(ReturnHead):
    """The outputs are logits of returns that are fixed (Bellemare et al. 2017, "A Distributional Perspective on
    Reinforcement Learning").

    Args:
        support: The return that each atom stands for, ``[K]``, in ascending order.
    """

    support: Tensor

    def __init__(self, support: Tensor) -> None:
        super().__init__()
        self.shape = (len(support),)
        self.register_buffer("support", support, persistent=False)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1) @ self.support


class Quantiles(ReturnHead):
    """The outputs are the returns below which the return lies with the probabilities (i + ½) / K (Dabney et al. 2018,
    "Distributional Reinforcement Learning with Quantile Regression").

    Args:
        num: ``K``.
    """

    def __init__(self, num: int) -> None:
        super().__init__()
        self.shape = (num,)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.mean(-1)
