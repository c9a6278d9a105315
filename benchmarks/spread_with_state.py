"""PettingZoo's ``simple_spread`` with the state of the whole env in each observation, for a critic that sees all."""

from typing import Any

from rlmodule.agents import WithState


def parallel_env(**config: Any) -> WithState:
    """Make the env."""
    import mpe2.simple_spread_v3

    return WithState(mpe2.simple_spread_v3.parallel_env(**config))
