"""What a SentencePiece-style BPE vocabulary is made of, checked once.

A piece is a string with spaces written as U+2581, and has a type. Two adjacent symbols (pieces or
single characters) are joined either by score, whenever together they are a piece, the highest score
first (SentencePiece: src/bpe_model.cc), or by a list of merges in rank order (Hugging Face). A
character that is no piece becomes one token for each of its UTF-8 bytes, or the unknown token.
"""

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from lmworks import _text
from lmworks.base.errors import DataError

MAX_PIECE_BYTES: Final = 1024


class PieceType(IntEnum):
    """The types of pieces, numbered as in ModelProto and in GGUF."""

    NORMAL = 1
    UNKNOWN = 2  # stands for what is not in the vocabulary
    CONTROL = 3  # never found in text
    USER_DEFINED = 4  # found in text before all others, never split or joined
    UNUSED = 5  # joined like a normal piece, but then taken apart again
    BYTE = 6  # "<0x00>" to "<0xFF>"


BYTE_NAMES: Final = tuple(f"<0x{byte:02X}>" for byte in range(256))
_BYTE_OF: Final = {name: byte for byte, name in enumerate(BYTE_NAMES)}
_IN_TEXT: Final = (PieceType.NORMAL, PieceType.USER_DEFINED, PieceType.UNUSED)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Pieces by token id and the rule by which they are joined."""

    pieces: tuple[str | None, ...]
    """None where an id is unused."""
    types: tuple[PieceType, ...]
    scores: tuple[float, ...] | None = None
    """The rule by score: one for each piece, higher first. Else `merges` is given."""
    merges: tuple[tuple[int, int], ...] | None = None
    """The rule by rank: pairs of ids whose joined text is a piece."""
    fuse_unknown: bool = True
    """Neighbouring unknown characters become one unknown token, not one each."""
    id_of: dict[str, int] = field(init=False, compare=False, repr=False)
    """Ids of the pieces that can be found in text."""
    byte_ids: tuple[int, ...] = field(init=False, compare=False, repr=False)
    """Ids of the 256 byte pieces; empty when there are none."""
    unknown_id: int | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raises DataError with the first thing that does not fit."""
        if not len(self.pieces) == len(self.types) or not self.pieces:
            raise DataError(f"{len(self.pieces)} pieces but {len(self.types)} types")
        if len(self.pieces) >= _text.MAX_TOKENS:
            raise DataError(
                f"{len(self.pieces)} pieces; fewer than {_text.MAX_TOKENS} are possible"
            )
        if (self.scores is None) == (self.merges is None):
            raise DataError("a vocabulary has either scores or merges")
        object.__setattr__(self, "id_of", _index(self))
        object.__setattr__(self, "byte_ids", _byte_ids(self))
        unknown = [i for i, kind in enumerate(self.types) if kind == PieceType.UNKNOWN]
        if len(unknown) > 1:
            raise DataError(f"pieces {unknown[0]} and {unknown[1]} are both of type UNKNOWN")
        object.__setattr__(self, "unknown_id", unknown[0] if unknown else None)
        if self.scores is not None:
            _check_scores(self.scores, len(self.pieces))
        if self.merges is not None:
            _check_merges(self)

    def ids_of(self, *kinds: PieceType) -> list[int]:
        """Ids of the pieces of these types."""
        return [i for i, kind in enumerate(self.types) if kind in kinds]

    @property
    def user_defined(self) -> tuple[str, ...]:
        """The symbols that are found in text before all other pieces."""
        return tuple(self.pieces[i] or "" for i in self.ids_of(PieceType.USER_DEFINED))

    def piece(self, token_id: int) -> str:
        """The piece of an id that has one."""
        piece = self.pieces[token_id]
        assert piece is not None, "only ids of pieces are asked for"
        return piece


def byte_of(piece: str) -> int:
    """The byte that `<0x41>` stands for; DataError when the piece is not of that form."""
    byte = _BYTE_OF.get(piece)
    if byte is None:
        raise DataError(f"byte piece {piece!r} must be one of {BYTE_NAMES[0]} to {BYTE_NAMES[-1]}")
    return byte


