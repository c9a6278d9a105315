"""RandomStreams: the random streams of a runner's envs, and where other runners continue them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from rlmodule.sampling.action_noise import ActionNoise
from rlmodule.seeding import int_seed, numpy_stream


class RandomStreams:
    """Seeds of resets, action noise, and a generator for what is drawn for all envs of a runner at once.

    Seeds and noise are each env's own, by its global index; the generator is that of the first env. Nothing is drawn
    twice in a run: streams differ in each incarnation of a runner, and those of a runner whose state was set begin at
    the reset where they were saved.

    Args:
        run_seed: Seed of the run.
        role: ``"env"`` or ``"evaluation_env"``.
        envs: Global indices.
        incarnation: How often a runner of these envs was made before.
        device: Of envs that give tensors, for which all is drawn there, from the generator; None for arrays.

    Attributes:
        noise: Of the actions, env by env; there is none for tensors.
        generator: For what is drawn for all envs at once.
    """

    def __init__(
        self, run_seed: int, role: str, envs: range, *, incarnation: int = 0, device: torch.device | None = None
    ) -> None:
        self._run_seed, self._role, self._envs = run_seed, role, envs
        self._has_noise = device is None
        self._incarnation, self._resets = incarnation, 0
        self.noise = ActionNoise([])
        self.generator = torch.Generator("cpu" if device is None else device)
        self._begin()

    def _begin(self) -> None:
        """Begin streams that no runner has used."""
        role = "action" if self._role == "env" else "evaluation_action"
        begun = (self._incarnation, self._resets) if self._resets else self._key()
        envs = self._envs if self._has_noise else ()
        self.noise.begin([numpy_stream(self._run_seed, role, env, *begun) for env in envs])
        self.generator.manual_seed(int_seed(self._run_seed, role, self._envs[0], *begun))

    def _key(self) -> tuple[int, ...]:
        return (self._incarnation,) if self._incarnation else ()

    def next_seeds(self) -> list[int]:
        """For the next reset, one for each env, of tensors one for all. None is given again, also if that reset
        fails."""
        envs = self._envs if self._has_noise else self._envs[:1]
        seeds = [int_seed(self._run_seed, self._role, env, self._resets, *self._key()) for env in envs]
        self._resets += 1
        return seeds

    def get_state(self) -> dict[str, dict[str, Any]]:
        """By global index, where an env's streams stand."""
        return {str(env): {"incarnation": self._incarnation, "resets": self._resets} for env in self._envs}

    def set_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue after what :meth:`get_state` gave, here or of runners of other envs; an env that is not in it begins
        its streams, unless others of this runner are."""
        saved = [state.get(str(env), {}) for env in self._envs]
        self._resets = max(int(one.get("resets", 0)) for one in saved)
        self._incarnation = last_incarnation(saved)
        self._begin()


def last_incarnation(envs: Iterable[Mapping[str, Any]]) -> int:
    """The incarnation in which a runner continues ``envs``, each as :meth:`RandomStreams.get_state` describes it: none
    came after it."""
    return max((one.get("incarnation", 0) for one in envs), default=0)
