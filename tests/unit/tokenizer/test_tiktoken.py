"""tiktoken's rank files and its rules for special tokens."""

import base64
from pathlib import Path
from typing import Any

import pytest

from lmworks import _text
from lmworks.base.errors import DataError
from lmworks.tokenizer import load_tiktoken
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.tiktoken import ENCODINGS, from_ranks

BYTES = [bytes([i]) for i in range(256)]


def ranks(tokens: list[bytes], line_end: bytes = b"\n") -> bytes:
    return b"".join(base64.b64encode(t) + b" %d" % i + line_end for i, t in enumerate(tokens))


def test_a_forbidden_token_inside_an_allowed_one_is_an_error_as_in_tiktoken() -> None:
    peer = pytest.importorskip("tiktoken")
    specials = {"<|a|>": 256, "<|a|><|b|>": 257}
    theirs = peer.Encoding(
        "x",
        pat_str=_text.PATTERNS["gpt2"],
        mergeable_ranks={b: i for i, b in enumerate(BYTES)},
        special_tokens=specials,
    )
    ours = BPETokenizer(BYTES, [], pattern="gpt2", special_tokens=specials)
    text = "x<|a|><|b|>"
    allowed = {"<|a|><|b|>"}
    for encoding in (ours, theirs):
        with pytest.raises(ValueError, match=r"<\|a\|>"):
            encoding.encode(text, allowed_special=allowed)
    with pytest.raises(DataError, match=r"<\|a\|>"):
        list(ours.encode_iterable(list(text), allowed_special=allowed))


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\n\n"])
def test_line_ends_and_empty_lines_do_not_matter(line_end: bytes) -> None:
    tokens = [*BYTES, b"ab", b"abc"]
    assert from_ranks(ranks(tokens, line_end), "gpt2") == from_ranks(ranks(tokens), "gpt2")


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_known_encoding_brings_its_pattern_and_special_tokens(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.tiktoken").write_bytes(ranks(BYTES))
    tokenizer = load_tiktoken(tmp_path / "x.tiktoken", name)
    assert (tokenizer.pattern, tokenizer.special_tokens) == ENCODINGS[name]
    assert load_tiktoken(tmp_path / "x.tiktoken", name, {"<x>": 300}).special_tokens == {"<x>": 300}


def test_ranks_decide_where_merges_overlap() -> None:
    peer = pytest.importorskip("tiktoken")
    tokens = [*BYTES, b"ab", b"bc", b"cd", b"abcd", b"bcd", b"abcdab", b"aa", b"aaa", b"aaaa"]
    theirs = peer.Encoding(
        "x",
        pat_str=_text.PATTERNS["gpt2"],
        mergeable_ranks={token: i for i, token in enumerate(tokens)},
        special_tokens={},
    )
    ours = from_ranks(ranks(tokens), "gpt2")
    for text in ("abcd", "abcdab", "bcdbcd", "aaaaaaa", "xabcdabcd", "a" * 99):
        assert ours.encode(text) == theirs.encode(text)


@pytest.mark.parametrize(
    "data", [ranks([*BYTES, b"ab", b"ab"]), ranks(BYTES) + b"YWI= 70000000", b"\x00" * 100_000]
)
def test_a_damaged_file_is_refused(data: bytes) -> None:
    with pytest.raises(DataError):
        from_ranks(data, "gpt2")


def test_thousands_of_added_tokens_are_found_wherever_they_begin() -> None:
    names: dict[str, Any] = {f"{chr(97 + i % 26)}{i}x": 1000 + i for i in range(20_000)}
    ours = BPETokenizer(BYTES, [], pattern="gpt2", special_tokens={}, added_tokens=names)
    wanted = list(names)[::997]
    assert ours.encode("".join(wanted)) == [names[name] for name in wanted]
    assert ours.encode("a0") == [97, 48]
