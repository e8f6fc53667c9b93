"""Names of weights: where each of our tensors comes from in a Hugging Face checkpoint, and back.

A family gives a table of names, ours to theirs, with {layer} and {expert} for numbers:

    layers.{layer}.attention.q       model.layers.{layer}.self_attn.q_proj
    layers.{layer}.mlp.experts.up    model.layers.{layer}.mlp.experts.{expert}.up_proj.weight

A tensor of ours is put together from pieces: whole tensors of theirs, rows or columns of one, or
one per expert. Writing uses the same pieces the other way round.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

Slices = tuple[slice, ...]
ALL: Slices = ()


class Piece(NamedTuple):
    """What one tensor of theirs holds of one of ours."""

    theirs: str
    """Its name."""
    part: Slices = ALL
    """Of their tensor, as slices of its first dims; all of it by default."""
    ours: Slices = ALL
    """Of our tensor, likewise."""
    expert: int | None = None
    """Index into the first dim of our tensor, before `ours`."""
    is_transposed: bool = False
    """Their part is ours with the two dims swapped."""

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """Of their part, if our whole tensor has the shape `ours`."""
        shape = cut_shape(ours if self.expert is None else ours[1:], self.ours)
        return shape[::-1] if self.is_transposed else shape


Pieces = Mapping[str, list[Piece]]
"""The pieces of each tensor of ours, by our name."""


class Name(NamedTuple):
    """One of our names, taken apart."""

    module: str
    """With {layer} for the number of the layer."""
    leaf: str
    """weight, bias, or nothing for a bare parameter."""
    layer: int | None


def split_name(name: str) -> Name:
    """layers.3.attention.q.weight -> (layers.{layer}.attention.q, weight, 3)."""
    module, leaf = name, ""
    head, _, last = name.rpartition(".")
    if last in ("weight", "bias"):
        module, leaf = head, last
    first, _, rest = module.partition(".")
    number, _, local = rest.partition(".")
    if first != "layers" or not number.isdecimal():
        return Name(module, leaf, None)
    return Name(f"layers.{{layer}}.{local}", leaf, int(number))


def plain_pieces(
    shapes: Mapping[str, tuple[int, ...]], table: Mapping[str, str]
) -> dict[str, list[Piece]]:
    """Pieces of all weights in `shapes` by a table of names alone; KeyError for one not in it.

    The table has names of modules, which share their leaves' names with ours, or of one tensor.
    """
    pieces: dict[str, list[Piece]] = {}
    for name, shape in shapes.items():
        module, leaf, layer = split_name(name)
        whole = table.get(f"{module}.{leaf}")
        theirs = whole or table[module]
        if "{expert}" in theirs:
            pieces[name] = [
                Piece(theirs.format(layer=layer, expert=expert), expert=expert)
                for expert in range(shape[0])
            ]
        else:
            full = theirs.format(layer=layer)
            pieces[name] = [Piece(f"{full}.{leaf}" if leaf and not whole else full)]
    return pieces


def cut_shape(shape: tuple[int, ...], part: Slices) -> tuple[int, ...]:
    """Shape of what slices of the first dims leave."""
    cut = [len(range(*piece.indices(size))) for piece, size in zip(part, shape, strict=False)]
    return (*cut, *shape[len(cut) :])


def rows(first: int, last: int) -> Slices:
    """Rows first to last - 1."""
    return (slice(first, last),)


def columns(first: int, last: int) -> Slices:
    """Columns first to last - 1 of all rows."""
    return (slice(None), slice(first, last))


def by_theirs(pieces: Pieces) -> dict[str, list[tuple[str, Piece]]]:
    """For each tensor of theirs, what it is put together from: (our name, piece)."""
    found: dict[str, list[tuple[str, Piece]]] = {}
    for name, parts in pieces.items():
        for piece in parts:
            found.setdefault(piece.theirs, []).append((name, piece))
    return found


def is_stacked(there: Collection[str]) -> bool:
    """Whether all experts of a layer are in one tensor, as transformers 5 holds them in memory."""
    return any(name.endswith("experts.gate_up_proj") for name in there)
