"""Chunked text to ids, and ids to text one by one."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks import _text
from lmworks.base.errors import DataError
from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte import ByteTokenizer
from lmworks.tokenizer.char import CharTokenizer
from lmworks.tokenizer.pretokenize import PATTERNS
from lmworks.tokenizer.stream import encode_stream
from lmworks.tokenizer.word import WordTokenizer

BYTES = [bytes([i]) for i in range(256)]


def chunked(text: str, cuts: list[int]) -> Iterator[str]:
    """`text` cut at the places `cuts` (taken modulo its length)."""
    places = sorted({0, len(text), *(c % (len(text) + 1) for c in cuts)})
    for begin, end in itertools.pairwise(places):
        yield text[begin:end]


def check_stream(tokenizer: Tokenizer, texts: Any, allowed: Any) -> None:
    @settings(max_examples=200)
    @given(texts, st.lists(st.integers(0, 400), max_size=12), st.integers(1, 40))
    def check(text: str, cuts: list[int], block_chars: int) -> None:
        stream = encode_stream(
            tokenizer,
            chunked(text, cuts),
            allowed_special=allowed,
            disallowed_special=(),
            block_chars=block_chars,
        )
        whole = tokenizer.encode(text, allowed_special=allowed, disallowed_special=())
        assert list(stream) == whole

    check()


@pytest.mark.parametrize("allowed", ["all", ()])
def test_chunk_borders_do_not_change_bpe_ids(bpe: BPETokenizer, texts: Any, allowed: Any) -> None:
    check_stream(bpe, texts, allowed)


@pytest.mark.parametrize("kind", ["byte", "char", "word", "nfc"])
def test_chunk_borders_do_not_change_ids_of_other_kinds(kind: str, texts: Any) -> None:
    specials = ["<|endoftext|>", "<"]
    tokenizers = {
        "byte": ByteTokenizer(specials),
        "char": CharTokenizer("abcdeABC é", specials),
        "word": WordTokenizer([b"hello", b" ", b"\n"], pattern="o200k", special_tokens=specials),
        "nfc": BPETokenizer(
            BYTES, [], pattern="qwen2", special_tokens={"<": 256}, normalizer="NFC"
        ),
    }
    check_stream(tokenizers[kind], texts, "all")


@pytest.mark.parametrize("pattern", PATTERNS)
@given(
    text=st.text(alphabet="Aaあ中゛々〇⺀\u3040\x01\u0301ǅ' \n\r1!/rlLeEſ", max_size=24),
    cut=st.integers(0, 24),
)
def test_what_is_called_stable_is_stable(pattern: str, text: str, cut: int) -> None:
    words = WordTokenizer([b"a"], pattern=pattern)
    head = text[: cut % (len(text) + 1)]
    ready, _ = words.stable_prefix(head, allowed_special=(), disallowed_special=())
    pieces = _text.split(ready.encode(), pattern)
    assert _text.split(text.encode(), pattern)[: len(pieces)] == pieces


@pytest.mark.parametrize("pattern", PATTERNS)
@given(
    text=st.text(alphabet="Aaあ中゛々⺀\u3040\x01\u0301ǅé' \n1!/rlſ👍", max_size=16).map(
        str.encode
    ),
    cut=st.integers(0, 80),
)
def test_pieces_are_stable_where_bytes_are_cut(pattern: str, text: bytes, cut: int) -> None:
    head = text[: cut % (len(text) + 1)]
    ready = head[: _text.SpecialSplitter([], b"").cut(head, b"", pattern)]
    pieces = _text.split(ready, pattern)
    assert _text.split(text, pattern)[: len(pieces)] == pieces


def test_a_surrogate_pair_cut_in_two_is_one_character(gpt2: BPETokenizer) -> None:
    chunks = ["a\ud83d", "\ude00b"]
    assert list(gpt2.encode_iterable(chunks)) == gpt2.encode("a\ud83d\ude00b")


def test_memory_holds_one_block_of_an_endless_text(gpt2: BPETokenizer) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "the lazy dog sleeps 中文。\n" * 100

    ids = gpt2.encode_iterable(endless())
    for _ in range(100_000):
        next(ids)
    assert taken < 200


def test_streamed_text_equals_the_decoded_whole(gpt2: BPETokenizer) -> None:
    @given(st.lists(st.integers(0, gpt2.vocab_size - 1), max_size=60))
    def check(ids: list[int]) -> None:
        decoder = gpt2.stream_decoder()
        parts = [decoder.feed(i) for i in ids]
        assert "".join(parts) + decoder.finish() == gpt2.decode(ids)

    check()


def test_no_half_characters_are_emitted() -> None:
    tokenizer = ByteTokenizer()
    decoder = tokenizer.stream_decoder()
    assert [decoder.feed(b) for b in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]
    assert decoder.finish() == ""


def test_finish_flushes_an_unfinished_character_and_starts_afresh() -> None:
    decoder = ByteTokenizer().stream_decoder()
    assert decoder.feed(0xF0) == ""
    assert decoder.finish() == "\ufffd"
    assert decoder.feed(ord("a")) == "a"


def test_a_byte_that_begins_no_character_is_replaced_at_once() -> None:
    decoder = ByteTokenizer().stream_decoder()
    assert decoder.feed(0xFF) == "\ufffd"
    assert decoder.feed(0xC3) + decoder.feed(ord("a")) == "\ufffda"


def test_an_id_that_is_no_token_is_refused_and_the_stream_goes_on() -> None:
    decoder = ByteTokenizer().stream_decoder()
    assert decoder.feed(0xC3) == ""
    with pytest.raises(DataError, match="token id 999"):
        decoder.feed(999)
    assert decoder.feed(0xA9) == "é"
