"""SentencePiece-style BPE (Kudo and Richardson 2018, arXiv:1808.06226): Llama 2, Mistral, Gemma.

    tokenizer = sentencepiece.load("tokenizer.model")

Text is changed by rules (sentencepiece_text.py), cut at user-defined symbols, and the characters of
what is left are joined to pieces, by score or by a list of merges (sentencepiece_vocabulary.py).
The work is done by the native byte-pair encoder (sentencepiece_native.py). The ids are those of the
`sentencepiece` package, or of Hugging Face's for its files, with what belongs to this library:
control symbols count as special tokens where they are allowed, each stretch between them is a text
of its own, and they are spelt out when decoded.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmworks import _text
from lmworks.base.errors import DataError
from lmworks.base.storage import write_bytes
from lmworks.tokenizer import sentencepiece_model
from lmworks.tokenizer.base import Tokenizer, to_bytes
from lmworks.tokenizer.bpe import MAX_CACHE_SLOTS
from lmworks.tokenizer.sentencepiece_decode import PieceDecoder, PieceStreamDecoder
from lmworks.tokenizer.sentencepiece_native import tables
from lmworks.tokenizer.sentencepiece_text import SPACE, TextRules, escaped_text, replace_escaped
from lmworks.tokenizer.sentencepiece_vocabulary import PieceType, Vocabulary, byte_of
from lmworks.tokenizer.special import SpecialSet, TokenFlags
from lmworks.tokenizer.stream import BLOCK_CHARS, StreamDecoder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lmworks.tokenizer.base import Ids

DEFAULT_UNKNOWN_TEXT = " \u2047 "


class SentencePieceTokenizer(Tokenizer):
    """A vocabulary of character-level BPE pieces that encodes and decodes."""

    kind = "sentencepiece"

    def __init__(
        self,
        vocabulary: Vocabulary,
        rules: TextRules,
        *,
        special_tokens: Mapping[str, int],
        added_tokens: Mapping[str, int] | None = None,
        token_flags: Mapping[str, TokenFlags] | None = None,
        unknown_text: str = DEFAULT_UNKNOWN_TEXT,
        split_words: bool = False,
    ) -> None:
        """Load a vocabulary.

        Args:
            vocabulary: pieces and the rule that joins them.
            rules: what happens to text before.
            special_tokens: text -> id, usually the control symbols and the unknown token.
            added_tokens: like special tokens, but found in every text, allowed or not.
            token_flags: how special and added tokens are found, of those that have flags.
            unknown_text: what the unknown id decodes to.
            split_words: no piece reaches across a space (Hugging Face's Metaspace with split).

        Raises:
            DataError: something does not fit together; says what.
        """
        super().__init__(special_tokens, added_tokens, token_flags)
        for name, token_id in zip(self._specials.names, self._specials.ids, strict=True):
            if not 0 <= token_id < _text.MAX_TOKENS:
                raise DataError(
                    f"token {name!r} has id {token_id}, not in 0..{_text.MAX_TOKENS - 1}"
                )
        symbols = vocabulary.user_defined
        if split_words and symbols:
            raise DataError("split_words does not go with user-defined symbols")
        self.vocabulary = vocabulary
        self.rules = rules
        self.unk_id = vocabulary.unknown_id
        self.unknown_text = unknown_text
        self.split_words = split_words
        self._find_symbols = b"\x01" * len(symbols)
        self._encoder = _text.BpeEncoder(
            pattern="none",
            ignore_merges=False,
            **tables(vocabulary)._asdict(),
            specials=_text.SpecialSplitter(
                [symbol.encode("utf-8") for symbol in symbols], bytes(len(symbols))
            ),
            special_ids=[vocabulary.id_of[symbol] for symbol in symbols],
            max_cache_slots=MAX_CACHE_SLOTS,
        )

    @property
    def vocab_size(self) -> int:
        return max([len(self.vocabulary.pieces), *(i + 1 for i in self._specials.ids)])

    @property
    def token_flags(self) -> dict[str, TokenFlags]:
        """How special and added tokens are found, of those that have flags."""
        return dict(self._specials.flags)

    # ---- encoding ----

    def _encode(self, text: bytes, actions: bytes) -> "Ids":
        return self._encode_part(text, actions, is_start=True, has_prefix=True)

    def _encode_plain(self, text: bytes) -> "Ids":
        return self._encode_normalized([self.rules.apply_bytes(text)], 1)[0]

    def _encode_part(
        self, text: bytes, actions: bytes, *, is_start: bool, has_prefix: bool
    ) -> "Ids":
        """`_encode` of a part of a text; see TextRules.apply for the two flags."""
        import numpy as np

        parts: list[Ids] = [np.empty(0, np.uint32)]
        for segment in self._specials.split(text, actions):
            if segment.token_id is None:
                normalized = self.rules.apply_bytes(
                    segment.text, is_start=is_start, has_prefix=has_prefix
                )
                parts.append(self._encode_normalized([normalized], 1)[0])
            else:
                parts.append(np.array([segment.token_id], np.uint32))
            is_start, has_prefix = False, True
        return np.concatenate(parts)

    def _encode_many(
        self, texts: list[str | bytes], actions: bytes, num_threads: int
    ) -> "tuple[Ids, NDArray[np.uint64]]":
        plain = [text for text in map(to_bytes, texts) if self._is_plain(text, actions)]
        if len(plain) < len(texts):
            return super()._encode_many(texts, actions, num_threads)
        return self._encode_normalized([self.rules.apply_bytes(t) for t in plain], num_threads)

    def _is_plain(self, text: bytes, actions: bytes) -> bool:
        return not self._specials.names or self._specials.splitter.find(text, actions) == []

    def _encode_normalized(
        self, texts: list[bytes], num_threads: int
    ) -> "tuple[Ids, NDArray[np.uint64]]":
        """Ids of texts without special tokens to which the rules were applied; their starts."""
        import numpy as np

        if self.split_words:
            parts = [self._encoder.encode_pieces(text, _word_ends(text)) for text in texts]
            starts = np.cumsum([0, *map(len, parts)], dtype=np.uint64)
            return self._fused(np.concatenate([np.empty(0, np.uint32), *parts]), starts)
        if len(texts) == 1:
            ids = self._encoder.encode_to_numpy(texts[0], self._find_symbols)
            assert not isinstance(ids, int), "no symbol is forbidden"
            return self._fused(ids, np.array([0, len(ids)], np.uint64))
        found = self._encoder.encode_batch(texts, self._find_symbols, num_threads, to_bytes)
        assert not isinstance(found, int), "no symbol is forbidden"
        return self._fused(*found)

    def _fused(self, ids: "Ids", starts: "NDArray[np.uint64]") -> "tuple[Ids, NDArray[np.uint64]]":
        """Without the unknown ids that follow another one in the same text."""
        import numpy as np

        if not self._fuses:
            return ids, starts
        is_unknown = ids == self.unk_id
        is_kept = np.ones(len(ids), np.bool_)
        is_kept[1:] = ~(is_unknown[1:] & is_unknown[:-1])
        is_kept[starts[starts < len(ids)]] = True
        kept_before = np.concatenate([[0], np.cumsum(is_kept, dtype=np.uint64)])
        return ids[is_kept], kept_before[starts].astype(np.uint64)

    @property
    def _fuses(self) -> bool:
        """Whether neighbouring unknown characters become one id."""
        vocabulary = self.vocabulary
        return not vocabulary.byte_ids and self.unk_id is not None and vocabulary.fuse_unknown

    # ---- offsets ----

    def _encode_spans(self, text: bytes, actions: bytes) -> "tuple[Ids, NDArray[np.int64]]":
        import numpy as np

        from lmworks.tokenizer.sentencepiece_offsets import plain_spans

        ids: list[Ids] = [np.empty(0, np.uint32)]
        spans: list[NDArray[np.int64]] = [np.empty((0, 2), np.int64)]
        for segment in self._specials.split(text, actions):
            begin = segment.begin
            if segment.token_id is None:
                normalized, places = self.rules.apply_aligned(
                    escaped_text(segment.text), is_start=begin == 0
                )
                ids.append(self._encode_normalized([normalized.encode("utf-8")], 1)[0])
                plain = plain_spans(self.vocabulary, ids[-1], normalized, places, segment.text)
                spans.append(begin + plain)
            else:
                ids.append(np.array([segment.token_id], np.uint32))
                spans.append(np.array([[begin, segment.end]], np.int64))
        return np.concatenate(ids), np.concatenate(spans)

    # ---- streams ----

    @cached_property
    def _pairs(self) -> frozenset[str]:
        """Every two characters that stand side by side in some piece."""
        pieces = self.vocabulary.id_of
        return frozenset(p[i : i + 2] for p in pieces if len(p) > 1 for i in range(len(p) - 1))

    def _last_cut(self, text: str, *, alone: bool) -> int:
        """The last place in `text` that no piece reaches across; 0 when there is none.

        `alone`: what follows the cut will be encoded as a text of its own, perhaps with a space in
        front.
        """
        if self.split_words or not self.rules.keeps_places:
            return 0
        needs_space = alone and self.rules.prefix != "none"
        if needs_space and self.rules.prefix == "always":
            return 0
        escaped = text.replace(" ", self.rules.space)
        known = self.vocabulary.id_of if self._fuses else None
        for at in range(len(text) - 1, 0, -1):
            if needs_space and escaped[at] != SPACE:
                continue
            if known is not None and escaped[at - 1] not in known and escaped[at] not in known:
                continue
            if escaped[at - 1 : at + 1] not in self._pairs:
                return at
        return 0

    def _ready_part(self, text: str, actions: bytes, *, alone: bool) -> tuple[str, str, bool]:
        """`text` in two, so that what follows cannot change the ids of the first part.

        Also whether the second begins a stretch between special tokens.
        """
        num_held = 1 if text and "\ud800" <= text[-1] <= "\udbff" else 0
        data = to_bytes(text[: len(text) - num_held])
        end = self._specials.splitter.cut(data, actions, None)
        found = self._specials.splitter.find(data[:end], actions)
        begin = found[-1][1] if isinstance(found, list) and found else 0
        if not isinstance(found, list):
            cut = end - begin  # a forbidden token: encoding says so
        else:
            after = data[begin:end].decode("utf-8")
            cut = len(after[: self._last_cut(after, alone=alone)].encode("utf-8"))
        if alone and not cut and self.rules.prefix != "none" and self.rules.prefix_at == "start":
            begin = 0
        at = begin + cut
        rest = data[at:].decode("utf-8") + text[len(text) - num_held :]
        return data[:at].decode("utf-8"), rest, not cut

    def stable_prefix(
        self, text: str, *, allowed_special: SpecialSet, disallowed_special: SpecialSet
    ) -> tuple[str, str]:
        """As for all kinds; with a dummy space in front, cuts are behind special tokens only."""
        actions = self._specials.actions(allowed_special, disallowed_special)
        first, second, _ = self._ready_part(text, actions, alone=True)
        return first, second

    def encode_iterable(
        self,
        texts: Iterable[str],
        *,
        allowed_special: SpecialSet = (),
        disallowed_special: SpecialSet = "all",
    ) -> Iterator[int]:
        actions = self._specials.actions(allowed_special, disallowed_special)
        held: list[str] = []
        num_held, wanted = 0, BLOCK_CHARS
        is_start = has_prefix = True
        for text in texts:
            held.append(text)
            num_held += len(text)
            if num_held < wanted:
                continue
            ready, rest, is_new = self._ready_part("".join(held), actions, alone=False)
            held, num_held = [rest], len(rest)
            # Growing with what is held, so that one endless piece costs linear time in all.
            wanted = max(BLOCK_CHARS, 2 * len(rest))
            if ready:
                ids = self._encode_part(
                    to_bytes(ready), actions, is_start=is_start, has_prefix=has_prefix
                )
                is_start, has_prefix = False, is_new
                yield from ids.tolist()
        last = to_bytes("".join(held))
        ids = self._encode_part(last, actions, is_start=is_start, has_prefix=has_prefix)
        yield from ids.tolist()

    # ---- decoding ----

    def decode(self, ids: Iterable[int], *, errors: str = "replace") -> str:
        """The text of `ids`; by default each bad byte becomes U+FFFD, as in SentencePiece."""
        data = self.decode_bytes(ids)
        return (
            replace_escaped(escaped_text(data))
            if errors == "replace"
            else data.decode("utf-8", errors=errors)
        )

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids` in a row, without the dummy space; DataError for what is no id."""
        import numpy as np

        ids = ids if hasattr(ids, "__len__") else list(ids)
        whole = super().decode_bytes(ids)
        decoder = self._piece_decoder()
        if not decoder.strips or not whole:
            return whole
        array = np.asarray(ids)
        parts: list[bytes] = []
        done = at = 0  # bytes of `whole`
        stretches = [0, *(np.flatnonzero(np.isin(array, list(self._stretch_ids))) + 1).tolist()]
        places = np.concatenate([[0], np.cumsum(self._token_lengths()[array])])
        for begin in stretches:
            i = begin
            if not begin:
                decoder.restart()
            while i < len(array) and decoder.is_begin and array[i] not in self._stretch_ids:
                at = int(places[i])
                dropped = int(places[i + 1]) - at - len(decoder.feed(int(array[i])))
                parts.append(whole[done:at])
                done = at + dropped
                i += 1
            if i < len(array) and array[i] in self._stretch_ids:
                decoder.feed(int(array[i]))
        parts.append(whole[done:])
        return b"".join(parts)

    def _piece_decoder(self) -> PieceDecoder:
        return PieceDecoder(self.vocabulary, self.rules, self._stretch_ids, self.token_bytes)

    def stream_decoder(self) -> StreamDecoder:
        return PieceStreamDecoder(self, self._piece_decoder())

    @cached_property
    def _stretch_ids(self) -> frozenset[int]:
        """The tokens between which texts stand."""
        return frozenset(self._specials.ids) - {self.unk_id}

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a piece, with its spaces, or of a special token's name."""
        vocabulary = self.vocabulary
        if token_id == self.unk_id:
            return self.unknown_text.encode("utf-8")
        if token_id in self._stretch_ids:
            return self._specials.encoded[self._specials.ids.index(token_id)]
        piece = vocabulary.pieces[token_id] if 0 <= token_id < len(vocabulary.pieces) else None
        if piece is None:
            self._refuse_id(token_id)
            raise AssertionError("unreachable")
        if vocabulary.types[token_id] == PieceType.BYTE:
            return bytes([byte_of(piece)])
        return piece.replace(SPACE, " ").encode("utf-8")

    # ---- files and identity ----

    def content(self) -> dict[str, Any]:
        vocabulary = self.vocabulary
        content = {
            "text_rules": self.rules.to_json(),
            "split_words": self.split_words,
            "fuse_unknown": vocabulary.fuse_unknown,
            "unknown_text": self.unknown_text,
            "special_tokens": self._specials.special,
            "added_tokens": self._specials.added,
            "types": "".join(_TYPE_LETTERS[kind] for kind in vocabulary.types),
            "pieces": list(vocabulary.pieces),
            "scores": None if vocabulary.scores is None else list(vocabulary.scores),
            "merges": None if vocabulary.merges is None else [list(p) for p in vocabulary.merges],
        }
        if self.token_flags:
            content["token_flags"] = {name: f.names() for name, f in self.token_flags.items()}
        return content

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> "SentencePieceTokenizer":
        scores, merges = content["scores"], content["merges"]
        try:
            types = tuple(_TYPES[letter] for letter in content["types"])
        except KeyError as err:
            raise DataError(
                f"types holds {err.args[0]!r}, which is not one of {', '.join(_TYPES)}"
            ) from None
        vocabulary = Vocabulary(
            pieces=tuple(content["pieces"]),
            types=types,
            scores=None if scores is None else tuple(map(float, scores)),
            merges=None if merges is None else tuple((a, b) for a, b in merges),
            fuse_unknown=content["fuse_unknown"],
        )
        return cls(
            vocabulary,
            TextRules.from_json(content["text_rules"], vocabulary.user_defined),
            special_tokens=content["special_tokens"],
            added_tokens=content["added_tokens"],
            token_flags={
                name: TokenFlags.from_names(names)
                for name, names in content.get("token_flags", {}).items()
            },
            unknown_text=content["unknown_text"],
            split_words=content["split_words"],
        )


def from_model(data: bytes) -> SentencePieceTokenizer:
    """The tokenizer in the bytes of a SentencePiece .model file; DataError says what is wrong."""
    model = sentencepiece_model.parse(data)
    return SentencePieceTokenizer(
        model.vocabulary,
        model.rules,
        special_tokens=model.special_tokens,
        unknown_text=model.unknown_text,
    )


def to_model(tokenizer: SentencePieceTokenizer) -> bytes:
    """A .model file that the `sentencepiece` package loads to the same ids."""
    if tokenizer.split_words or tokenizer.added_tokens:
        raise DataError(
            "this vocabulary has no .model form: it has added tokens or splits words; "
            "write it as 'lmworks' or 'hf'"
        )
    return sentencepiece_model.serialize(
        sentencepiece_model.Model(
            tokenizer.vocabulary,
            tokenizer.rules,
            tokenizer.special_tokens,
            tokenizer.unknown_text,
        )
    )


def from_huggingface(value: Mapping[str, Any]) -> SentencePieceTokenizer:
    """The tokenizer in a parsed tokenizer.json; see sentencepiece_huggingface.py."""
    from lmworks.tokenizer import sentencepiece_huggingface

    return sentencepiece_huggingface.from_huggingface(value)


def load(path: str | Path) -> SentencePieceTokenizer:
    """The tokenizer in a SentencePiece .model file of type BPE."""
    path = Path(path)
    try:
        return from_model(path.read_bytes())
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror})") from None
    except DataError as err:
        raise DataError(f"{path}: {err}") from None


def save(tokenizer: SentencePieceTokenizer, path: str | Path) -> None:
    """Write a .model file, atomically."""
    write_bytes(path, to_model(tokenizer))


def _word_ends(text: bytes) -> "NDArray[np.uint64]":
    """Ends of the words of `text`: each begins with U+2581, or where the text does."""
    import numpy as np

    a, b, c = SPACE.encode("utf-8")
    data = np.frombuffer(text, np.uint8)
    if not len(data):
        return np.empty(0, np.uint64)
    begins = np.flatnonzero((data[:-2] == a) & (data[1:-1] == b) & (data[2:] == c))
    return np.append(begins[begins > 0], len(data)).astype(np.uint64)


_TYPE_LETTERS: Final = {
    PieceType.NORMAL: "n",
    PieceType.UNKNOWN: "?",
    PieceType.CONTROL: "c",
    PieceType.USER_DEFINED: "u",
    PieceType.UNUSED: "x",
    PieceType.BYTE: "b",
}
_TYPES: Final = {letter: kind for kind, letter in _TYPE_LETTERS.items()}
