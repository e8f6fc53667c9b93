"""Native pieces equal `regex.findall` with the published patterns, on any bytes.

All texts go through both scanners: of one piece, and of whole stretches (test_boundaries.py).
"""

import sys
from itertools import accumulate, pairwise, product
from pathlib import Path

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks import _text
from lmworks.tokenizer import pretokenize
from lmworks.tokenizer.base import to_bytes
from lmworks.tokenizer.pretokenize import PATTERNS, STEPS

REGEX = {name: regex.compile(pattern) for name, pattern in PATTERNS.items()}
ALL_PATTERNS = pytest.mark.parametrize("pattern", PATTERNS)

# Pieces of text at which the patterns decide differently, and bytes that are not UTF-8.
WORDS = [
    "a", "A", "b", " ", "  ", "\n", "\r", "\t", "'", "s", "S", "ſ", "re", "LL", "'VE", "'s", "1",
    "22", "٣", "½", "é", "É", "ǅ", "ʰ", "あ", "中", "\u0301", "\u0903", "!", "/", "\u00a0",
    "\u2028", "\x85", "\x1c", "\x0b", "👍", "$", "_", "。", "゛", "゠", "ー", "\u3040", "\u3098",
    "々", "〇", "⺀", "龦", "\U00016ff0", "\x00", "\x01", "\xad", "\u0378", "\u200d",
]  # fmt: skip
# What stands before and after a character when all characters are tried.
CONTEXTS = [
    "あ",
    "A",
    "a",
    "7",
    " ",
    "\t",
    "\n",
    "'",
    "\u0301",
    "!",
    "。",
    "中",
    "〇",
    "⺀",
    "\x01",
]
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


def split(text: bytes | str, pattern: str) -> list[bytes]:
    """The pieces, on which both scanners agree."""
    pieces = pretokenize.split(text, pattern)
    assert _text.scan_piece_ends(to_bytes(text), pattern) == list(accumulate(map(len, pieces))), (
        pattern
    )
    return pieces


def regex_split(text: bytes, pattern: str) -> list[bytes]:
    decoded = text.decode("utf-8", "surrogateescape")
    pieces = REGEX[pattern].findall(decoded)
    return [piece.encode("utf-8", "surrogateescape") for piece in pieces]


def split_by_steps(text: bytes, pattern: str) -> list[bytes]:
    """Each expression in turn cuts what the one before left; gaps between matches stay."""
    parts = [text.decode("utf-8", "surrogateescape")]
    for step in STEPS[pattern]:
        splitter = regex.compile(f"({step})")
        parts = [piece for part in parts for piece in splitter.split(part) if piece]
    return [part.encode("utf-8", "surrogateescape") for part in parts]


def all_characters(separator: str) -> bytes:
    """Each code point after and before the separator; surrogates as bytes that are not UTF-8."""
    return separator.join(map(chr, range(sys.maxunicode + 1))).encode("utf-8", "surrogatepass")


def border_characters() -> list[str]:
    """The first and the last of each run of characters that no pattern tells apart."""
    text = all_characters("").decode("utf-8", "ignore")
    kinds = ["Lu", "Lt", "Ll", "Lm", "Lo", "M", "N", "P", "S", "C", "Han"]
    found = set(WORDS)
    for expression in [*(rf"\p{{{kind}}}+" for kind in kinds), r"\s+", "[一-龥぀-ヿ]+"]:
        for run in regex.findall(expression, text):
            found.update({run[0], run[-1]})
    return sorted(found)


