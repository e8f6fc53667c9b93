"""Rotary positions: queries and keys turn, so that a score depends on the distance only.

Su et al. 2021 (arXiv 2104.09864, section 3.2). Which frequencies the pairs of elements turn with,
and how that is stretched to longer contexts, is in `nn.config.rope_scaling`.
Shapes: B batch, T tokens, X any heads dim, D head_dim, P pairs (2 P <= D).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmworks.nn.config import RopeConfig
from lmworks.nn.tables import FixedTables


class Rotation(NamedTuple):
    """By how much the pairs of each token turn, ready for `rotate`."""

    cos: Float[Tensor, "*batch T P"]
    sin: Float[Tensor, "*batch T P"]
    is_interleaved: bool = False
    """Pairs are (2i, 2i + 1) instead of (i, i + P)."""


class Rope(FixedTables):
    """The rotation of each position: pair i turns by position * frequency_i."""

    frequency_P: Tensor

    def __init__(self, config: RopeConfig, *, head_dim: int) -> None:
        super().__init__()
        self.frequencies = config.frequencies(head_dim)
        self.scale = config.scaling.rotation_scale
        self.is_interleaved = config.pairing == "interleaved"
        self.build_tables(torch.get_default_device())

    def make_tables(self, device: torch.device) -> dict[str, Tensor]:
        """Radians per token of each pair."""
        return {"frequency_P": torch.tensor(self.frequencies, dtype=torch.float64, device=device)}

    def forward(self, positions: Int[Tensor, "*batch T"]) -> Rotation:
        """To be shared by all layers; fp32, the scale of YaRN multiplied in."""
        # fp64, because an fp32 angle at position 100,000 is already off by 0.004.
        angle = positions.unsqueeze(-1) * self.frequency_P
        cos, sin = angle.cos(), angle.sin()
        if self.scale != 1.0:
            cos, sin = self.scale * cos, self.scale * sin
        return Rotation(cos.float(), sin.float(), self.is_interleaved)


def rotate(x_BXTD: Float[Tensor, "B X T D"], rotation: Rotation) -> Float[Tensor, "B X T D"]:
    """Turn each pair of each token by its angle; computed in fp32, returned as x.

    Elements after the first 2 P stay as they are (partial rotation, as in GPT-NeoX).
    """
    cos, sin, is_interleaved = rotation
    if cos.ndim == 3:  # positions differ between sequences: make room for the heads dim
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotary_dim = 2 * cos.shape[-1]
    turned, still = x_BXTD[..., :rotary_dim], x_BXTD[..., rotary_dim:]
    if is_interleaved:
        left, right = turned.view(*turned.shape[:-1], -1, 2).unbind(-1)
    else:
        left, right = turned.chunk(2, dim=-1)
    pair = (left * cos - right * sin, right * cos + left * sin)
    turned = torch.stack(pair, dim=-1).flatten(-2) if is_interleaved else torch.cat(pair, dim=-1)
    turned = turned.to(x_BXTD.dtype)
    return torch.cat((turned, still), dim=-1) if still.shape[-1] else turned
