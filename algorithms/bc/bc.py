"""BC, as settings of MARWIL."""

from algorithms.marwil.marwil import MARWIL, MARWILConfig


class BCConfig(MARWILConfig):
    """Settings of :class:`BC`: those of MARWIL, with all actions cloned alike."""

    beta = 0.0
    n_step = 1
    default_search = ("lr=log:1e-5..2e-3", "train_batch_size_per_learner=64|256|1024")

    @property
    def algo_class(self) -> type["BC"]:
        return BC


class BC(MARWIL):
    """Behaviour cloning: makes the actions of a data set likely."""
