"""Pre-tokenizers of several steps: the ids and offsets of `tokenizers`, by every way in."""

import copy
import itertools
import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer import huggingface, load, save
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte_letters import LETTERS
from lmworks.tokenizer.piece_steps import Bytes, PieceSteps, Punctuation, Split
from lmworks.tokenizer.pretokenize import PATTERNS
from lmworks.tokenizer.train import train_bpe_from_iterator

pytest.importorskip("regex")
peer = pytest.importorskip("tokenizers")
pre = peer.pre_tokenizers

ALL: dict[str, Any] = {"allowed_special": "all"}
TEXT = "ab 12  don't, (ò²) x-- 345\n中文。 ½é !!a1b2 ab ab\u200d_ x--x"
PARTS = [
    *("a", "b", "ab", "é", "ò", "²", "½", "中", "。", "\u3000", "\u200d", "👍", "e\u0301", "\x1c"),
    *(" ", "  ", "\n", "\t", "1", "23", "٣", ".", "--", "_", "$", "x", "'s", "<t>"),
    *("\u166d", "\u061d"),
]  # fmt: skip
texts = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)


def split(expression: str, behavior: str = "isolated", *, invert: bool = False) -> Any:
    return pre.Split(peer.Regex(expression), behavior, invert)


def byte_level(*, regex: bool = True, prefix: bool = False) -> Any:
    return pre.ByteLevel(add_prefix_space=prefix, use_regex=regex)


BEHAVIORS = ["isolated", "removed", "contiguous", "merged_with_previous", "merged_with_next"]
# As in these models' tokenizer.json.
MODELS: dict[str, list[Any]] = {
    "falcon": [
        pre.Punctuation("contiguous"),
        byte_level(),
        pre.Digits(individual_digits=False),
        split("[0-9][0-9][0-9]"),
    ],
    "falcon3": [
        pre.Punctuation("contiguous"),
        byte_level(),
        pre.Digits(individual_digits=True),
        split("[0-9][0-9][0-9]"),
    ],
    "starcoder": [pre.Digits(individual_digits=True), byte_level()],
    "bloom": [split(" ?[^(\\s|[.,!?…。，、।۔،])]+"), byte_level(regex=False)],
    "deepseek-coder": [
        split("[\r\n]"),
        split("\\s?\\p{L}+"),
        split("\\s?\\p{P}+"),
        split("[一-龥ࠀ-一가-퟿]+"),
        pre.Digits(individual_digits=True),
        byte_level(regex=False),
    ],
    "deepseek-llm": [
        split("[\r\n]"),
        split("\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌ]+"),
        split("\\s?[!-/:-~！-／：-～‘-‟　-。]+"),
        split("\\s+$"),
        split("[一-龥ࠀ-一가-퟿]+"),
        pre.Digits(individual_digits=True),
        byte_level(regex=False),
    ],
    "roberta": [byte_level(prefix=True)],
    "removed-between-known": [
        split(PATTERNS["llama3"], "removed", invert=True),
        byte_level(regex=False),
    ],
}
SEQUENCES: dict[str, list[Any]] = {
    **{
        f"split-{behavior}{'-inverted' * invert}": [
            split(r"\d+|[ab]", behavior, invert=invert),
            byte_level(regex=False),
        ]
        for behavior, invert in itertools.product(BEHAVIORS, [False, True])
    },
    **{
        f"empty-{behavior}": [
            split(r"(?=[a1])|b*|\s$", behavior),
            byte_level(regex=False, prefix=True),
        ]
        for behavior in BEHAVIORS
    },
    **{f"punctuation-{b}": [pre.Punctuation(b), byte_level(prefix=True)] for b in BEHAVIORS},
    **{
        f"letters-{b}": [byte_level(regex=False), split("[a²]|Ã", b), split("Ġ", "removed")]
        for b in BEHAVIORS
    },
    "string": [pre.Split("x", "isolated", invert=False), byte_level(regex=False)],
    "name": [pre.Split("gpt2", "removed", invert=False), byte_level(regex=False)],
    "whitespace": [pre.Whitespace(), byte_level(regex=False)],
    "whitespace-split": [pre.WhitespaceSplit(), byte_level(regex=False, prefix=True)],
    "delimiter": [pre.CharDelimiterSplit("²"), byte_level()],
    "bert": [pre.BertPreTokenizer(), byte_level(regex=False)],
    "digits-prefix": [pre.Digits(individual_digits=True), byte_level(prefix=True)],
    "all-removed": [split(r"[\s\S]", "removed"), byte_level(regex=False)],
}


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    """A tokenizer.json with tokens across any border, so that a missing cut shows."""
    choose = random.Random(0)
    corpus = "".join(choose.choices([part for part in PARTS if part != "<t>"], k=20_000))
    trained = train_bpe_from_iterator(
        [corpus], 900, pattern=r"[\s\S]{1,3}", special_tokens=["<t>"], num_threads=1
    )
    value: dict[str, Any] = json.loads(huggingface.to_json(trained))
    return value


