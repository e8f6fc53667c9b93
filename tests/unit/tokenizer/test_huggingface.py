"""tokenizer.json: every option that is read gives the ids of `tokenizers`, and is written back."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.base.errors import DataError
from lmworks.tokenizer import huggingface, save
from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte_letters import LETTERS
from lmworks.tokenizer.template import Template, TemplateItem
from lmworks.tokenizer.train import train_bpe_from_iterator


def byte_level(**options: Any) -> dict[str, Any]:
    """A pre-tokenizer step."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, **options}


def split(expression: str) -> dict[str, Any]:
    step = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated"}
    last = byte_level(use_regex=False)
    return {"type": "Sequence", "pretokenizers": [{**step, "invert": False}, last]}


def added(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    """An entry of added_tokens."""
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": token_id, "content": content, **{n: flags.get(n, False) for n in names}}


def file(**changes: Any) -> dict[str, Any]:
    """A small tokenizer.json; `model` is merged into the model."""
    keys = [*LETTERS, "ab", "Ġa", "Ġab", "bc", "ĠĠ"]
    merges = [["a", "b"], ["Ġ", "a"], ["Ġ", "ab"], ["Ġa", "b"], ["b", "c"], ["Ġ", "Ġ"]]
    value: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level(),
        "post_processor": None,
        "decoder": byte_level(),
        "model": {"type": "BPE", "vocab": {k: i for i, k in enumerate(keys)}, "merges": merges},
    }
    value["model"].update(changes.pop("model", {}))
    return {**value, **changes}


def both(value: dict[str, Any]) -> tuple[Tokenizer, Any]:
    """Our tokenizer and Hugging Face's."""
    peer = pytest.importorskip("tokenizers")
    return huggingface.from_json(value), peer.Tokenizer.from_str(json.dumps(value))


def ids(ours: Tokenizer, text: str) -> list[int]:
    return ours.encode(text, allowed_special="all")


def check_equal(value: dict[str, Any], fragments: list[str]) -> None:
    """Ids of texts made of the fragments are equal, also after writing and reading."""
    ours, theirs = both(value)
    assert isinstance(ours, BPETokenizer)
    again, peer_again = both(json.loads(huggingface.to_json(ours)))
    assert again == ours
    texts = st.lists(st.sampled_from(fragments), max_size=12).map("".join)

    @given(texts)
    @settings(max_examples=150)
    def check(text: str) -> None:
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ids(ours, text) == expected
        assert peer_again.encode(text, add_special_tokens=False).ids == expected
        encoding = ours.encode_with_offsets(text, allowed_special="all")
        assert encoding.ids.tolist() == expected
        assert ours.encode_batch([text, text], allowed_special="all") == [expected, expected]
        streamed = ours.encode_iterable(list(text), allowed_special="all")
        assert list(streamed) == expected

    check()


FRAGMENTS = [
    "a",
    "b",
    "c",
    " ",
    "  ",
    "\n",
    "é",
    "e\u0301",
    "_",
    "x",
    "<t>",
    "T",
    ".",
    "\u3000",
    "中",
]
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=4)))
def test_flags_of_added_tokens_mean_what_they_mean_to_the_peer(flags: tuple[bool, ...]) -> None:
    first = dict(zip(FLAGS, flags, strict=True))
    second = dict(zip(FLAGS, reversed(flags), strict=True))
    tokens = [
        added(261, "<t>", special=True, **first),
        added(262, "TT", **second),
        added(263, "<t>TT", **first),
        added(264, "TT.", normalized=True),
        added(265, "b c", **second),
    ]
    check_equal(file(added_tokens=tokens), [*FRAGMENTS, "<t>TT", "TT.", "b c"])


