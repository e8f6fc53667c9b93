"""BPE with a regular expression that no scanner knows: the same ids by every way in, slower."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from lmworks import _text
from lmworks.base.errors import DataError
from lmworks.tokenizer import load
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.stream import encode_stream

pytest.importorskip("regex")

BYTES = [bytes([i]) for i in range(256)]
# Equal to the known expression, and not known: it takes the way of all others.
OWN_GPT2 = f"(?:{_text.PATTERNS['gpt2']})"
SETS: dict[str, Any] = {"allowed_special": "all"}


def with_pattern(tokenizer: BPETokenizer, pattern: str) -> BPETokenizer:
    return BPETokenizer.from_content({**tokenizer.content(), "pattern": pattern})


@pytest.fixture(scope="module")
def own(gpt2: BPETokenizer) -> BPETokenizer:
    return with_pattern(gpt2, OWN_GPT2)


def test_ids_equal_those_of_the_scanner(gpt2: BPETokenizer, own: BPETokenizer, texts: Any) -> None:
    @settings(max_examples=60)
    @given(texts)
    def check(text: str) -> None:
        wanted = gpt2.encode(text, **SETS)
        assert own.encode(text, **SETS) == wanted
        assert own.encode_to_numpy(text, **SETS).tolist() == wanted
        assert own.encode_batch([text, "", text], num_threads=2, **SETS) == [wanted, [], wanted]
        assert own.prepare(text, **SETS).flat_ids.tolist() == wanted
        chunks = [text[i : i + 3] for i in range(0, len(text), 3)]
        assert list(encode_stream(own, chunks, block_chars=5, **SETS)) == wanted
        document = own.growing(text, **SETS)
        document.append(text)
        assert document.ids.tolist() == gpt2.encode(text + text, **SETS)
        spans = own.encode_with_offsets(text, **SETS)
        assert spans.ids.tolist() == wanted
        assert spans.offsets.tolist() == gpt2.encode_with_offsets(text, **SETS).offsets.tolist()

    check()


def test_what_no_match_covers_is_a_piece(gpt2: BPETokenizer) -> None:
    words = with_pattern(gpt2, r"(?<=x)the|fox+")
    assert words.encode("thethe") == gpt2.encode("the") * 2
    assert words.decode(words.encode("the foxx 中 xthe")) == "the foxx 中 xthe"


def test_bytes_that_are_not_utf8_survive(own: BPETokenizer, gpt2: BPETokenizer) -> None:
    data = b"the\xff\xfe \xe4\xb8 fox"
    assert own.encode(data) == gpt2.encode(data)
    assert own.decode_bytes(own.encode(data)) == data


def test_without_a_pattern_tokens_are_anywhere(gpt2: BPETokenizer) -> None:
    tokens = [*BYTES, b"a ", b"a b"]
    anywhere = BPETokenizer(tokens, [(97, 32), (256, 98)], pattern="none", special_tokens={})
    assert anywhere.encode("a b a") == [257, 32, 97]
    assert list(anywhere.encode_iterable(["a", " ", "b a"])) == [257, 32, 97]


def test_a_copy_and_a_file_have_the_expression(own: BPETokenizer, tmp_path: Path) -> None:
    own.save(tmp_path / "tokenizer.json")
    for copy in (load(tmp_path), pickle.loads(pickle.dumps(own))):
        assert copy == own
        assert copy.pattern == OWN_GPT2
        assert copy.encode("hello world 12") == own.encode("hello world 12")


def test_a_name_of_a_model_is_its_pattern() -> None:
    assert BPETokenizer(BYTES, [], pattern="qwen3", special_tokens={}).pattern == "qwen2"


@pytest.mark.parametrize(
    ("pattern", "message"), [("(a", "no regular expression"), ("gpt22", "mean .gpt2.")]
)
def test_what_is_neither_a_name_nor_an_expression_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        BPETokenizer(BYTES, [], pattern=pattern, special_tokens={})