def _index(vocabulary: Vocabulary) -> dict[str, int]:
    return _index_of_plain(vocabulary) or _checked_index(vocabulary)


def _index_of_plain(vocabulary: Vocabulary) -> dict[str, int] | None:
    """`_checked_index` where one look at all pieces shows that nothing is wrong; else None."""
    pieces = vocabulary.pieces
    known = [piece for piece in pieces if piece is not None]
    longest = max(map(len, known), default=0)
    if 4 * longest > MAX_PIECE_BYTES or "" in known or len(set(known)) < len(known):
        return None
    try:
        "".join(known).encode("utf-8")
    except UnicodeEncodeError:
        return None
    return {
        piece: token_id
        for token_id, (piece, kind) in enumerate(zip(pieces, vocabulary.types, strict=True))
        if kind in _IN_TEXT and piece is not None
    }


def _checked_index(vocabulary: Vocabulary) -> dict[str, int]:
    in_text: dict[str, int] = {}
    others: dict[str, int] = {}
    for token_id, (piece, kind) in enumerate(zip(vocabulary.pieces, vocabulary.types, strict=True)):
        if piece is None:
            continue
        if not piece.isascii() or not 0 < len(piece) <= MAX_PIECE_BYTES:
            _check_text(piece, token_id)
        known = in_text if kind in _IN_TEXT else others
        if known.setdefault(piece, token_id) != token_id:
            raise DataError(f"pieces {known[piece]} and {token_id} are both {piece!r}; keep one")
    return in_text


def _check_text(piece: str, token_id: int) -> None:
    try:
        size_bytes = len(piece.encode("utf-8"))
    except UnicodeEncodeError:
        raise DataError(f"piece {token_id} ({piece!r}) is not valid Unicode text") from None
    if not 0 < size_bytes <= MAX_PIECE_BYTES:
        raise DataError(
            f"piece {token_id} ({piece[:40]!r}) has {size_bytes} bytes; "
            f"1 to {MAX_PIECE_BYTES} are possible"
        )


def _byte_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
    ids = {byte_of(vocabulary.piece(i)): i for i in vocabulary.ids_of(PieceType.BYTE)}
    if not ids:
        return ()
    missing = [name for byte, name in enumerate(BYTE_NAMES) if byte not in ids]
    if missing:
        raise DataError(
            f"{len(missing)} of the 256 byte pieces are missing ({', '.join(missing[:4])}, ...): "
            "there must be all or none"
        )
    return tuple(ids[byte] for byte in range(256))


def _check_scores(scores: tuple[float, ...], num_pieces: int) -> None:
    if len(scores) != num_pieces:
        raise DataError(f"{num_pieces} pieces but {len(scores)} scores")
    for token_id, score in enumerate(scores):
        if math.isnan(score):
            raise DataError(f"the score of piece {token_id} is not a number")


def _check_merges(vocabulary: Vocabulary) -> None:
    assert vocabulary.merges is not None, "the caller checked"
    seen: set[tuple[int, int]] = set()
    for rank, pair in enumerate(vocabulary.merges):
        for token_id in pair:
            is_piece = 0 <= token_id < len(vocabulary.pieces)
            if not is_piece or vocabulary.types[token_id] != PieceType.NORMAL:
                raise DataError(f"merge {rank} joins ids {pair[0]} and {pair[1]}, not both pieces")
        left, right = (vocabulary.pieces[i] for i in pair)
        if left is None or right is None:
            raise DataError(f"merge {rank} joins ids {pair[0]} and {pair[1]}, not both pieces")
        if left + right not in vocabulary.id_of:
            raise DataError(f"merge {rank} makes {left + right!r}, which is not a piece")
        if pair in seen:
            raise DataError(f"merge {rank} ({left!r} + {right!r}) is given twice; keep one")
        seen.add(pair)
