"""Texts to rows for a model: template, truncation, padding, masks. `Tokenizer.prepare` calls it.

    rows = tokenizer.prepare(
        ["first text", "second"],
        truncation=Truncation(512),
        padding=Padding(pad_id=0),
    )
    rows.ids, rows.attention_mask            # [rows, length] arrays

The order is that of Hugging Face `tokenizers`, and so are the results: the texts are encoded, cut
so that they fit together with the template's tokens, put into the template, padded. Rows lie one
after another in flat arrays; where all are equally long they are also 2-D views of them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack

from lmworks.base.errors import ConfigError
from lmworks.tokenizer.template import PLAIN, Template, TemplateItem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lmworks.tokenizer.base import Ids, Tokenizer
    from lmworks.tokenizer.special import SpecialSet

    Array = NDArray[Any]

Side = Literal["left", "right"]
Strategy = Literal["longest_first", "only_first", "only_second"]
Text = str | bytes

NO_SEQUENCE = -1
"""Sequence number of template and padding tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """How rows are made equally long."""

    pad_id: int
    length: int | Literal["longest"] = "longest"
    """Tokens in a row, at least; "longest": as many as the longest row of the call."""
    multiple_of: int = 1
    """Round the length up to a multiple of this."""
    side: Side = "right"
    type_id: int = 0

    def __post_init__(self) -> None:
        _check_side(self.side)
        if self.length != "longest":
            _check_number("length", self.length, 1)
        _check_number("multiple_of", self.multiple_of, 1)
        _check_number("pad_id", self.pad_id, 0)
        _check_number("type_id", self.type_id, 0)


