"""A SentencePiece-style vocabulary as tables for the native byte-pair encoder.

The encoder starts from single bytes and makes, of all merges that apply, the one of lowest rank,
the leftmost of equals. These tables make it give the ids of the character-level rule:

1. Characters. Every character that occurs in a piece is assembled from its UTF-8 bytes, one byte
   at a time from the left, by merges whose ranks come before all others. The right side of such a
   merge is always a single continuation byte and the left side begins with a leading byte, so it
   joins bytes of one character only. Per character exactly one of them applies at a time: they
   commute, and when none is left each character stands as the longest of its beginnings that has
   a token, its whole self if it occurs in a piece. Beginnings take part in no other merge.
2. Pieces. From then on all symbols are the characters and pieces of the rule. By score: two
   neighbours are joined exactly when their joined text is a piece, so every split of every piece
   into two symbols is a merge, of a rank given by the score alone. The encoder picks the lowest
   rank and then the leftmost, the rule the highest score and then the leftmost: the same pair, at
   every step. That holds for ties between pieces, for pieces with several splits and for pieces
   that score higher than their parts, for nothing was assumed about the ranks. By merges: the
   merges are the list itself.
3. Unused pieces are taken apart again into the parts they were joined from. Each split of such a
   piece has a token of its own, which joins on like all the others of that piece; its outputs are
   those of its parts.
4. Outputs. A piece gives its id. What is left of an unknown character is its bytes or beginnings
   of it: they give the ids of byte pieces, or the leading one gives the unknown id and the rest
   none.

User-defined symbols are no part of this: they are cut out of the text before.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from lmworks import _text
from lmworks.base.errors import DataError
from lmworks.tokenizer.sentencepiece_vocabulary import PieceType, Vocabulary
from lmworks.tokenizer.token_table import pack_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Tables(NamedTuple):
    """Arguments of `_text.BpeEncoder`."""

    token_bytes: bytes
    token_offsets: "NDArray[np.uint64]"
    merges: "NDArray[np.uint32]"
    ranks: "NDArray[np.uint32]"
    outputs: "NDArray[np.uint32]"
    output_offsets: "NDArray[np.uint64]"


def tables(vocabulary: Vocabulary) -> Tables:
    """The tables; DataError when the encoder has no room for them."""
    return _Builder(vocabulary).build()


class _Builder:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokens: list[bytes] = []
        self._outputs: list[tuple[int, ...]] = []
        # Tokens that spell a character or a piece; more than one only for unused pieces.
        self._tokens_of: dict[str, tuple[int, ...]] = {}
        self._first_split = 0  # the tokens from here on are joined from all their splits
        # Left, right and result of each merge, flat: of those that make characters, of the others.
        self._assembling: list[int] = []
        self._joining: list[int] = []
        self._keys: list[float] = []  # of the others: lower is earlier, equal is a tie

    def build(self) -> Tables:
        import numpy as np

        types, symbol = self._vocabulary.types, PieceType.USER_DEFINED
        pieces = [piece for piece, i in self._vocabulary.id_of.items() if types[i] != symbol]
        self._add_characters("".join(pieces))
        self._add_pieces([piece for piece in pieces if len(piece) > 1])
        token_bytes, token_offsets = pack_tokens(self._tokens)
        joining = np.array(self._joining, np.uint32).reshape(-1, 3)
        keys = np.array(self._keys, np.float64)
        if self._first_split:
            joining = _text.all_splits(token_bytes, token_offsets, self._first_split).reshape(-1, 3)
            keys = keys[joining[:, 2] - self._first_split]
        num_assembling = len(self._assembling) // 3
        num_merges = num_assembling + len(keys)
        if len(self._tokens) >= _text.MAX_TOKENS or num_merges > _text.MAX_MERGES:
            raise DataError(
                f"the vocabulary takes {len(self._tokens)} tokens and {num_merges} merges inside; "
                f"fewer than {_text.MAX_TOKENS} and {_text.MAX_MERGES} are possible"
            )
        order = np.argsort(keys, kind="stable")
        rises = np.diff(keys[order], prepend=np.nan) != 0
        output_offsets = np.zeros(len(self._outputs) + 1, np.uint64)
        np.cumsum(list(map(len, self._outputs)), out=output_offsets[1:])
        return Tables(
            token_bytes=token_bytes,
            token_offsets=token_offsets,
            merges=np.concatenate([np.array(self._assembling, np.uint32), joining[order].ravel()]),
            ranks=np.concatenate(
                [np.arange(num_assembling), num_assembling + np.cumsum(rises)]
            ).astype(np.uint32),
            outputs=np.fromiter(itertools.chain.from_iterable(self._outputs), np.uint32),
            output_offsets=output_offsets,
        )

    def _add(self, token: bytes, outputs: Iterable[int]) -> int:
        self._tokens.append(token)
        self._outputs.append(tuple(outputs))
        return len(self._tokens) - 1

    # ---- characters ----

    def _add_characters(self, text: str) -> None:
        for byte in range(256):
            data = bytes([byte])
            is_char = byte < 0x80
            self._add(data, self._char_outputs(chr(byte)) if is_char else self._unknown(data))
            if is_char:
                self._tokens_of[chr(byte)] = (byte,)
        beginnings: dict[bytes, int] = {}
        for char in sorted(set(text)):
            if not char.isascii():
                self._tokens_of[char] = (self._assemble(char, beginnings),)

    def _assemble(self, char: str, beginnings: dict[bytes, int]) -> int:
        """The token of a character, with those of its beginnings where they are new."""
        data = char.encode("utf-8")
        token = data[0]
        for end in range(2, len(data) + 1):
            beginning = data[:end]
            longer = beginnings.get(beginning)
            if longer is None:
                is_whole = end == len(data)
                outputs = self._char_outputs(char) if is_whole else self._unknown(beginning)
                longer = beginnings[beginning] = self._add(beginning, outputs)
                self._assembling += (token, data[end - 1], longer)
            token = longer
        return token

    def _char_outputs(self, char: str) -> tuple[int, ...]:
        token_id = self._vocabulary.id_of.get(char)
        return self._unknown(char.encode("utf-8")) if token_id is None else (token_id,)

    def _unknown(self, data: bytes) -> tuple[int, ...]:
        """What bytes of an unknown character give, the first of them or later ones."""
        byte_ids, unknown_id = self._vocabulary.byte_ids, self._vocabulary.unknown_id
        if byte_ids:
            return tuple(byte_ids[byte] for byte in data)
        is_first = data[0] & 0xC0 != 0x80
        return () if unknown_id is None or not is_first else (unknown_id,)

    # ---- pieces of several characters ----

    def _add_pieces(self, pieces: list[str]) -> None:
        vocabulary = self._vocabulary
        unused = set()
        if vocabulary.scores is not None and PieceType.UNUSED not in vocabulary.types:
            self._add_natively(pieces, vocabulary.scores)
            return
        for piece in pieces:
            token_id = vocabulary.id_of[piece]
            if vocabulary.types[token_id] == PieceType.UNUSED:
                unused.add(piece)
            else:
                self._tokens_of[piece] = (self._add(piece.encode("utf-8"), (token_id,)),)
        if vocabulary.merges is not None:
            for rank, (a, b) in enumerate(vocabulary.merges):
                parts = vocabulary.piece(a), vocabulary.piece(b)
                left, right, result = (self._tokens_of[p][0] for p in (*parts, "".join(parts)))
                self._join(left, right, result, rank)
            return
        # Each split of an unused piece is a token, so those of its parts must be there before.
        for piece in sorted(unused, key=len):
            self._add_unused(piece)
        for piece in pieces:
            if piece not in unused:
                key = self._key(piece)
                (result,) = self._tokens_of[piece]
                for left, right in self._splits(piece):
                    self._join(left, right, result, key)

    def _add_natively(self, pieces: list[str], scores: tuple[float, ...]) -> None:
        """The pieces, and one key for each, not for each split: `build` has the splits found."""
        ids = [self._vocabulary.id_of[piece] for piece in pieces]
        self._first_split = len(self._tokens)
        self._tokens += map(str.encode, pieces)
        self._outputs += zip(ids)
        self._keys = [-scores[token_id] for token_id in ids]

    def _add_unused(self, piece: str) -> None:
        tokens = []
        data = piece.encode("utf-8")
        for left, right in self._splits(piece):
            tokens.append(self._add(data, (*self._outputs[left], *self._outputs[right])))
            self._join(left, right, tokens[-1], self._key(piece))
            if len(self._tokens) >= _text.MAX_TOKENS:
                raise DataError(f"unused piece {piece!r} can be taken apart in too many ways")
        if tokens:
            self._tokens_of[piece] = tuple(tokens)

    def _splits(self, piece: str) -> Iterator[tuple[int, int]]:
        """The pairs of tokens that together spell `piece`."""
        tokens_of = self._tokens_of
        for i in range(1, len(piece)):
            if lefts := tokens_of.get(piece[:i]):
                yield from itertools.product(lefts, tokens_of.get(piece[i:], ()))

    def _key(self, piece: str) -> float:
        assert self._vocabulary.scores is not None, "only the rule by score asks"
        return -self._vocabulary.scores[self._vocabulary.id_of[piece]]

    def _join(self, left: int, right: int, result: int, key: float) -> None:
        self._joining += (left, right, result)
        self._keys.append(key)
