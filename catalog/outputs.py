"""Further named outputs of a module, such as a curiosity head: each a head on the encoder of another function or its
own."""

from collections.abc import Mapping

from torch import Tensor, nn

from catalog.base import Encoder, Tree
from catalog.memory import encode_steps


class ExtraOutputs(nn.Module):
    """Heads by name and what they sit on.

    Args:
        heads: The nets from latents to outputs.
        trunks: For each head the function whose encoder it shares; its own name for an encoder of its own.
        encoders: The encoders of heads that have their own.
    """

    def __init__(
        self, heads: Mapping[str, nn.Module], trunks: Mapping[str, str], encoders: Mapping[str, Encoder]
    ) -> None:
        super().__init__()
        self.names = tuple(heads)
        self.trunks = dict(trunks)
        self.heads = nn.ModuleList(heads.values())  # a ModuleDict would not take every name
        self.encoders = nn.ModuleList(encoders.values())
        self._encoder_index = {name: index for index, name in enumerate(encoders)}

    def forward(self, obs: Tree, latents: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Every output ``[..., output_dim]`` by name.

        Args:
            obs: Observations ``[..., *obs_shape]``, for heads with an encoder of their own.
            latents: Function → latent ``[..., D]``; ``[T, B, D]`` of sequences.
        """
        sequences = next(iter(latents.values())).dim() == 3
        return {
            name: head(latents[trunk] if (trunk := self.trunks[name]) != name else self._encode(name, obs, sequences))
            for name, head in zip(self.names, self.heads, strict=True)
        }

    def parts(self) -> dict[str, nn.Module]:
        """Every net by what it is, for :meth:`Catalog.explain`; in quotes, which no other net is called by."""
        encoders = {f"{name!r} encoder": self.encoders[index] for name, index in self._encoder_index.items()}
        return encoders | {f"{name!r} head": head for name, head in zip(self.names, self.heads, strict=True)}

    def _encode(self, name: str, obs: Tree, sequences: bool) -> Tensor:
        encoder = self.encoders[self._encoder_index[name]]
        return encode_steps(encoder, obs) if sequences else encoder(obs).latent
