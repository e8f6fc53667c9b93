"""Piece borders found as bits (csrc/text/boundaries.cpp) are those of the scanner of one piece.

That one is compared with the `regex` module in test_pretokenize.py. Bits fail in other places: at
the borders of words of 64 bytes, at the ends of stretches of 8 KiB and of the text, and in one
instruction set only.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import accumulate, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks import _text
from lmworks.tokenizer.pretokenize import PATTERNS, split
from lmworks.tokenizer.train_reference import train_bpe_reference

ALL_PATTERNS = pytest.mark.parametrize("pattern", PATTERNS)
STRETCH_BYTES = 8192

# Each takes part in some rule; the last ones are not UTF-8.
PARTS = [
    *" \n\r\t'sStabAZéÉ中のー127²٣𝟗-/“’🙂ǅʰªا",
    *"\u0301\u093f\u00a0\u3000\u2028\x85\x0b\x1c\x00",
    *["  ", "ll", "LL", "re", "VE", "ſ", "'s", "'ſ", "//", "foo", "Bar", "hello world", "\n\n   "],
]
BROKEN = [b"\x80", b"\xbf", b"\xc3", b"\xe4\xb8", b"\xf0\x9f", b"\xff", b"\xed\xa0\x80"]
ALL_PARTS = [part.encode() for part in PARTS] + BROKEN

# No place in it where text may be cut (`_text.safe_cut`).
UNCUT = [b"a", b" ", b"\n", b"\r\n", b"7", b"!", b"'s", b"'", b"/\n", b"aB", "é".encode(), b"\xff"]
UNCUT += ["中".encode(), "\u0301".encode(), "\u3000".encode(), "中!٣ ".encode(), b"a1 -\n"]

parts = st.lists(st.sampled_from(ALL_PARTS), max_size=24).map(b"".join)
few_parts = (
    st.lists(st.sampled_from(ALL_PARTS), min_size=1, max_size=4, unique=True)
    .flatmap(lambda chosen: st.lists(st.sampled_from(chosen), max_size=100))
    .map(b"".join)
)


def piece_ends(text: bytes, pattern: str) -> list[int]:
    """Ends of the pieces, found one by one."""
    return list(accumulate(map(len, split(text, pattern))))


def check(text: bytes, patterns: list[str] | None = None) -> None:
    """Both scanners cut the text alike, whatever the pattern."""
    for pattern in patterns or list(PATTERNS):
        assert _text.scan_piece_ends(text, pattern) == piece_ends(text, pattern), pattern


def random_texts(count: int, seed: int) -> Iterator[bytes]:
    """Texts of few or many of the parts, some behind letters up to the border of a word of bits."""
    rng = random.Random(seed)
    for _ in range(count):
        chosen = rng.sample(ALL_PARTS, rng.choice([2, 4, 8, 20, len(ALL_PARTS)]))
        text = b"".join(rng.choices(chosen, k=rng.choice([3, 6, 12, 30, 70, 140, 300])))
        is_padded = rng.random() < 0.3
        yield b"x" * rng.choice([60, 61, 62, 63, 64, 65, 124, 127, 128]) * is_padded + text


@settings(max_examples=500)
@given(st.integers(0, 140), st.one_of(parts, few_parts))
def test_borders_are_found_around_words_of_64_bytes(num_before: int, text: bytes) -> None:
    check(b"x" * num_before + text)


@settings(max_examples=60)
@given(st.sampled_from([b"", b"a b ", b"a\nb"]), parts)
def test_borders_are_found_in_text_of_several_stretches(between: bytes, text: bytes) -> None:
    # An odd number of bytes, repeated, meets the border of a word in each of its places.
    unit = between + text
    unit += b"z" * (1 - len(unit) % 2)
    check(unit * (2 * STRETCH_BYTES // len(unit) + 70))


@pytest.mark.parametrize("unit", UNCUT)
def test_runs_end_on_both_sides_of_a_word_of_64_bytes(unit: bytes) -> None:
    sizes = [*range(60 // len(unit), 66 // len(unit) + 1), 128 // len(unit), 190 // len(unit)]
    for before, num_units, after in product([b"", b"x", b" ", b"!"], sizes, [b"", *ALL_PARTS]):
        check(before + unit * num_units + after)


@pytest.mark.parametrize("unit", UNCUT)
def test_text_without_a_place_to_cut_is_scanned_beyond_one_stretch(unit: bytes) -> None:
    for num_bytes in range(STRETCH_BYTES - 3, STRETCH_BYTES + 4):
        text = (unit * num_bytes)[:num_bytes]
        check(text)
        check(text + b" tail's 1234\n")
        check(b"word and word" + text + b" x")


@pytest.mark.parametrize("cut", [b"a b", b"a\nb"])
def test_place_to_cut_is_found_on_both_sides_of_the_end_of_a_stretch(cut: bytes) -> None:
    for num_before in range(STRETCH_BYTES - 5, STRETCH_BYTES + 5):
        check(b"1 !-" * 3000 + cut + b"x")
        check((b"1 !-" * 3000)[:num_before] + cut + b"'s 1234" * 2000)


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_borders_are_the_same_with_each_instruction_set(isa: str) -> None:
    texts = [*random_texts(300, seed=3), bytes(range(256)) * 3, *(bytes([b]) for b in range(256))]
    script = (
        "import json, sys\n"
        "from lmworks import _text\n"
        "texts = [bytes.fromhex(line) for line in json.load(sys.stdin)]\n"
        "print(json.dumps([[_text.scan_piece_ends(t, p) for p in _text.PATTERNS] for t in texts]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "LMWORKS_ISA": isa},
        input=json.dumps([text.hex() for text in texts]),
        capture_output=True,
        text=True,
        check=False,
    )
    if "this CPU supports at most" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    for text, found in zip(texts, json.loads(done.stdout), strict=True):
        assert found == [piece_ends(text, pattern) for pattern in PATTERNS], text


@ALL_PATTERNS
def test_training_counts_the_pieces_of_each_text_between_special_tokens(pattern: str) -> None:
    # Longer than a stretch, with special tokens where the text could not be cut.
    parts_of_text = [text.replace(b"<", b"") for text in random_texts(120, seed=5)]
    text = b"<s>".join([*parts_of_text, b"a \n  ", b"  \n7", b"'", b"'s x"])
    trainer = _text.BpeTrainer(pattern, [b"<s>"], 1)
    trainer.count_texts([text])
    assert len(text) > 2 * STRETCH_BYTES
    assert trainer.num_pieces == sum(len(split(part, pattern)) for part in text.split(b"<s>"))
    want = train_bpe_reference([text], 60, pattern=pattern, special_tokens=["<s>"])
    assert trainer.train(60, None) == want


@pytest.mark.slow
@ALL_PATTERNS
def test_borders_are_found_in_random_texts(pattern: str) -> None:
    for text in random_texts(15_000, seed=7):
        check(text, [pattern])


@pytest.mark.slow
@ALL_PATTERNS
def test_borders_are_found_in_a_novel_at_every_offset(pattern: str) -> None:
    novel = Path(__file__).parents[3] / "examples" / "text" / "persuasion.txt"
    text = novel.read_bytes()
    for offset in range(64):
        check(text[offset : offset + 200_000], [pattern])
    check(text.replace(b" ", "\u3000".encode()), [pattern])
    check(text.replace(b"e", "é".encode()).replace(b"\n", "\n中".encode()), [pattern])


def test_an_unknown_instruction_set_is_the_users_mistake() -> None:
    program = (
        "from lmworks.base.errors import ConfigError\n"
        "from lmworks.tokenizer import train_bpe_from_iterator\n"
        "try:\n"
        "    train_bpe_from_iterator(['a b'], 260, num_threads=2).encode('a b')\n"
        "except ConfigError as err:\n"
        "    print(err)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LMWORKS_ISA": "avx9"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "LMWORKS_ISA=avx9: unknown; allowed: portable, avx2, avx512" in done.stdout
