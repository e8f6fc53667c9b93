"""Copies of a tokenizer, in this process and in others, are that tokenizer."""

import copy
import functools
import multiprocessing
import operator
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from lmworks.tokenizer import Template, huggingface
from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte import ByteTokenizer
from lmworks.tokenizer.char import CharTokenizer
from lmworks.tokenizer.normalize import NFC, Lowercase, Normalizer
from lmworks.tokenizer.piece_steps import Bytes, Digits, PieceSteps, Punctuation
from lmworks.tokenizer.preprocess import Unknown
from lmworks.tokenizer.special import TokenFlags
from lmworks.tokenizer.word import WordTokenizer

EOT = "<|endoftext|>"
TEXT = f"the Cat  sat, e\u0301 中 12 {EOT} <x> on"
TOKENS = [*(bytes([i]) for i in range(256)), b"th", b"the", b" c", b" the"]
MERGES = [(116, 104), (256, 101), (32, 99), (32, 257)]


def bpe(**changes: Any) -> BPETokenizer:
    settings: dict[str, Any] = {"pattern": "gpt2", "special_tokens": {EOT: 300}, **changes}
    return BPETokenizer(settings.pop("tokens", TOKENS), settings.pop("merges", MERGES), **settings)


def everything() -> BPETokenizer:
    return bpe(
        ignore_merges=True,
        normalizer=Normalizer([NFC(), Lowercase()]),
        added_tokens={"<x>": 301},
        token_flags={"<x>": TokenFlags(lstrip=True), EOT: TokenFlags(normalized=True)},
        add_prefix_space=True,
    )


def sentencepiece() -> Tokenizer:
    pieces = ["<unk>", "▁", "t", "h", "e", "th", "the", "▁the", EOT]
    value: dict[str, Any] = {
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": ["t h", "th e", "▁ the"],
        },
        "added_tokens": [{"id": 8, "content": EOT, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"},
    }
    return huggingface.from_json(value)


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "bpe": bpe,
    "bpe, everything": everything,
    "bpe, missing bytes": lambda: bpe(
        tokens=[None if token in (b"x", b"y", b"z") else token for token in TOKENS],
        unknown=Unknown(300, fuse=True),
    ),
    "bpe, steps": lambda: bpe(
        pattern="none", piece_steps=PieceSteps([Punctuation("contiguous"), Bytes(), Digits()])
    ),
    "bpe, own pattern": lambda: bpe(pattern=r"\d|\p{L}+|\s"),
    "sentencepiece": sentencepiece,
    "byte": lambda: ByteTokenizer([EOT]),
    "char": lambda: CharTokenizer.train([TEXT], special_tokens=[EOT]),
    "word": lambda: WordTokenizer.train([TEXT], vocab_size=9, special_tokens=[EOT]),
}


def pickled(value: Any, protocol: int) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"protocol {i}": functools.partial(pickled, protocol=i)
        for i in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.fixture(params=MAKERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made = MAKERS[request.param]()
    made.template = Template.around(bos_id=made.eot_id)
    if isinstance(made, BPETokenizer):
        made.max_cache_slots = 128
    return made


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_has_the_ids_and_settings(tokenizer: Tokenizer, how: str) -> None:
    same = COPIES[how](tokenizer)
    assert type(same) is type(tokenizer)
    assert same == tokenizer
    assert hash(same) == hash(tokenizer)
    assert same.content() == tokenizer.content()
    assert same.template == tokenizer.template
    assert getattr(same, "max_cache_slots", None) == getattr(tokenizer, "max_cache_slots", None)
    ids = tokenizer.encode(TEXT, allowed_special="all")
    assert same.encode(TEXT, allowed_special="all") == ids
    assert same.decode(ids) == tokenizer.decode(ids)
    expected = tokenizer.encode_with_offsets(TEXT, allowed_special="all")
    found = same.encode_with_offsets(TEXT, allowed_special="all")
    assert found.offsets.tolist() == expected.offsets.tolist()


@pytest.mark.parametrize("how", COPIES)
def test_what_is_set_on_a_copy_does_not_reach_the_original(tokenizer: Tokenizer, how: str) -> None:
    same = COPIES[how](tokenizer)
    same.template = None
    assert tokenizer.template is not None
    assert tokenizer != same


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(
            "fork", marks=pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
        ),
        pytest.param("spawn", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_encode_with_any_of_them(method: str) -> None:
    tokenizers = [make() for make in MAKERS.values()]
    encode = operator.methodcaller("encode", TEXT, allowed_special="all")
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map(encode, tokenizers) == [encode(t) for t in tokenizers]
        assert pool.map(copy.deepcopy, tokenizers) == tokenizers
