"""What every tokenizer can do. The four kinds (bpe, char, byte, word) differ in three methods.

A kind gives `_encode_plain` (ids of text without special tokens), `token_bytes` and `content`
(its data as JSON values); special tokens, numpy arrays, batches, streams, decoding, files,
pickling and the fingerprint follow from these. Token ids are 0 .. vocab_size - 1.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lmworks import _text
from lmworks.base.errors import DataError
from lmworks.base.storage import write_text
from lmworks.tokenizer.special import SpecialSet, SpecialTokens
from lmworks.tokenizer.stream import StreamDecoder, encode_stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ids = NDArray[np.uint32]

FORMAT = "lmworks-tokenizer"
VERSION = 1
END_OF_TEXT = "<|endoftext|>"


class Tokenizer(ABC):
    """Text to token ids and back."""

    kind: ClassVar[str]
    unk_id: int | None = None
    """Id for what is not in the vocabulary; None when everything is."""
    pattern: str | None = None
    """Pre-tokenizer pattern whose pieces no token spans; None when there is no such thing."""

    def __init__(
        self, special_tokens: Mapping[str, int], added_tokens: Mapping[str, int] | None = None
    ) -> None:
        self._specials = SpecialTokens(special_tokens, added_tokens)
        self._fingerprint: str | None = None
        self._token_table: tuple[bytes, NDArray[np.uint64]] | None = None

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
        """Everything that defines this tokenizer, as JSON values."""

    @classmethod
    @abstractmethod
    def from_content(cls, content: Mapping[str, Any]) -> "Tokenizer":
        """The tokenizer that `content` describes; DataError when it is not right."""

    @abstractmethod
    def _encode_plain(self, text: bytes) -> "Ids":
        """Ids of text in which no special token counts."""

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

    # ---- encoding ----

    def encode(
        self,
        text: str | bytes,
        *,
        allowed_special: SpecialSet = (),
        disallowed_special: SpecialSet = "all",
    ) -> list[int]:
        """Token ids of `text`; see lmworks.tokenizer.special for the two sets."""
        ids: list[int] = self.encode_to_numpy(
            text, allowed_special=allowed_special, disallowed_special=disallowed_special
        ).tolist()
        return ids

    def encode_to_numpy(
        self,
        text: str | bytes,
        *,
        allowed_special: SpecialSet = (),
        disallowed_special: SpecialSet = "all",
    ) -> "Ids":
        """Token ids of `text` as a uint32 array: no Python object per token."""
        import numpy as np

        actions = self._specials.actions(allowed_special, disallowed_special)
        parts: list[Ids] = [np.empty(0, np.uint32)]
        for segment in self._specials.split(to_bytes(text), actions):
            if segment.token_id is None:
                parts.append(self._encode_plain(segment.text))
            else:
                parts.append(np.array([segment.token_id], np.uint32))
        return np.concatenate(parts)

    def encode_batch(
        self,
        texts: Sequence[str | bytes],
        *,
        num_threads: int | None = None,
        allowed_special: SpecialSet = (),
        disallowed_special: SpecialSet = "all",
    ) -> list[list[int]]:
        """`encode` of each text. BPE uses `num_threads` threads (default: the usable cores)."""
        return [
            self.encode(
                text, allowed_special=allowed_special, disallowed_special=disallowed_special
            )
            for text in texts
        ]

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

        if self._token_table is None:
            self._token_table = pack_tokens(self.all_token_bytes())
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
            return _text.decode_bytes(*self._token_table, array)
        except IndexError as err:
            self._refuse_id(int(array[int(str(err))]))
            raise

    def stream_decoder(self) -> StreamDecoder:
        """Decodes a sequence token by token."""
        return StreamDecoder(self)

    def all_token_bytes(self) -> list[bytes]:
        """Bytes of every id; empty for an id that is no token."""
        return [self.token_bytes(i) for i in range(self.vocab_size)]

    def _refuse_id(self, token_id: int) -> None:
        if 0 <= token_id < self.vocab_size:
            raise DataError(f"token id {token_id} is unused in this vocabulary")
        raise DataError(f"token id {token_id} is not in 0..{self.vocab_size - 1}")

    # ---- files and identity ----

    def save(self, path: str | Path) -> None:
        """Write this tokenizer as our own JSON, atomically. `lmworks.tokenizer.load` reads it."""
        head = {"format": FORMAT, "version": VERSION, "kind": self.kind}
        write_text(path, _readable_json({**head, **self.content()}))

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over everything that defines the ids: equal means interchangeable."""
        if self._fingerprint is None:
            canonical = {"kind": self.kind, "version": VERSION, **self.content()}
            text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
            self._fingerprint = hashlib.sha256(text.encode("utf-8")).hexdigest()
        return self._fingerprint

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_content, (self.content(),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocab_size={self.vocab_size})"


def to_bytes(text: str | bytes) -> bytes:
    """UTF-8 of `text`; a surrogate without its other half becomes U+FFFD, as in tiktoken."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")


def to_text(text: bytes) -> str:
    """The text that `text` encodes, with U+FFFD for what is not UTF-8."""
    return text.decode("utf-8", "replace")


def pack_tokens(tokens: Iterable[bytes]) -> "tuple[bytes, NDArray[np.uint64]]":
    """All tokens in a row and the place of each, one more place than tokens (native format)."""
    import numpy as np

    tokens = list(tokens)
    offsets = np.zeros(len(tokens) + 1, np.uint64)
    np.cumsum([len(t) for t in tokens], out=offsets[1:])
    return b"".join(tokens), offsets


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
