"""Ids as arrays: 16 and 32 bits, batches in a row, one array per text from a lazy source."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer import stream
from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte import ByteTokenizer
from lmworks.tokenizer.compare import KINDS, train_kind

BYTES = [bytes([i]) for i in range(256)]
TEXTS = ["the cat", "", "sat on\n", "the mat 🙂"]


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_kind(request.param, ["".join(TEXTS)], vocab_size=280, pattern="gpt2")


def test_a_batch_is_the_texts_in_a_row(tokenizer: Tokenizer) -> None:
    ids, starts = tokenizer.encode_batch_to_numpy(TEXTS)
    assert ids.dtype == np.uint32
    assert starts.tolist() == np.cumsum([0, *(len(tokenizer.encode(t)) for t in TEXTS)]).tolist()
    assert ids.tolist() == [i for text in TEXTS for i in tokenizer.encode(text)]
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]


def test_sixteen_bits_hold_the_same_ids(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        ids = tokenizer.encode_to_numpy(text, dtype="uint16")
        assert ids.dtype == np.uint16
        assert ids.tolist() == tokenizer.encode(text)
    ids, _ = tokenizer.encode_batch_to_numpy(TEXTS, dtype="uint16")
    assert ids.dtype == np.uint16


def test_sixteen_bits_are_refused_for_a_larger_vocabulary() -> None:
    largest = BPETokenizer(BYTES, [], pattern="gpt2", special_tokens={"<x>": 65_535})
    assert largest.encode_to_numpy("<x>", dtype="uint16", allowed_special="all") == [65_535]
    larger = BPETokenizer(BYTES, [], pattern="gpt2", special_tokens={"<x>": 65_536})
    with pytest.raises(ConfigError, match=r"this vocabulary has 65,537; use dtype='uint32'"):
        larger.encode_to_numpy("a", dtype="uint16")


def test_an_unknown_type_of_ids_is_refused() -> None:
    with pytest.raises(ConfigError, match="dtype='int8' must be 'uint32' or 'uint16'"):
        ByteTokenizer().encode_to_numpy("a", dtype="int8")  # type: ignore[arg-type]


def test_each_text_of_a_lazy_source_is_encoded(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "READ_AHEAD_CHARS", 8)

    @settings(max_examples=30)
    @given(st.lists(st.sampled_from(TEXTS), max_size=20), st.integers(1, 3))
    def check(texts: list[str], num_threads: int) -> None:
        arrays = list(tokenizer.encode_each(iter(texts), num_threads=num_threads))
        assert [a.tolist() for a in arrays] == [tokenizer.encode(text) for text in texts]

    check()


def test_a_lazy_source_is_read_only_a_little_ahead() -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "x" * 1000

    arrays = ByteTokenizer().encode_each(endless(), num_threads=1, dtype="uint16")
    assert next(arrays).dtype == np.uint16
    assert taken <= 1 + stream.READ_AHEAD_CHARS // 1000


def test_a_kept_array_does_not_keep_its_block() -> None:
    first = next(ByteTokenizer().encode_each(["a", "b"]))
    assert first.base is None


def test_a_forbidden_token_in_a_lazy_source_comes_after_the_texts_before_it() -> None:
    arrays = ByteTokenizer().encode_each(["a", "b", "<|endoftext|>", "c"])
    assert [next(arrays).tolist(), next(arrays).tolist()] == [[97], [98]]
    with pytest.raises(DataError, match="text 2: the text contains the special token"):
        next(arrays)


def test_a_forbidden_token_in_a_batch_is_told_with_its_text(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="text 1: the text contains the special token"):
        tokenizer.encode_batch(["a", "<|endoftext|>"])


@pytest.mark.parametrize("text", [5, None, ["a"], bytearray(b"a")])
def test_what_is_no_text_is_refused(tokenizer: Tokenizer, text: Any) -> None:
    for encode in (tokenizer.encode, tokenizer.encode_to_numpy, tokenizer.encode_with_offsets):
        with pytest.raises(ConfigError, match=f"must be str or bytes, not {type(text).__name__}"):
            encode(text)
    with pytest.raises(ConfigError, match="must be str or bytes"):
        tokenizer.encode_batch([text])


@pytest.mark.parametrize("text", ["ab", b"ab"])
def test_one_text_is_no_batch(tokenizer: Tokenizer, text: Any) -> None:
    with pytest.raises(ConfigError, match=r"texts is one (str|bytes).*pass \[text\]"):
        tokenizer.encode_batch(text)
    with pytest.raises(ConfigError, match=r"texts is one (str|bytes).*pass \[text\]"):
        next(tokenizer.encode_each(text))


def test_a_lazy_source_needs_a_thread() -> None:
    with pytest.raises(ConfigError, match="num_threads=0; use 1 or more"):
        next(ByteTokenizer().encode_each(["a"], num_threads=0))


def test_a_batch_of_sequences_is_decoded() -> None:
    assert ByteTokenizer().decode_batch([[97], [], [98, 99]]) == ["a", "", "bc"]
