"""Byte-level BPE (Sennrich et al. 2016, arXiv:1508.07909; on bytes: Radford et al. 2019, GPT-2).

A vocabulary is a list of byte strings (all 256 single bytes among them) and a list of merges, pairs
of token ids in the order in which training found them. Text is cut into pieces by a pre-tokenizer
pattern; inside a piece the earliest merge that applies is made first, at the leftmost place, until
none applies. The work is native: csrc/text/bpe_encode*.cpp. Training is in train.py.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from lmworks import _text
from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer.base import Tokenizer, to_bytes
from lmworks.tokenizer.normalize import Normalizer
from lmworks.tokenizer.preprocess import Preprocessor, Unknown
from lmworks.tokenizer.readable import all_readable_to_bytes, bytes_to_readable
from lmworks.tokenizer.special import SpecialSet, TokenFlags
from lmworks.tokenizer.token_table import TokenTable, pack_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lmworks.tokenizer.base import Ids
    from lmworks.tokenizer.piece_steps import PieceSteps

MAX_CACHE_SLOTS = 1 << 20
"""Default of `max_cache_slots`: at most about 50 MB per encoding thread."""
NO_PATTERN = "none"


class BPETokenizer(Tokenizer):
    """A byte-level BPE vocabulary that encodes and decodes."""

    kind = "bpe"
    pattern: str

    def __init__(
        self,
        tokens: Sequence[bytes | None] | TokenTable,
        merges: "Sequence[tuple[int, int]] | NDArray[np.uint32]",
        *,
        pattern: str,
        special_tokens: Mapping[str, int],
        added_tokens: Mapping[str, int] | None = None,
        ignore_merges: bool = False,
        normalizer: Normalizer | str | None = None,
        token_flags: Mapping[str, TokenFlags] | None = None,
        add_prefix_space: bool = False,
        piece_steps: "PieceSteps | None" = None,
        unknown: Unknown | None = None,
    ) -> None:
        """Check and load a vocabulary.

        Args:
            tokens: bytes by token id; None where an id is unused or a special token's.
            merges: (left id, right id) in rank order; the joined bytes must be a token. An array
                of rows (left id, right id, id of the joined bytes) is not checked again.
            pattern: name of the pre-tokenizer pattern, or any regular expression of the `regex`
                package (pretokenize.py); "none": tokens may be anywhere in the text.
            special_tokens: text -> id, outside of `tokens` or that of the token of these bytes.
            added_tokens: like special tokens, but found in every text, allowed or not.
            ignore_merges: a whole piece that is a token is taken as it is (tiktoken, Llama 3).
            normalizer: steps before all others; "NFC" composes the text (Qwen).
            token_flags: how special and added tokens are found, of those that have flags.
            add_prefix_space: text between special tokens gets a space in front if it has none.
            piece_steps: how text is cut where one pattern does not say it (Falcon); the pattern is
                "none" then.
            unknown: what becomes of bytes that are no tokens; None: all 256 must be tokens.

        Raises:
            DataError: something does not fit together; says what.
        """
        pattern = _checked_pattern(pattern)
        if isinstance(normalizer, str):
            normalizer = Normalizer.from_json(normalizer)
        if piece_steps is not None and (pattern != NO_PATTERN or add_prefix_space):
            raise DataError(
                f"pattern={pattern!r:.60} and add_prefix_space={add_prefix_space} beside "
                f"piece_steps; it would be right with pattern={NO_PATTERN!r} and without the space"
            )
        table = tokens if isinstance(tokens, TokenTable) else TokenTable.of(tokens)
        _check_tokens(table)
        missing = table.missing_bytes()
        _check_missing(missing, unknown, ignore_merges)
        _check_special_ids(table, {**special_tokens, **(added_tokens or {})})
        super().__init__(special_tokens, added_tokens, token_flags, normalizer)
        self.pattern = pattern
        self._table = table
        self._merges = _merge_table(table, merges)
        self.ignore_merges = ignore_merges
        self.normalizer = normalizer
        self.add_prefix_space = add_prefix_space
        self.piece_steps = piece_steps
        self.unknown = unknown
        self._make_encoder = partial(
            _text.BpeEncoder,
            pattern=pattern if pattern in _text.PATTERNS else NO_PATTERN,
            ignore_merges=ignore_merges,
            token_bytes=table.token_bytes,
            token_offsets=table.offsets,
            merges=self._merges.reshape(-1),
            specials=self._specials.splitter,
            special_ids=self._specials.ids,
        )
        self._missing_bytes = missing
        self.max_cache_slots = MAX_CACHE_SLOTS

    @property
    def max_cache_slots(self) -> int:
        """Pieces that each thread's cache has room for, about twice as many as it keeps.

        32 bytes each, and about half as much again for long pieces; the native code rounds up to a
        power of two, at least 64. May be set, which empties the caches; the ids do not depend on
        it.

        Raises:
            ConfigError: when set to less than 1.
        """
        return self._max_cache_slots

    @max_cache_slots.setter
    def max_cache_slots(self, max_cache_slots: int) -> None:
        if max_cache_slots < 1:
            raise ConfigError(f"max_cache_slots={max_cache_slots} must be 1 or more")
        self._max_cache_slots = max_cache_slots
        self._encoder = self._make_encoder(max_cache_slots=max_cache_slots)
        self._steps = Preprocessor(
            self._encoder,
            self._specials,
            pattern=self.pattern,
            normalizer=self.normalizer,
            add_prefix_space=self.add_prefix_space,
            piece_steps=self.piece_steps,
            unknown=self.unknown,
            missing_bytes=self._missing_bytes,
            token_lengths=self._token_lengths,
        )

    def clear_cache(self) -> None:
        """Give the memory of the piece caches back."""
        self.max_cache_slots = self._max_cache_slots

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

    @cached_property
    def tokens(self) -> tuple[bytes | None, ...]:
        """Bytes by token id; None where an id is unused or a special token's."""
        return tuple(self._table)

    @cached_property
    def merges(self) -> tuple[tuple[int, int], ...]:
        """(left id, right id) in rank order."""
        return tuple(zip(*self._merges[:, :2].T.tolist(), strict=True))

    @property
    def vocab_size(self) -> int:
        return max([len(self._table), *(i + 1 for i in self._specials.ids)])

    @property
    def merged_bytes(self) -> list[tuple[bytes, bytes]]:
        """The merges as pairs of byte strings."""
        tokens = self.tokens
        return [(tokens[a] or b"", tokens[b] or b"") for a, b in self.merges]

    # ---- encoding: one native call instead of the generic way ----

    def _encode(self, text: bytes, actions: bytes) -> "Ids":
        if self._steps.is_needed(text):
            return self._steps.encode(text, actions)
        found = self._encoder.encode_to_numpy(text, actions)
        if isinstance(found, int):
            raise self._specials.forbidden(found)
        return found

    def _encode_list(self, text: bytes, actions: bytes) -> list[int]:
        if self._steps.is_needed(text):
            return super()._encode_list(text, actions)
        found = self._encoder.encode_to_list(text, actions)
        if isinstance(found, int):
            raise self._specials.forbidden(found)
        return found

    def _encode_many(
        self, texts: list[str | bytes], actions: bytes, num_threads: int
    ) -> "tuple[Ids, NDArray[np.uint64]]":
        if not self._steps.is_ever_needed:
            return self._encode_direct(texts, actions, num_threads)
        data = [to_bytes(text) for text in texts]
        needed = [self._steps.is_needed(text) for text in data]
        if any(needed):
            return self._encode_some_apart(data, needed, actions, num_threads)
        return self._encode_direct(data, actions, num_threads)

    def _encode_direct(
        self, texts: list[str | bytes] | list[bytes], actions: bytes, num_threads: int
    ) -> "tuple[Ids, NDArray[np.uint64]]":
        found = self._encoder.encode_batch(texts, actions, num_threads, to_bytes)
        if isinstance(found, int):
            raise self._forbidden_in(texts, actions)
        return found

    def _encode_some_apart(
        self, texts: list[bytes], needed: list[bool], actions: bytes, num_threads: int
    ) -> "tuple[Ids, NDArray[np.uint64]]":
        """The texts that need no steps in one native call, the others one by one."""
        import numpy as np

        direct = [text for text, is_needed in zip(texts, needed, strict=True) if not is_needed]
        found = self._encoder.encode_batch(direct, actions, num_threads, to_bytes)
        if isinstance(found, int):
            raise self._forbidden_in(texts, actions)
        arrays = iter(np.split(found[0], found[1][1:-1].astype(np.int64)))
        parts: list[Ids] = [np.empty(0, np.uint32)]
        for i, (text, is_needed) in enumerate(zip(texts, needed, strict=True)):
            try:
                parts.append(self._encode(text, actions) if is_needed else next(arrays))
            except DataError as err:
                raise DataError(f"text {i}: {err}") from None
        starts = np.cumsum([len(part) for part in parts], dtype=np.uint64)
        return np.concatenate(parts), starts

    def _encode_spans(self, text: bytes, actions: bytes) -> "tuple[Ids, NDArray[np.int64]]":
        from lmworks.tokenizer.offsets import spans_of_lengths

        if self._steps.is_needed(text):
            return self._steps.encode_spans(text, actions)
        ids = self._encode(text, actions)
        lengths = self._token_lengths()[ids]
        if lengths.sum() == len(text):
            return ids, spans_of_lengths(lengths)
        # Some special token took in white space beside it.
        return super()._encode_spans(text, actions)

    def _forbidden_in(self, texts: Sequence[str | bytes], actions: bytes) -> DataError:
        for i, text in enumerate(texts):
            try:
                self._specials.split(to_bytes(text), actions)
            except DataError as err:
                return DataError(f"text {i}: {err}")
        raise AssertionError("some text holds a forbidden token")

    def _to_list(self, ids: "Ids") -> list[int]:
        return self._encoder.ids_to_list(ids)

    def _encode_plain(self, text: bytes) -> "Ids":
        return self._steps.encode_plain(text)

    def stable_prefix(
        self, text: str, *, allowed_special: SpecialSet, disallowed_special: SpecialSet
    ) -> tuple[str, str]:
        first, second = super().stable_prefix(
            text, allowed_special=allowed_special, disallowed_special=disallowed_special
        )
        if not self.normalizer and not self.add_prefix_space:
            return first, second
        actions = self._specials.actions(allowed_special, disallowed_special)
        cut = self._steps.stream_cut(first, second, actions)
        return first[:cut], first[cut:] + second

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = {
            "tokens": self._table,
            "merges": self._merges,
            "pattern": self.pattern,
            "special_tokens": self._specials.special,
            "added_tokens": self._specials.added,
            "ignore_merges": self.ignore_merges,
            "normalizer": self.normalizer,
            "token_flags": self._specials.flags,
            "add_prefix_space": self.add_prefix_space,
            "piece_steps": self.piece_steps,
            "unknown": self.unknown,
        }
        return _restore, (arguments, self._settings())

    def _settings(self) -> dict[str, Any]:
        settings = super()._settings()
        if self._max_cache_slots != MAX_CACHE_SLOTS:
            settings["max_cache_slots"] = self._max_cache_slots
        return settings

    # ---- decoding, content ----

    def token_bytes(self, token_id: int) -> bytes:
        if 0 <= token_id < len(self._table):
            token = self._table[token_id]
            if token is not None:
                return token
        if token_id in self._specials.name_of:
            return self._specials.name_of[token_id]
        self._refuse_id(token_id)
        raise AssertionError("unreachable")

    def all_token_bytes(self) -> list[bytes]:
        table = [token or b"" for token in self._table]
        table += [b""] * (self.vocab_size - len(table))
        for token_id, name in self._specials.name_of.items():
            table[token_id] = table[token_id] or name
        return table

    def _tokens_in_a_row(self) -> "tuple[bytes, NDArray[np.uint64]]":
        size = len(self._table)
        name_of = self._specials.name_of
        if self._token_table is None and not any(token_id < size for token_id in name_of):
            import numpy as np

            row, offsets = self._table.token_bytes, self._table.offsets
            names, places = pack_tokens(
                name_of.get(token_id, b"") for token_id in range(size, self.vocab_size)
            )
            self._token_table = row + names, np.concatenate([offsets, offsets[-1] + places[1:]])
        return super()._tokens_in_a_row()

    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "pattern": self.pattern,
            "normalizer": None if self.normalizer is None else self.normalizer.to_json(),
            "ignore_merges": self.ignore_merges,
            "special_tokens": self._specials.special,
            "added_tokens": self._specials.added,
            "tokens": [None if t is None else bytes_to_readable(t) for t in self._table],
            "merges": self._merges[:, :2].tolist(),
        }
        # Keys that are left out at their default, so that fingerprints of old files stay.
        if self._specials.flags:
            content["token_flags"] = {n: f.names() for n, f in self._specials.flags.items()}
        if self.add_prefix_space:
            content["add_prefix_space"] = True
        if self.piece_steps is not None:
            content["piece_steps"] = self.piece_steps.to_json()
        if self.unknown is not None:
            content["unknown"] = self.unknown.to_json()
        return content

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> "BPETokenizer":
        return cls(
            all_readable_to_bytes(content["tokens"]),
            content["merges"],
            pattern=content["pattern"],
            special_tokens=content["special_tokens"],
            added_tokens=content["added_tokens"],
            ignore_merges=content["ignore_merges"],
            normalizer=Normalizer.from_json(content["normalizer"]),
            token_flags={
                name: TokenFlags.from_names(names)
                for name, names in content.get("token_flags", {}).items()
            },
            add_prefix_space=content.get("add_prefix_space", False),
            piece_steps=_piece_steps(content.get("piece_steps")),
            unknown=Unknown.from_json(content["unknown"]) if "unknown" in content else None,
        )


