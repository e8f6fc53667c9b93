"""The native BPE trainer makes the merges of the Python reference on any small corpus."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks import _text
from lmworks.tokenizer.pretokenize import PATTERNS
from lmworks.tokenizer.train_reference import train_bpe_reference

SPECIALS = ["<a>", "<a><a>", "a", "ab", "b c", "é", "<|endoftext|>"]
ALPHABETS = ["ab", "abc ", "aabbb", "abé '1\n", " aA1!\n中"]


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Texts over few letters, so that runs, ties and overlaps abound, and special tokens."""
    specials = draw(st.lists(st.sampled_from(SPECIALS), unique=True, max_size=3))
    letters = st.sampled_from([*draw(st.sampled_from(ALPHABETS)), *specials])
    texts = st.lists(st.lists(letters, max_size=50).map("".join), min_size=1, max_size=4)
    return draw(texts), specials


@settings(max_examples=200, deadline=None)
@given(corpora(), st.sampled_from(list(PATTERNS)), st.integers(0, 80), st.integers(1, 3))
def test_merges_equal_the_reference(
    corpus: tuple[list[str], list[str]], pattern: str, max_merges: int, num_threads: int
) -> None:
    texts, specials = corpus
    want = train_bpe_reference(texts, max_merges, pattern=pattern, special_tokens=specials)
    trainer = _text.BpeTrainer(pattern, [s.encode() for s in specials], num_threads)
    trainer.count_texts([text.encode() for text in texts])
    assert trainer.train(max_merges, None) == want


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=5))
def test_merges_equal_the_reference_on_bytes_that_are_no_text(texts: list[bytes]) -> None:
    trainer = _text.BpeTrainer("cl100k", [], 2)
    trainer.count_texts(texts)
    assert trainer.train(40, None) == train_bpe_reference(texts, 40, pattern="cl100k")