def both(value: dict[str, Any], steps: list[Any]) -> tuple[BPETokenizer, Any]:
    """Our tokenizer and the peer's, with these steps."""
    theirs = peer.Tokenizer.from_str(json.dumps(value))
    theirs.pre_tokenizer = pre.Sequence(steps)
    ours = huggingface.from_json(json.loads(theirs.to_str()))
    assert isinstance(ours, BPETokenizer)
    return ours, theirs


@pytest.mark.parametrize("name", [*MODELS, *SEQUENCES])
def test_steps_give_the_ids_and_offsets_of_the_peer(base: dict[str, Any], name: str) -> None:
    ours, theirs = both(base, (MODELS | SEQUENCES)[name])
    again = peer.Tokenizer.from_str(huggingface.to_json(ours))
    assert huggingface.from_json(json.loads(huggingface.to_json(ours))) == ours

    @given(texts | st.text(max_size=12))
    @settings(max_examples=60)
    def check(text: str) -> None:
        expected = theirs.encode(text, add_special_tokens=False)
        assert again.encode(text, add_special_tokens=False).ids == expected.ids
        assert ours.encode(text, **ALL) == expected.ids
        assert ours.encode_batch([text, "", text], **ALL) == [expected.ids, [], expected.ids]
        assert list(ours.encode_iterable(list(text), **ALL)) == expected.ids
        document = ours.growing(text, **ALL)
        document.append("a1<t>")
        assert document.ids.tolist() == ours.encode(text + "a1<t>", **ALL)
        spans = ours.encode_with_offsets(text, **ALL)
        assert spans.ids.tolist() == expected.ids
        assert list(map(tuple, spans.offsets.tolist())) == expected.offsets

    check()


@pytest.mark.parametrize("unknown", [None, "~"])
@pytest.mark.parametrize("name", ["falcon", "whitespace", "digits-prefix", "letters-removed"])
def test_a_normalizer_and_missing_bytes_beside_the_steps(
    base: dict[str, Any], name: str, unknown: str | None
) -> None:
    value = copy.deepcopy(base)
    value["normalizer"] = {"type": "NFD"}
    gone = {LETTERS[b] for b in b"x\xc2\xbd"}
    model = value["model"]
    model["vocab"] = {k: i for k, i in model["vocab"].items() if not gone & set(k)}
    model["merges"] = [m for m in model["merges"] if not gone & set("".join(m))]
    model["unk_token"] = unknown
    ours, theirs = both(value, (MODELS | SEQUENCES)[name])

    @given(texts)
    @settings(max_examples=60)
    def check(text: str) -> None:
        expected = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, **ALL) == expected.ids
        assert ours.encode_with_offsets(text, **ALL).ids.tolist() == expected.ids

    check()


@pytest.mark.parametrize(
    ("name", "pattern"), [("starcoder", "smollm"), ("removed-between-known", "llama3")]
)
def test_what_amounts_to_a_known_pattern_runs_natively(
    base: dict[str, Any], name: str, pattern: str
) -> None:
    ours, _ = both(base, MODELS[name])
    assert (ours.pattern, ours.piece_steps) == (pattern, None)


