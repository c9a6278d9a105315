"""Additional outputs of a module, such as a curiosity head, with their own encoder or that of, say, the policy."""

from collections.abc import Collection, Mapping

from torch import Tensor, nn
from typing_extensions import Self

from catalog.base import Encoder, Tree
from catalog.encoders.memory import encode_steps


class ExtraOutputs(nn.Module):
    """Additional heads by name, and the encoders of the heads that do not share one. The order of the names has no
    effect.

    Args:
        heads: Nets from latents to outputs, by name.
        trunks: For each head, the function ("policy", "value", ...) whose encoder it shares, or its own name if it has
            its own encoder.
        encoders: Encoders of the heads that do not share one, by name of the head.
        raw: Names of heads whose own encoder reads observations before standardisation.

    Attributes:
        apart: Names of outputs that only :meth:`output_of` computes; none at first.
    """

    def __init__(
        self,
        heads: Mapping[str, nn.Module],
        trunks: Mapping[str, str],
        encoders: Mapping[str, Encoder],
        raw: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.trunks, self.raw = dict(trunks), frozenset(raw)
        self.heads = nn.ModuleDict({_key(name): heads[name] for name in sorted(heads)})
        self.encoders = nn.ModuleDict({_key(name): encoders[name] for name in sorted(encoders)})
        self.apart: frozenset[str] = frozenset()
        self._frozen: list[nn.Module] = []

    def freeze(self, name: str) -> None:
        """Leave the nets of the output ``name``, which has its own encoder, as they are from now on: without gradient,
        and always in eval mode."""
        for nets in (self.encoders, self.heads):
            self._frozen.append(nets[_key(name)].requires_grad_(False).eval())

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for part in self._frozen:
            part.eval()
        return self

    def forward(self, obs: Tree, latents: Mapping[str, Tensor], raw_obs: Tree | None = None) -> dict[str, Tensor]:
        """Return every output ``[..., output_dim]`` by name, except those in ``apart``.

        Args:
            obs: Observations ``[..., *obs_shape]``, for heads with their own encoder.
            latents: Latents by name of the function, such as "policy", ``[B, D]``, or ``[T, B, D]`` for sequences.
            raw_obs: The observations before standardisation; None if ``obs`` are not standardised.
        """
        sequences = next(iter(latents.values())).dim() == 3
        out: dict[str, Tensor] = {}
        for name, trunk in self.trunks.items():
            if name in self.apart:
                continue
            if trunk == name:
                out[name] = self.output_of(name, obs, raw_obs, sequences=sequences)
            else:
                out[name] = self.heads[_key(name)](latents[trunk])
        return out

    def output_of(self, name: str, obs: Tree, raw_obs: Tree | None = None, *, sequences: bool = False) -> Tensor:
        """Return the output ``name``, which has its own encoder, ``[..., output_dim]``.

        Args:
            name: Name of the output.
            obs, raw_obs: As for :meth:`forward`.
            sequences: Whether the observations are ``[T, B, *obs_shape]``.
        """
        encoder = self.encoders[_key(name)]
        seen = raw_obs if name in self.raw and raw_obs is not None else obs
        latent = encode_steps(encoder, seen) if sequences else encoder(seen).latent
        return self.heads[_key(name)](latent)

    def parts(self) -> dict[str, nn.Module]:
        """Return every net by a name for :meth:`Catalog.explain`, such as ``'curiosity' head``."""
        names = [name for name, trunk in self.trunks.items() if trunk == name]
        encoders = {f"{name!r} encoder": self.encoders[_key(name)] for name in names}
        return encoders | {f"{name!r} head": self.heads[_key(name)] for name in self.trunks}


def _key(name: str) -> str:
    """Return ``name`` as a key of an ``nn.ModuleDict``: without dots, which are not allowed, and in quotes, because
    names of its methods such as "values" are not allowed."""
    return f"'{name.replace('%', '%25').replace('.', '%2E')}'"
