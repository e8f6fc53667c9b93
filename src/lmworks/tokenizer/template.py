"""Templates: which special tokens stand around a text, or around two texts.

    Template.around(bos_id=1, eos_id=2)
    Template(single=(TemplateItem(101), TemplateItem("A"), TemplateItem(102)), pair=...)

`encode` never applies one; `Tokenizer.prepare` does (prepare.py). Hugging Face's
`TemplateProcessing` has the same meaning: every item also gives its type id, the number that tells
a model the first text ("A") from the second ("B").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from lmworks.base.errors import DataError

TextName = Literal["A", "B"]


@dataclass(frozen=True, slots=True)
class TemplateItem:
    """One of the texts, or one token that is put before, between or behind them."""

    source: TextName | int
    """ "A" or "B" stands for a text, a number is a token id."""
    type_id: int = 0

    def __post_init__(self) -> None:
        is_token = isinstance(self.source, int) and not isinstance(self.source, bool)
        if self.source not in ("A", "B") and not (is_token and int(self.source) >= 0):
            raise DataError(
                f'template item {self.source!r} must be "A", "B" or a token id of 0 or more'
            )
        is_number = isinstance(self.type_id, int) and not isinstance(self.type_id, bool)
        if not is_number or not 0 <= self.type_id < 1 << 32:
            raise DataError(f"type id {self.type_id!r} of a template item must be 0 or more")


@dataclass(frozen=True, slots=True)
class Template:
    """The items around one text and around a pair."""

    single: tuple[TemplateItem, ...]
    """ "A" once, and no "B"."""
    pair: tuple[TemplateItem, ...]
    """ "A" and "B" once each."""

    def __post_init__(self) -> None:
        for name, items, wanted in (("single", self.single, "A"), ("pair", self.pair, "AB")):
            found = "".join(sorted(i.source for i in items if isinstance(i.source, str)))
            if found != wanted:
                once = "A once and no B" if wanted == "A" else "A and B once each"
                raise DataError(f"template {name!r} must hold {once}; it holds {found or 'none'}")

    @classmethod
    def around(cls, *, bos_id: int | None = None, eos_id: int | None = None) -> "Template":
        """BOS before and EOS behind every text; the second text of a pair has type id 1."""

        def one(name: TextName, type_id: int) -> tuple[TemplateItem, ...]:
            items = (bos_id, name, eos_id)
            return tuple(TemplateItem(item, type_id) for item in items if item is not None)

        return cls(single=one("A", 0), pair=one("A", 0) + one("B", 1))

    @property
    def token_ids(self) -> set[int]:
        """Every token that this template puts anywhere."""
        return {i.source for i in (*self.single, *self.pair) if isinstance(i.source, int)}

    def items(self, *, is_pair: bool) -> tuple[TemplateItem, ...]:
        """The items for one text or for two."""
        return self.pair if is_pair else self.single

    def num_added(self, *, is_pair: bool) -> int:
        """How many tokens come to those of the text or texts."""
        return sum(isinstance(item.source, int) for item in self.items(is_pair=is_pair))

    def to_json(self) -> dict[str, Any]:
        """JSON values: each item as [source, type id]."""
        return {
            name: [[item.source, item.type_id] for item in items]
            for name, items in (("single", self.single), ("pair", self.pair))
        }

    @classmethod
    def from_json(cls, value: Any) -> "Template":
        """Inverse of `to_json`; DataError when `value` has another form."""
        if not isinstance(value, Mapping) or set(value) != {"single", "pair"}:
            raise DataError("'template' must be an object with 'single' and 'pair'")
        return cls(_items(value["single"], "single"), _items(value["pair"], "pair"))


PLAIN = Template((TemplateItem("A"),), (TemplateItem("A"), TemplateItem("B", 1)))
"""Adds nothing; what applies where a tokenizer has no template."""


def _items(value: Any, name: str) -> tuple[TemplateItem, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(f"template.{name} must be a list of [source, type id]")
    items = []
    for i, entry in enumerate(value):
        if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 2:
            raise DataError(f"template.{name}[{i}]={entry!r:.60} must be [source, type id]")
        if not isinstance(entry[0], str | int):
            raise DataError(f"template.{name}[{i}]={entry!r:.60} must begin with a string or an id")
        items.append(TemplateItem(cast(TextName, entry[0]), entry[1]))
    return tuple(items)
