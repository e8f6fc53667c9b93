"""Layers that differ: kinds by name, told by what sets them apart, and the order they come in.

No torch. A pattern is a list of names, each perhaps with a count: [local, local, global], or
["dense*3", "moe*58"]; it repeats over the depth. The name "" stands for the plain layer of a model
without a pattern.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from lmworks.base.config import Config, explain
from lmworks.nn.config import AnyAttentionConfig, FeedForwardConfig, PositionConfig

_MAX_REPEATS = 10_000


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
        values = {
            section: _on_top(getattr(self, section), getattr(kind, section))
            for section in self._fields
        }
        try:
            sections = _Sections.model_validate(values)
        except ValidationError as err:
            reason = explain(err.errors()[0], _Sections)
            raise ValueError(f"layer_kinds.{name}.{reason}") from None
        return LayerConfig(sections.attention, sections.mlp, sections.position)


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


class _Sections(Config):
    """A `LayerConfig` as pydantic reads it."""

    attention: AnyAttentionConfig
    mlp: FeedForwardConfig
    position: PositionConfig


def _on_top(section: Config, values: Mapping[str, Any]) -> dict[str, Any]:
    """The section with `values` on top; those of another kind stand alone."""
    base = section.model_dump()
    is_other_kind = values.get("kind", base["kind"]) != base["kind"]
    return dict(values) if is_other_kind else base | dict(values)
