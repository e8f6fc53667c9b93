"""Puts something around every block of a model: recomputation, compilation."""

from collections.abc import Callable

from torch import nn

from lmworks.models.decoder import Block


def replace_blocks(model: nn.Module, wrap: Callable[[Block], nn.Module]) -> None:
    """Put `wrap(block)` in the place of every block, those of multi-token prediction included.

    A block that is wrapped already is wrapped again inside of what is around it.
    """
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, Block)
    ]
    for parent, name, block in places:
        parent.register_module(name, wrap(block))
