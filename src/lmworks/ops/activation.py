"""Activations by name, the plain ones and those of gates.

Sources: GELU, Hendrycks & Gimpel 2016 (arXiv 1606.08415); ReLU^2, So et al. 2021 (2109.08668);
GLU family, Shazeer 2020 (2002.05202). A new one is an entry here and a name in `nn.config.mlp`.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def relu2(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """max(x, 0)^2."""
    return F.relu(x).square()


def gelu_tanh(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), GPT-2's GELU."""
    return F.gelu(x, approximate="tanh")


def identity(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """x."""
    return x


PLAIN_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
    "relu2": relu2,
}

GATE_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": torch.sigmoid,
    "bilinear": identity,
    "reglu": F.relu,
    "geglu": F.gelu,
    "geglu_tanh": gelu_tanh,
    "swiglu": F.silu,
}
