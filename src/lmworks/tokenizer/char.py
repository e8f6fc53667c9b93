"""Characters as tokens: the code points of the training text, then `<unk>`, then special tokens."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from lmworks.base.errors import DataError
from lmworks.tokenizer.base import END_OF_TEXT, Tokenizer, to_bytes, to_text
from lmworks.tokenizer.special import SpecialTokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lmworks.tokenizer.base import Ids

UNKNOWN = "<unk>"
T = TypeVar("T", str, bytes)


class CharTokenizer(Tokenizer):
    """One token per character; a character that training did not see becomes `<unk>`."""

    kind = "char"
    unk_id: int

    def __init__(self, chars: str, special_tokens: Sequence[str] = (END_OF_TEXT,)) -> None:
        if len(set(chars)) < len(chars):
            twice = Counter(chars).most_common(1)[0][0]
            raise DataError(f"character {twice!r} is in the vocabulary twice; keep one")
        if not chars:
            raise DataError("no characters: a character vocabulary needs at least one")
        if any("\ud800" <= c <= "\udfff" for c in chars):
            raise DataError("a surrogate is in the vocabulary; it is no character")
        if len(set(special_tokens)) < len(special_tokens):
            raise DataError(f"special tokens {list(special_tokens)} hold one twice; keep one")
        self.chars = chars
        self.unk_id = len(chars)
        super().__init__({name: len(chars) + 1 + i for i, name in enumerate(special_tokens)})
        self._id_of_code_point: Ids | None = None

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocab_size: int | None = None,
        special_tokens: Sequence[str] = (END_OF_TEXT,),
    ) -> "CharTokenizer":
        """The characters of `texts` in code point order; with `vocab_size`, the most frequent.

        `vocab_size` counts `<unk>` and the special tokens too; special tokens split the texts.
        """
        counts: Counter[str] = Counter()
        for text in plain_parts(texts, special_tokens):
            counts.update(text)
        chars = keep_frequent(counts, vocab_size, 1 + len(special_tokens), "characters")
        return cls("".join(sorted(chars)), special_tokens)

    @property
    def vocab_size(self) -> int:
        return len(self.chars) + 1 + len(self._specials.names)

    def token_bytes(self, token_id: int) -> bytes:
        if 0 <= token_id < len(self.chars):
            return self.chars[token_id].encode("utf-8")
        if token_id == self.unk_id:
            return UNKNOWN.encode()
        if not self.unk_id < token_id < self.vocab_size:
            self._refuse_id(token_id)
        return self._specials.encoded[token_id - self.unk_id - 1]

    def _encode_plain(self, text: bytes) -> "Ids":
        import numpy as np

        code_points = np.frombuffer(to_text(text).encode("utf-32-le"), np.uint32)
        if self._id_of_code_point is None:
            known = np.frombuffer(self.chars.encode("utf-32-le"), np.uint32)
            # One entry past the largest known code point, for all that lie beyond it.
            self._id_of_code_point = np.full(int(known.max()) + 2, self.unk_id, np.uint32)
            self._id_of_code_point[known] = np.arange(len(known), dtype=np.uint32)
        table = self._id_of_code_point
        ids: Ids = table[np.minimum(code_points, len(table) - 1)]
        return ids

    def _encode_plain_spans(self, text: bytes) -> "tuple[Ids, NDArray[np.int64]]":
        from lmworks.tokenizer.offsets import char_spans

        return self._encode_plain(text), char_spans(text)

    def content(self) -> dict[str, Any]:
        return {"special_tokens": list(self._specials.names), "chars": self.chars}

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> "CharTokenizer":
        return cls(content["chars"], content["special_tokens"])


def plain_parts(texts: Iterable[str], special_tokens: Sequence[str]) -> Iterable[str]:
    """The texts between special tokens: those are never learnt."""
    specials = SpecialTokens({name: i for i, name in enumerate(special_tokens)})
    actions = specials.actions("all", ())
    for text in texts:
        for segment in specials.split(to_bytes(text), actions):
            if segment.token_id is None:
                yield to_text(segment.text)


def keep_frequent(
    counts: Counter[T], vocab_size: int | None, num_reserved: int, what: str
) -> list[T]:
    """All items, or those that fit beside `num_reserved` others; ties go to the smaller item."""
    if not counts:
        raise DataError(f"the training text is empty: no {what} to learn")
    ranked = sorted(counts, key=lambda item: (-counts[item], item))
    if vocab_size is None:
        return ranked
    if vocab_size <= num_reserved:
        raise DataError(
            f"vocab_size={vocab_size} leaves no room for {what} beside "
            f"{num_reserved} reserved tokens; at least {num_reserved + 1}"
        )
    return ranked[: vocab_size - num_reserved]
