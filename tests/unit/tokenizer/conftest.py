"""Small vocabularies, one per pattern, and text that exercises the patterns' corners."""

import pytest
from hypothesis import strategies as st

from lmworks import _text
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.train import train_bpe_from_iterator

CORPUS = """The quick brown fox doesn't jump over the lazy dog; it's 12345 o'clock, WE'LL SEE.
def main(argv):\n    for i in range(100):\n        print("hello world", i)\n\n\n
Größe, naïve café, Ελληνικά γράμματα, русский текст, 中文没有空格的句子。日本語 한국어
The other there then these those while where whether weather hello hello world world the the of of
    indented    text\twith tabs\r\nand   many     blanks      !!! ??? ... --- === /// https://x.y/z
"""
SPECIALS = ("<|endoftext|>", "<|end|>", "<|end|><|end|>", "<|en")


def _train(pattern: str) -> BPETokenizer:
    return train_bpe_from_iterator(
        [CORPUS * 3], 600, pattern=pattern, special_tokens=SPECIALS, num_threads=1
    )


@pytest.fixture(scope="session", params=sorted(_text.PATTERNS))
def bpe(request: pytest.FixtureRequest) -> BPETokenizer:
    """A trained tokenizer of each pattern in turn."""
    return _train(request.param)


@pytest.fixture(scope="session")
def gpt2() -> BPETokenizer:
    """A trained tokenizer with the GPT-2 pattern."""
    return _train("gpt2")


@pytest.fixture(scope="session")
def texts() -> st.SearchStrategy[str]:
    """Text made of awkward fragments and of any assigned characters."""
    blanks = (" ", "  ", "\n", "\r\n", " \n ", "\t", "\u3000", "\xa0")
    words = (
        "a",
        "A",
        "ABあ",
        "CC",
        "d",
        "é",
        "中",
        "1",
        "23",
        "'",
        "'r",
        "'LL",
        "'ſ",
        "/",
        "!",
        "$",
        "゛",
        "々",
        "⺀",
    )
    marks = (
        "\x01",
        "\u3040",
        "e\u0301",
        "\u0301",
        "\u1161",
        "\u11a8",
        "\u1100",
        "\ufffd",
        "🙂",
        "👩\u200d👧",
    )
    specials = ("<|", "endoftext", "|>", "<|end", *SPECIALS)
    fragments = st.sampled_from([*CORPUS.split(" "), *blanks, *words, *marks, *specials])
    assigned = st.text(st.characters(exclude_categories=["Cs", "Cn", "Co"]), max_size=5)
    return st.lists(fragments | assigned, max_size=30).map("".join)
