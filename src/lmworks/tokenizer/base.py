"""What every tokenizer can do. The four kinds (bpe, char, byte, word) differ in three methods.

A kind gives `_encode_plain` (ids of text without special tokens), `token_bytes` and `content`
(its data as JSON values); special tokens, numpy arrays, batches, streams, decoding, files,
pickling and the fingerprint follow from these. Token ids are 0 .. vocab_size - 1.
"""

import hashlib
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lmworks import _text
from lmworks.base.errors import ConfigError, DataError
from lmworks.base.machine import num_usable_cores
from lmworks.base.storage import write_text
from lmworks.tokenizer.special import SpecialSet, SpecialTokens, TokenFlags
from lmworks.tokenizer.stream import StreamDecoder, check_is_several, encode_each, encode_stream
from lmworks.tokenizer.template import Template
from lmworks.tokenizer.token_table import pack_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lmworks.tokenizer.growing import GrowingText
    from lmworks.tokenizer.normalize import Normalizer
    from lmworks.tokenizer.offsets import Encoding
    from lmworks.tokenizer.prepare import Padding, Prepared, Truncation

    Ids = NDArray[np.uint32]
    """uint32, or uint16 where a `dtype` argument asked for it."""

IdType = Literal["uint32", "uint16"]
Unit = Literal["char", "byte"]

FORMAT = "lmworks-tokenizer"
VERSION = 1
END_OF_TEXT = "<|endoftext|>"
MAX_UINT16_VOCAB = 1 << 16


