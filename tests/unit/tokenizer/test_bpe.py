"""Byte-level BPE encoding and decoding."""

import itertools
import multiprocessing
import os
import pickle
import random
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmworks import _text
from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.token_table import pack_tokens

BYTES = [bytes([i]) for i in range(256)]


def merged(piece: bytes, tokenizer: BPETokenizer) -> list[int]:
    """The definition: lowest rank first, leftmost of equals."""
    id_of = {token: i for i, token in enumerate(tokenizer.tokens) if token is not None}
    rank_of = {pair: rank for rank, pair in enumerate(tokenizer.merges)}
    ids = [id_of[bytes([b])] for b in piece]
    while len(ids) > 1:
        ranked = [
            (rank_of[pair], i) for i, pair in enumerate(itertools.pairwise(ids)) if pair in rank_of
        ]
        if not ranked:
            break
        i = min(ranked)[1]
        joined = (tokenizer.tokens[ids[i]] or b"") + (tokenizer.tokens[ids[i + 1]] or b"")
        ids[i : i + 2] = [id_of[joined]]
    return ids


def plain(tokenizer: BPETokenizer, text: str | bytes) -> list[int]:
    return tokenizer.encode(text, disallowed_special=())


def test_encoding_is_merging_by_rank_inside_each_piece(bpe: BPETokenizer, texts: Any) -> None:
    @given(texts)
    def check(text: str) -> None:
        pieces = _text.split(text.encode(), bpe.pattern)
        assert plain(bpe, text) == [i for piece in pieces for i in merged(piece, bpe)]

    check()


@given(st.text(alphabet="aheo ", min_size=60, max_size=400))
def test_long_pieces_merge_as_the_definition_says(gpt2: BPETokenizer, text: str) -> None:
    for piece in _text.split(text.replace(" ", "t").encode(), "gpt2"):
        assert plain(gpt2, piece) == merged(piece, gpt2)


def test_decoding_gives_the_text_back(bpe: BPETokenizer, texts: Any) -> None:
    @given(texts)
    def check(text: str) -> None:
        assert bpe.decode(plain(bpe, text)) == text

    check()


@given(st.binary(max_size=200))
def test_bytes_that_are_not_utf8_survive(bpe: BPETokenizer, data: bytes) -> None:
    assert bpe.decode_bytes(plain(bpe, data)) == data


def test_list_array_and_batch_agree(gpt2: BPETokenizer, texts: Any) -> None:
    @given(st.lists(texts, max_size=8), st.integers(1, 4))
    def check(docs: list[str], num_threads: int) -> None:
        one_by_one = [plain(gpt2, doc) for doc in docs]
        arrays = [gpt2.encode_to_numpy(doc, disallowed_special=()) for doc in docs]
        assert [array.tolist() for array in arrays] == one_by_one
        assert all(array.dtype == np.uint32 for array in arrays)
        batch = gpt2.encode_batch(docs, num_threads=num_threads, disallowed_special=())
        assert batch == one_by_one

    check()


def test_ids_do_not_depend_on_what_the_cache_holds(gpt2: BPETokenizer) -> None:
    rng = np.random.default_rng(0)
    words = [
        "".join(chr(97 + c) for c in rng.integers(0, 26, n)) for n in rng.integers(1, 40, 5000)
    ]
    text = " ".join(words)
    encoder = _text.BpeEncoder(**native_arguments(gpt2), max_cache_slots=64)
    as_text = bytes(len(gpt2.special_tokens))
    for _ in range(2):
        assert encoder.encode_to_list(text.encode(), as_text) == plain(gpt2, text)


def native_arguments(tokenizer: BPETokenizer) -> dict[str, Any]:
    tokens = [token or b"" for token in tokenizer.tokens]
    merges = [(a, b, tokens.index(tokens[a] + tokens[b])) for a, b in tokenizer.merges]
    return {
        "pattern": tokenizer.pattern,
        "ignore_merges": False,
        "token_bytes": b"".join(tokens),
        "token_offsets": np.cumsum([0, *map(len, tokens)]).astype(np.uint64),
        "merges": np.array(merges, np.uint32).ravel(),
        "specials": tokenizer._specials.splitter,
        "special_ids": list(tokenizer.special_tokens.values()),
    }


