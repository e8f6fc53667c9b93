"""How a model knows the order of its tokens.

`rotary` turns queries and keys inside attention, `bias` adds to attention's scores, `absolute` adds
to the token embedding before all layers.
"""

from lmworks.nn.position.absolute import LearnedPositions, SinusoidalPositions, packed_positions
from lmworks.nn.position.bias import AlibiBias, T5Bias
from lmworks.nn.position.rotary import Rope, Rotation, rotate

__all__ = [
    "AlibiBias",
    "LearnedPositions",
    "Rope",
    "Rotation",
    "SinusoidalPositions",
    "T5Bias",
    "packed_positions",
    "rotate",
]
