"""The planted faults: each class is a healthy env with one fault."""

import itertools
import os
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from tests.algorithms.doctor.walk import LENGTH, MaskedWalk, PushedWalk, Walk, Walks

# --- the twenty -------------------------------------------------------------------------------------------------------


class WrongShape(Walk):
    """Its steps return three numbers, its space has two."""

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return np.append(obs, np.float32(0)), *rest


class OutsideSpace(Walk):
    """Its observations are ten times as large as its space allows."""

    def observed(self) -> Any:
        return np.array([self.position * 10 + 2, self.goal], np.float32)


class NanAtCorners(PushedWalk):
    """A simulation that only extreme forces break."""

    def moved(self, action: Any) -> float:
        return super().moved(action) if abs(action[0]) < 0.9999 else float("nan")

    def observed(self) -> Any:
        return np.array([self.position, self.goal], np.float32)


class IgnoresSeed(Walk):
    """Its goals do not derive from the seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset()
        self.goal = float(np.random.default_rng().uniform(-1, 1))
        return self.observed(), {}


class LeaksState(Walk):
    """An episode begins where the last one ended."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        position = self.position
        super().reset(seed=seed)
        self.position = position
        return self.observed(), {}


class NeverEnds(Walk):
    """It has no time limit, and no other end."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, False, info


class HugeRewards(Walk):
    """Its rewards are of the order of a million."""

    def reward(self) -> Any:
        return super().reward() * 1e6


class ConstantReward(Walk):
    """Its reward is always 0."""

    def reward(self) -> Any:
        return 0.0


class SlowReset(Walk):
    """A reset takes far longer than an episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        time.sleep(0.02)
        return super().reset(seed=seed, options=options)


class ConstantObservation(Walk):
    """Its observations never change."""

    def observed(self) -> Any:
        return np.zeros(2, np.float32)


class ForbidsAll(MaskedWalk):
    """At some positions its mask allows no action."""

    def allowed(self) -> Any:
        return np.full(3, abs(self.position) < 0.25, np.int8)


class TimeOutAsTermination(Walk):
    """It says that the task is over where only the time is."""

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, truncated, False, info


class GrowingMemory(Walk):
    """It keeps a picture of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures: list[Any] = []

    def step(self, action: Any) -> Any:
        self.pictures.append(np.ones((64, 64, 3), np.uint8))
        return super().step(action)


class Prints(Walk):
    """It prints in each step."""

    def step(self, action: Any) -> Any:
        print("step", self.age, action)
        return super().step(action)


class NoEffect(Walk):
    """It moves, but not as its actions say."""

    def moved(self, action: Any) -> float:
        return float(self.np_random.uniform(-0.1, 0.1))


class KillsProcess(Walk):
    """Its simulator ends the process."""

    def step(self, action: Any) -> Any:
        if self.age == 10:
            os._exit(1)  # the code of a process that hangs, too
        return super().step(action)


class HangsInReset(Walk):
    """It waits for a simulator that does not answer."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        time.sleep(3600)
        return super().reset(seed=seed, options=options)


class NeedsDisplay(Walk):
    """It opens a window, where there is no display."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        import pygame

        os.environ["SDL_VIDEODRIVER"] = "x11"
        os.environ.pop("DISPLAY", None)
        pygame.display.quit()
        pygame.display.set_mode((10, 10))
        return super().reset(seed=seed, options=options)


class VaryingAgents(Walks):
    """It has another number of agents each time it is made."""

    made: ClassVar[Any] = itertools.count()

    def __init__(self) -> None:
        super().__init__(("left", "right", "middle")[: 2 + next(self.made) % 2])


# --- in reserve -------------------------------------------------------------------------------------------------------


class HugeObservations(Walk):
    """One of its numbers is a pressure in pascal."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observed(self) -> Any:
        return np.array([self.position, 101_325 + 20_000 * self.goal], np.float32)


class InfiniteActions(PushedWalk):
    """Its actions have no bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


class FloatsInBytes(Walk):
    """Its space has bytes, it returns floats."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(0, 255, (2,), np.uint8)

    def observed(self) -> Any:
        return (super().observed() + 1) * 127


class OldApi(Walk):
    """Its steps return one flag, as those of the old gym did."""

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, truncated, info


class RewardInInfo(Walk):
    """Its reward is 0, and the true one is in the info."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, 0.0, terminated, truncated, {"reward": reward}


class RaisesLater(Walk):
    """It raises in its 137th step."""

    total = 0

    def step(self, action: Any) -> Any:
        self.total += 1
        return super().step(action) if self.total < 137 else [][self.total]


class HangsInStep(Walk):
    """Its 137th step does not return."""

    total = 0

    def step(self, action: Any) -> Any:
        self.total += 1
        if self.total == 137:
            time.sleep(3600)
        return super().step(action)


class NanReward(Walk):
    """Its reward is a mean of nothing now and then."""

    def reward(self) -> Any:
        return float("nan") if self.position > 0.3 else super().reward()


class InfiniteObservation(Walk):
    """The last observation of an episode has an infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observed(self) -> Any:
        return np.array([self.position, self.goal if self.age < LENGTH else np.inf], np.float32)


class MaskOfWrongLength(MaskedWalk):
    """Its mask has four entries for three actions."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Dict(
            walk=gym.spaces.Box(-1, 1, (2,), np.float32), action_mask=gym.spaces.MultiBinary(4)
        )

    def allowed(self) -> Any:
        return np.append(super().allowed(), np.int8(1))


class GlobalRandomness(Walk):
    """Its steps draw from NumPy's global generator."""

    def moved(self, action: Any) -> float:
        return super().moved(action) + float(np.random.uniform(-0.05, 0.05))


class EndsAtOnce(Walk):
    """Each episode is over after one step."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, True, False, info


class SpacesDiffer(Walk):
    """Each env that is made has other spaces."""

    made: ClassVar[Any] = itertools.count(2)

    def __init__(self) -> None:
        super().__init__()
        self.size = next(self.made)
        self.observation_space = gym.spaces.Box(-1, 1, (self.size,), np.float32)

    def observed(self) -> Any:
        return np.resize(super().observed(), self.size)


class Exits(Walk):
    """It calls sys.exit() after a while."""

    def step(self, action: Any) -> Any:
        if self.age == 20:
            raise SystemExit("the simulator is gone")
        return super().step(action)


class SharesState(Walk):
    """All its envs are at the same position."""

    at: ClassVar[list[float]] = [0.0]

    @property
    def position(self) -> float:
        return self.at[0]

    @position.setter
    def position(self, value: float) -> None:
        self.at[0] = value
