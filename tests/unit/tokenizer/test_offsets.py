"""Offsets: each token's exact part of the original text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer import save
from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte import ByteTokenizer
from lmworks.tokenizer.char import CharTokenizer
from lmworks.tokenizer.normalize import Normalizer
from lmworks.tokenizer.word import WordTokenizer

BYTES = [bytes([i]) for i in range(256)]
ANY_SPECIAL: dict[str, Any] = {"allowed_special": "all"}


def check_spans(tokenizer: Tokenizer, text: str) -> None:
    """Without a normalizer the byte spans cut the text into the tokens."""
    data = text.encode("utf-8")
    encoding = tokenizer.encode_with_offsets(text, unit="byte", **ANY_SPECIAL)
    assert encoding.ids.tolist() == tokenizer.encode(text, **ANY_SPECIAL)
    parts = [data[a:b] for a, b in encoding.offsets.tolist()]
    assert b"".join(parts) == data
    for token_id, part in zip(encoding.ids.tolist(), parts, strict=True):
        assert token_id == tokenizer.unk_id or tokenizer.token_bytes(token_id) == part
    chars = tokenizer.encode_with_offsets(text, **ANY_SPECIAL).offsets.tolist()
    for (begin, end), (first, last) in zip(encoding.offsets.tolist(), chars, strict=True):
        assert len(text[:first].encode()) <= begin < len(text[: first + 1].encode())
        assert len(text[: last - 1].encode()) < end <= len(text[:last].encode())


def test_spans_cut_the_text_into_the_tokens(bpe: BPETokenizer, texts: Any) -> None:
    @settings(max_examples=60)
    @given(texts)
    def check(text: str) -> None:
        check_spans(bpe, text)

    check()


@pytest.mark.parametrize("kind", ["byte", "char", "word"])
def test_spans_of_other_kinds_cut_the_text_into_the_tokens(kind: str, texts: Any) -> None:
    specials = ["<|endoftext|>", "<"]
    tokenizers = {
        "byte": ByteTokenizer(specials),
        "char": CharTokenizer("abcdeABC é", specials),
        "word": WordTokenizer([b"hello", b" ", b"\n"], pattern="o200k", special_tokens=specials),
    }

    @given(texts)
    def check(text: str) -> None:
        check_spans(tokenizers[kind], text)

    check()


def test_spans_equal_those_of_hugging_face(gpt2: BPETokenizer, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    save(gpt2, tmp_path / "tokenizer.json", format="hf")
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))

    @settings(max_examples=300)
    @given(st.text(max_size=40) | st.text("aé中🙂 \n'\u0301", max_size=40))
    def check(text: str) -> None:
        text = text.encode("utf-8", "replace").decode()
        ours = gpt2.encode_with_offsets(text, **ANY_SPECIAL)
        theirs = peer.encode(text)
        assert ours.ids.tolist() == theirs.ids
        assert [tuple(pair) for pair in ours.offsets.tolist()] == theirs.offsets

    check()


def test_spans_of_tokens_that_take_in_white_space_equal_those_of_hugging_face(
    gpt2: BPETokenizer, tmp_path: Path
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    save(gpt2, tmp_path / "plain.json", format="hf")
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "plain.json"))
    flags = {"<mask>": ["lstrip"], "<end>": ["rstrip"], "<both>": ["lstrip", "rstrip"]}
    peer.add_special_tokens(
        [
            tokenizers.AddedToken(name, normalized=False, **dict.fromkeys(names, True))
            for name, names in flags.items()
        ]
    )
    ids = {name: peer.token_to_id(name) for name in flags}
    content = {"special_tokens": {**gpt2.special_tokens, **ids}, "token_flags": flags}
    ours = BPETokenizer.from_content({**gpt2.content(), **content})
    parts = ["<mask>", "<end>", "<both>", " ", "  ", "\n", "the", "é", "🙂", "<"]

    @settings(max_examples=200)
    @given(st.lists(st.sampled_from(parts), max_size=12).map("".join))
    def check(text: str) -> None:
        found = ours.encode_with_offsets(text, **ANY_SPECIAL)
        wanted = peer.encode(text)
        assert found.ids.tolist() == wanted.ids == ours.encode(text, **ANY_SPECIAL)
        assert [tuple(pair) for pair in found.offsets.tolist()] == wanted.offsets

    check()


def test_spans_are_places_in_the_text_before_it_is_normalized() -> None:
    nfc = BPETokenizer(BYTES, [], pattern="qwen2", special_tokens={"<x>": 256}, normalizer="NFC")
    text = "e\u0301x<x>\u1112\u1161\u11abé"
    encoding = nfc.encode_with_offsets(text, **ANY_SPECIAL)
    assert encoding.ids.tolist() == nfc.encode(text, **ANY_SPECIAL)
    spans = [[0, 2]] * 2 + [[2, 3], [3, 6]] + [[6, 9]] * 3 + [[9, 10]] * 2
    assert encoding.offsets.tolist() == spans
    in_bytes = nfc.encode_with_offsets(text, unit="byte", **ANY_SPECIAL).offsets.tolist()
    assert in_bytes[:4] == [[0, 3], [0, 3], [3, 4], [4, 7]]


@pytest.mark.parametrize("steps", [["nfc"], ["nfd"], ["nfkc", "lowercase"], ["strip_accents"]])
def test_spans_behind_a_normalizer_hold_what_the_token_is_made_of(
    steps: list[str], texts: Any
) -> None:
    normalizer = Normalizer.from_json([{"kind": kind} for kind in steps])
    assert normalizer is not None
    tokenizer = BPETokenizer(BYTES, [], pattern="none", special_tokens={}, normalizer=normalizer)

    @settings(max_examples=60)
    @given(texts)
    def check(text: str) -> None:
        encoding = tokenizer.encode_with_offsets(text)
        assert encoding.ids.tolist() == tokenizer.encode(text)
        # What is removed in front of the first token belongs to none.
        at = int(encoding.offsets[0, 0]) if len(encoding) else 0
        for begin, end in encoding.offsets.tolist():
            assert begin <= at  # nothing between two spans is left out
            at = max(at, end)
            assert begin < end <= len(text)

    check()


def test_tokens_that_share_a_character_have_all_of_it() -> None:
    encoding = ByteTokenizer().encode_with_offsets("a🙂b")
    assert encoding.offsets.tolist() == [[0, 1], *[[1, 2]] * 4, [2, 3]]
    inside = ByteTokenizer().encode_with_offsets("a🙂b", unit="byte")
    assert inside.offsets.tolist() == [[i, i + 1] for i in range(6)]


def test_surrogates_count_as_the_characters_that_the_text_has() -> None:
    text = "\ud800a\ud83d\ude00b\ude00"
    encoding = ByteTokenizer().encode_with_offsets(text)
    spans = [[0, 1]] * 3 + [[1, 2]] + [[2, 4]] * 4 + [[4, 5]] + [[5, 6]] * 3
    assert encoding.offsets.tolist() == spans


def test_the_token_at_a_place_is_found() -> None:
    encoding = ByteTokenizer().encode_with_offsets("a🙂b")
    assert [encoding.token_at(i) for i in range(-1, 4)] == [None, 0, 1, 5, None]
    assert len(encoding) == 6


def test_nothing_has_no_spans(gpt2: BPETokenizer) -> None:
    for unit in ("char", "byte"):
        encoding = gpt2.encode_with_offsets("", unit=unit)
        assert encoding.offsets.shape == (0, 2)
        assert encoding.offsets.dtype == np.int64


def test_bytes_that_are_not_utf8_have_byte_offsets_only(gpt2: BPETokenizer) -> None:
    encoding = gpt2.encode_with_offsets(b"a\xffb", unit="byte")
    assert encoding.offsets.tolist() == [[0, 1], [1, 2], [2, 3]]
    with pytest.raises(DataError, match=r"not UTF-8 at byte 1.*unit='byte'"):
        gpt2.encode_with_offsets(b"a\xffb")
    with pytest.raises(DataError, match="not UTF-8 at byte 1"):
        CharTokenizer("ab").encode_with_offsets(b"a\xffb", unit="byte")


def test_an_unknown_unit_is_refused(gpt2: BPETokenizer) -> None:
    with pytest.raises(ConfigError, match="unit='word' must be 'char' or 'byte'"):
        gpt2.encode_with_offsets("a", unit="word")  # type: ignore[arg-type]


def test_a_forbidden_token_is_refused(gpt2: BPETokenizer) -> None:
    with pytest.raises(DataError, match="not allowed here"):
        gpt2.encode_with_offsets("<|endoftext|>")
