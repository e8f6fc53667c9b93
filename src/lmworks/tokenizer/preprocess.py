"""Encoding of text that the native encoder cannot take as it is: the steps before it, in Python.

Most vocabularies need none of this. Some want text normalized (normalize.py), a space put before
each text (`add_prefix_space`: GPT-2 as RoBERTa uses it), a pattern that no native scanner knows
(pretokenize.piece_ends) or several steps of cutting (piece_steps.py), or lack some of the 256 bytes
(`Unknown`). The order is that of Hugging Face's `tokenizers`: special tokens split the raw text;
each part between them is normalized and split at the tokens that are looked for in normalized text;
each part that is left gets its space, is cut into pieces, and each piece is merged.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lmworks import _text
from lmworks.base.errors import DataError
from lmworks.tokenizer.normalize import Normalizer
from lmworks.tokenizer.special import SpecialTokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lmworks.tokenizer.base import Ids
    from lmworks.tokenizer.piece_steps import PieceSteps

    Spans = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Unknown:
    """What becomes of a byte that is no token (a vocabulary without all 256 bytes)."""

    token_id: int | None = None
    """The token that stands for it; None: it is left out before merging."""
    fuse: bool = False
    """A run of such bytes inside a piece becomes one token."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"token_id": self.token_id, "fuse": self.fuse}

    @classmethod
    def from_json(cls, value: Any) -> "Unknown":
        """Inverse of `to_json`; DataError when `value` has another form."""
        if not isinstance(value, Mapping) or set(value) != {"token_id", "fuse"}:
            raise DataError("'unknown' must be an object with 'token_id' and 'fuse'")
        token_id, fuse = value["token_id"], value["fuse"]
        is_id = token_id is None or (isinstance(token_id, int) and not isinstance(token_id, bool))
        if not is_id or not isinstance(fuse, bool):
            raise DataError(f"'unknown' must hold an id or null, and true or false, got {value!r}")
        return cls(token_id, fuse)


class _Part(NamedTuple):
    """A stretch between special tokens as the encoder will see it, or a special token."""

    text: bytes
    token_id: int | None
    begin: int  # in the raw text, in bytes
    end: int
    origin: "_Origin | None"  # of normalized text


class _Origin(NamedTuple):
    """The normalized text that a part was taken from, and the raw text behind that."""

    raw: str
    normalized: str
    positions: list[int]
    offset: int  # of the part in the normalized text, in bytes


