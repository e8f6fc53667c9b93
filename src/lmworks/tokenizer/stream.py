"""Token streams: text that arrives in chunks -> ids, and ids that arrive one by one -> text."""

import codecs
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypedDict, Unpack

from lmworks.base.errors import ConfigError, DataError
from lmworks.base.machine import num_usable_cores

if TYPE_CHECKING:
    from lmworks.tokenizer.base import Ids, IdType, Tokenizer
    from lmworks.tokenizer.special import SpecialSet

BLOCK_CHARS = 1 << 16
# Enough for a batch call's fixed cost (threads start and end) not to show.
READ_AHEAD_CHARS = 1 << 21


class _Specials(TypedDict, total=False):
    allowed_special: "SpecialSet"
    disallowed_special: "SpecialSet"


class StreamDecoder:
    """Text of a growing token sequence. Never emits half a character.

    All texts together equal `tokenizer.decode(ids)`: bytes that can no longer become a character
    turn into U+FFFD at once, and `finish` turns an unfinished character at the end into one.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """The characters that this token completes, often ""."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What is left at the end; the decoder then starts afresh."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


def encode_stream(
    tokenizer: "Tokenizer",
    texts: Iterable[str],
    *,
    allowed_special: "SpecialSet" = (),
    disallowed_special: "SpecialSet" = "all",
    block_chars: int = BLOCK_CHARS,
) -> Iterator[int]:
    """Ids of `"".join(texts)`, holding about `block_chars` characters or twice the longest piece.

    Chunks are gathered to a block; of a block, everything is encoded that no further text can
    change (`Tokenizer.stable_prefix`), and the rest waits for the next one.
    """
    held = ""
    wanted = block_chars
    gathered: list[str] = []
    num_gathered = 0
    for text in texts:
        gathered.append(text)
        num_gathered += len(text)
        if num_gathered < wanted:
            continue
        block = held + "".join(gathered)
        gathered, num_gathered = [], 0
        ready, held = tokenizer.stable_prefix(
            block, allowed_special=allowed_special, disallowed_special=disallowed_special
        )
        # Growing with what is held, so that one endless piece costs linear time in all.
        wanted = max(block_chars, len(held))
        yield from tokenizer.encode(
            ready, allowed_special=allowed_special, disallowed_special=disallowed_special
        )
    yield from tokenizer.encode(
        held + "".join(gathered),
        allowed_special=allowed_special,
        disallowed_special=disallowed_special,
    )


def encode_each(
    tokenizer: "Tokenizer",
    texts: Iterable[str | bytes],
    *,
    dtype: "IdType",
    num_threads: int | None,
    **specials: Unpack[_Specials],
) -> "Iterator[Ids]":
    """An array for each of `texts`, holding about READ_AHEAD_CHARS per thread of them at a time.

    Raises:
        DataError: a forbidden special token, after the arrays of all texts before that one.
    """
    check_is_several(texts)
    num_threads = num_usable_cores() if num_threads is None else num_threads
    num_done = 0
    for block in _blocks(texts, READ_AHEAD_CHARS * num_threads):
        try:
            ids, starts = tokenizer.encode_batch_to_numpy(
                block, dtype=dtype, num_threads=num_threads, **specials
            )
        except DataError:
            for i, text in enumerate(block):
                try:
                    yield tokenizer.encode_to_numpy(text, dtype=dtype, **specials)
                except DataError as err:
                    raise DataError(f"text {num_done + i}: {err}") from None
            raise
        for i in range(len(block)):
            # A copy, so that one text that is kept does not keep its whole block.
            yield ids[int(starts[i]) : int(starts[i + 1])].copy()
        num_done += len(block)


def check_is_several(texts: object) -> None:
    """ConfigError for one text where several are wanted: its characters would count as texts."""
    if isinstance(texts, str | bytes):
        raise ConfigError(
            f"texts is one {type(texts).__name__}, not a sequence of them; "
            "encode() takes one text, or pass [text]"
        )


def _blocks(texts: Iterable[str | bytes], max_chars: int) -> Iterator[list[str | bytes]]:
    block: list[str | bytes] = []
    num_chars = 0
    for text in texts:
        block.append(text)
        num_chars += len(text) + 1  # empty texts take room too
        if num_chars >= max_chars:
            yield block
            block, num_chars = [], 0
    if block:
        yield block