@pytest.mark.parametrize(
    "text",
    [
        "a" * 300_000,
        " " * 300_000,
        "the" * 100_000,
        "中文没有空格" * 50_000,
        "ab" * 150_000,
        "".join(map(chr, random.Random(0).choices(range(0x20, 0xD800), k=300_000))),
    ],
    ids=["letter", "blanks", "words", "Chinese", "two letters", "random code points"],
)
def test_one_endless_piece_takes_no_quadratic_time(gpt2: BPETokenizer, text: str) -> None:
    start_s = time.process_time()
    ids = plain(gpt2, text)
    # Quadratic merging would take minutes; the bound only has to tell the two apart.
    assert time.process_time() - start_s < 5
    assert gpt2.decode(ids) == text


def test_a_whole_piece_that_is_a_token_is_taken_when_merges_are_ignored() -> None:
    tokens = [*BYTES, b"ab", b"abc"]
    merging = BPETokenizer(tokens, [(97, 98)], pattern="gpt2", special_tokens={})
    ignoring = BPETokenizer(
        tokens, [(97, 98)], pattern="gpt2", special_tokens={}, ignore_merges=True
    )
    assert merging.encode("abc") == [256, 99]
    assert ignoring.encode("abc") == [257]
    assert ignoring.encode("abcd") == [256, 99, 100]


def test_a_lone_surrogate_becomes_the_replacement_character(gpt2: BPETokenizer) -> None:
    assert gpt2.decode(gpt2.encode("a\ud800b")) == "a\ufffdb"


def test_nfc_composes_the_text_between_special_tokens() -> None:
    tokenizer = BPETokenizer(
        BYTES, [], pattern="qwen2", special_tokens={"<x>": 256}, normalizer="NFC"
    )
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "é"
    # U+0338 would turn the last character of the special token into "≯".
    ids = tokenizer.encode("<x>\u0338", allowed_special="all")
    assert ids == [256, *"\u0338".encode()]
    assert tokenizer.encode_batch(["e\u0301", "a"]) == [[*"é".encode()], [97]]


def test_a_batch_of_composed_and_other_texts_is_in_order() -> None:
    tokenizer = BPETokenizer(
        BYTES, [], pattern="qwen2", special_tokens={"<x>": 256}, normalizer="NFC"
    )
    texts = ["é", "e\u0301", "", "a<x>", "e\u0301<x>", "é中", "e\u0301"]
    for chosen in (texts, texts[1:2], texts[2:4], texts[::-1]):
        batch = tokenizer.encode_batch(chosen, num_threads=2, allowed_special="all")
        assert batch == [tokenizer.encode(text, allowed_special="all") for text in chosen]
    with pytest.raises(DataError, match="text 2: the text contains"):
        tokenizer.encode_batch(["a", "e\u0301", "<x>"])
    with pytest.raises(DataError, match="text 1: the text contains"):
        tokenizer.encode_batch(["a", "e\u0301<x>"])


def test_a_pickled_copy_is_the_same_tokenizer(gpt2: BPETokenizer) -> None:
    copy = pickle.loads(pickle.dumps(gpt2))
    assert copy == gpt2
    assert copy.encode("hello world") == gpt2.encode("hello world")


def _child(tokenizer: BPETokenizer) -> list[int]:
    return tokenizer.encode_batch(["hello world"] * 4, num_threads=2)[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_encodes(gpt2: BPETokenizer) -> None:
    gpt2.encode_batch(["hello"] * 4, num_threads=2)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_child, (gpt2,)) == gpt2.encode("hello world")


def test_a_batch_needs_a_thread(gpt2: BPETokenizer) -> None:
    with pytest.raises(ConfigError, match="num_threads=0; use 1 or more"):
        gpt2.encode_batch(["a"], num_threads=0)


@pytest.mark.parametrize("bad", [[-1], [10**6], [2**40], [1.5], [[1]], ["a"]])
def test_ids_that_are_no_tokens_are_refused(gpt2: BPETokenizer, bad: list[Any]) -> None:
    with pytest.raises(DataError, match="token id"):
        gpt2.decode(bad)