NORMALIZERS: list[Any] = [
    {"type": "NFC"},
    {"type": "NFD"},
    {"type": "NFKC"},
    {"type": "NFKD"},
    {"type": "Lowercase"},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Prepend", "prepend": "ab"},
    {"type": "Replace", "pattern": {"String": "a"}, "content": "ac"},
    {"type": "Replace", "pattern": {"Regex": "[ab]+"}, "content": "b"},
    {"type": "Replace", "pattern": {"Regex": "^a{1,2}+|b$"}, "content": "c"},
    {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]},
]


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=lambda n: str(n["type"]))
def test_normalizers_give_the_ids_of_the_peer(normalizer: Any) -> None:
    tokens = [added(261, "<t>", special=True), added(262, "T É", normalized=True)]
    value = file(added_tokens=tokens, normalizer=normalizer)
    check_equal(value, [*FRAGMENTS, "T É", "ﬁ", "İ", "ΑΣ", "각", "\u1100\u1161\u11a8"])


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", NORMALIZERS[:5] + NORMALIZERS[-1:], ids=str)
def test_every_code_point_is_normalized_as_by_the_peer(normalizer: Any) -> None:
    ours, theirs = both(file(normalizer=normalizer))
    assert isinstance(ours, BPETokenizer)
    assert ours.normalizer is not None
    for code_point in range(0x110000):
        if 0xD800 <= code_point < 0xE000:
            continue
        for text in (chr(code_point), f"e{chr(code_point)}\u0323\u0301"):
            assert ours.normalizer.apply(text) == theirs.normalizer.normalize_str(text), text


def test_every_code_point_is_a_word_character_as_for_the_peer() -> None:
    ours, theirs = both(file(added_tokens=[added(261, "<t>", single_word=True)]))
    for code_point in range(0, 0x110000, 7):
        if not 0xD800 <= code_point < 0xE000:
            text = "<t>" + chr(code_point)
            assert (261 in ids(ours, text)) == (261 in theirs.encode(text).ids), hex(code_point)


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        byte_level(add_prefix_space=True),
        byte_level(use_regex=False),
        byte_level(use_regex=False, add_prefix_space=True),
        split("a+| ?b|(?<=b)c"),
        split(r"^[ab]|b$|\p{N}{1,3}+"),
        {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level()],
        },
    ],
    ids=["prefix", "whole", "whole-prefix", "regex", "lines", "digits"],
)
def test_pre_tokenizers_give_the_ids_of_the_peer(pre_tokenizer: Any) -> None:
    tokens = [added(261, "<t>", special=True)]
    check_equal(file(added_tokens=tokens, pre_tokenizer=pre_tokenizer), [*FRAGMENTS, "12", "\n"])


@pytest.mark.parametrize(
    "model", [{}, {"unk_token": "c"}, {"unk_token": "c", "fuse_unk": True}], ids=str
)
def test_bytes_that_are_no_tokens_are_dropped_or_unknown(model: dict[str, Any]) -> None:
    letters = [LETTERS[b] for b in b"abc "]
    keys = [*letters, "ab", "Ġa"]
    vocab = {key: i for i, key in enumerate(keys)}
    model = {**model, "vocab": vocab, "merges": [["a", "b"], ["Ġ", "a"]]}
    check_equal(file(model=model), ["a", "b", "c", " ", "x", "é", "\n"])


def test_old_merges_repeated_merges_and_unreachable_tokens_are_read() -> None:
    value = file()
    value["model"]["merges"] = ["a b", "Ġ a", "b c", "a b"]
    ours, theirs = both(value)
    for text in ("abc", " abc", "abcabc ab"):
        assert ids(ours, text) == theirs.encode(text).ids


def test_holes_and_added_tokens_that_merges_make_are_read() -> None:
    value = file(added_tokens=[added(900, "ab"), added(901, "<|x|>", special=True)])
    value["model"]["vocab"].update({"ab": 900, "<|x|>": 901})
    ours, theirs = both(value)
    for text in ("ab", " ab", "abab<|x|>", "a b"):
        assert ids(ours, text) == theirs.encode(text).ids
    assert ours.decode([900, 901]) == "ab<|x|>"


def test_an_id_that_the_peer_would_change_is_refused() -> None:
    with pytest.raises(DataError, match="gives it 261"):
        huggingface.from_json(file(added_tokens=[added(400, "<t>")]))


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<t>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "<t>", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 1}},
    ],
    "special_tokens": {"<t>": {"id": "<t>", "ids": [261], "tokens": ["<t>"]}},
}


