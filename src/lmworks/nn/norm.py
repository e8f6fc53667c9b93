"""Normalisation over the last dim: RMSNorm and LayerNorm.

Statistics are taken in fp32 whatever the input's dtype; the output has the input's dtype.
Shapes: ... any leading dims, C channels.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lmworks.nn.config import NormConfig


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019, arXiv 1910.07467, eq. 4)."""

    def __init__(self, dim: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Float[Tensor, "... C"]) -> Float[Tensor, "... C"]:
        """Normalise the last dim."""
        x_fp32 = x.float()
        inverse_rms = torch.rsqrt(x_fp32.square().mean(-1, keepdim=True) + self.eps)
        return (x_fp32 * inverse_rms).to(x.dtype) * self.weight


class OffsetRMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * (1 + weight), rounded once at the end, as Gemma computes it.

    RMSNorm rounds before it multiplies. A weight near 0 keeps more digits in bf16 than one near 1,
    and weight decay pulls towards no change (Gemma 2, arXiv 2408.00118).
    """

    def __init__(self, dim: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Float[Tensor, "... C"]) -> Float[Tensor, "... C"]:
        """Normalise the last dim."""
        x_fp32 = x.float()
        inverse_rms = torch.rsqrt(x_fp32.square().mean(-1, keepdim=True) + self.eps)
        return (x_fp32 * inverse_rms * (1.0 + self.weight.float())).to(x.dtype)


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(var + eps) * weight + bias (Ba et al. 2016, arXiv 1607.06450, eq. 4)."""

    def __init__(self, dim: int, *, eps: float, use_bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))
        self.bias = nn.Parameter(torch.empty(dim)) if use_bias else None

    def forward(self, x: Float[Tensor, "... C"]) -> Float[Tensor, "... C"]:
        """Normalise the last dim."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


Norm = RMSNorm | OffsetRMSNorm | LayerNorm


def make_norm(config: NormConfig, dim: int, *, use_bias: bool) -> Norm:
    """The norm that `config` names; RMSNorm has no bias whatever `use_bias` says."""
    if config.unit_offset:
        return OffsetRMSNorm(dim, eps=config.eps)
    if config.kind == "rmsnorm":
        return RMSNorm(dim, eps=config.eps)
    return LayerNorm(dim, eps=config.eps, use_bias=use_bias)