def test_an_unused_id_is_refused() -> None:
    tokenizer = BPETokenizer([*BYTES, None, b"ab"], [(97, 98)], pattern="gpt2", special_tokens={})
    assert tokenizer.encode("ab") == [257]
    with pytest.raises(DataError, match="256 is unused"):
        tokenizer.decode([256])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": BYTES[:255]}, "0xFF"),
        ({"tokens": [*BYTES, b"a"]}, "tokens 97 and 256 are both"),
        ({"tokens": [*BYTES, b""]}, "empty"),
        ({"merges": [(97, 98)]}, "not a token"),
        ({"merges": [(97, 999)]}, "not both tokens"),
        ({"merges": [(-1, 97)]}, "not both tokens"),
        ({"tokens": [*BYTES, b"ab"], "merges": [(97, 98)] * 2}, "given twice"),
        ({"pattern": "gpt22"}, "did you mean 'gpt2'"),
        ({"special_tokens": {"<x>": 97}}, "used twice"),
        ({"special_tokens": {"<x>": 256, "<y>": 256}}, "used twice"),
        ({"special_tokens": {"<x>": 2**40}}, "not in 0"),
        ({"special_tokens": {"": 256}}, "0 bytes"),
        ({"special_tokens": {"\ud800": 256}}, "not valid Unicode"),
    ],
)
def test_a_vocabulary_that_does_not_fit_together_is_refused(
    change: dict[str, Any], message: str
) -> None:
    values = {"tokens": BYTES, "merges": [], "pattern": "gpt2", "special_tokens": {}, **change}
    with pytest.raises(DataError, match=message):
        BPETokenizer(values.pop("tokens"), values.pop("merges"), **values)


def _native(pattern: str, outputs: list[list[int]] | None) -> _text.BpeEncoder:
    """The bytes, then "ab" (256) and "abc" (257)."""
    tokens = [*(bytes([i]) for i in range(256)), b"ab", b"abc"]
    blob, offsets = pack_tokens(tokens)
    flat = output_offsets = None
    if outputs is not None:
        flat = np.array([i for ids in outputs for i in ids], np.uint32)
        output_offsets = np.cumsum([0, *map(len, outputs)]).astype(np.uint64)
    return _text.BpeEncoder(
        pattern=pattern,
        ignore_merges=False,
        token_bytes=blob,
        token_offsets=offsets,
        merges=np.array([97, 98, 256, 256, 99, 257], np.uint32),
        specials=_text.SpecialSplitter([], b""),
        special_ids=[],
        max_cache_slots=1 << 10,
        outputs=flat,
        output_offsets=output_offsets,
    )


def test_outputs_replace_ids_by_none_one_or_several() -> None:
    outputs = [[i] for i in range(258)]
    outputs[ord("z")] = []
    outputs[256] = [500, 501]
    encoder = _native("gpt2", outputs)
    assert encoder.encode_to_list(b"zz", b"") == []
    assert encoder.encode_to_list(b"zabzabc", b"") == [500, 501, 257]
    assert encoder.encode_to_list(b"ab" * 100, b"") == [500, 501] * 100


def test_a_token_with_more_outputs_than_bytes_is_refused() -> None:
    outputs = [[i] for i in range(258)]
    outputs[5] = [1, 2]
    with pytest.raises(ValueError, match="outputs of token 5"):
        _native("gpt2", outputs)


def test_without_a_pattern_tokens_may_span_anything() -> None:
    assert _native("none", None).encode_to_list(b"ab abc", b"") == [256, 32, 257]


def test_pieces_cut_by_the_caller_are_encoded_apart() -> None:
    ends = np.array([3, 4, 6, 7], np.uint64)
    assert _native("gpt2", None).encode_pieces(b"abcabab", ends).tolist() == [257, 97, 98, 97, 98]


@pytest.mark.parametrize("ends", [[], [7, 8], [3, 3, 7], [4, 3, 7], [0, 7], [3]])
def test_ends_that_do_not_cut_the_text_are_refused(ends: list[int]) -> None:
    with pytest.raises(ValueError, match="piece ends"):
        _native("gpt2", None).encode_pieces(b"abcabab", np.array(ends, np.uint64))
