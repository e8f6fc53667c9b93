"""Patterns by name and by text: which are known, and what any other regular expression gives."""

import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.base.errors import ConfigError, DataError, LmworksError
from lmworks.tokenizer import pretokenize
from lmworks.tokenizer.pretokenize import (
    ALIASES,
    PATTERNS,
    STEPS,
    check_pattern,
    compile_expression,
    known_pattern,
    piece_ends,
    split,
)

PARTS = [
    "a",
    "B",
    "é",
    "中",
    "あ",
    "゛",
    "々",
    "\u3040",
    "\u0301",
    "ſ",
    "1",
    "٣",
    " ",
    "\t",
    "\n",
    "\r",
]
PARTS += ["'", "'s", "'LL", "!", "/", "$", "⺀", "👍", "\x01", "\xad"]
awkward = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)


# ---- names and texts of the known patterns ----


def test_a_model_name_is_its_pattern() -> None:
    assert set(ALIASES.values()) <= set(PATTERNS)
    assert not set(ALIASES) & set(PATTERNS)


def test_the_page_lists_every_name_of_a_pattern() -> None:
    page = (Path(__file__).parents[3] / "docs" / "tokenizer.md").read_text(encoding="utf-8")
    rows = [re.findall(r"`([\w-]+)`", row) for row in page.splitlines() if row.startswith("| `")]
    listed = {name: row[0] for row in rows for name in row if row[0] in PATTERNS}
    assert listed == {name: name for name in PATTERNS} | ALIASES
    assert check_pattern("qwen3") == "qwen2"
    assert split("x 12", "olmo2") == split("x 12", "llama3")


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cl100k'"):
        split("text", "cl10k")


@pytest.mark.parametrize("steps", pretokenize._EQUAL)
@given(text=awkward)
def test_expressions_called_equal_cut_alike(steps: tuple[str, ...], text: str) -> None:
    data = text.encode()
    name = known_pattern(*steps)
    assert name is not None
    ends = [0, *piece_ends(data, steps).tolist()]
    assert [data[a:b] for a, b in pairwise(ends)] == split(text, name)


def test_line_ends_may_be_spelt_either_way() -> None:
    for spelt in (STEPS["deepseek3"], [step.replace("\n", r"\n") for step in STEPS["deepseek3"]]):
        assert known_pattern(*spelt) == "deepseek3"
    assert check_pattern(PATTERNS["qwen35"].replace(r"\r\n", "\r\n")) == "qwen35"
    assert known_pattern(r"\p{N}") is None


# ---- any other expression ----

