"""Heads that explore with noise in their weights (Fortunato et al. 2018, "Noisy Networks for Exploration")."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from catalog.activations import Init
from catalog.encoders.dense import DenseStack, Layer
from catalog.encoders.mlp import MLPHeadConfig, head_layers


@dataclass(frozen=True, kw_only=True)
class NoisyHeadConfig(MLPHeadConfig):
    """An :class:`MLPHeadConfig` with factorised Gaussian noise of learned scale on the weights and biases of every
    layer.

    The initial means are uniform within ``±1/√inputs``, as in ``nn.Linear``, and the initial scales of the noise are
    ``sigma0/√inputs`` (Fortunato et al. 2018, section 3.2). So ``init`` and ``output_init`` cannot be set.

    Raises:
        ValueError: As :class:`MLPHeadConfig`; also if ``init``, ``output_init`` or ``clip_log_std`` is set.
    """

    sigma0: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, only in (("init", Init()), ("output_init", Init()), ("clip_log_std", False)):
            if (given := vars(self)[name]) != only:
                raise ValueError(
                    f"NoisyHeadConfig.{name}: expected {only!r}, got {given!r}. Leave it out: noisy layers "
                    "have their own initial values, and no log standard deviations."
                )

    @classmethod
    def of(cls, head: MLPHeadConfig, sigma0: float) -> NoisyHeadConfig:
        """Return the config of ``head`` with noise. Initial values of noisy layers replace its initialisers."""
        return cls(**vars(head) | {"init": Init(), "output_init": Init(), "sigma0": sigma0})

    def build(self) -> NoisyHead:
        return NoisyHead(self)


class NoisyHead(DenseStack):
    """The net of a :class:`NoisyHeadConfig`, with linear layers ``y = (μ_w + σ_w ⊙ ε_w) x + μ_b + σ_b ⊙ ε_b``.

    The noise ε is neither a parameter nor a buffer, so that copies which share tensors each have their own noise, and
    checkpoints contain none. Call :meth:`resample_noise` before the first forward pass that needs noise.
    """

    def __init__(self, config: NoisyHeadConfig) -> None:
        super().__init__(**head_layers(config, config.output_layer_dim))
        self.scales = nn.ModuleList()
        for means in self._means():
            start = config.sigma0 / math.sqrt(means["weight"].shape[1])
            scales = [(name, torch.full_like(mean, start)) for name, mean in means.items()]
            self.scales.append(nn.ParameterDict(scales))  # ParameterDict would sort the names of a dict
        self._scale_tensors: list[dict[str, Any]] = [part._parameters for part in self.scales]
        # Noise of the weights `[outputs, inputs]` and biases `[outputs]` of each layer; empty before the first draw.
        self._noise: list[tuple[Tensor, Tensor]] = []

    def forward(self, latent: Tensor) -> Tensor:
        """Map ``[..., latent] → [..., output_layer_dim]`` with the noise that :meth:`resample_noise` drew last, or with
        the means alone before any draw."""
        return self.run(latent, self._noisy_layers() if self._noise else None)

    def forward_mean(self, latent: Tensor) -> Tensor:
        """Map ``[..., latent] → [..., output_layer_dim]`` with the means alone, without noise."""
        return self.run(latent)

    @torch.no_grad()
    def resample_noise(self, generator: torch.Generator) -> None:
        """Draw the noise that :meth:`forward` uses from now on. It is the same for all latents of a batch.

        Each layer draws one Gaussian number per input and one per output, and transforms each by ``sgn(x)√|x|``. The
        noise of a weight is the product of the numbers of its output and input, and that of a bias its output's.
        """
        means = self._means()
        shapes = [weights["weight"].shape for weights in means]
        like = means[0]["weight"]
        pinned = like.is_cuda and generator.device.type == "cpu"  # an asynchronous copy needs pinned memory
        numbers = torch.randn(sum(map(sum, shapes)), generator=generator, device=generator.device, pin_memory=pinned)
        drawn = numbers.to(like, non_blocking=pinned)
        factors = drawn.sign().mul_(drawn.abs_().sqrt_()).split([size for shape in shapes for size in shape])
        # Write in place, since a captured CUDA graph reads these addresses. Tensors made in inference mode can only be
        # written there, so a change of mode needs new ones, and so does a move to another device.
        kept = self._noise[0][0] if self._noise else None
        if kept is None or kept.device != like.device or kept.is_inference() != torch.is_inference_mode_enabled():
            self._noise = [(torch.empty_like(w["weight"]), torch.empty_like(w["bias"])) for w in means]
        for (weight, bias), of_outputs, of_inputs in zip(self._noise, factors[::2], factors[1::2], strict=True):
            torch.outer(of_outputs, of_inputs, out=weight)
            bias.copy_(of_outputs)

    def _means(self) -> list[dict[str, Any]]:
        """Return the mean weights and biases of each layer, by parameter name."""
        return [layer.linear for layer in self.layers if layer.linear is not None]

    def _noisy_layers(self) -> list[Layer]:
        layers: list[Layer] = []
        every = zip(self.layers, self._means(), self._scale_tensors, self._noise, strict=True)
        for layer, means, scales, noise in every:
            names = zip(("weight", "bias"), noise, strict=True)
            noisy = {name: torch.addcmul(means[name], scales[name], drawn) for name, drawn in names}
            layers.append(layer._replace(linear=noisy))
        return layers