def _restore(arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> BPETokenizer:
    """What unpickling calls: spares the spelling of tokens and the check of merges."""
    tokenizer = BPETokenizer(**arguments)
    for name, value in settings.items():
        setattr(tokenizer, name, value)
    return tokenizer


def _piece_steps(value: Any) -> "PieceSteps | None":
    if value is None:
        return None
    from lmworks.tokenizer.piece_steps import PieceSteps

    return PieceSteps.from_json(value)


def _checked_pattern(pattern: str) -> str:
    """The pattern's own name or expression; DataError when it is neither."""
    if pattern in _text.PATTERNS or pattern == NO_PATTERN:
        return pattern
    from lmworks.tokenizer.pretokenize import check_pattern

    try:
        return check_pattern(pattern)
    except ConfigError as err:
        raise DataError(str(err)) from None


def _check_tokens(table: TokenTable) -> None:
    """There are not too many tokens, and none is there twice."""
    if len(table) >= _text.MAX_TOKENS:
        raise DataError(f"{len(table)} tokens; fewer than {_text.MAX_TOKENS} are possible")
    twice = _text.find_duplicate_tokens(table.token_bytes, table.offsets)
    if twice is not None:
        raise DataError(f"tokens {twice[0]} and {twice[1]} are both {table[twice[0]]!r}; keep one")


def _check_missing(missing: bytes, unknown: Unknown | None, ignore_merges: bool) -> None:
    """Every byte is a token, unless it is said what becomes of the others."""
    if missing and unknown is None:
        names = ", ".join(f"0x{b:02X}" for b in missing[:4])
        raise DataError(
            f"{len(missing)} of the 256 single bytes are no tokens ({names}, ...): not every text "
            "could be encoded; train with the full byte alphabet"
        )
    if missing and ignore_merges:
        raise DataError("ignore_merges is not supported in a vocabulary that lacks some bytes")


def _check_special_ids(tokens: TokenTable, specials: Mapping[str, int]) -> None:
    """Special tokens have ids of their own, or that of the token with the same bytes."""
    ids = specials.values()
    is_behind = not specials or len(tokens) <= min(ids) <= max(ids) < _text.MAX_TOKENS
    if is_behind and len(set(ids)) == len(specials):
        return
    owner: dict[int, str] = {}
    for name, token_id in specials.items():
        if not 0 <= token_id < _text.MAX_TOKENS:
            raise DataError(
                f"special token {name!r} has id {token_id}, not in 0..{_text.MAX_TOKENS - 1}"
            )
        token = tokens[token_id] if token_id < len(tokens) else None
        if token is not None and token != name.encode("utf-8", "surrogatepass"):
            raise DataError(
                f"id {token_id} is used twice: by the special token {name!r} "
                f"and by the token {token!r}"
            )
        if owner.setdefault(token_id, name) != name:
            raise DataError(f"id {token_id} is used twice: by {owner[token_id]!r} and {name!r}")


def _merge_table(
    table: TokenTable, merges: "Sequence[tuple[int, int]] | NDArray[np.uint32]"
) -> "NDArray[np.uint32]":
    """(left, right, result) ids of each merge [M, 3]; checks that each of them is a token."""
    import numpy as np

    if len(merges) > _text.MAX_MERGES:
        raise DataError(f"{len(merges)} merges; at most {_text.MAX_MERGES} are possible")
    if isinstance(merges, np.ndarray):
        if merges.shape[1] == 3:
            return merges
        pairs = np.ascontiguousarray(merges, np.uint32).reshape(-1)
    else:
        try:
            pairs = np.fromiter(chain.from_iterable(merges), np.uint32, 2 * len(merges))
        except (OverflowError, ValueError):
            rank = next(r for r, ids in enumerate(merges) if not all(0 <= i < 1 << 32 for i in ids))
            ids = tuple(merges[rank])
            raise DataError(f"merge {rank} joins ids {ids}, not both tokens") from None
    found = _text.merge_table(table.token_bytes, table.offsets, pairs)
    if not isinstance(found, tuple):
        return found.reshape(-1, 3)
    rank, reason = found
    left_id, right_id = map(int, merges[rank])
    if reason == "no part":
        raise DataError(f"merge {rank} joins ids {left_id} and {right_id}, not both tokens")
    left, right = table[left_id] or b"", table[right_id] or b""
    if reason == "no result":
        raise DataError(f"merge {rank} makes {left + right!r}, which is not a token")
    raise DataError(f"merge {rank} ({left!r} + {right!r}) is given twice; keep one")
