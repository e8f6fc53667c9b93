"""Positions: rotary, learned and sinusoidal.

Rotary positions turn queries and keys inside attention, so that a score depends on the distance
only; the other kinds add a vector to the token embedding once.
Shapes: B batch, T tokens, C channels of the residual stream, X any heads dim, D head_dim,
P = D / 2 pairs, S max_seq_len.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmworks.nn.config import RopeConfig
from lmworks.nn.linear import Embedding
from lmworks.nn.tables import FixedTables


class Rotation(NamedTuple):
    """Cosines and sines of the angles by which the pairs of each token turn; fp32."""

    cos: Float[Tensor, "*batch T P"]
    sin: Float[Tensor, "*batch T P"]


class Rope(FixedTables):
    """Rotary position embedding (Su et al. 2021, arXiv 2104.09864, section 3.2).

    Pair i of a head turns by position * theta^(-2i / D). Element i is paired with element
    i + D / 2, as in Llama and Qwen checkpoints (the paper pairs neighbours: the same up to a
    permutation of the rows of q and k).
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: RopeConfig, *, head_dim: int, max_seq_len: int) -> None:
        super().__init__()
        self.theta = config.theta
        self.head_dim = head_dim
        self.max_seq_len = max_seq_len
        self.build_tables(torch.get_default_device())

    def make_tables(self, device: torch.device) -> dict[str, Tensor]:
        """Cosine and sine of every angle, shape (max_seq_len, head_dim / 2)."""
        pair_P = torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=device)
        position_S = torch.arange(self.max_seq_len, dtype=torch.float64, device=device)
        # fp64, because an fp32 angle at position 100,000 is already off by 0.004.
        angle_SP = torch.outer(position_S, self.theta ** (-pair_P / self.head_dim))
        return {"cos": angle_SP.cos().float(), "sin": angle_SP.sin().float()}

    def forward(self, positions: Int[Tensor, "*batch T"]) -> Rotation:
        """The rotation of each position, to be shared by all layers."""
        return Rotation(self.cos[positions], self.sin[positions])


def rotate(x_BXTD: Float[Tensor, "B X T D"], rotation: Rotation) -> Float[Tensor, "B X T D"]:
    """Turn each pair (i, i + D/2) of each token by its angle; computed in fp32, returned as x."""
    cos, sin = rotation
    if cos.ndim == 3:  # positions differ between sequences: make room for the heads dim
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    left, right = x_BXTD.chunk(2, dim=-1)
    turned = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
    return turned.to(x_BXTD.dtype)


class LearnedPositions(Embedding):
    """Adds a trained vector per position (Radford et al. 2018, GPT)."""

    def __init__(self, *, max_seq_len: int, d_model: int) -> None:
        super().__init__(max_seq_len, d_model)

    def add_to(
        self, x_BTC: Float[Tensor, "B T C"], positions: Int[Tensor, "*batch T"]
    ) -> Float[Tensor, "B T C"]:
        """x + weight[position]."""
        return x_BTC + self(positions)


class SinusoidalPositions(FixedTables):
    """Adds sin and cos of position * 10000^(-2i / C), interleaved (Vaswani et al. 2017, 3.5).

    As in the paper (3.4) the embedding is first multiplied by sqrt(C): the table has amplitude 1
    and would drown it otherwise.
    """

    table: Tensor

    def __init__(self, *, max_seq_len: int, d_model: int) -> None:
        super().__init__()
        self.max_seq_len = max_seq_len
        self.d_model = d_model
        self.build_tables(torch.get_default_device())

    def make_tables(self, device: torch.device) -> dict[str, Tensor]:
        """The sinusoids, shape (max_seq_len, d_model)."""
        pair = torch.arange(0, self.d_model, 2, dtype=torch.float64, device=device)
        position = torch.arange(self.max_seq_len, dtype=torch.float64, device=device)
        angle = torch.outer(position, 10000.0 ** (-pair / self.d_model))
        return {"table": torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).float()}

    def add_to(
        self, x_BTC: Float[Tensor, "B T C"], positions: Int[Tensor, "*batch T"]
    ) -> Float[Tensor, "B T C"]:
        """sqrt(C) x + table[position]."""
        return x_BTC * self.d_model**0.5 + self.table[positions].to(x_BTC.dtype)


def packed_positions(document_ids_BT: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Position of each token inside its document: counts from 0 where the id changes."""
    index_T = torch.arange(document_ids_BT.shape[1], device=document_ids_BT.device)
    is_start_BT = nn.functional.pad(
        document_ids_BT[:, 1:] != document_ids_BT[:, :-1], (1, 0), value=True
    )
    start_BT = torch.where(is_start_BT, index_T, 0).cummax(dim=1).values
    return index_T - start_BT
