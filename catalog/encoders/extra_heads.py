"""Further named outputs of a module, such as a curiosity head: each a head on the encoder of another function or its
own."""

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from catalog.base import Encoder, Tree
from catalog.encoders.memory import encode_steps


class ExtraOutputs(nn.Module):
    """Heads by name and what they sit on. Their weights are saved by name, in whatever order they were asked for.

    Args:
        heads: The nets from latents to outputs.
        trunks: For each head the function whose encoder it shares; its own name for an encoder of its own.
        encoders: The encoders of heads that have their own.
        raw: Names of those encoders that read observations as the env gives them, not standardised.
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

    def forward(self, obs: Tree, latents: Mapping[str, Tensor], raw_obs: Tree | None = None) -> dict[str, Tensor]:
        """Every output ``[..., output_dim]`` by name.

        Args:
            obs: Observations ``[..., *obs_shape]``, for heads with an encoder of their own.
            latents: Function → latent ``[..., D]``; ``[T, B, D]`` of sequences.
            raw_obs: The same as the env gave them; None if ``obs`` are not standardised.
        """
        sequences = next(iter(latents.values())).dim() == 3
        out: dict[str, Tensor] = {}
        for name, trunk in self.trunks.items():
            if trunk == name:
                encoder = self.encoders[_key(name)]
                seen = raw_obs if name in self.raw and raw_obs is not None else obs
                latent = encode_steps(encoder, seen) if sequences else encoder(seen).latent
            else:
                latent = latents[trunk]
            out[name] = self.heads[_key(name)](latent)
        return out

    def parts(self) -> dict[str, nn.Module]:
        """Every net by what it is, for :meth:`Catalog.explain`; in quotes, which no other net is called by."""
        own = [name for name, trunk in self.trunks.items() if trunk == name]
        encoders = {f"{name!r} encoder": self.encoders[_key(name)] for name in own}
        return encoders | {f"{name!r} head": self.heads[_key(name)] for name in self.trunks}


def _key(name: str) -> str:
    """``name`` as a ModuleDict takes it: without dots, and in quotes, since names such as "values" are its own."""
    return f"'{name.replace('%', '%25').replace('.', '%2E')}'"
