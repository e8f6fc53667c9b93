"""Layers that differ: kinds by name, told by what sets them apart, and the order they come in.

No torch. A pattern is a list of names, each perhaps with a count: [local, local, global], or
["dense*3", "moe*58"]; it repeats over the depth. The name "" stands for the plain layer of a model
without a pattern.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from lmworks.base.config import Config
from lmworks.nn.config import AnyAttentionConfig, FeedForwardConfig, PositionConfig

_ATTENTION: TypeAdapter[AnyAttentionConfig] = TypeAdapter(AnyAttentionConfig)
_MLP: TypeAdapter[FeedForwardConfig] = TypeAdapter(FeedForwardConfig)
_POSITION: TypeAdapter[PositionConfig] = TypeAdapter(PositionConfig)
_MAX_REPEATS = 10_000
S = TypeVar("S")


class LayerKind(Config):
    """What sets layers of one kind apart: values over the model's own sections.

    A `kind` that differs from the section's starts it anew, as everywhere in a recipe.
    """

    attention: dict[str, Any] = Field(default_factory=dict)
    """For example {mask: {kind: window, size: 1024}}."""
    mlp: dict[str, Any] = Field(default_factory=dict)
    """For example {d_ff: 10944}, or {kind: dense, d_ff: 10944} beside mixtures of experts."""
    position: dict[str, Any] = Field(default_factory=dict)
    """rope, alibi, t5 or none; for example {theta: 10000}."""


class LayerConfig(NamedTuple):
    """Everything that one block is built from beside what all blocks share."""

    attention: AnyAttentionConfig
    mlp: FeedForwardConfig
    position: PositionConfig

    def with_kind(self, kind: LayerKind, name: str) -> "LayerConfig":
        """The same with what sets the kind `name` apart; raises ValueError if that cannot be."""
        where = f"layer_kinds.{name}"
        attend, feed = _ATTENTION.validate_python, _MLP.validate_python
        locate = _POSITION.validate_python
        return LayerConfig(
            _section(attend, self.attention, kind.attention, f"{where}.attention"),
            _section(feed, self.mlp, kind.mlp, f"{where}.mlp"),
            _section(locate, self.position, kind.position, f"{where}.position"),
        )


def expand_pattern(pattern: Sequence[str]) -> list[str]:
    """Names of the kinds of the first layers, before they repeat; raises ValueError."""
    names: list[str] = []
    for item in pattern:
        name, star, times = item.partition("*")
        if star and not (times.isdecimal() and 0 < int(times) <= _MAX_REPEATS):
            raise ValueError(
                f"layer_pattern: {item!r} is neither a name nor name*count with a count of 1 "
                f"to {_MAX_REPEATS}"
            )
        names += [name] * (int(times) if star else 1)
    return names or [""]


def _section(
    validate: Callable[[Any], S], section: Config, values: Mapping[str, Any], where: str
) -> S:
    """The section with `values` on top; those of another kind stand alone."""
    base = section.model_dump()
    kind = values.get("kind", base["kind"])
    is_other_kind = kind != base["kind"]
    try:
        return validate(dict(values) if is_other_kind else base | dict(values))
    except ValidationError as err:
        first = err.errors()[0]
        key = ".".join([where, *(str(part) for part in first["loc"] if part != kind)])
        raise ValueError(f"{key}: {first['msg'].removeprefix('Value error, ')}") from None
