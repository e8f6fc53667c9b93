"""Native pieces equal `regex.findall` with the published patterns, on any bytes."""

import sys
from collections.abc import Callable
from itertools import pairwise

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks import _text
from lmworks.base.errors import ConfigError
from lmworks.tokenizer.pretokenize import PATTERNS, split

REGEX = {name: regex.compile(pattern) for name, pattern in PATTERNS.items()}
ALL_PATTERNS = pytest.mark.parametrize("pattern", PATTERNS)

# Pieces of text at which the patterns decide differently, and bytes that are not UTF-8.
WORDS = [
    "a", "A", "b", " ", "  ", "\n", "\r", "\t", "'", "s", "S", "ſ", "re", "LL", "'VE", "'s", "1",
    "22", "٣", "½", "é", "É", "ǅ", "ʰ", "あ", "中", "\u0301", "\u0903", "!", "/", "\u00a0",
    "\u2028", "\x85", "\x1c", "\x0b", "👍",
]  # fmt: skip
BROKEN = [
    b"\xff", b"\x80", b"\xc3", b"\xc0\x80", b"\xe2\x82", b"\xe0\x80\x80", b"\xed\xa0\x80",
    b"\xf0\x9f", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80",
]  # fmt: skip

mixed = st.lists(
    st.one_of(
        st.sampled_from([word.encode() for word in WORDS] + BROKEN),
        st.characters(exclude_categories=["Cs"]).map(str.encode),
        st.binary(max_size=4),
    ),
    max_size=16,
).map(b"".join)


def regex_split(text: bytes, pattern: str) -> list[bytes]:
    decoded = text.decode("utf-8", "surrogateescape")
    pieces = REGEX[pattern].findall(decoded)
    return [piece.encode("utf-8", "surrogateescape") for piece in pieces]


def text_of_all_characters(wrap: Callable[[str], str]) -> bytes:
    """Each code point but surrogates, wrapped; the surrogates as bytes, which are not UTF-8."""
    codes = range(sys.maxunicode + 1)
    return "".join([wrap(chr(code)) for code in codes]).encode("utf-8", "surrogatepass")


@settings(max_examples=700, deadline=None)
@given(mixed)
def test_pieces_equal_regex_on_any_bytes(text: bytes) -> None:
    for pattern in PATTERNS:
        assert split(text, pattern) == regex_split(text, pattern), pattern


@ALL_PATTERNS
def test_pieces_equal_regex_on_long_mixed_text(pattern: str) -> None:
    text = b"".join(
        (a + b + c).encode() + bad
        for a, bad in zip(WORDS, BROKEN * 4, strict=False)
        for b in WORDS
        for c in ("x", " ", "'s 12345")
    )
    assert split(text, pattern) == regex_split(text, pattern)


@pytest.mark.parametrize("pattern", ["gpt2", "o200k"])
def test_every_character_has_the_class_it_has_in_regex(pattern: str) -> None:
    text = text_of_all_characters(lambda c: c)
    assert split(text, pattern) == regex_split(text, pattern)


@pytest.mark.slow
@ALL_PATTERNS
@pytest.mark.parametrize("prefix", ["", " ", "a", "'", "\n"])
def test_every_character_after_each_kind_of_character(pattern: str, prefix: str) -> None:
    text = text_of_all_characters(lambda c: prefix + c + "a")
    assert split(text, pattern) == regex_split(text, pattern)


@ALL_PATTERNS
def test_pieces_joined_are_the_text(pattern: str) -> None:
    text = b"".join(word.encode() for word in WORDS) + b"".join(BROKEN)
    assert b"".join(split(text, pattern)) == text


@ALL_PATTERNS
def test_run_of_a_million_characters_is_split_in_linear_time(pattern: str) -> None:
    for unit in (b"a", b" ", b"\n", b"!", b"1", "中".encode(), "\u0301".encode(), b"\xff"):
        assert _text.count_pieces(unit * 1_000_000, pattern) > 0


def test_smollm_equals_its_two_steps_in_tokenizers() -> None:
    steps = pytest.importorskip("tokenizers.pre_tokenizers")
    pre_tokenizer = steps.Sequence(
        [steps.Digits(individual_digits=True), steps.ByteLevel(add_prefix_space=False)]
    )
    for a, b in pairwise([*WORDS, "12 34", "  x", "   7", "can't"] * 3):
        text = f"{a}{b}  {a} {b}3{a}"
        spans = [span for _, span in pre_tokenizer.pre_tokenize_str(text)]
        assert split(text, "smollm") == [text[i:j].encode() for i, j in spans], text


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from([*WORDS, "x y", "x\ny", "。\n中"]), max_size=16).map("".join))
def test_cutting_at_a_safe_place_changes_no_piece(text: str) -> None:
    data = text.encode()
    cut = 0
    while (cut := _text.safe_cut(data, cut + 1)) < len(data):
        for pattern in PATTERNS:
            parts = split(data[:cut], pattern) + split(data[cut:], pattern)
            assert parts == split(data, pattern), (pattern, cut)


def test_unknown_pattern_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cl100k'"):
        split("text", "cl10k")


@pytest.mark.parametrize("broken", BROKEN)
def test_offset_of_the_first_byte_that_is_not_utf8(broken: bytes) -> None:
    assert _text.utf8_error_offset("abc é".encode() * 9 + broken + b"x") == 54
    assert _text.utf8_error_offset("abc é中👍".encode()) == 13
