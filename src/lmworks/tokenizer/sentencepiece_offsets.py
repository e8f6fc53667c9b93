"""Which part of a text the ids of a SentencePiece-style vocabulary stand for."""

from typing import TYPE_CHECKING

import numpy as np

from lmworks.tokenizer.offsets import spans_before_normalizing, spans_of_lengths
from lmworks.tokenizer.sentencepiece_text import escaped_text, replace_escaped
from lmworks.tokenizer.sentencepiece_vocabulary import PieceType, Vocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lmworks.tokenizer.base import Ids


def plain_spans(
    vocabulary: Vocabulary, ids: "Ids", normalized: str, places: list[int], text: bytes
) -> "NDArray[np.int64]":
    """Bytes (begin, end) of `text` for each of `ids`.

    `normalized` is what the rules made of `text`, and `places` says where its characters are from.
    Bytes of a character that became several ids have the whole character each.
    """
    lengths = _lengths(vocabulary, ids.tolist(), normalized)
    spans = spans_of_lengths(np.array(lengths, np.int64))
    decoded = replace_escaped(escaped_text(text))
    spans = spans_before_normalizing(spans, normalized, np.array(places, np.int64), decoded)
    if len(decoded.encode("utf-8")) == len(text) or not len(spans):
        return spans
    return _places_in_bytes(text)[spans]


def _lengths(vocabulary: Vocabulary, ids: list[int], normalized: str) -> list[int]:
    """UTF-8 bytes of `normalized` that each id stands for."""
    if vocabulary.unknown_id not in ids:
        return [_piece_size(vocabulary, token_id) for token_id in ids]
    lengths = []
    at = 0  # bytes
    data = normalized.encode("utf-8")
    for i, token_id in enumerate(ids):
        if token_id == vocabulary.unknown_id:
            following = ids[i + 1] if i + 1 < len(ids) else None
            size = _unknown_size(vocabulary, data[at:].decode("utf-8"), following)
        else:
            size = _piece_size(vocabulary, token_id)
        lengths.append(size)
        at += size
    return lengths


def _unknown_size(vocabulary: Vocabulary, text: str, following: int | None) -> int:
    """Bytes at the start of `text` for an unknown id: up to a known character or the next piece."""
    end = 1
    if vocabulary.fuse_unknown:
        piece = "" if following is None else vocabulary.piece(following)
        while end < len(text) and text[end] not in vocabulary.id_of:
            if piece and text.startswith(piece, end):
                break
            end += 1
    return len(text[:end].encode("utf-8"))


def _places_in_bytes(text: bytes) -> "NDArray[np.int64]":
    """Where the bytes of the decoded `text`, which is not all UTF-8, are in it; and the end."""
    places: list[int] = []
    at = 0
    for char in text.decode("utf-8", "surrogateescape"):
        is_bad = "\udc80" <= char <= "\udcff"
        size = 1 if is_bad else len(char.encode("utf-8"))
        places += [at] * 3 if is_bad else range(at, at + size)
        at += size
    return np.array([*places, at], np.int64)


def _piece_size(vocabulary: Vocabulary, token_id: int) -> int:
    if vocabulary.types[token_id] == PieceType.BYTE:
        return 1
    return len(vocabulary.piece(token_id).encode("utf-8"))