EXPRESSIONS = [
    r"\p{N}{1,2}| ?\p{L}+",
    r"(?=[A-Z])",  # matches nothing but borders
    r"\b",
    r"(?<=中)\w*",
    r" ?[^\s中]+|\s",
    r"[\p{L}&&[^a\p{Han}]]+",
    r"[[a-z][A-Z]]+|\W+",
    r"👍|é|\A.",
    r"(?i:b|'ll)+|\n",
    r"\b|'+|(?=\n)\n*",  # an empty match, then a longer one at the same place
    r"a*",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
@settings(max_examples=150)
@given(text=awkward)
def test_pieces_equal_those_of_tokenizers(expression: str, text: str) -> None:
    steps = pytest.importorskip("tokenizers.pre_tokenizers")
    from tokenizers import Regex

    spans = steps.Split(Regex(expression), "isolated").pre_tokenize_str(text)
    assert split(text, expression) == [piece.encode() for piece, _ in spans if piece]


@settings(max_examples=150)
@given(text=awkward)
def test_several_expressions_equal_a_sequence_of_tokenizers(text: str) -> None:
    steps = pytest.importorskip("tokenizers.pre_tokenizers")
    from tokenizers import Regex

    expressions = [r"\p{N}", r"(?<!a)'|\s+(?!\S)", r"[^\p{L}]+|\n"]
    sequence = steps.Sequence([steps.Split(Regex(e), "isolated") for e in expressions])
    pieces = [piece.encode() for piece, _ in sequence.pre_tokenize_str(text)]
    assert split(text, expressions) == pieces


@pytest.mark.parametrize(
    "expression",
    [
        r"👍|é|$",
        r"^.|\p{L}{1,3}+|a\{1}+",
        r"[$^a{1,3}+]+|!{2,}+",
        r"[^]a$]{1,2}+|[[:alpha:]$]$",
        r"\$|(?:a ?){0,2}+\n|[a[$]]",
        r"\s++$|\s++^|a",
        r"\w+|\W{2}",
        r"[\w.!]+|[^\W1]|[\W\d]3",
        r"\b|\h\H",
        r"\B(?=\w)|[\h]",
    ],
)
@settings(max_examples=150)
@given(text=st.text(alphabet="aé中👍\n $^{}+]13!g²\u200d_", max_size=14))
def test_expressions_of_tokenizer_json_mean_what_they_mean_there(
    expression: str, text: str
) -> None:
    steps = pytest.importorskip("tokenizers.pre_tokenizers")
    from tokenizers import Regex

    plain = pretokenize.from_oniguruma(expression)
    for spelt in (expression, plain):  # both engines read the plain spelling alike
        spans = steps.Split(Regex(spelt), "isolated").pre_tokenize_str(text)
        assert split(text, [plain]) == [piece.encode() for piece, _ in spans if piece]


@given(text=st.text(alphabet="aé中\n 1!g²\u200d_", max_size=14))
def test_words_are_written_for_tokenizers_as_we_read_them(text: str) -> None:
    steps = pytest.importorskip("tokenizers.pre_tokenizers")
    from tokenizers import Regex

    expression = r"\b\w+|[^\W_]|\B\W"
    spelt = pretokenize.to_oniguruma(expression)
    assert pretokenize.from_oniguruma(spelt) == spelt
    spans = steps.Split(Regex(spelt), "isolated").pre_tokenize_str(text)
    assert split(text, expression) == [piece.encode() for piece, _ in spans if piece]


def test_a_repeat_of_a_repeat_without_a_plain_spelling_is_refused() -> None:
    assert pretokenize.from_oniguruma(PATTERNS["gpt2"]) == PATTERNS["gpt2"]
    with pytest.raises(ConfigError, match=r"\{3\}\+ at character 1 repeats a repeat"):
        pretokenize.from_oniguruma("a{3}+")


@given(st.binary(max_size=30) | awkward.map(str.encode), st.sampled_from(EXPRESSIONS))
def test_ends_rise_to_the_length_of_the_text(text: bytes, expression: str) -> None:
    ends = piece_ends(text, expression).tolist()
    assert all(a < b for a, b in pairwise([0, *ends]))
    assert ends[-1:] == ([len(text)] if text else [])
    decoded = text.decode("utf-8", "surrogateescape")
    starts = [m.start() for m in compile_expression(expression).finditer(decoded)]
    borders = {len(decoded[:start].encode("utf-8", "surrogateescape")) for start in starts}
    assert borders <= {0, *ends}


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("(a", r"missing \) at position 2"),
        (r"\p{Foo}", "unknown property"),
        ("[z-a]", "bad character range"),
        ("(" * 5000 + ")" * 5000, "nested too deeply"),
        ("(?r)a b", "backwards"),
    ],
)
def test_what_is_no_expression_is_refused(expression: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_pattern(expression)


@settings(max_examples=300)
@given(st.text(alphabet="ab1 ()[]{}*+?|^$.\\-&:<=!,'pLNsRKkgu#", max_size=14))
def test_any_text_gives_an_expression_or_an_error_that_says_so(text: str) -> None:
    try:
        pattern = check_pattern(text)
        pieces = split("ab 1ab", pattern)
    except LmworksError:
        return
    assert b"".join(pieces) == b"ab 1ab"


@pytest.mark.parametrize("expression", ["(?:a|aa)+c", "x|(?:aa|a)*[0-9]"])
def test_backtracking_without_end_is_stopped(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretokenize, "_MIN_TIME_S", 0.2)
    begin = time.process_time()
    with pytest.raises(DataError, match="backtracks too long"):
        piece_ends(b"a" * 60 + b"b", expression)
    assert time.process_time() - begin < 5


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    compile_expression.cache_clear()
    monkeypatch.setitem(sys.modules, "regex", None)
    with pytest.raises(ConfigError, match=r"lmworks\[regex\]"):
        check_pattern(r"\w+")
    assert split("a b", "gpt2") == [b"a", b" b"]


def test_long_text_of_several_bytes_a_character_has_byte_offsets() -> None:
    text = "中é👍a " * 5000
    expected: list[Any] = regex.findall(r"\S+|\s", text)
    assert split(text, r"\S+|\s") == [piece.encode() for piece in expected]
