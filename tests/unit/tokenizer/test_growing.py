"""A document that grows and is edited: its ids are always those of the whole text."""

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer import growing, sentencepiece
from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte import ByteTokenizer
from lmworks.tokenizer.growing import GrowingText
from lmworks.tokenizer.word import WordTokenizer

BYTES = [bytes([i]) for i in range(256)]
CORPUS = """The quick brown fox doesn't jump over the lazy dog; it's 12345 o'clock, WE'LL SEE.
Größe, naïve café, Ελληνικά γράμματα, русский текст, 中文没有空格的句子。日本語 한국어
The other there then these those while where whether weather hello hello world world the the of
"""
EDIT = st.tuples(st.sampled_from(["append", "cut", "replace"]), st.integers(0, 400), st.integers())


def edited(document: GrowingText, text: str, edit: tuple[str, int, int], new: str) -> str:
    """Apply an edit to the document and to `text`, which is returned."""
    kind, place, size = edit
    begin = place % (len(text) + 1)
    if kind == "append":
        document.append(new)
        return text + new
    if kind == "cut":
        document.truncate(begin)
        return text[:begin]
    end = begin + size % (len(text) - begin + 1)
    document.replace(begin, end, new)
    return text[:begin] + new + text[end:]


def check_edits(
    tokenizer: Tokenizer, texts: Any, allowed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Short segments, so that short texts have many.
    monkeypatch.setattr(growing, "SEGMENT_CHARS", 8)
    sets = {"allowed_special": allowed, "disallowed_special": ()}

    @settings(max_examples=60)
    @given(texts, st.lists(st.tuples(EDIT, texts, st.booleans()), max_size=8))
    def check(text: str, edits: list[Any]) -> None:
        document = tokenizer.growing(text, **sets)
        for edit, new, is_read in edits:
            text = edited(document, text, edit, new)
            if is_read:
                assert document.ids.tolist() == tokenizer.encode(text, **sets)
        assert document.text == text
        assert document.num_chars == len(text)
        assert document.ids.tolist() == tokenizer.encode(text, **sets)

    check()


@pytest.mark.parametrize("allowed", ["all", ()])
def test_ids_follow_every_edit(
    bpe: BPETokenizer, texts: Any, allowed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_edits(bpe, texts, allowed, monkeypatch)


@pytest.mark.parametrize("kind", ["byte", "word", "nfc"])
def test_ids_of_other_kinds_follow_every_edit(
    kind: str, texts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    specials = ["<|endoftext|>", "<"]
    tokenizers = {
        "byte": ByteTokenizer(specials),
        "word": WordTokenizer([b"hello", b" ", b"\n"], pattern="o200k", special_tokens=specials),
        "nfc": BPETokenizer(
            BYTES, [], pattern="qwen2", special_tokens={"<": 256}, normalizer="NFC"
        ),
    }
    check_edits(tokenizers[kind], texts, "all", monkeypatch)


def test_every_small_edit_of_one_text_is_right(
    gpt2: BPETokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "SEGMENT_CHARS", 6)
    text = "the fox  the 中文\nhello it's 12 34 a b  c the fox. the end \n\n the fox, hello"
    for begin in range(len(text)):
        for end in range(begin, len(text)):
            for new in ("", "xe", " "):
                document = gpt2.growing(text)
                assert len(document.ids) > 0
                document.replace(begin, end, new)
                assert document.ids.tolist() == gpt2.encode(text[:begin] + new + text[end:])


@pytest.mark.parametrize("has_prefix", [True, False])
def test_ids_of_sentencepiece_follow_every_edit(
    has_prefix: bool, texts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    trainer.train(
        sentence_iterator=iter(CORPUS.splitlines() * 3),
        model_prefix=str(tmp_path / "small"),
        model_type="bpe",
        vocab_size=600,
        byte_fallback=True,
        add_dummy_prefix=has_prefix,
        remove_extra_whitespaces=has_prefix,
        minloglevel=2,
    )
    model = sentencepiece.load(tmp_path / "small.model")
    check_edits(model, texts, "all", monkeypatch)


def test_all_but_the_last_pieces_are_stable(gpt2: BPETokenizer) -> None:
    document = gpt2.growing("User: hello\nBot:")
    assert gpt2.decode(document.ids[: document.num_stable_ids]) == "User: hello"


def test_stable_ids_survive_appending(gpt2: BPETokenizer, texts: Any) -> None:
    @given(st.lists(texts, max_size=12))
    def check(parts: list[str]) -> None:
        document = gpt2.growing(disallowed_special=())
        stable: list[int] = []
        for part in parts:
            document.append(part)
            assert document.ids[: len(stable)].tolist() == stable
            stable = document.ids[: document.num_stable_ids].tolist()

    check()


class Counting:
    """A tokenizer that counts the characters that it encodes or looks through."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.num_chars = 0

    def encode_to_numpy(self, text: str, **sets: Any) -> Any:
        self.num_chars += len(text)
        return self.tokenizer.encode_to_numpy(text, **sets)

    def stable_prefix(self, text: str, **sets: Any) -> tuple[str, str]:
        self.num_chars += len(text)
        return self.tokenizer.stable_prefix(text, **sets)


def words(num_words: int) -> list[str]:
    rng = random.Random(0)
    return [rng.choice([" the", " fox", "\n", "中文", " x1"]) for _ in range(num_words)]


def test_appending_word_by_word_is_linear(gpt2: BPETokenizer) -> None:
    counting = Counting(gpt2)
    document = GrowingText(counting)  # type: ignore[arg-type]
    parts = words(50_000)
    for part in parts:
        document.append(part)
        assert len(document.ids) > 0
    # Each read looks at a tail of at most a segment and what it holds back.
    assert counting.num_chars < len(parts) * 2 * growing.SEGMENT_CHARS
    assert document.ids.tolist() == gpt2.encode("".join(parts))


def test_one_endless_piece_is_linear_when_read_once(gpt2: BPETokenizer) -> None:
    counting = Counting(gpt2)
    document = GrowingText(counting)  # type: ignore[arg-type]
    for _ in range(20_000):
        document.append("aaaaa")
    assert len(document.ids) > 0
    assert counting.num_chars < 100_000 * 5


def test_an_edit_in_the_middle_encodes_only_around_it(gpt2: BPETokenizer) -> None:
    counting = Counting(gpt2)
    text = "".join(words(200_000))
    document = GrowingText(counting, text)  # type: ignore[arg-type]
    assert len(document.ids) > 0
    counting.num_chars = 0
    for place in (100, 300_000, len(text) - 50_000):
        document.replace(place, place + 5, " dogs")
        text = text[:place] + " dogs" + text[place + 5 :]
        assert document.ids[-1] == gpt2.encode(text[-1000:])[-1]
    assert counting.num_chars < 3 * 8 * growing.SEGMENT_CHARS
    assert np.array_equal(document.ids, gpt2.encode_to_numpy(text))


def test_a_megabyte_takes_no_quadratic_time(gpt2: BPETokenizer) -> None:
    start_s = time.process_time()
    document = gpt2.growing("中文" * 500_000)
    assert len(document.ids) > 0
    # Quadratic work would take minutes; the bound only has to tell the two apart.
    assert time.process_time() - start_s < 5


def test_a_forbidden_token_is_told_and_can_be_cut_off(gpt2: BPETokenizer) -> None:
    document = gpt2.growing("hello")
    document.append("<|endof")
    document.append("text|>")
    with pytest.raises(DataError, match="not allowed here"):
        _ = document.ids
    document.truncate(5)
    assert document.ids.tolist() == gpt2.encode("hello")


def test_surrogate_halves_meet(gpt2: BPETokenizer) -> None:
    document = gpt2.growing("a\ud83d")
    assert document.ids.tolist() == gpt2.encode("a\ufffd")
    document.append("\ude00b")
    assert document.ids.tolist() == gpt2.encode("a😀b")


def test_ids_cannot_be_written(gpt2: BPETokenizer) -> None:
    with pytest.raises(ValueError, match="read-only"):
        gpt2.growing("hello").ids[0] = 1


@pytest.mark.parametrize(("begin", "end"), [(-1, 0), (2, 1), (0, 4)])
def test_places_outside_the_text_are_refused(gpt2: BPETokenizer, begin: int, end: int) -> None:
    with pytest.raises(ConfigError, match="not in a text of 3"):
        gpt2.growing("abc").replace(begin, end, "")
