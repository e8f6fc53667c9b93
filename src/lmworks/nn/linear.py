"""Linear and embedding layers without weights of their own making.

torch's layers fill their weights from the global generator when built. Here the model does that,
once, from a generator that the caller passes (`Decoder.reset_parameters`), so building is cheap,
works on the meta device and leaves the global generator alone. Both stay what they were to
`isinstance`, for everything that transforms a built model.
"""

from torch import nn


class Linear(nn.Linear):
    """y = x W^T (+ b); weights are uninitialised until the model fills them."""

    def reset_parameters(self) -> None:
        """Left to the model."""


class Embedding(nn.Embedding):
    """A vector per id; weights are uninitialised until the model fills them."""

    def reset_parameters(self) -> None:
        """Left to the model."""