def test_every_code_point_is_punctuation_as_for_the_peer() -> None:
    cut = PieceSteps([Punctuation("removed"), Bytes()])
    chars = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for begin in range(0, len(chars), 4096):
        text = "".join(chars[begin : begin + 4096])
        left = "".join(piece for piece, _ in pre.Punctuation("removed").pre_tokenize_str(text))
        assert cut.apply(text.encode()).text.decode() == left


def test_bytes_that_are_not_utf8_are_cut_like_characters(base: dict[str, Any]) -> None:
    ours, _ = both(base, MODELS["falcon"])
    data = b"a\xff12\xfe\xb2 \xe4\xb8"
    assert ours.decode_bytes(ours.encode(data)) == data
    encoding = ours.encode_with_offsets(data, unit="byte")
    assert encoding.offsets[:, 0].tolist() == [0, *encoding.offsets[:-1, 1].tolist()]


def test_what_is_removed_is_lost_and_its_place_is_in_no_span(base: dict[str, Any]) -> None:
    ours, _ = both(base, SEQUENCES["whitespace-split"])
    assert ours.decode(ours.encode("ab \n ab")) == " ab ab"
    assert ours.encode_with_offsets("ab \n ab").offsets.tolist() == [[0, 2], [5, 7]]


def test_copies_and_files_have_the_steps(base: dict[str, Any], tmp_path: Path) -> None:
    ours, _ = both(base, MODELS["falcon"])
    ours.save(tmp_path / "tokenizer.json")
    for same in (load(tmp_path), pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert same == ours
        assert isinstance(same, BPETokenizer)
        assert same.piece_steps == ours.piece_steps
        assert same.encode(TEXT) == ours.encode(TEXT)
    plain, _ = both(base, [byte_level(regex=False)])
    assert plain.fingerprint != ours.fingerprint
    assert "piece_steps" not in plain.content()


def test_other_formats_and_training_refuse_the_steps(base: dict[str, Any], tmp_path: Path) -> None:
    ours, _ = both(base, MODELS["falcon"])
    for form in ("tiktoken", "gguf"):
        with pytest.raises(DataError, match="no"):
            save(ours, tmp_path / "file", format=form)
    with pytest.raises(ConfigError, match="cut by several steps"):
        train_bpe_from_iterator(["text"], 500, extend=ours)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("x", "must be a list"),
        ([], "0 steps are of kind 'bytes'"),
        ([{"kind": "bytes", "add_prefix_space": False, "use_regex": True}] * 2, "2 steps are"),
        ([{"kind": "cut"}], "piece_steps.0.: kind='cut' is not one of split"),
        ([5], "kind=None is not"),
        ([{"kind": "split", "pattern": "(", "behavior": "isolated", "invert": False}], "regular"),
        ([{"kind": "split", "pattern": "", "behavior": "isolated", "invert": False}], "empty"),
        ([{"kind": "punctuation", "behavior": "lost"}], "behavior='lost' is not one of isolated"),
        ([{"kind": "digits"}], "'individual' is missing"),
        ([{"kind": "delimiter", "delimiter": "ab"}], "must be one character"),
        ([{"kind": "whitespace"}] * 65, "at most 64"),
    ],
)
def test_other_steps_are_refused(steps: Any, message: str, tmp_path: Path) -> None:
    tokens = [bytes([i]) for i in range(256)]
    path = tmp_path / "tokenizer.json"
    BPETokenizer(tokens, [], pattern="none", special_tokens={}).save(path)
    value = {**json.loads(path.read_text()), "piece_steps": steps}
    path.write_text(json.dumps(value))
    with pytest.raises(DataError, match=message):
        load(path)


def test_steps_beside_a_pattern_are_refused() -> None:
    tokens = [bytes([i]) for i in range(256)]
    steps = PieceSteps([Split("a"), Bytes()])
    with pytest.raises(DataError, match="beside piece_steps"):
        BPETokenizer(tokens, [], pattern="gpt2", special_tokens={}, piece_steps=steps)
    with pytest.raises(DataError, match="beside piece_steps"):
        BPETokenizer(
            tokens,
            [],
            pattern="none",
            special_tokens={},
            piece_steps=steps,
            add_prefix_space=True,
        )
