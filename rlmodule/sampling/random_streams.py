"""RandomStreams: the random streams of a runner's envs, saved env by env, so that other runners can continue them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from rlmodule.sampling.action_noise import ActionNoise
from rlmodule.seeding import int_seed, numpy_stream


class RandomStreams:
    """Seeds of resets, action noise, and a generator for what is drawn for all envs of a runner at once.

    Seeds and noise are each env's own, by its global index; the generator is that of the first env. What was saved of
    envs can come to runners of any others. Nothing is drawn twice there: envs of one runner that advance together
    continue from the one that has used most of its stream.

    Args:
        run_seed: Seed of the run.
        role: ``"env"`` or ``"evaluation_env"``.
        envs: Global indices.
        incarnation: How often a runner of these envs was made before: streams differ in each.
        device: Of envs that give tensors, for which all is drawn there, from the generator; None for arrays.

    Attributes:
        noise: Of the actions, env by env; there is none for tensors.
        generator: For what is drawn for all envs at once.
    """

    def __init__(
        self, run_seed: int, role: str, envs: range, *, incarnation: int = 0, device: torch.device | None = None
    ) -> None:
        self._run_seed, self._role, self._envs = run_seed, role, envs
        self._action_role = "action" if role == "env" else "evaluation_action"
        self._kind = "arrays" if device is None else device.type
        self._own = envs if device is None else envs[:1]  # envs that something is drawn for alone
        self._incarnation, self._resets = incarnation, 0
        self.noise = ActionNoise([self._new_stream(index) for index in envs] if device is None else [])
        self.generator = torch.Generator("cpu" if device is None else device)
        self._begin_generator()

    def _key(self, *index: int) -> tuple[int, ...]:
        return (*index, self._incarnation) if self._incarnation else index

    def _new_stream(self, index: int) -> np.random.Generator:
        return numpy_stream(self._run_seed, self._action_role, *self._key(index))

    def _begin_generator(self) -> None:
        self.generator.manual_seed(int_seed(self._run_seed, self._action_role, *self._key(self._envs[0])))

    def next_seeds(self) -> list[int]:
        """For the next reset, one for each env, of tensors one for all. None is given again, also if that reset
        fails."""
        seeds = [int_seed(self._run_seed, self._role, *self._key(index, self._resets)) for index in self._own]
        self._resets += 1
        return seeds

    def get_state(self) -> dict[str, dict[str, Any]]:
        """By global index, what goes on with an env wherever it is; the generator is with the first one."""
        noise = self.noise.get_state()
        state: dict[str, dict[str, Any]] = {
            str(index): {"incarnation": self._incarnation, "resets": self._resets} for index in self._own
        }
        for one, start, used in zip(state.values(), noise["block_starts"], noise["used"], strict=False):
            one["noise"] = {"block_start": start, "used": used}
        state[str(self._envs[0])]["generator"] = {"draws": self._kind, "state": self.generator.get_state()}
        return state

    def set_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what :meth:`get_state` gave, here or of runners of other envs. Streams that it does not know begin.

        Raises:
            ValueError: If it is of envs of another kind, for which other random numbers are drawn.
        """
        saved = {index: state.get(str(index), {}) for index in self._envs}
        generator = saved[self._envs[0]].get("generator", {"draws": self._kind})
        if generator["draws"] != self._kind:
            raise ValueError(
                f"state of an env runner: expected one for {_named(self._kind)}, got one for "
                f"{_named(generator['draws'])}. Resume with the env on the device that it was on."
            )
        self._incarnation = last_incarnation(saved.values())
        self._resets = max(one.get("resets", 0) for one in saved.values())
        if "state" in generator:
            self.generator.set_state(generator["state"])
        else:
            self._begin_generator()
        if self._kind == "arrays":
            noise = [one.get("noise") or self._new_noise(index) for index, one in saved.items()]
            names = {"block_starts": "block_start", "used": "used"}
            self.noise.set_state({name: [one[part] for one in noise] for name, part in names.items()})

    def _new_noise(self, index: int) -> dict[str, Any]:
        return {"block_start": self._new_stream(index).bit_generator.state, "used": 0}


def last_incarnation(envs: Iterable[Mapping[str, Any]]) -> int:
    """The incarnation in which a runner goes on with ``envs``, each as :meth:`RandomStreams.get_state` tells of it: no
    other has come after it."""
    return max((one.get("incarnation", 0) for one in envs), default=0)


def _named(kind: str) -> str:
    return "arrays" if kind == "arrays" else f"tensors of a {kind} device"
