"""Rules and limits of the native trainer: equal to the Python reference and to Hugging Face."""

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks import _text
from lmworks.tokenizer.pretokenize import split
from lmworks.tokenizer.train_reference import (
    HUGGINGFACE_BYTES,
    Pair,
    train_bpe_reference,
)

TEXT = (
    "The quick brown fox doesn't jump over the lazy dog; it's 12345 o'clock, WE'LL SEE. "
    "Größe, naïve café, 中文没有空格的句子。日本語 한국어 aaaa aaaaaaa abababab banana bananas "
    "lower lowest newer newest wider widest the then there these other another\n\n  def main():"
)


def trained(texts: list[bytes], max_merges: int, *, num_threads: int = 1, **options: Any) -> Any:
    trainer = _text.BpeTrainer("gpt2", [], num_threads)
    trainer.count_texts(texts)
    return trainer.train(max_merges, None, **options)


words = st.text(alphabet="abé", min_size=1, max_size=8)
texts = st.lists(words, min_size=1, max_size=30).map(lambda parts: " ".join(parts).encode())
options = st.fixed_dictionaries(
    {
        "ties": st.sampled_from(["bytes", "huggingface"]),
        "min_frequency": st.integers(1, 4),
        "max_token_bytes": st.none() | st.integers(1, 6),
        "initial_alphabet": st.sampled_from([b"", b"ab", bytes(range(256))]),
        "alphabet_limit": st.sampled_from([2, 3, 256]),
        "seeds": st.lists(st.sampled_from([b"abab", b"ba", b"aab", b"xyz"]), max_size=2),
        "reserved": st.lists(st.sampled_from([b"ab", b"aa", b"aba"]), max_size=2),
        "initial_merges": st.sampled_from(
            [[], [(b"a", b"b")], [(b"b", b"a"), (b"a", b"ba")], [(b"b", b"b"), (b"a", b"b")]]
        ),
    }
)


@settings(max_examples=300)
@given(texts, options)
def test_every_combination_of_options_gives_the_merges_of_the_reference(
    text: bytes, chosen: dict[str, Any]
) -> None:
    assert trained([text], 12, **chosen) == train_bpe_reference([text], 12, **chosen)


@pytest.mark.parametrize("ties", ["bytes", "huggingface"])
def test_text_of_many_ties_gives_the_merges_of_the_reference(ties: str) -> None:
    want = train_bpe_reference([TEXT * 2], 400, ties=ties)
    assert trained([TEXT.encode() * 2], 400, ties=ties) == want
    assert trained([TEXT.encode()] * 2, 400, ties=ties, num_threads=3) == want


def huggingface_model(texts: list[str], vocab_size: int, **settings: Any) -> dict[str, Any]:
    """The trained model of a tokenizer.json."""
    tokenizers = pytest.importorskip("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<s>"], show_progress=False, **settings
    )
    tokenizer.train_from_iterator(texts, trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def letters() -> dict[int, str]:
    """Character that stands for each byte in a tokenizer.json."""
    return {b: chr(b if i < 188 else 256 + i - 188) for i, b in enumerate(HUGGINGFACE_BYTES)}


def written(merges: list[Pair]) -> list[list[str]]:
    letter = letters()
    return [["".join(letter[b] for b in part) for part in pair] for pair in merges]


HUGGINGFACE_CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"initial_alphabet": b""}),
    ({"initial_alphabet": list(letters().values())}, {}),
    ({"min_frequency": 3}, {"initial_alphabet": b"", "min_frequency": 3}),
    ({"max_token_length": 5}, {"initial_alphabet": b"", "max_token_bytes": 4}),
    ({"max_token_length": 1}, {"initial_alphabet": b"", "max_token_bytes": 2}),
    ({"limit_alphabet": 20}, {"initial_alphabet": b"", "alphabet_limit": 20}),
]