class Preprocessor:
    """The steps of one vocabulary, around its native encoder."""

    def __init__(
        self,
        encoder: _text.BpeEncoder,
        specials: SpecialTokens,
        *,
        pattern: str,
        normalizer: Normalizer | None,
        add_prefix_space: bool,
        piece_steps: "PieceSteps | None",
        unknown: Unknown | None,
        missing_bytes: bytes,
        token_lengths: "Callable[[], NDArray[np.int64]]",
    ) -> None:
        self._encoder = encoder
        self._specials = specials
        self._pattern = pattern
        self._piece_steps = piece_steps
        self._is_native = piece_steps is None and (pattern in _text.PATTERNS or pattern == "none")
        self._normalizer = normalizer
        self._add_prefix_space = add_prefix_space
        self._unknown = unknown or Unknown()
        self._missing_bytes = missing_bytes
        # Runs of bytes that are no tokens.
        self._missing = (
            re.compile(b"[" + re.escape(missing_bytes) + b"]+") if missing_bytes else None
        )
        self._token_lengths = token_lengths
        self._as_text = bytes(len(specials.names))

    @property
    def is_ever_needed(self) -> bool:
        """Whether there are texts for which the native encoder alone would not do."""
        has_steps = self._add_prefix_space or self._normalizer is not None
        return has_steps or not self._is_native or self._missing is not None

    def is_needed(self, text: bytes) -> bool:
        """Whether the native encoder alone would not do for this text."""
        if self._add_prefix_space or not self._is_native:
            return True
        if self._normalizer is not None and not self._normalizer.keeps(text):
            return True
        return self._missing is not None and self._missing.search(text) is not None

    def encode(self, text: bytes, actions: bytes) -> "Ids":
        """Ids of a text; `actions` as in SpecialTokens.actions."""
        import numpy as np

        ids = [np.empty(0, np.uint32)]
        for part in self._parts(text, actions, is_aligned=False):
            if part.token_id is not None:
                ids.append(np.array([part.token_id], np.uint32))
            else:
                ids.append(self._encode_part(part.text)[0])
        return np.concatenate(ids)

    def encode_spans(self, text: bytes, actions: bytes) -> "tuple[Ids, Spans]":
        """Ids, and the bytes (begin, end) of `text` that each stands for."""
        import numpy as np

        ids = [np.empty(0, np.uint32)]
        spans = [np.empty((0, 2), np.int64)]
        for part in self._parts(text, actions, is_aligned=True):
            if part.token_id is not None:
                ids.append(np.array([part.token_id], np.uint32))
                spans.append(np.array([[part.begin, part.end]], np.int64))
                continue
            found, places = self._encode_part(part.text)
            ids.append(found)
            spans.append(part.begin + _before_normalizing(places, part.origin))
        return np.concatenate(ids), np.concatenate(spans)

    def encode_plain(self, text: bytes) -> "Ids":
        """Ids of text in which no special token counts."""
        return self.encode(text, self._as_text)

    def stream_cut(self, first: str, second: str, actions: bytes) -> int:
        """Where raw text may be cut, at `len(first)` or before it; see Normalizer.cut."""
        from lmworks.tokenizer.normalize import last_word_end

        data = first.encode("utf-8")
        segments = self._specials.split(data, actions)
        tokens = [s for s in segments if s.token_id is not None]
        after_special = len(data[: tokens[-1].end].decode("utf-8")) if tokens else 0
        cut = len(first)
        if self._normalizer is not None and self._normalizer.changes(first + second):
            if self._specials.has_normalized:
                return after_special
            cut = self._normalizer.cut(first, second, after_special)
        if self._add_prefix_space and not (first[cut:] + second).startswith(" "):
            # What is cut off would get a space of its own.
            cut = last_word_end((first + second)[: cut + 1], after_special, before_space=True)
        return cut

    # ---- parts ----

    def _parts(self, text: bytes, actions: bytes, *, is_aligned: bool) -> Iterator[_Part]:
        for segment in self._specials.split(text, actions):
            if segment.token_id is not None or self._normalizer is None:
                yield _Part(*segment, None)
                continue
            yield from self._normalized_parts(segment.text, segment.begin, actions, is_aligned)

    def _normalized_parts(
        self, text: bytes, begin: int, actions: bytes, is_aligned: bool
    ) -> Iterator[_Part]:
        assert self._normalizer is not None, "called with a normalizer only"
        if is_aligned:
            raw = text.decode("utf-8", "surrogateescape")
            changed, positions = self._normalizer.apply_aligned(raw)
            normalized = changed.encode("utf-8", "surrogateescape")
        else:
            normalized = self._normalizer.apply_bytes(text)
        for piece in self._specials.split_normalized(normalized, actions):
            if not is_aligned:
                yield _Part(piece.text, piece.token_id, 0, 0, None)
                continue
            origin = _Origin(raw, changed, positions, piece.begin)
            if piece.token_id is None:
                yield _Part(piece.text, None, begin, begin + len(text), origin)
            else:
                span = _span_before_normalizing(piece.end - piece.begin, origin)
                yield _Part(piece.text, piece.token_id, begin + span[0], begin + span[1], None)

    def _encode_part(self, text: bytes) -> "tuple[Ids, Spans]":
        """Ids of text that only lacks its spaces and its cuts, and their spans in it."""
        import numpy as np

        ends: NDArray[np.uint64] | None = None
        places: NDArray[np.int64] | None = None
        if self._piece_steps is not None:
            text, ends, places = self._piece_steps.apply(text)
        elif self._add_prefix_space and not text.startswith(b" "):
            places = np.concatenate([[0], np.arange(len(text))])
            text = b" " + text
        if self._missing is not None and self._missing.search(text):
            ids, spans = self._encode_with_unknown(text, self._ends(text) if ends is None else ends)
        else:
            ids = self._encode_known(text, ends)
            stops = np.cumsum(self._token_lengths()[ids])
            spans = np.stack([stops - self._token_lengths()[ids], stops], axis=1)
        if places is not None:
            spans = np.stack([places[spans[:, 0]], places[spans[:, 1] - 1] + 1], axis=1)
        return ids, spans

    def _encode_known(self, text: bytes, ends: "NDArray[np.uint64] | None") -> "Ids":
        if ends is None and not self._is_native:
            ends = self._ends(text)
        if ends is not None:
            return self._encoder.encode_pieces(text, ends)
        found = self._encoder.encode_to_numpy(text, self._as_text)
        assert not isinstance(found, int), "no token is forbidden in plain text"
        return found

    def _ends(self, text: bytes) -> "NDArray[np.uint64]":
        """Where the pieces of `text` end."""
        import numpy as np

        if self._pattern == "none":
            return np.array([len(text)] if text else [], np.uint64)
        if self._is_native:
            pieces = _text.split(text, self._pattern)
            return np.cumsum([len(piece) for piece in pieces], dtype=np.uint64)
        from lmworks.tokenizer.pretokenize import piece_ends

        return piece_ends(text, self._pattern)

    def _encode_with_unknown(self, text: bytes, ends: "NDArray[np.uint64]") -> "tuple[Ids, Spans]":
        """Pieces without their unknown bytes, or in stretches between unknown tokens."""
        import numpy as np

        assert self._missing is not None, "called when a byte is missing"
        unk_id = self._unknown.token_id
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        begin = 0
        for end in ends.tolist():
            piece = text[begin:end]
            places = [i for i, byte in enumerate(piece) if byte not in self._missing_bytes]
            if unk_id is None:
                known = bytes(piece[i] for i in places)
                self._add_stretch(known, [begin + i for i in places], ids, spans)
            else:
                at = 0
                for match in self._missing.finditer(piece):
                    stretch = piece[at : match.start()]
                    self._add_stretch(stretch, range(begin + at, begin + match.start()), ids, spans)
                    size = 1 if not self._unknown.fuse else match.end() - match.start()
                    for i in range(match.start(), match.end(), size):
                        ids.append(unk_id)
                        spans.append((begin + i, begin + i + size))
                    at = match.end()
                self._add_stretch(piece[at:], range(begin + at, end), ids, spans)
            begin = end
        return np.array(ids, np.uint32), np.array(spans, np.int64).reshape(-1, 2)

    def _add_stretch(
        self, known: bytes, places: Any, ids: list[int], spans: list[tuple[int, int]]
    ) -> None:
        """The ids of one stretch of known bytes, which stand at `places` in the text."""
        import numpy as np

        if not known:
            return
        at = 0
        found = self._encoder.encode_pieces(known, np.array([len(known)], np.uint64))
        for token_id, size in zip(
            found.tolist(), self._token_lengths()[found].tolist(), strict=True
        ):
            ids.append(token_id)
            spans.append((places[at], places[at + size - 1] + 1))
            at += size


def _before_normalizing(spans: "Spans", origin: _Origin | None) -> "Spans":
    """Spans in raw text for spans in a part that was taken from its normalized form."""
    if origin is None:
        return spans
    import numpy as np

    from lmworks.tokenizer.offsets import spans_before_normalizing

    positions = np.array(origin.positions, np.int64)
    return spans_before_normalizing(spans + origin.offset, origin.normalized, positions, origin.raw)


def _span_before_normalizing(size: int, origin: _Origin) -> tuple[int, int]:
    import numpy as np

    begin, end = _before_normalizing(np.array([[0, size]], np.int64), origin)[0].tolist()
    return begin, end
