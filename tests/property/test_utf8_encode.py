"""The native UTF-8 encoder of str beside Python's codec."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmworks import _text
from lmworks.tokenizer.base import pack_tokens, to_bytes

# Lengths around the blocks of 16 code points.
LENGTHS = [0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 100]
# The last and first of each size of UTF-8, of the surrogates and of the widths of a str.
BORDERS = (
    "\0\x7f\x80\xff\u0100\u07ff\u0800\ud7ff\ud800\udbff\udc00\udfff\ue000\uffff\U00010000\U0010ffff"
)
SURROGATES = "\ud800\udbff\udc00\udfff"


@pytest.fixture(scope="module")
def byte_encoder() -> _text.BpeEncoder:
    """Its ids are the bytes of the text."""
    blob, offsets = pack_tokens([bytes([i]) for i in range(256)])
    return _text.BpeEncoder(
        pattern="none",
        ignore_merges=False,
        token_bytes=blob,
        token_offsets=offsets,
        merges=np.empty(0, np.uint32),
        specials=_text.SpecialSplitter([], b""),
        special_ids=[],
        max_cache_slots=64,
    )


def check(encoder: _text.BpeEncoder, texts: list[str]) -> None:
    for num_threads in (1, 2):
        ids, starts = encoder.encode_batch(texts, b"", num_threads, to_bytes)
        written = ids.astype(np.uint8).tobytes()
        for i, text in enumerate(texts):
            assert written[starts[i] : starts[i + 1]] == to_bytes(text)


@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=80), max_size=5))
def test_any_text_becomes_the_utf8_of_pythons_codec(
    byte_encoder: _text.BpeEncoder, texts: list[str]
) -> None:
    check(byte_encoder, texts)


@given(st.lists(st.sampled_from(["a" * 16, "é" * 16, "中" * 16, "😀" * 4, *BORDERS]), max_size=40))
def test_blocks_of_all_kinds_in_any_order(byte_encoder: _text.BpeEncoder, parts: list[str]) -> None:
    check(byte_encoder, ["".join(parts)])


@given(st.text(st.sampled_from(SURROGATES + "a中😀"), max_size=60))
def test_surrogates_join_or_are_replaced(byte_encoder: _text.BpeEncoder, text: str) -> None:
    check(byte_encoder, [text])


@pytest.mark.parametrize("filling", ["a", "é", "ж", "中", "😀"])
def test_one_other_character_anywhere_in_blocks(
    byte_encoder: _text.BpeEncoder, filling: str
) -> None:
    check(
        byte_encoder,
        [
            filling * at + other + filling * (length - at)
            for length in LENGTHS
            for at in range(min(length, 40))
            for other in BORDERS
        ],
    )


def test_all_code_points_in_a_row(byte_encoder: _text.BpeEncoder) -> None:
    everything = "".join(map(chr, range(0x110000)))
    widths = [everything[:0x100], everything[:0x10000], everything]
    check(byte_encoder, widths + ["".join(reversed(text)) for text in widths])