# Scripts with and without case, marks that belong to letters, several kinds of digits, right to
# left, emoji of several code points; with the languages' own punctuation.
MANY_LANGUAGES = """The naïve café's 1,234.5 — “it’s WE'LL”, O'Neill's; Straße, Ǆungla, ǅ.
Ελληνικά: «γράμματα»; Русский текст №5, и́ли; Հայերեն՝ բառ։ ქართული ᲥᲐᲠᲗᲣᲚᲘ.
עברית: שָׁלוֹם 12״; العربيّة ١٢٣، «نص»؟ فارسی ۴۵۶. हिन्दी में क्षत्रिय १२३। বাংলা ৪৫৬। தமிழ் தமிழ்.
ไทยภาษา ๑๒๓ ไม่มีช่องว่าง ລາວ ភាសាខ្មែរ។ မြန်မာ၊ བོད་ཡིག་ ༡༢༣ አማርኛ፣ ፩፪፫ ᏣᎳᎩ Ꮳꭳ ᠮᠣᠩᠭᠣᠯ.
中文没有空格，「引号」：第３章〇年。日本語、カタカナ・ｶﾀｶﾅ ー 々 ゝ゛〆。한국어 문장 123개, ㄱㄴ.
Tiếng Việt: Tiê\u0301ng Viê\u0323t; a\u0308'S; 👩\u200d👧🏳️\u200d🌈 ✊🏽 1️⃣ €9 ½ ⅷ x² ∑∫√ ⇒ 𝒜 𐐀𐐨 𠀀.
\tif (x != 0) {\r\n\t\treturn a[i]->b::c<<2; // 0xFF\r\n\t}\u3000\u00a0\u2028 \x00\x01\ufeff
"""


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


@pytest.mark.parametrize("pattern", STEPS)
@given(mixed)
def test_pieces_equal_the_steps_of_the_model(pattern: str, text: bytes) -> None:
    assert split(text, pattern) == split_by_steps(text, pattern)


@ALL_PATTERNS
def test_pieces_equal_regex_on_text_of_many_languages(pattern: str) -> None:
    novel = Path(__file__).parents[3] / "examples" / "text" / "persuasion.txt"
    text = novel.read_bytes() + MANY_LANGUAGES.encode()
    assert split(text, pattern) == regex_split(text, pattern)


@pytest.mark.parametrize("pattern", ["gpt2", "o200k", "deepseek3", "kimi2"])
def test_every_character_has_the_class_it_has_in_regex(pattern: str) -> None:
    text = all_characters("")
    assert split(text, pattern) == regex_split(text, pattern)


@pytest.mark.slow
@ALL_PATTERNS
def test_every_character_in_each_context(pattern: str) -> None:
    for context in (" ", "a"):
        text = all_characters(context)
        assert split(text, pattern) == regex_split(text, pattern), repr(context)
    borders = border_characters()
    for before, after in product(CONTEXTS, ["", "a", " ", "'s"]):
        text = "".join([f"{before}{c}{after}" for c in borders]).encode()
        assert split(text, pattern) == regex_split(text, pattern), (before, after)


@ALL_PATTERNS
def test_every_kind_of_character_at_the_start_and_at_the_end(pattern: str) -> None:
    for character, context in product(border_characters()[::8] + WORDS, ["", " ", "'"]):
        for text in (f"{character}{context}".encode(), f"{context}{character}".encode()):
            assert split(text, pattern) == regex_split(text, pattern)


@ALL_PATTERNS
def test_pieces_joined_are_the_text(pattern: str) -> None:
    text = b"".join(word.encode() for word in WORDS) + b"".join(BROKEN)
    assert b"".join(split(text, pattern)) == text


@ALL_PATTERNS
def test_run_of_a_million_characters_is_split_in_linear_time(pattern: str) -> None:
    for unit in (b"a", b" ", b"\n", b"!", b"1", "中".encode(), "\u0301".encode(), b"\xff"):
        assert _text.count_pieces(unit * 1_000_000, pattern) > 0


def test_deepseek_equals_its_steps_in_tokenizers() -> None:
    steps = pytest.importorskip("tokenizers.pre_tokenizers")
    from tokenizers import Regex

    pre_tokenizer = steps.Sequence([steps.Split(Regex(s), "isolated") for s in STEPS["deepseek3"]])
    for a, b in product(WORDS, [*WORDS, "中文。", "\x01\x02", "'s x", "!!"]):
        text = f"{a}{b}  {a} {b}3{a}中{b}"
        spans = [span for _, span in pre_tokenizer.pre_tokenize_str(text)]
        assert split(text, "deepseek3") == [text[i:j].encode() for i, j in spans], text


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


@pytest.mark.parametrize("broken", BROKEN)
def test_offset_of_the_first_byte_that_is_not_utf8(broken: bytes) -> None:
    assert _text.utf8_error_offset("abc é".encode() * 9 + broken + b"x") == 54
    assert _text.utf8_error_offset("abc é中👍".encode()) == 13