@pytest.mark.parametrize(("theirs", "ours"), HUGGINGFACE_CASES)
def test_vocabulary_equals_hugging_face(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    text = TEXT
    if "limit_alphabet" in theirs:  # theirs drops any of equally rare characters
        text = " ".join(
            "".join(random.Random(i).choices("abcdefghijklmnopqrstuvwxyz", range(1, 27), k=5))
            for i in range(400)
        )
    model = huggingface_model([text, text[:200]], 500, **theirs)
    trainer = _text.BpeTrainer("gpt2", [b"<s>"], 1)
    trainer.count_texts([text.encode(), text[:200].encode()])
    merges = trainer.train(500 - 257, None, ties="huggingface", **ours)
    assert written(merges) == model["merges"]
    letter = letters()
    tokens = ["<s>", *(letter[b] for b in trainer.alphabet)]
    tokens += ["".join(pair) for pair in written(merges)]
    assert {token: i for i, token in enumerate(tokens)} == model["vocab"]


@pytest.mark.parametrize("ties", ["bytes", "huggingface"])
def test_ranks_alone_give_the_ids_of_the_merges(ties: str) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    seeds = [b"nana", b" lowest"]
    merges = trained([TEXT.encode() * 2], 400, ties=ties, seeds=seeds)
    made = [a + b for a, b in merges]
    assert len(set(made)) == len(made)
    assert set(seeds) <= set(made)
    ranks = {bytes([b]): b for b in range(256)} | {t: 256 + i for i, t in enumerate(made)}
    pattern = _text.PATTERNS["gpt2"]
    encoding = tiktoken.Encoding("ours", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    ids = encoding.encode_ordinary(TEXT)
    assert ids == [ranks[t] for piece in split(TEXT, "gpt2") for t in segmented(piece, merges)]


def segmented(piece: bytes, merges: list[Pair]) -> list[bytes]:
    """Tokens of a piece: one merge after the other, each wherever it applies."""
    word = [bytes([b]) for b in piece]
    for left, right in merges:
        i = 0
        while i + 1 < len(word):
            if word[i] == left and word[i + 1] == right:
                word[i : i + 2] = [left + right]
            i += 1
    return word


def test_extending_goes_on_where_the_first_training_stopped() -> None:
    whole = trained([TEXT.encode()], 100)
    rest = trained([TEXT.encode()], 60, initial_merges=whole[:40])
    assert rest == whole[40:]


def test_a_long_word_is_cut_by_initial_merges_in_little_time() -> None:
    merges = trained([b"a" * 300_000], 1, initial_merges=[(b"a", b"a"), (b"aa", b"aa")])
    assert merges == [(b"aaaa", b"aaaa")]


def test_seeds_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="the seed tokens need 3 merges, but only 2 tokens"):
        trained([b"text"], 2, seeds=[b"abcd"])


def test_initial_merge_of_an_unknown_token_is_refused() -> None:
    with pytest.raises(ValueError, match="initial merge 1 joins a token that no merge before"):
        trained([b"text"], 2, initial_merges=[(b"a", b"b"), (b"bc", b"d")])


def test_unknown_rule_for_ties_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown rule for ties: random"):
        trained([b"text"], 2, ties="random")


def test_words_longer_than_65535_symbols_are_merged() -> None:
    text = b"ab" * 70_000
    assert trained([text], 3) == [(b"a", b"b"), (b"ab", b"ab"), (b"abab", b"abab")]


def test_vocabulary_of_more_than_65535_tokens_gives_the_same_first_merges() -> None:
    assert trained([TEXT.encode()], 100_000)[:150] == trained([TEXT.encode()], 150)


def test_pieces_cut_by_the_caller_are_counted() -> None:
    pieces = split(TEXT, "gpt2")
    ends = np.cumsum([len(p) for p in pieces], dtype=np.uint64)
    trainer = _text.BpeTrainer(None, [], 2)
    trainer.count_pieces(TEXT.encode(), ends)
    assert trainer.num_pieces == len(pieces)
    assert trainer.train(100, None) == trained([TEXT.encode()], 100)


@pytest.mark.parametrize("ends", [[2, 2, 4], [3, 2, 4], [2, 5], [2], []])
def test_wrong_ends_of_pieces_are_refused(ends: list[int]) -> None:
    trainer = _text.BpeTrainer(None, [], 1)
    with pytest.raises(ValueError, match=r"pieces? must"):
        trainer.count_pieces(b"abcd", np.array(ends, dtype=np.uint64))


def test_trainer_without_a_pattern_counts_no_text() -> None:
    with pytest.raises(ValueError, match="no pattern"):
        _text.BpeTrainer(None, [], 1).count_texts([b"text"])
