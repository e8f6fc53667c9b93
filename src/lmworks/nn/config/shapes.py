"""Shapes of the weights that every layer is made of, by their names in a state dict."""

from collections.abc import Mapping

Shapes = dict[str, tuple[int, ...]]
"""Shape of each weight by name, in model order."""


def linear_shapes(name: str, d_in: int, d_out: int, *, bias: bool) -> Shapes:
    """Of `nn.Linear`: weight (d_out, d_in) and perhaps a bias."""
    shapes: Shapes = {f"{name}.weight": (d_out, d_in)}
    return shapes | {f"{name}.bias": (d_out,)} if bias else shapes


def prefixed(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """The shapes of a part under the name that it has in the whole."""
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}
