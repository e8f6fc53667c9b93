"""Byte-level BPE (Sennrich et al. 2016, arXiv:1508.07909; on bytes: Radford et al. 2019, GPT-2).

A vocabulary is a list of byte strings (all 256 single bytes among them) and a list of merges, pairs
of token ids in the order in which training found them. Text is cut into pieces by a pre-tokenizer
pattern; inside a piece the earliest merge that applies is made first, at the leftmost place, until
none applies. The work is native: csrc/text/bpe_encode*.cpp. Training is in train.py.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lmworks import _text
from lmworks.base.errors import DataError
from lmworks.tokenizer.base import Tokenizer, pack_tokens
from lmworks.tokenizer.normalize import nfc_bytes, nfc_cut
from lmworks.tokenizer.readable import bytes_to_readable, readable_to_bytes
from lmworks.tokenizer.schema import require_pattern
from lmworks.tokenizer.special import SpecialSet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lmworks.tokenizer.base import Ids

Normalizer = Literal["NFC"]

# Per encoding thread; 32 bytes a slot, reached only by texts with half as many different pieces.
MAX_CACHE_SLOTS = 1 << 20


class BPETokenizer(Tokenizer):
    """A byte-level BPE vocabulary that encodes and decodes."""

    kind = "bpe"
    pattern: str

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        merges: Sequence[tuple[int, int]],
        *,
        pattern: str,
        special_tokens: Mapping[str, int],
        added_tokens: Mapping[str, int] | None = None,
        ignore_merges: bool = False,
        normalizer: Normalizer | None = None,
    ) -> None:
        """Check and load a vocabulary.

        Args:
            tokens: bytes by token id; None where an id is unused or a special token's.
            merges: (left id, right id) in rank order; the joined bytes must be a token.
            pattern: name of the pre-tokenizer pattern.
            special_tokens: text -> id, outside of `tokens`.
            added_tokens: like special tokens, but found in every text, allowed or not.
            ignore_merges: a whole piece that is a token is taken as it is (tiktoken, Llama 3).
            normalizer: "NFC" composes the text first (Qwen).

        Raises:
            DataError: something does not fit together; says what.
        """
        require_pattern(pattern)
        _check_ids(tokens, {**special_tokens, **(added_tokens or {})})
        super().__init__(special_tokens, added_tokens)
        self.pattern = pattern
        self.tokens: tuple[bytes | None, ...] = tuple(tokens)
        self.merges: tuple[tuple[int, int], ...] = tuple(merges)
        self.ignore_merges = ignore_merges
        self.normalizer = normalizer
        blob, offsets = pack_tokens(t or b"" for t in self.tokens)
        self._encoder = _text.BpeEncoder(
            pattern=pattern,
            ignore_merges=ignore_merges,
            token_bytes=blob,
            token_offsets=offsets,
            merges=_merge_table(self.tokens, self.merges),
            specials=self._specials.encoded,
            special_ids=self._specials.ids,
            max_cache_slots=MAX_CACHE_SLOTS,
        )
        self._as_text = bytes(len(self._specials.names))

    @classmethod
    def from_merges(
        cls,
        merges: Sequence[tuple[bytes, bytes]],
        *,
        pattern: str,
        special_tokens: Sequence[str] = (),
    ) -> "BPETokenizer":
        """Ids in tiktoken's order: the 256 bytes, one token per merge, then the special tokens."""
        tokens = [bytes([i]) for i in range(256)]
        id_of = {token: i for i, token in enumerate(tokens)}
        pairs = []
        for left, right in merges:
            if left not in id_of or right not in id_of:
                raise DataError(f"merge {left!r} + {right!r} uses a token that no earlier one made")
            pairs.append((id_of[left], id_of[right]))
            if left + right not in id_of:
                id_of[left + right] = len(tokens)
                tokens.append(left + right)
        specials = {name: len(tokens) + i for i, name in enumerate(special_tokens)}
        return cls(tokens, pairs, pattern=pattern, special_tokens=specials)

    @property
    def vocab_size(self) -> int:
        return max([len(self.tokens), *(i + 1 for i in self._specials.ids)])

    @property
    def merged_bytes(self) -> list[tuple[bytes, bytes]]:
        """The merges as pairs of byte strings."""
        return [(self.tokens[a] or b"", self.tokens[b] or b"") for a, b in self.merges]

    # ---- encoding: one native call instead of the generic way ----

    def _encode(self, text: bytes, actions: bytes) -> "Ids":
        if self._must_normalize(text):
            return super()._encode(text, actions)
        found = self._encoder.encode_to_numpy(text, actions)
        if isinstance(found, int):
            raise self._specials.forbidden(found)
        return found

    def _encode_list(self, text: bytes, actions: bytes) -> list[int]:
        if self._must_normalize(text):
            return super()._encode_list(text, actions)
        found = self._encoder.encode_to_list(text, actions)
        if isinstance(found, int):
            raise self._specials.forbidden(found)
        return found

    def _encode_many(
        self, texts: list[bytes], actions: bytes, num_threads: int
    ) -> "tuple[Ids, NDArray[np.uint64]]":
        if any(map(self._must_normalize, texts)):
            return super()._encode_many(texts, actions, num_threads)
        found = self._encoder.encode_batch(texts, actions, num_threads)
        if isinstance(found, int):
            raise self._forbidden_in(texts, actions)
        return found

    def _encode_spans(self, text: bytes, actions: bytes) -> "tuple[Ids, NDArray[np.int64]]":
        from lmworks.tokenizer.offsets import spans_of_lengths

        if self._must_normalize(text):
            return super()._encode_spans(text, actions)
        ids = self._encode(text, actions)
        lengths = self._token_lengths()[ids]
        if lengths.sum() == len(text):
            return ids, spans_of_lengths(lengths)
        # Some special token took in white space beside it.
        return super()._encode_spans(text, actions)

    def _forbidden_in(self, texts: list[bytes], actions: bytes) -> DataError:
        for i, text in enumerate(texts):
            try:
                self._specials.split(text, actions)
            except DataError as err:
                return DataError(f"text {i}: {err}")
        raise AssertionError("some text holds a forbidden token")

    def _to_list(self, ids: "Ids") -> list[int]:
        return self._encoder.ids_to_list(ids)

    def _must_normalize(self, text: str | bytes) -> bool:
        return self.normalizer is not None and not text.isascii()

    def _encode_plain(self, text: bytes) -> "Ids":
        found = self._encoder.encode_to_numpy(
            nfc_bytes(text) if self._must_normalize(text) else text, self._as_text
        )
        assert not isinstance(found, int), "no token is forbidden in plain text"
        return found

    def stable_prefix(
        self, text: str, *, allowed_special: SpecialSet, disallowed_special: SpecialSet
    ) -> tuple[str, str]:
        first, second = super().stable_prefix(
            text, allowed_special=allowed_special, disallowed_special=disallowed_special
        )
        if not self._must_normalize(text):
            return first, second
        actions = self._specials.actions(allowed_special, disallowed_special)
        specials = self._specials.splitter.find(first.encode("utf-8"), actions)
        after_special = len(first.encode("utf-8")[: specials[-1][1]].decode()) if specials else 0
        cut = nfc_cut(first, second, after_special)
        return first[:cut], first[cut:] + second

    # ---- decoding, content ----

    def token_bytes(self, token_id: int) -> bytes:
        if 0 <= token_id < len(self.tokens):
            token = self.tokens[token_id]
            if token is not None:
                return token
        if token_id in self._specials.ids:
            return self._specials.encoded[self._specials.ids.index(token_id)]
        self._refuse_id(token_id)
        raise AssertionError("unreachable")

    def all_token_bytes(self) -> list[bytes]:
        table = [token or b"" for token in self.tokens]
        table += [b""] * (self.vocab_size - len(table))
        for token_id, name in zip(self._specials.ids, self._specials.encoded, strict=True):
            table[token_id] = name
        return table

    def content(self) -> dict[str, Any]:
        return {
            "pattern": self.pattern,
            "normalizer": self.normalizer,
            "ignore_merges": self.ignore_merges,
            "special_tokens": self._specials.special,
            "added_tokens": self._specials.added,
            "tokens": [None if t is None else bytes_to_readable(t) for t in self.tokens],
            "merges": [list(pair) for pair in self.merges],
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> "BPETokenizer":
        return cls(
            [None if t is None else readable_to_bytes(t) for t in content["tokens"]],
            [(a, b) for a, b in content["merges"]],
            pattern=content["pattern"],
            special_tokens=content["special_tokens"],
            added_tokens=content["added_tokens"],
            ignore_merges=content["ignore_merges"],
            normalizer=content["normalizer"],
        )


def _check_ids(tokens: Sequence[bytes | None], specials: Mapping[str, int]) -> None:
    """Every byte is a token, no token twice, and special tokens have ids of their own."""
    if len(tokens) >= _text.MAX_TOKENS:
        raise DataError(f"{len(tokens)} tokens; fewer than {_text.MAX_TOKENS} are possible")
    id_of: dict[bytes, int] = {}
    for token_id, token in enumerate(tokens):
        if token is None:
            continue
        if not token:
            raise DataError(f"token {token_id} is empty; a token has at least one byte")
        if id_of.setdefault(token, token_id) != token_id:
            raise DataError(f"tokens {id_of[token]} and {token_id} are both {token!r}; keep one")
    missing = [b for b in range(256) if bytes([b]) not in id_of]
    if missing:
        names = ", ".join(f"0x{b:02X}" for b in missing[:4])
        raise DataError(
            f"{len(missing)} of the 256 single bytes are no tokens ({names}, ...): not every text "
            "could be encoded; train with the full byte alphabet"
        )
    owner: dict[int, str] = {}
    for name, token_id in specials.items():
        if not 0 <= token_id < _text.MAX_TOKENS:
            raise DataError(
                f"special token {name!r} has id {token_id}, not in 0..{_text.MAX_TOKENS - 1}"
            )
        if token_id < len(tokens) and tokens[token_id] is not None:
            raise DataError(
                f"id {token_id} is used twice: by the special token {name!r} "
                f"and by the token {tokens[token_id]!r}"
            )
        if owner.setdefault(token_id, name) != name:
            raise DataError(f"id {token_id} is used twice: by {owner[token_id]!r} and {name!r}")


def _merge_table(
    tokens: Sequence[bytes | None], merges: Sequence[tuple[int, int]]
) -> "NDArray[np.uint32]":
    """(left, right, result) ids of each merge, flat; checks that each of them is a token."""
    import numpy as np

    if len(merges) > _text.MAX_MERGES:
        raise DataError(f"{len(merges)} merges; at most {_text.MAX_MERGES} are possible")
    id_of = {token: i for i, token in enumerate(tokens) if token is not None}
    flat: list[int] = []
    seen: set[tuple[int, int]] = set()
    for rank, pair in enumerate(merges):
        parts = [tokens[i] if 0 <= i < len(tokens) else None for i in pair]
        left, right = parts
        if left is None or right is None:
            raise DataError(f"merge {rank} joins ids {pair[0]} and {pair[1]}, not both tokens")
        result = id_of.get(left + right)
        if result is None:
            raise DataError(f"merge {rank} makes {left + right!r}, which is not a token")
        if pair in seen:
            raise DataError(f"merge {rank} ({left!r} + {right!r}) is given twice; keep one")
        seen.add(pair)
        flat += (pair[0], pair[1], result)
    return np.array(flat, np.uint32)
