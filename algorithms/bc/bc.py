"""BC, as settings of MARWIL."""

from algorithms.marwil.marwil import MARWIL, MARWILConfig


class BCConfig(MARWILConfig):
    """Settings of :class:`BC`: those of MARWIL, with all actions cloned alike."""

    beta = 0.0
    n_step = 1

    @property
    def algo_class(self) -> type["BC"]:
        return BC


class BC(MARWIL):
    """Behaviour cloning: makes the actions of a data set likely."""
