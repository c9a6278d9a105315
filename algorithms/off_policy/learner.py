"""BootstrappingLearner and ReplayLearner: the base learners of algorithms with a replay buffer, with or without target
nets."""

from abc import abstractmethod
from collections.abc import Mapping

from torch import Tensor

from catalog.return_heads import ReturnHead, ReturnSettings
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.sequences import flatten_sequences
from rlmodule.learning.batch_learner import BatchLearner
from rlmodule.learning.target_nets import TargetedLearner
from rlmodule.modules.recurrent import burn_in
from rlmodule.modules.rl_module import RLModule


class BootstrappingLearner(BatchLearner):
    """Takes a gradient step on each batch of stored steps, whose targets contain values of the steps after them.

    Override points, in addition to those of :class:`BatchLearner`:
        ``compute_targets`` (required): returns the targets of values.
        ``target_shape``: the shape of one row's target, if it is not a single number.
    """

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one row's target; by default ``()``, a single number."""
        return ()

    @abstractmethod
    def compute_targets(self, module_id: str, batch: Batch) -> Tensor:
        """Return the targets of the rows' values. Called under ``no_grad``.

        Args:
            module_id: The module that learns.
            batch: Columns of :meth:`ReplayBuffer.sample`. :func:`valid_rows` returns its rows, and :func:`following`
                the observations after them.

        Returns:
            Targets ``[B, *target_shape]``. For sequences, ``B`` is the number of valid rows.
        """

    def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
        """Return ``batch`` with the targets as the column ``value_targets``. Called under ``no_grad``.

        In sequences, targets of invalid rows are 0, and the initial recurrent state is replaced with the state after
        the burn-in.

        Raises:
            ValueError: If :meth:`compute_targets` returns a shape other than ``[B, *target_shape]``.
        """
        targets = self.compute_targets(module_id, batch)
        rows = len(batch[Columns.VALID_ROWS if Columns.NEXT_ROWS in batch else Columns.REWARDS])
        expected = (rows, *self.target_shape)
        if targets.shape != expected:  # [B, 1] would broadcast against [B] in the loss
            raise ValueError(
                f"{type(self).__name__}.compute_targets(): expected shape {expected}, got shape "
                f"{tuple(targets.shape)}. Return one target for each row."
            )
        return burn_in(self.module[module_id], batch) | {Columns.VALUE_TARGETS: as_column(targets, batch)}

    def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        rest, results = dict(metrics), dict[str, float]()
        if (td_error := rest.pop("td_error", None)) is not None:
            results["td_error_mean"] = float(td_error.abs().mean())
        if (values := rest.pop("qf", None)) is not None:
            low, high = values.aminmax()
            results |= {"qf_mean": float(values.mean()), "qf_min": float(low), "qf_max": float(high)}
        return super().summarize(module_id, rest) | results


class ReplayLearner(TargetedLearner, BootstrappingLearner):
    """Takes a gradient step on each replayed batch, and moves the target nets after it.

    Override points: those of :class:`BootstrappingLearner` and :class:`TargetedLearner`.
    """

    def after_gradient_step(self, module_id: str) -> None:
        self.move_target(module_id)


def check_return_head(head: ReturnHead, settings: ReturnSettings, module_id: str) -> None:
    """Check that a module describes returns as the settings ask.

    Raises:
        TypeError: If it does not.
    """
    expected = settings.build_return_head()
    if type(head) is not type(expected) or head.shape != expected.shape:
        raise TypeError(
            f"return_head() of module {module_id!r}: expected {type(expected).__name__} of shape {expected.shape}, as "
            f"num_atoms={settings.num_atoms} and num_quantiles={settings.num_quantiles} ask, got "
            f"{type(head).__name__} of shape {head.shape}. Write return_head() and the method with its outputs for "
            "the module, or leave these settings out."
        )


def valid_rows(batch: Batch) -> Batch:
    """Return the rows ``[B, ...]`` of a batch from :meth:`ReplayBuffer.sample`. Of sequences, return only the valid
    rows."""
    return flatten_sequences(batch, batch[Columns.VALID_ROWS]) if Columns.NEXT_ROWS in batch else batch


def as_column(values: Tensor, batch: Batch) -> Tensor:
    """Return ``values`` ``[B, ...]`` of the rows of ``batch`` as a column of it. In sequences, those of invalid rows
    are 0."""
    if Columns.NEXT_ROWS not in batch:
        return values
    shape = batch[Columns.STARTS].shape
    places = values.new_zeros(shape.numel(), *values.shape[1:])
    return places.index_copy_(0, batch[Columns.VALID_ROWS], values).unflatten(0, shape)


def following(net: RLModule, batch: Batch) -> Batch:
    """Return one dict of columns ``[B, ...]``: the observations after the rows of ``batch`` as ``obs``, and the outputs
    of ``net.forward_train`` for them under their own names. For sequences, ``B`` is the number of valid rows."""
    if Columns.NEXT_ROWS not in batch:
        after: Batch = {Columns.OBS: batch[Columns.NEXT_OBS]}
        return after | net.forward_train(after)
    sequences = burn_in(net, batch)
    columns = {Columns.OBS: sequences[Columns.OBS]} | net.forward_train(sequences)
    return flatten_sequences(columns, batch[Columns.NEXT_ROWS])


def discounts_after(net: RLModule, rows: Batch, seen: Batch) -> Tensor:
    """Return the discounts ``[B]`` of ``rows``, but 0 where the observations after them, those in ``seen``, allow no
    action, since no reward can follow there."""
    discounts = rows[Columns.DISCOUNTS]
    if net.action_mask is None:
        return discounts
    return discounts.masked_fill(net.action_mask.rows_without_choice(net.env_part(seen[Columns.OBS])), 0.0)