@dataclass(frozen=True, slots=True)
class Truncation:
    """How rows that are too long are cut."""

    max_length: int
    """Tokens in a row, those of the template included."""
    strategy: Strategy = "longest_first"
    """What to cut of a pair: the longer text first, or always the same one."""
    side: Side = "right"
    """Where tokens are cut off."""
    stride: int = 0
    """With `overflow`: how many tokens a row repeats of the one before."""
    overflow: bool = False
    """What was cut off makes rows of its own, behind the text's first row."""

    def __post_init__(self) -> None:
        _check_side(self.side)
        _check_number("max_length", self.max_length, 1)
        _check_number("stride", self.stride, 0)
        known = ("longest_first", "only_first", "only_second")
        if self.strategy not in known:
            raise ConfigError(f"strategy={self.strategy!r} must be one of {', '.join(known)}")
        if self.stride and not self.overflow:
            raise ConfigError(f"stride={self.stride} has no effect without overflow=True")


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Rows one after another; row i is `[starts[i]:starts[i + 1]]` of every flat array."""

    flat_ids: "Ids"
    flat_type_ids: "NDArray[np.uint32]"
    flat_attention_mask: "NDArray[np.bool_]"
    """False for padding."""
    flat_special_mask: "NDArray[np.bool_]"
    """True for the tokens of the template and for padding."""
    flat_sequences: "NDArray[np.int8]"
    """0 or 1: which text of the pair a token is of; -1: of neither."""
    flat_offsets: "NDArray[np.int64] | None"
    """[tokens, 2]: where a token stands in its text, in characters; (0, 0) for others."""
    starts: "NDArray[np.int64]"
    samples: "NDArray[np.int64]"
    """For each row the number of the text that it is of; more than one row only by overflow."""

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def lengths(self) -> "NDArray[np.int64]":
        """Tokens of each row, padding included."""
        return self.starts[1:] - self.starts[:-1]

    @property
    def ids(self) -> "Ids":
        """[rows, length]; ConfigError when the rows are not equally long."""
        return self._as_rows(self.flat_ids)

    @property
    def type_ids(self) -> "NDArray[np.uint32]":
        """[rows, length]; ConfigError when the rows are not equally long."""
        return self._as_rows(self.flat_type_ids)

    @property
    def attention_mask(self) -> "NDArray[np.bool_]":
        """[rows, length]; ConfigError when the rows are not equally long."""
        return self._as_rows(self.flat_attention_mask)

    @property
    def special_mask(self) -> "NDArray[np.bool_]":
        """[rows, length]; ConfigError when the rows are not equally long."""
        return self._as_rows(self.flat_special_mask)

    @property
    def sequences(self) -> "NDArray[np.int8]":
        """[rows, length]; ConfigError when the rows are not equally long."""
        return self._as_rows(self.flat_sequences)

    @property
    def offsets(self) -> "NDArray[np.int64]":
        """[rows, length, 2]; ConfigError without `with_offsets` or with unequal rows."""
        if self.flat_offsets is None:
            raise ConfigError("there are no offsets; call prepare(..., with_offsets=True)")
        return self._as_rows(self.flat_offsets)

    def rows(self, flat: "Array") -> "list[Array]":
        """One of the flat arrays as a list of rows, of whatever lengths."""
        bounds = self.starts.tolist()
        return [flat[a:b] for a, b in itertools.pairwise(bounds)]

    def _as_rows(self, flat: "Array") -> "Array":
        lengths = self.lengths
        if len(lengths) and lengths.min() != lengths.max():
            raise ConfigError(
                f"the rows have {lengths.min()} to {lengths.max()} tokens, so they make no array; "
                "pass padding=Padding(...), or take rows(flat_ids)"
            )
        length = int(lengths[0]) if len(lengths) else 0
        return flat.reshape(len(lengths), length, *flat.shape[1:])


class _Specials(TypedDict, total=False):
    allowed_special: "SpecialSet"
    disallowed_special: "SpecialSet"


def prepare(
    tokenizer: "Tokenizer",
    texts: Text | Sequence[Text],
    pairs: Text | Sequence[Text] | None,
    *,
    template: Template | None,
    truncation: Truncation | None,
    padding: Padding | None,
    with_offsets: bool,
    num_threads: int | None,
    **specials: Unpack[_Specials],
) -> Prepared:
    """What `Tokenizer.prepare` says."""
    firsts, seconds = _listed(texts, pairs)
    template = template or PLAIN
    is_pair = seconds is not None
    room = _room(truncation, template, is_pair)
    a = _encoded(tokenizer, firsts, with_offsets, num_threads, specials)
    b = None
    if seconds is not None:
        b = _encoded(tokenizer, seconds, with_offsets, num_threads, specials)
    items = template.items(is_pair=is_pair)
    rows = [
        _Row(i, *windows)
        for i in range(len(firsts))
        for windows in _cut((a.length(i), b.length(i) if b else None), items, truncation, room)
    ]
    return _filled(items, (a, b), rows, padding)


def _listed(
    texts: Text | Sequence[Text], pairs: Text | Sequence[Text] | None
) -> tuple[list[Text], list[Text] | None]:
    is_one = isinstance(texts, str | bytes)
    if pairs is not None and isinstance(pairs, str | bytes) != is_one:
        raise ConfigError("texts and pairs must both be one text, or both be several")
    firsts: list[Text] = [texts] if isinstance(texts, str | bytes) else list(texts)
    if pairs is None:
        return firsts, None
    seconds: list[Text] = [pairs] if isinstance(pairs, str | bytes) else list(pairs)
    if len(firsts) != len(seconds):
        raise ConfigError(f"{len(firsts)} texts but {len(seconds)} pairs; each text needs one")
    return firsts, seconds


@dataclass(frozen=True, slots=True)
class _Encoded:
    """The ids of all first or all second texts."""

    ids: "Ids"
    starts: list[int]
    offsets: "NDArray[np.int64] | None"

    def length(self, i: int) -> int:
        return self.starts[i + 1] - self.starts[i]


def _encoded(
    tokenizer: "Tokenizer",
    texts: list[Text],
    with_offsets: bool,
    num_threads: int | None,
    specials: _Specials,
) -> _Encoded:
    import numpy as np

    if not with_offsets:
        ids, starts = tokenizer.encode_batch_to_numpy(texts, num_threads=num_threads, **specials)
        return _Encoded(ids, starts.tolist(), None)
    encodings = [tokenizer.encode_with_offsets(text, **specials) for text in texts]
    return _Encoded(
        np.concatenate([np.empty(0, np.uint32), *(e.ids for e in encodings)]),
        [0, *np.cumsum([len(e) for e in encodings]).tolist()],
        np.concatenate([np.empty((0, 2), np.int64), *(e.offsets for e in encodings)]),
    )


# ---- truncation ----


class _Span(NamedTuple):
    begin: int
    end: int


class _Row(NamedTuple):
    """What a row takes of the first and of the second text of a sample."""

    sample: int
    a: _Span
    b: _Span


def _room(truncation: Truncation | None, template: Template, is_pair: bool) -> int | None:
    """Tokens that the texts may have together."""
    if truncation is None:
        return None
    if truncation.strategy == "only_second" and not is_pair:
        raise ConfigError("strategy='only_second' needs pairs; without, use 'only_first'")
    num_added = template.num_added(is_pair=is_pair)
    least = num_added + (2 if is_pair else 1)
    if truncation.max_length < least:
        texts = "two texts" if is_pair else "text"
        raise ConfigError(
            f"max_length={truncation.max_length} leaves no room for {texts} beside the template's "
            f"{num_added} tokens; use at least {least}"
        )
    room = truncation.max_length - num_added
    if truncation.stride >= room:
        raise ConfigError(
            f"stride={truncation.stride} must be below the {room} tokens of text that fit in a row"
        )
    return room


def _cut(
    lengths: tuple[int, int | None],
    items: Sequence[TemplateItem],
    truncation: Truncation | None,
    room: int | None,
) -> list[tuple[_Span, _Span]]:
    """The rows of one text or pair: the one that is always there, then those of the overflow."""
    length_a, length_b = lengths[0], lengths[1] or 0
    if truncation is None or room is None or length_a + length_b <= room:
        return [(_Span(0, length_a), _Span(0, length_b))]
    kept_a, kept_b = _kept(length_a, lengths[1], truncation.strategy, room)
    a = _windows(length_a, kept_a, truncation)
    b = _windows(length_b, kept_b, truncation)
    if not truncation.overflow:
        return [(a[0], b[0])]
    # Every window of one text with every window of the other. After the row of both first ones the
    # order is the one in which Hugging Face joins the items: what comes first in it varies last.
    sources = [item.source for item in items]
    if lengths[1] is not None and sources.index("B") < sources.index("A"):
        rows = [(first, second) for second in b for first in a]
        return [rows[0], *rows[len(a) :], *rows[1 : len(a)]]
    rows = [(first, second) for first in a for second in b]
    return [rows[0], *rows[len(b) :], *rows[1 : len(b)]]


def _kept(length_a: int, length_b: int | None, strategy: Strategy, room: int) -> tuple[int, int]:
    """How many tokens stay of each text; together more than `room` before."""
    if strategy == "longest_first":
        if length_b is None:
            return room, 0
        shorter = min(length_a, length_b, room // 2)
        return (shorter, room - shorter) if length_a <= length_b else (room - shorter, shorter)
    cut_first = strategy == "only_first"
    other = (length_b or 0) if cut_first else length_a
    if other >= room:
        names = ("first", "second") if cut_first else ("second", "first")
        raise ConfigError(
            f"strategy={strategy!r}: the {names[1]} text alone has {other} tokens, {room} fit "
            f"beside the template, so no token of the {names[0]} would be left; use a larger "
            "max_length or 'longest_first'"
        )
    return (room - other, other) if cut_first else (other, room - other)


def _windows(length: int, kept: int, truncation: Truncation) -> list[_Span]:
    """Windows of `kept` tokens over a text of `length`, from the side that is not cut."""
    if kept >= length:
        return [_Span(0, length)]
    step = kept - truncation.stride
    if step < 1:
        raise ConfigError(
            f"stride={truncation.stride} must be below the {kept} tokens that a row takes of a text"
        )
    spans = []
    for done in range(0, length, step):
        begin, end = done, min(done + kept, length)
        spans.append(_Span(begin, end))
        if end == length:
            break
    if truncation.side == "left":
        return [_Span(length - end, length - begin) for begin, end in spans]
    return spans


# ---- rows ----


def _filled(
    items: Sequence[TemplateItem],
    texts: tuple[_Encoded, _Encoded | None],
    rows: list[_Row],
    padding: Padding | None,
) -> Prepared:
    import numpy as np

    num_added = sum(isinstance(item.source, int) for item in items)
    sizes = [num_added + (r.a.end - r.a.begin) + (r.b.end - r.b.begin) for r in rows]
    length = _padded_length(sizes, padding)
    starts = np.concatenate([[0], np.cumsum(np.maximum(sizes, length), dtype=np.int64)])
    total = int(starts[-1])
    out = Prepared(
        flat_ids=np.full(total, padding.pad_id if padding else 0, np.uint32),
        flat_type_ids=np.full(total, padding.type_id if padding else 0, np.uint32),
        flat_attention_mask=np.zeros(total, np.bool_),
        flat_special_mask=np.ones(total, np.bool_),
        flat_sequences=np.full(total, NO_SEQUENCE, np.int8),
        flat_offsets=None if texts[0].offsets is None else np.zeros((total, 2), np.int64),
        starts=starts,
        samples=np.array([row.sample for row in rows], np.int64),
    )
    bounds = starts.tolist()
    is_left = padding is not None and padding.side == "left"
    for i, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        at = bounds[i + 1] - size if is_left else bounds[i]
        out.flat_attention_mask[at : at + size] = True
        for item in items:
            at = _put(out, at, item, row, texts)
    return out


def _put(
    out: Prepared,
    at: int,
    item: TemplateItem,
    row: _Row,
    texts: tuple[_Encoded, _Encoded | None],
) -> int:
    """Write one item of the template at `at`; returns the place after it."""
    if isinstance(item.source, int):
        out.flat_ids[at] = item.source
        out.flat_type_ids[at] = item.type_id
        return at + 1
    sequence, span = (0, row.a) if item.source == "A" else (1, row.b)
    encoded = texts[sequence]
    assert encoded is not None, "a template for one text has no B"
    begin, end = (encoded.starts[row.sample] + place for place in span)
    to = at + end - begin
    out.flat_ids[at:to] = encoded.ids[begin:end]
    out.flat_type_ids[at:to] = item.type_id
    out.flat_special_mask[at:to] = False
    out.flat_sequences[at:to] = sequence
    if out.flat_offsets is not None and encoded.offsets is not None:
        out.flat_offsets[at:to] = encoded.offsets[begin:end]
    return to


def _padded_length(sizes: list[int], padding: Padding | None) -> int:
    if padding is None:
        return 0
    length = max(sizes, default=0) if padding.length == "longest" else padding.length
    return -(-length // padding.multiple_of) * padding.multiple_of


def _check_side(side: str) -> None:
    if side not in ("left", "right"):
        raise ConfigError(f"side={side!r} must be 'left' or 'right'")


def _check_number(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number of {least} or more")