class Tokenizer(ABC):
    """Text to token ids and back."""

    kind: ClassVar[str]
    unk_id: int | None = None
    """Id for what is not in the vocabulary; None when everything is."""
    pattern: str | None = None
    """Pre-tokenizer pattern whose pieces no token spans; None when there is no such thing."""

    def __init__(
        self,
        special_tokens: Mapping[str, int],
        added_tokens: Mapping[str, int] | None = None,
        token_flags: Mapping[str, TokenFlags] | None = None,
        normalizer: "Normalizer | None" = None,
    ) -> None:
        self._specials = SpecialTokens(special_tokens, added_tokens, token_flags, normalizer)
        self._fingerprint: str | None = None
        self._token_table: tuple[bytes, NDArray[np.uint64]] | None = None
        self._lengths: NDArray[np.int64] | None = None
        self._template: Template | None = None

    # ---- what a kind provides ----

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids: the largest id plus one."""

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; DataError when there is no such token."""

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Everything that defines the ids, as JSON values."""

    @classmethod
    @abstractmethod
    def from_content(cls, content: Mapping[str, Any]) -> "Tokenizer":
        """The tokenizer that `content` describes; DataError when it is not right."""

    @abstractmethod
    def _encode_plain(self, text: bytes) -> "Ids":
        """Ids of text in which no special token counts."""

    def _encode_plain_spans(self, text: bytes) -> "tuple[Ids, NDArray[np.int64]]":
        """`_encode_plain`, and the bytes (begin, end) of `text` that each id stands for.

        This default is for kinds whose tokens stand for exactly their own bytes.
        """
        from lmworks.tokenizer.offsets import spans_of_lengths

        ids = self._encode_plain(text)
        return ids, spans_of_lengths(self._token_lengths()[ids])

    # ---- special tokens ----

    @property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens and their ids."""
        return dict(self._specials.special)

    @property
    def added_tokens(self) -> dict[str, int]:
        """Tokens that count in every text, allowed or not (from Hugging Face files)."""
        return dict(self._specials.added)

    @property
    def eot_id(self) -> int | None:
        """Id of `<|endoftext|>`, which separates documents; None when there is none."""
        return self._specials.special.get(END_OF_TEXT)

    @property
    def template(self) -> Template | None:
        """The special tokens that `prepare` puts around texts; None: nothing. May be set.

        Raises:
            DataError: when set to one with a token id that is not in the vocabulary.
        """
        return self._template

    @template.setter
    def template(self, template: Template | None) -> None:
        for token_id in sorted(template.token_ids) if template else ():
            self.token_bytes(token_id)  # refuses what is no token
        self._template = template

    # ---- encoding ----

    def encode(
        self,
        text: str | bytes,
        *,
        allowed_special: SpecialSet = (),
        disallowed_special: SpecialSet = "all",
    ) -> list[int]:
        """Token ids of `text`; see lmworks.tokenizer.special for the two sets."""
        actions = self._specials.actions(allowed_special, disallowed_special)
        return self._encode_list(to_bytes(text), actions)

    def encode_to_numpy(
        self,
        text: str | bytes,
        *,
        dtype: IdType = "uint32",
        allowed_special: SpecialSet = (),
        disallowed_special: SpecialSet = "all",
    ) -> "Ids":
        """Token ids of `text` as an array: no Python object per token.

        Raises:
            ConfigError: `dtype` is not "uint32" or "uint16", or too small for this vocabulary.
        """
        actions = self._specials.actions(allowed_special, disallowed_special)
        return self._as_type(self._encode(to_bytes(text), actions), dtype)

    def encode_batch(
        self,
        texts: Sequence[str | bytes],
        *,
        num_threads: int | None = None,
        allowed_special: SpecialSet = (),
        disallowed_special: SpecialSet = "all",
    ) -> list[list[int]]:
        """`encode` of each text. BPE uses `num_threads` threads (default: the usable cores)."""
        ids, starts = self.encode_batch_to_numpy(
            texts,
            num_threads=num_threads,
            allowed_special=allowed_special,
            disallowed_special=disallowed_special,
        )
        bounds: list[int] = starts.tolist()
        return [self._to_list(ids[a:b]) for a, b in itertools.pairwise(bounds)]

    def encode_batch_to_numpy(
        self,
        texts: Sequence[str | bytes],
        *,
        dtype: IdType = "uint32",
        num_threads: int | None = None,
        allowed_special: SpecialSet = (),
        disallowed_special: SpecialSet = "all",
    ) -> "tuple[Ids, NDArray[np.uint64]]":
        """Ids of all texts in a row, and where each text's begin: one place more than texts.

        BPE shares the texts out to `num_threads` native threads (default: the usable cores) that
        end with the call, so forking afterwards is safe.

        Raises:
            DataError: a forbidden special token, with the number of its text.
        """
        check_is_several(texts)
        if num_threads is None:
            num_threads = num_usable_cores()
        if num_threads < 1:
            raise ConfigError(f"num_threads={num_threads}; use 1 or more")
        actions = self._specials.actions(allowed_special, disallowed_special)
        ids, starts = self._encode_many(list(texts), actions, num_threads)
        return self._as_type(ids, dtype), starts

    def encode_iterable(
        self,
        texts: Iterable[str],
        *,
        allowed_special: SpecialSet = (),
        disallowed_special: SpecialSet = "all",
    ) -> Iterator[int]:
        """Ids of `"".join(texts)`, lazily and in constant memory: chunk borders change nothing."""
        return encode_stream(
            self, texts, allowed_special=allowed_special, disallowed_special=disallowed_special
        )

    def encode_each(
        self,
        texts: Iterable[str | bytes],
        *,
        dtype: IdType = "uint32",
        num_threads: int | None = None,
        allowed_special: SpecialSet = (),
        disallowed_special: SpecialSet = "all",
    ) -> "Iterator[Ids]":
        """One array per text, lazily: reads ahead by about 2 MB of text per thread, no more."""
        return encode_each(
            self,
            texts,
            dtype=dtype,
            num_threads=num_threads,
            allowed_special=allowed_special,
            disallowed_special=disallowed_special,
        )

    def encode_with_offsets(
        self,
        text: str | bytes,
        *,
        unit: Unit = "char",
        allowed_special: SpecialSet = (),
        disallowed_special: SpecialSet = "all",
    ) -> "Encoding":
        """Ids, and the part of `text` that each stands for; see lmworks.tokenizer.offsets."""
        from lmworks.tokenizer.offsets import encode_with_offsets

        actions = self._specials.actions(allowed_special, disallowed_special)
        return encode_with_offsets(self, text, unit, actions)

    def prepare(
        self,
        texts: str | bytes | Sequence[str | bytes],
        pairs: str | bytes | Sequence[str | bytes] | None = None,
        *,
        add_template: bool = True,
        truncation: "Truncation | None" = None,
        padding: "Padding | None" = None,
        with_offsets: bool = False,
        num_threads: int | None = None,
        allowed_special: SpecialSet = (),
        disallowed_special: SpecialSet = "all",
    ) -> "Prepared":
        """Rows for a model: template, truncation, padding and masks; see lmworks.tokenizer.prepare.

        Args:
            texts: one text or several.
            pairs: for each text the one that goes with it.
            add_template: put the special tokens of `template` around the texts.
            truncation: cut rows that are too long; None keeps them whole.
            padding: make rows equally long; None leaves them as they are.
            with_offsets: also where in its text each token stands.
            num_threads: as in `encode_batch`.
            allowed_special: special tokens in the texts, as in `encode`.
            disallowed_special: as in `encode`.

        Raises:
            ConfigError: the arguments contradict each other; says how.
        """
        from lmworks.tokenizer.prepare import prepare

        return prepare(
            self,
            texts,
            pairs,
            template=self._template if add_template else None,
            truncation=truncation,
            padding=padding,
            with_offsets=with_offsets,
            num_threads=num_threads,
            allowed_special=allowed_special,
            disallowed_special=disallowed_special,
        )

    def growing(
        self,
        text: str = "",
        *,
        allowed_special: SpecialSet = (),
        disallowed_special: SpecialSet = "all",
    ) -> "GrowingText":
        """A text that grows or is edited, and its ids; see lmworks.tokenizer.growing."""
        from lmworks.tokenizer.growing import GrowingText

        return GrowingText(
            self, text, allowed_special=allowed_special, disallowed_special=disallowed_special
        )

    def _encode(self, text: bytes, actions: bytes) -> "Ids":
        """Ids of `text` where `actions` says what special tokens do (SpecialTokens.actions)."""
        import numpy as np

        parts: list[Ids] = [np.empty(0, np.uint32)]
        for segment in self._specials.split(text, actions):
            if segment.token_id is None:
                parts.append(self._encode_plain(segment.text))
            else:
                parts.append(np.array([segment.token_id], np.uint32))
        return np.concatenate(parts)

    def _encode_spans(self, text: bytes, actions: bytes) -> "tuple[Ids, NDArray[np.int64]]":
        """`_encode`, and the bytes (begin, end) of `text` that each id stands for."""
        import numpy as np

        ids: list[Ids] = [np.empty(0, np.uint32)]
        spans: list[NDArray[np.int64]] = [np.empty((0, 2), np.int64)]
        at = 0
        for segment in self._specials.split(text, actions):
            end = at + len(segment.text)
            if segment.token_id is None:
                plain_ids, plain_spans = self._encode_plain_spans(segment.text)
                ids.append(plain_ids)
                spans.append(plain_spans + at)
            else:
                ids.append(np.array([segment.token_id], np.uint32))
                spans.append(np.array([[at, end]], np.int64))
            at = end
        return np.concatenate(ids), np.concatenate(spans)

    def _encode_list(self, text: bytes, actions: bytes) -> list[int]:
        return self._to_list(self._encode(text, actions))

    def _encode_many(
        self, texts: list[str | bytes], actions: bytes, num_threads: int
    ) -> "tuple[Ids, NDArray[np.uint64]]":
        """`_encode` of each text, in a row, and where each begins."""
        import numpy as np

        parts: list[Ids] = [np.empty(0, np.uint32)]
        for i, text in enumerate(texts):
            try:
                parts.append(self._encode(to_bytes(text), actions))
            except DataError as err:
                raise DataError(f"text {i}: {err}") from None
        starts = np.cumsum([len(part) for part in parts], dtype=np.uint64)
        return np.concatenate(parts), starts

    def _to_list(self, ids: "Ids") -> list[int]:
        as_list: list[int] = ids.tolist()
        return as_list

    def _as_type(self, ids: "Ids", dtype: IdType) -> "Ids":
        if dtype == "uint32":
            return ids
        if dtype != "uint16":
            raise ConfigError(f"dtype={dtype!r} must be 'uint32' or 'uint16'")
        if self.vocab_size > MAX_UINT16_VOCAB:
            raise ConfigError(
                f"dtype='uint16' holds ids below {MAX_UINT16_VOCAB:,}, this vocabulary has "
                f"{self.vocab_size:,}; use dtype='uint32'"
            )
        return ids.astype(dtype)

    def stable_prefix(
        self, text: str, *, allowed_special: SpecialSet, disallowed_special: SpecialSet
    ) -> tuple[str, str]:
        """Cut `text` in two so that no text after it can change the ids of the first part.

        The ids of `text + more` are then those of the first part and of `second + more`.
        """
        if text and "\ud800" <= text[-1] <= "\udbff":
            # Half of a surrogate pair: the other half may begin the next chunk.
            first, second = self.stable_prefix(
                text[:-1], allowed_special=allowed_special, disallowed_special=disallowed_special
            )
            return first, second + text[-1]
        data = to_bytes(text)
        actions = self._specials.actions(allowed_special, disallowed_special)
        cut = self._specials.splitter.cut(data, actions, self.pattern)
        return data[:cut].decode("utf-8"), data[cut:].decode("utf-8")

    # ---- decoding ----

    def decode(self, ids: Iterable[int], *, errors: str = "replace") -> str:
        """The text of `ids`; `errors` as in bytes.decode, by default bad bytes become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors=errors)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids` in a row; DataError names the first id that is no token."""
        import numpy as np

        try:
            array = np.ascontiguousarray(ids if hasattr(ids, "__len__") else list(ids))
        except (OverflowError, ValueError) as err:
            raise DataError(f"token ids must be integers ({err})") from None
        if array.size == 0:
            return b""
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(
                f"token ids must be a flat sequence of integers, not {array.dtype} "
                f"of shape {array.shape}"
            )
        if array.min() < 0 or array.max() >= self.vocab_size:
            self._refuse_id(int(array[(array < 0) | (array >= self.vocab_size)][0]))
        array = array.astype(np.uint32, copy=False)
        try:
            return _text.decode_bytes(*self._tokens_in_a_row(), array)
        except IndexError as err:
            self._refuse_id(int(array[int(str(err))]))
            raise

    def decode_batch(
        self, sequences: Iterable[Iterable[int]], *, errors: str = "replace"
    ) -> list[str]:
        """`decode` of each sequence of ids."""
        return [self.decode(ids, errors=errors) for ids in sequences]

    def stream_decoder(self) -> StreamDecoder:
        """Decodes a sequence token by token."""
        return StreamDecoder(self)

    def all_token_bytes(self) -> list[bytes]:
        """Bytes of every id; empty for an id that is no token."""
        return [self.token_bytes(i) for i in range(self.vocab_size)]

    def _tokens_in_a_row(self) -> "tuple[bytes, NDArray[np.uint64]]":
        if self._token_table is None:
            self._token_table = pack_tokens(self.all_token_bytes())
        return self._token_table

    def _token_lengths(self) -> "NDArray[np.int64]":
        """Bytes of each id's token."""
        import numpy as np

        if self._lengths is None:
            self._lengths = np.diff(self._tokens_in_a_row()[1]).astype(np.int64)
        return self._lengths

    def _refuse_id(self, token_id: int) -> None:
        if 0 <= token_id < self.vocab_size:
            raise DataError(f"token id {token_id} is unused in this vocabulary")
        raise DataError(f"token id {token_id} is not in 0..{self.vocab_size - 1}")

    # ---- files and identity ----

    def save(self, path: str | Path) -> None:
        """Write this tokenizer as our own JSON, atomically. `lmworks.tokenizer.load` reads it."""
        head = {"format": FORMAT, "version": VERSION, "kind": self.kind}
        tail = {"template": self._template.to_json()} if self._template else {}
        write_text(path, _readable_json({**head, **self.content(), **tail}))

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over everything that defines the ids: equal means interchangeable.

        The template is not in it: the ids of a text do not depend on it.
        """
        if self._fingerprint is None:
            canonical = {"kind": self.kind, "version": VERSION, **self.content()}
            text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
            self._fingerprint = hashlib.sha256(text.encode("utf-8")).hexdigest()
        return self._fingerprint

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Tokenizer)
            and self.fingerprint == other.fingerprint
            and self._template == other._template
        )

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.content(), self._settings())

    def _settings(self) -> dict[str, Any]:
        """Attributes that a pickled copy gets besides the content."""
        return {"template": self._template}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocab_size={self.vocab_size})"


def to_bytes(text: str | bytes) -> bytes:
    """UTF-8 of `text`; a surrogate without its other half becomes U+FFFD, as in tiktoken."""
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise ConfigError(f"a text must be str or bytes, not {type(text).__name__} ({text!r:.40})")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")


def to_text(text: bytes) -> str:
    """The text that `text` encodes, with U+FFFD for what is not UTF-8."""
    return text.decode("utf-8", "replace")


def _restore(
    cls: type[Tokenizer], content: Mapping[str, Any], settings: Mapping[str, Any]
) -> Tokenizer:
    """What unpickling calls."""
    tokenizer = cls.from_content(content)
    for name, value in settings.items():
        setattr(tokenizer, name, value)
    return tokenizer


def _readable_json(content: Mapping[str, Any]) -> str:
    """JSON with one list item per line and nested values kept on their line."""
    lines = []
    for key, value in content.items():
        if isinstance(value, list) and value:
            items = ",\n".join("    " + json.dumps(item, ensure_ascii=False) for item in value)
            text = f"[\n{items}\n  ]"
        else:
            text = json.dumps(value, ensure_ascii=False)
        lines.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
