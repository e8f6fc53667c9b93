"""Words as tokens: the most frequent pieces of the training text, `<unk>`, special tokens.

A word is a piece of the pre-tokenizer (so " the" with its blank, ".", "\\n"), and whatever is not
in the vocabulary becomes `<unk>`: the classical closed vocabulary, here for comparison.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmworks import _text
from lmworks.base.errors import DataError
from lmworks.tokenizer.base import END_OF_TEXT, Tokenizer
from lmworks.tokenizer.char import UNKNOWN, keep_frequent, plain_parts
from lmworks.tokenizer.readable import bytes_to_readable, readable_to_bytes
from lmworks.tokenizer.schema import require_pattern

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lmworks.tokenizer.base import Ids


class WordTokenizer(Tokenizer):
    """One token per word."""

    kind = "word"
    pattern: str
    unk_id: int

    def __init__(
        self,
        words: Sequence[bytes],
        *,
        pattern: str,
        special_tokens: Sequence[str] = (END_OF_TEXT,),
    ) -> None:
        """`words` are pieces of the pattern, id by id; `<unk>` and the special tokens follow."""
        require_pattern(pattern)
        if not all(words):
            raise DataError("a word is empty; a word has at least one byte")
        self._id_of = {word: i for i, word in enumerate(words)}
        if len(self._id_of) < len(words):
            raise DataError(f"{len(words) - len(self._id_of)} words are in the vocabulary twice")
        if len(set(special_tokens)) < len(special_tokens):
            raise DataError(f"special tokens {list(special_tokens)} hold one twice; keep one")
        self.words = tuple(words)
        self.pattern = pattern
        self.unk_id = len(words)
        super().__init__({name: len(words) + 1 + i for i, name in enumerate(special_tokens)})

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocab_size: int,
        pattern: str = "gpt2",
        special_tokens: Sequence[str] = (END_OF_TEXT,),
    ) -> "WordTokenizer":
        """The most frequent words; `vocab_size` counts `<unk>` and the special tokens too."""
        require_pattern(pattern)
        counts: Counter[bytes] = Counter()
        for text in plain_parts(texts, special_tokens):
            counts.update(_text.split(text.encode("utf-8"), pattern))
        words = keep_frequent(counts, vocab_size, 1 + len(special_tokens), "words")
        return cls(words, pattern=pattern, special_tokens=special_tokens)

    @property
    def vocab_size(self) -> int:
        return len(self.words) + 1 + len(self._specials.names)

    def token_bytes(self, token_id: int) -> bytes:
        if 0 <= token_id < len(self.words):
            return self.words[token_id]
        if token_id == self.unk_id:
            return UNKNOWN.encode()
        if not self.unk_id < token_id < self.vocab_size:
            self._refuse_id(token_id)
        return self._specials.encoded[token_id - self.unk_id - 1]

    def _encode_plain(self, text: bytes) -> "Ids":
        return self._ids_of(_text.split(text, self.pattern))

    def _encode_plain_spans(self, text: bytes) -> "tuple[Ids, NDArray[np.int64]]":
        import numpy as np

        from lmworks.tokenizer.offsets import spans_of_lengths

        pieces = _text.split(text, self.pattern)
        return self._ids_of(pieces), spans_of_lengths(np.array([*map(len, pieces)], np.int64))

    def _ids_of(self, pieces: Sequence[bytes]) -> "Ids":
        import numpy as np

        find, unknown = self._id_of.get, self.unk_id
        return np.fromiter((find(p, unknown) for p in pieces), np.uint32, len(pieces))

    def content(self) -> dict[str, Any]:
        return {
            "pattern": self.pattern,
            "special_tokens": list(self._specials.names),
            "words": [bytes_to_readable(word) for word in self.words],
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> "WordTokenizer":
        return cls(
            [readable_to_bytes(word) for word in content["words"]],
            pattern=content["pattern"],
            special_tokens=content["special_tokens"],
        )
