"""Ids of a SentencePiece-style vocabulary back to text: the dummy space and broken bytes.

The rules are those of sentencepiece (src/sentencepiece_processor.cc): the space in front of the
first piece is dropped when one was put there or when extra spaces are removed, in the second case
until some text has come; each byte that is not UTF-8 becomes a U+FFFD of its own.
"""

import codecs
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from lmworks.tokenizer.sentencepiece_text import SPACE, TextRules, replace_escaped
from lmworks.tokenizer.sentencepiece_vocabulary import PieceType, Vocabulary
from lmworks.tokenizer.stream import StreamDecoder

if TYPE_CHECKING:
    from lmworks.tokenizer.base import Tokenizer


class PieceDecoder:
    """Bytes of one id after another, without dummy spaces."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        rules: TextRules,
        specials: Collection[int],
        token_bytes: Callable[[int], bytes],
    ) -> None:
        """`specials`: ids after which a new stretch of text begins."""
        self._vocabulary = vocabulary
        self._specials = specials
        self._token_bytes = token_bytes
        self._strips_all = rules.remove_extra_whitespaces
        self._is_repeated = rules.prefix_at == "segments"
        self.strips = rules.prefix != "none" or rules.remove_extra_whitespaces
        self.is_begin = self.strips
        """Whether a space that comes next is dropped."""

    def feed(self, token_id: int) -> bytes:
        """The bytes of the next id."""
        data = self._token_bytes(token_id)
        if token_id in self._specials:
            self.is_begin = self.strips and self._is_repeated
            return data
        if not self.is_begin:
            return data
        is_byte = self._vocabulary.types[token_id] == PieceType.BYTE
        if not is_byte and (self._vocabulary.pieces[token_id] or "").startswith(SPACE):
            data = data[1:]
            self.is_begin = self._strips_all and not data
        else:
            self.is_begin = False
        return data

    def restart(self) -> None:
        """Begin a new stretch of text."""
        self.is_begin = self.strips


class PieceStreamDecoder(StreamDecoder):
    """StreamDecoder without dummy spaces, with a U+FFFD for each bad byte."""

    def __init__(self, tokenizer: "Tokenizer", decoder: PieceDecoder) -> None:
        super().__init__(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._pieces = decoder

    def feed(self, token_id: int) -> str:
        return replace_escaped(self._decoder.decode(self._pieces.feed(token_id)))

    def finish(self) -> str:
        text = replace_escaped(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        self._pieces.restart()
        return text
