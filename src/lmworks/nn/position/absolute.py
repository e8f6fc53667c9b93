"""Positions that are added to the token embedding once: learned and sinusoidal.

Shapes: B batch, T tokens, C channels of the residual stream, P = C / 2 pairs.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmworks.nn.linear import Embedding
from lmworks.nn.tables import FixedTables


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

    As in the paper (3.4) the embedding is first multiplied by sqrt(C): the sinusoids have
    amplitude 1 and would drown it otherwise.
    """

    frequency_P: Tensor

    def __init__(self, *, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.build_tables(torch.get_default_device())

    def make_tables(self, device: torch.device) -> dict[str, Tensor]:
        """Radians per token of each pair of channels."""
        pair_P = torch.arange(0, self.d_model, 2, dtype=torch.float64, device=device)
        return {"frequency_P": 10000.0 ** (-pair_P / self.d_model)}

    def add_to(
        self, x_BTC: Float[Tensor, "B T C"], positions: Int[Tensor, "*batch T"]
    ) -> Float[Tensor, "B T C"]:
        """sqrt(C) x + sinusoids of the positions."""
        angle = positions.unsqueeze(-1) * self.frequency_P
        sinusoids = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
        return x_BTC * self.d_model**0.5 + sinusoids.to(x_BTC.dtype)


def packed_positions(document_ids_BT: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Position of each token inside its document: counts from 0 where the id changes."""
    index_T = torch.arange(document_ids_BT.shape[1], device=document_ids_BT.device)
    is_start_BT = nn.functional.pad(
        document_ids_BT[:, 1:] != document_ids_BT[:, :-1], (1, 0), value=True
    )
    start_BT = torch.where(is_start_BT, index_T, 0).cummax(dim=1).values
    return index_T - start_BT
