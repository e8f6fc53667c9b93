"""Character, byte and word tokenizers, and what all kinds share."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmworks.base.errors import DataError
from lmworks.tokenizer import load
from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.byte import ByteTokenizer
from lmworks.tokenizer.char import CharTokenizer
from lmworks.tokenizer.compare import KINDS, compare, read_text, train_kind
from lmworks.tokenizer.inspection import inspect
from lmworks.tokenizer.word import WordTokenizer

TEXT = "the cat sat on the mat, the end\n"
SPECIALS = ("<|endoftext|>", "<|pad|>")


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_kind(
        request.param, [TEXT], vocab_size=300, pattern="gpt2", special_tokens=SPECIALS
    )


def test_known_text_survives_the_round_trip(tokenizer: Tokenizer) -> None:
    text = "the end<|pad|>the cat"
    assert tokenizer.decode(tokenizer.encode(text, allowed_special="all")) == text


def test_a_saved_tokenizer_loads_equal(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load(tmp_path)
    assert type(loaded) is type(tokenizer)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode(TEXT) == tokenizer.encode(TEXT)
    assert pickle.loads(pickle.dumps(tokenizer)) == tokenizer


def test_every_id_has_bytes_and_decodes_alone(tokenizer: Tokenizer) -> None:
    for i in range(tokenizer.vocab_size):
        assert tokenizer.decode_bytes([i]) == tokenizer.token_bytes(i) != b""
    for i in (-1, tokenizer.vocab_size):
        with pytest.raises(DataError, match=f"token id {i}"):
            tokenizer.token_bytes(i)


def test_encoding_nothing_gives_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode_batch(["", "the"]) == [[], tokenizer.encode("the")]
    assert tokenizer.decode([]) == ""


def test_fingerprints_tell_kinds_and_contents_apart() -> None:
    tokenizers = [
        ByteTokenizer(),
        ByteTokenizer(["<x>"]),
        CharTokenizer("ab"),
        CharTokenizer("ba"),
        WordTokenizer([b"a", b"b"], pattern="gpt2"),
        WordTokenizer([b"a", b"b"], pattern="cl100k"),
    ]
    assert len({t.fingerprint for t in tokenizers}) == len(tokenizers)


def test_inspection_counts_the_vocabulary(tokenizer: Tokenizer) -> None:
    facts = inspect(tokenizer, num_shown=3)
    assert facts.vocab_size == tokenizer.vocab_size
    assert len(facts.longest_tokens) == 3
    assert facts.num_unused_ids == 0
    assert facts.special_tokens == tokenizer.special_tokens


@given(st.binary(max_size=50))
def test_bytes_are_their_own_ids(data: bytes) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(data) == list(data)
    assert tokenizer.decode_bytes(list(data)) == data


@given(st.text(max_size=50))
def test_characters_out_of_the_vocabulary_are_unknown(text: str) -> None:
    tokenizer = CharTokenizer("abc 中")
    ids = tokenizer.encode(text.encode("utf-8", "replace"), disallowed_special=())
    clean = text.encode("utf-8", "replace").decode()
    assert ids == ["abc 中".find(c) if c in "abc 中" else tokenizer.unk_id for c in clean]


def test_char_training_keeps_the_most_frequent() -> None:
    tokenizer = CharTokenizer.train(["aaabbbccd<|x|>"], vocab_size=4, special_tokens=["<|x|>"])
    assert tokenizer.chars == "ab"
    assert tokenizer.vocab_size == 4


def test_word_training_keeps_the_most_frequent_pieces() -> None:
    tokenizer = WordTokenizer.train([TEXT + " cat"], vocab_size=4, special_tokens=["<|x|>"])
    assert tokenizer.words == (b" cat", b" the")
    assert tokenizer.encode(" the dog cat") == [1, tokenizer.unk_id, 0]


@pytest.mark.parametrize("kind", ["char", "word"])
def test_training_on_nothing_or_with_no_room_is_refused(kind: str) -> None:
    with pytest.raises(DataError, match="empty"):
        train_kind(kind, ["", "<|endoftext|>"], vocab_size=300, pattern="gpt2")
    with pytest.raises(DataError, match="vocab_size=2 leaves no room"):
        train_kind(kind, ["abc"], vocab_size=2, pattern="gpt2")


def test_a_corpus_of_one_character_trains_every_kind() -> None:
    for kind in KINDS:
        tokenizer = train_kind(kind, ["a"], vocab_size=300, pattern="gpt2")
        assert tokenizer.decode(tokenizer.encode("a")) == "a"


@pytest.mark.parametrize(
    "make",
    [
        lambda: CharTokenizer("aa"),
        lambda: CharTokenizer(""),
        lambda: CharTokenizer("\ud800"),
        lambda: WordTokenizer([b"a", b"a"], pattern="gpt2"),
        lambda: WordTokenizer([b""], pattern="gpt2"),
        lambda: WordTokenizer([b"a"], pattern="no such"),
        lambda: ByteTokenizer(["<x>", "<x>"]),
    ],
)
def test_contradictory_vocabularies_are_refused(make: Any) -> None:
    with pytest.raises(DataError):
        make()


def test_comparison_measures_each_kind_on_held_out_text(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text(TEXT * 20 + "zebra Ω\n" * 3, encoding="utf-8")
    rows = {row.kind: row for row in compare(file, vocab_size=280, pattern="gpt2")}
    assert list(rows) == list(KINDS)
    assert rows["byte"].bytes_per_token == 1
    assert rows["byte"].num_unknown == rows["bpe"].num_unknown == 0
    assert rows["char"].num_unknown > 0
    assert rows["word"].unknown_ratio > rows["char"].unknown_ratio


def test_reading_text_refuses_what_is_not_utf8(tmp_path: Path) -> None:
    file = tmp_path / "latin1.txt"
    file.write_bytes("Größe".encode("latin1"))
    with pytest.raises(DataError, match="not UTF-8 at byte 2"):
        read_text(file)
    file.write_bytes(b"")
    with pytest.raises(DataError, match="empty"):
        read_text(file)
    file.write_text("é" * 10, encoding="utf-8")
    assert read_text(file, max_bytes=5) == "éé"


def test_importing_tokenizers_is_light() -> None:
    import subprocess
    import sys

    code = "import sys, lmworks.tokenizer; print({'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "set()"
