"""Which part of the text a token stands for.

    encoding = tokenizer.encode_with_offsets("naïve 🙂")
    encoding.ids[i] stands for text[begin:end] with begin, end = encoding.offsets[i]

What is promised, for every kind of tokenizer:

  * Offsets are places in the text that was given, before any normalizer.
  * `unit="byte"`: places in its UTF-8 form. Without a normalizer the spans follow each other
    without gap or overlap, and each holds exactly the bytes of its token.
  * `unit="char"`: places in the `str`. A span is the smallest run of whole characters that holds
    the token's bytes, so the tokens that share a character each have all of it.
  * A special token's span holds the white space that it took in (`lstrip`, `rstrip`).
  * With a normalizer a span covers the characters that the token's characters were made from: for
    NFC a letter and its accents, for a character that was put in (a SentencePiece "▁" in front)
    the one after it. Characters that the normalizer removed belong to the token before them.
  * A space put in front of text (`add_prefix_space`) has the place of the byte behind it; what a
    pre-tokenizer's step removed is in no span.

Spans are never trimmed; Hugging Face's `trim_offsets=True` takes the blank off a " word".
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer.base import to_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lmworks.tokenizer.base import Ids, Tokenizer, Unit

    Spans = NDArray[np.int64]  # [N, 2]: begin and end of each


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """Token ids and what they stand for."""

    ids: "Ids"
    offsets: "Spans"
    """Row i: begin and end of token i in the text."""

    def __len__(self) -> int:
        return len(self.ids)

    def token_at(self, position: int) -> int | None:
        """Number of the first token whose span holds `position`; None when there is none."""
        import numpy as np

        # Ends rise, so this is the first span that ends behind the position.
        i = int(np.searchsorted(self.offsets[:, 1], position, side="right"))
        return i if i < len(self.ids) and self.offsets[i, 0] <= position else None


def encode_with_offsets(
    tokenizer: "Tokenizer", text: str | bytes, unit: "Unit", actions: bytes
) -> Encoding:
    """Ids and spans of `text`; `actions` says what special tokens do (SpecialTokens.actions).

    Raises:
        ConfigError: `unit` is neither "char" nor "byte".
        DataError: character offsets of bytes that are not UTF-8.
    """
    if unit not in ("char", "byte"):
        raise ConfigError(f"unit={unit!r} must be 'char' or 'byte'")
    data = to_bytes(text)
    ids, spans = tokenizer._encode_spans(data, actions)
    if unit == "char":
        spans = _in_characters(spans, text, data)
    return Encoding(ids, spans)


def spans_of_lengths(lengths: "NDArray[np.int64]") -> "Spans":
    """Spans that follow each other."""
    import numpy as np

    ends = np.cumsum(lengths)
    return np.stack([ends - lengths, ends], axis=1)


def char_spans(text: bytes) -> "Spans":
    """The bytes of each character of `text`.

    Raises:
        DataError: `text` is not UTF-8.
    """
    try:
        return spans_of_lengths(_byte_lengths(text.decode("utf-8")))
    except UnicodeDecodeError as err:
        raise DataError(
            f"the text is not UTF-8 at byte {err.start}, so its characters have no offsets"
        ) from None


def spans_before_normalizing(
    spans: "Spans", normalized: str, positions: "NDArray[np.int64]", text: str
) -> "Spans":
    """Byte spans in `text` for byte spans in its `normalized` form.

    `positions[i]` is the place in `text` of the character that normalized character i comes from;
    they never fall. Such a character ends where the next one that has another place begins.
    """
    import numpy as np

    if not len(spans):
        return spans
    places, first = np.unique(positions, return_index=True)
    num_repeats = np.diff(np.append(first, len(positions)))
    end_of = np.repeat(np.append(places[1:], len(text)), num_repeats)
    chars = _characters_of(spans, normalized)
    byte_of = _byte_offsets(text)
    return np.stack([byte_of[positions[chars[:, 0]]], byte_of[end_of[chars[:, 1] - 1]]], axis=1)


def _in_characters(spans: "Spans", text: str | bytes, data: bytes) -> "Spans":
    """Character spans in `text` for byte spans in `data`, its UTF-8 form."""
    if data.isascii() or not len(spans):
        return spans
    import numpy as np

    try:
        num_chars = len(data.decode("utf-8"))
    except UnicodeDecodeError as err:
        raise DataError(
            f"the text is not UTF-8 at byte {err.start}, so its characters cannot be counted; "
            "pass unit='byte'"
        ) from None
    is_first = (np.frombuffer(data, np.uint8) & 0xC0) != 0x80
    # How many characters begin up to and with each byte.
    count = np.cumsum(is_first, dtype=np.int32 if num_chars < 1 << 31 else np.int64)
    spans = np.stack([count[spans[:, 0]] - 1, count[spans[:, 1] - 1]], axis=1).astype(np.int64)
    if isinstance(text, str) and len(text) != num_chars:
        spans = _places_with_surrogates(text)[spans]
    return spans


def _characters_of(spans: "Spans", text: str) -> "Spans":
    """The whole characters of `text` that hold these spans of its bytes."""
    import numpy as np

    lengths = _byte_lengths(text)
    char_of_byte = np.repeat(np.arange(len(lengths)), lengths)
    return np.stack([char_of_byte[spans[:, 0]], char_of_byte[spans[:, 1] - 1] + 1], axis=1)


def _byte_offsets(text: str) -> "NDArray[np.int64]":
    """Where each character begins in UTF-8, and the end."""
    import numpy as np

    lengths = _byte_lengths(text)
    return np.concatenate([[0], np.cumsum(lengths)])


def _byte_lengths(text: str) -> "NDArray[np.int64]":
    """UTF-8 bytes of each character; a byte that is not UTF-8 stands as U+DC80..U+DCFF."""
    import numpy as np

    code = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    lengths = 1 + (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)
    return np.where((code >= 0xDC80) & (code <= 0xDCFF), 1, lengths)


def _places_with_surrogates(text: str) -> "NDArray[np.int64]":
    """Where each character begins in a `text` that spells some as two surrogates, and the end."""
    import numpy as np

    places = []
    i = 0
    while i < len(text):
        places.append(i)
        is_pair = "\ud800" <= text[i] <= "\udbff" and "\udc00" <= text[i + 1 : i + 2] <= "\udfff"
        i += 2 if is_pair else 1
    return np.array([*places, len(text)], np.int64)
