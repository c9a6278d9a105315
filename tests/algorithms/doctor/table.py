"""Which finding each planted fault must yield, and which envs are healthy.

A planted fault is named if the doctor reports the finding of its row, whatever else it reports. A healthy env has no
fault, and at most one warning that the docs do not explain.
"""

import random
from typing import NamedTuple

SEED_OF_THE_DRAW = 53
"""``random.Random(53)`` draws five faults and then five envs of those in reserve, once the doctor is done."""


class Planted(NamedTuple):
    """A planted fault: a class, the finding that names it, and whether the exit code is 1."""

    env: str
    finding: str
    is_fault: bool


FAULTS = (
    Planted("WrongShape", "contract", True),
    Planted("OutsideSpace", "contract", True),
    Planted("NanAtCorners", "nan", True),
    Planted("IgnoresSeed", "seed", False),
    Planted("LeaksState", "leak", False),
    Planted("NeverEnds", "no-end", False),
    Planted("HugeRewards", "reward-scale", False),
    Planted("ConstantReward", "constant-reward", False),
    Planted("SlowReset", "reset-cost", False),
    Planted("ConstantObservation", "constant-observation", False),
    Planted("ForbidsAll", "mask", True),
    Planted("TimeOutAsTermination", "time-out", False),
    Planted("GrowingMemory", "memory", False),
    Planted("Prints", "prints", False),
    Planted("NoEffect", "actions", False),
    Planted("KillsProcess", "crash", True),
    Planted("HangsInReset", "hang", True),
    Planted("NeedsDisplay", "display", True),
    Planted("VaryingAgents", "agents", True),
    Planted("does_not_import:ENV", "import", True),
)
"""Classes of faulty_envs, except the last, which is a module without an env."""

GYMNASIUM = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "FrozenLake-v1",
    "Taxi-v4",
    "Blackjack-v1",
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
    "BipedalWalker-v3",
    "HalfCheetah-v5",
    "Hopper-v5",
    "InvertedPendulum-v5",
    "ALE/Pong-v5",
)
PETTINGZOO = (
    "mpe2.simple_spread_v3",
    "mpe2.simple_speaker_listener_v4",
    "classic/rps-v2",
    "classic/connect_four-v3",
    "sisl/multiwalker-v9",
)

FAULTS_IN_RESERVE = (
    Planted("HugeObservations", "observation-scale", False),
    Planted("InfiniteActions", "action-bounds", False),
    Planted("FloatsInBytes", "contract", True),
    Planted("OldApi", "contract", True),
    Planted("RewardInInfo", "constant-reward", False),
    Planted("RaisesLater", "raises", True),
    Planted("HangsInStep", "hang", True),
    Planted("NanReward", "nan", True),
    Planted("InfiniteObservation", "nan", True),
    Planted("MaskOfWrongLength", "mask", True),
    Planted("GlobalRandomness", "seed", False),
    Planted("EndsAtOnce", "short-episodes", False),
    Planted("SpacesDiffer", "contract", True),
    Planted("Exits", "raises", True),
    Planted("SharesState", "leak", False),
)
ENVS_IN_RESERVE = (
    "CliffWalking-v1",
    "CarRacing-v3",
    "InvertedDoublePendulum-v5",
    "Swimmer-v5",
    "Reacher-v5",
    "Walker2d-v5",
    "Ant-v5",
    "Pusher-v5",
    "Humanoid-v5",
    "ALE/Breakout-v5",
    "mpe2.simple_tag_v3",
    "mpe2.simple_adversary_v3",
    "classic/tictactoe-v3",
    "butterfly/cooperative_pong-v6",
    "rlmodule.agents.cartpoles",
)


def drawn() -> tuple[list[Planted], list[str]]:
    """The five faults and five envs that are tried once."""
    generator = random.Random(SEED_OF_THE_DRAW)
    return generator.sample(FAULTS_IN_RESERVE, 5), generator.sample(ENVS_IN_RESERVE, 5)