@pytest.mark.parametrize(
    "processor",
    [
        TEMPLATE,
        {"type": "Sequence", "processors": [byte_level(), TEMPLATE]},
        {"type": "BertProcessing", "sep": ["<t>", 261], "cls": ["<u>", 262]},
        {
            "type": "RobertaProcessing",
            "sep": ["<t>", 261],
            "cls": ["<u>", 262],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
    ],
    ids=lambda p: str(p["type"]),
)
def test_post_processors_become_templates(processor: Any) -> None:
    tokens = [added(261, "<t>", special=True), added(262, "<u>", special=True)]
    ours, theirs = both(file(added_tokens=tokens, post_processor=processor))
    assert isinstance(ours, BPETokenizer)
    again, _ = both(json.loads(huggingface.to_json(ours)))
    for tokenizer in (ours, again):
        row = tokenizer.prepare("ab c", " a")
        expected = theirs.encode("ab c", " a")
        assert row.flat_ids.tolist() == expected.ids
        assert row.flat_type_ids.tolist() == expected.type_ids
        assert tokenizer.prepare("ab").flat_ids.tolist() == theirs.encode("ab").ids


def test_a_template_of_an_ordinary_token_has_no_hugging_face_form() -> None:
    ours, _ = both(file())
    ours.template = Template.around(bos_id=97)
    assert ours.template.single[0] == TemplateItem(97)
    with pytest.raises(DataError, match="no special token"):
        huggingface.to_json(ours)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["^a|b", "a$|b", "a{1,3}+", r"\h"])
def test_an_expression_that_means_something_else_there_has_no_hugging_face_form(
    pattern: str,
) -> None:
    tokens = [bytes([i]) for i in range(256)]
    tokenizer = BPETokenizer(tokens, [], pattern=pattern, special_tokens={})
    with pytest.raises(DataError, match="have another meaning in Hugging Face"):
        huggingface.to_json(tokenizer)


def test_transformers_loads_what_we_write(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours, _ = both(file(added_tokens=[added(261, "<t>", special=True, rstrip=True)]))
    (tmp_path / "tokenizer.json").write_text(huggingface.to_json(ours), encoding="utf-8")  # type: ignore[arg-type]
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert theirs("ab <t>  abc").input_ids == ids(ours, "ab <t>  abc")


# ---- hostile files ----


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value in a JSON value is, a few items of each container."""
    found = [prefix] if prefix else []
    items: Any = []
    if isinstance(value, dict):
        items = [*list(value.items())[:12], *list(value.items())[-4:]]
    if isinstance(value, list):
        items = list(enumerate(value))[:4]
    for key, item in items:
        found += paths(item, (*prefix, key))
    return found


BASE = file(
    added_tokens=[added(261, "<t>", special=True, lstrip=True), added(262, "ab")],
    normalizer={"type": "Sequence", "normalizers": NORMALIZERS[:1] + NORMALIZERS[8:10]},
    post_processor=TEMPLATE,
)
BASE["added_tokens"][1]["id"] = 256
JUNK = st.sampled_from(
    [None, True, -1, 0, 1.5, 97, 2**31, 2**63, 10**30, "", "a", "\ud800", "Ġ", "<t>", "(", "(a+)+$",
     [], {}, [[]], ["a", "b"], ["a"], {"type": "Sequence"}, {"type": 5}, {"Regex": "["},
     {"String": ""}, {"type": "ByteLevel"}, {"type": "NFC"}]
)  # fmt: skip


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_a_mutated_file_gives_a_tokenizer_that_works_or_a_data_error(data: st.DataObject) -> None:
    value = copy.deepcopy(BASE)
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(paths(value)))
        at = value
        for key in parents:
            at = at[key]
        if data.draw(st.booleans()):
            junk = data.draw(JUNK | st.sampled_from(paths(BASE)).map(lambda p: p[-1]))
            at[last] = copy.deepcopy(junk)
        elif isinstance(at, dict):
            del at[last]
        else:
            at.append(copy.deepcopy(at[last]))
    try:
        ours = huggingface.from_json(value)
        text = "ab <t>  c é ab"
        assert isinstance(ours.decode(ours.encode(text, allowed_special="all")), str)
    except DataError:
        pass


@pytest.mark.parametrize("pattern", ["gpt2", "llama3", "qwen2", "o200k", "deepseek3"])
@pytest.mark.parametrize("peer", ["fastokens", "gigatoken"])
def test_fast_peers_recognise_the_pattern_that_we_write(
    pattern: str, peer: str, tmp_path: Path
) -> None:
    package = pytest.importorskip(peer)
    tokenizer = train_bpe_from_iterator(
        [Path(__file__).read_text(encoding="utf-8")],
        400,
        pattern=pattern,
        special_tokens=["<|endoftext|>"],
        num_threads=1,
    )
    path = tmp_path / "tokenizer.json"
    save(tokenizer, path, format="hf")
    make = package.Tokenizer if peer == "gigatoken" else package.Tokenizer.from_file
    text = "Hello world 1234 it's\n\n  中文 def <|endoftext|> x"
    found = make(str(path)).encode(text)
    assert list(getattr(found, "ids", found)) == ids(tokenizer, text)
