"""Rows for a model: template, truncation, padding, masks; equal to Hugging Face tokenizers."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer import load, save
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte import ByteTokenizer
from lmworks.tokenizer.prepare import Padding, Prepared, Truncation
from lmworks.tokenizer.template import Template, TemplateItem

CLS, SEP = 0, 1


def bert_like(cls: int, sep: int) -> Template:
    return Template(
        single=(TemplateItem(cls), TemplateItem("A"), TemplateItem(sep)),
        pair=(
            TemplateItem(cls),
            TemplateItem("A"),
            TemplateItem(sep),
            TemplateItem("B", 1),
            TemplateItem(sep, 1),
        ),
    )


def second_text_first(cls: int, sep: int) -> Template:
    return Template(
        single=(TemplateItem("A", 3), TemplateItem(cls, 2)),
        pair=(TemplateItem("B", 4), TemplateItem(sep, 5), TemplateItem("A", 6)),
    )


TEMPLATES = {"none": None, "bert": bert_like(CLS, SEP), "swapped": second_text_first(CLS, SEP)}


@pytest.fixture(scope="module")
def peer(gpt2: BPETokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same vocabulary in Hugging Face's library."""
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("hf") / "tokenizer.json"
    save(gpt2, path, format="hf")
    return tokenizers.Tokenizer.from_file(str(path))


def configure(
    peer: Any, template: Template | None, truncation: Truncation | None, padding: Padding | None
) -> None:
    from tokenizers import processors

    processor = processors.ByteLevel(trim_offsets=False)
    if template is not None:
        spelt = {CLS: "x0", SEP: "x1"}

        def pieces(items: tuple[TemplateItem, ...]) -> list[str]:
            names = {"A": "$A", "B": "$B", **spelt}
            return [f"{names[item.source]}:{item.type_id}" for item in items]

        processor = processors.TemplateProcessing(
            single=pieces(template.single),
            pair=pieces(template.pair),
            special_tokens=[(name, i) for i, name in spelt.items()],
        )
    peer.post_processor = processor
    peer.no_truncation()
    peer.no_padding()
    if truncation is not None:
        peer.enable_truncation(
            truncation.max_length,
            stride=truncation.stride,
            strategy=truncation.strategy,
            direction=truncation.side,
        )
    if padding is not None:
        peer.enable_padding(
            direction=padding.side,
            pad_id=padding.pad_id,
            pad_type_id=padding.type_id,
            length=None if padding.length == "longest" else padding.length,
            pad_to_multiple_of=padding.multiple_of,
        )


def rows_of(prepared: Prepared) -> list[tuple[Any, ...]]:
    columns = (
        prepared.flat_ids,
        prepared.flat_type_ids,
        prepared.flat_attention_mask.astype(int),
        prepared.flat_special_mask.astype(int),
        prepared.flat_sequences,
        prepared.flat_offsets,
    )
    rows = [[row.tolist() for row in prepared.rows(flat)] for flat in columns if flat is not None]
    return list(zip(prepared.samples.tolist(), *rows, strict=True))


def peer_rows(encodings: list[Any], *, overflow: bool) -> list[tuple[Any, ...]]:
    return [
        (
            sample,
            e.ids,
            e.type_ids,
            e.attention_mask,
            e.special_tokens_mask,
            [-1 if s is None else s for s in e.sequence_ids],
            [list(pair) for pair in e.offsets],
        )
        for sample, first in enumerate(encodings)
        for e in (first, *(first.overflowing if overflow else ()))
    ]


def without_types(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    firsts = {sample: row for sample, *row in reversed(rows)}
    return [(s, ids, t if firsts[s] == [ids, t, *rest] else [], *rest) for s, ids, t, *rest in rows]


def truncations() -> st.SearchStrategy[Truncation]:
    def make(stride: int, **values: Any) -> Truncation:
        return Truncation(stride=stride if values["overflow"] else 0, **values)

    return st.builds(
        make,
        stride=st.integers(0, 3),
        max_length=st.integers(1, 12),
        strategy=st.sampled_from(["longest_first", "only_first", "only_second"]),
        side=st.sampled_from(["left", "right"]),
        overflow=st.booleans(),
    )


def paddings() -> st.SearchStrategy[Padding]:
    return st.builds(
        Padding,
        pad_id=st.just(7),
        length=st.just("longest") | st.integers(1, 20),
        multiple_of=st.integers(1, 5),
        side=st.sampled_from(["left", "right"]),
        type_id=st.integers(0, 2),
    )


words = st.lists(st.sampled_from(["the", " fox", "é", " 🙂", "中", "\n"]), max_size=9).map("".join)


@pytest.mark.parametrize("template", list(TEMPLATES))
@pytest.mark.parametrize("is_pair", [False, True])
def test_rows_equal_those_of_hugging_face(
    gpt2: BPETokenizer, peer: Any, template: str, is_pair: bool
) -> None:
    @settings(max_examples=100)
    @given(
        st.lists(st.tuples(words, words), min_size=1, max_size=4),
        st.none() | truncations(),
        st.none() | paddings(),
    )
    def check(
        pairs: list[tuple[str, str]], truncation: Truncation | None, padding: Padding | None
    ) -> None:
        gpt2.template = TEMPLATES[template]
        texts = [a for a, _ in pairs]
        try:
            ours = gpt2.prepare(
                texts,
                [b for _, b in pairs] if is_pair else None,
                truncation=truncation,
                padding=padding,
                with_offsets=True,
                num_threads=1,
            )
        except ConfigError:
            return  # the peer panics, or makes rows that are longer than asked for
        configure(peer, TEMPLATES[template], truncation, padding)
        theirs = peer.encode_batch(pairs if is_pair else texts)
        wanted = peer_rows(theirs, overflow=truncation is not None and truncation.overflow)
        if truncation is not None and any(len(row[1]) == 0 for row in wanted):
            return
        found = rows_of(ours)
        if template == "swapped":
            # The peer leaves the type ids of overflow rows as they were before the template.
            found, wanted = without_types(found), without_types(wanted)
        assert found == wanted

    try:
        check()
    finally:
        gpt2.template = None


@pytest.mark.parametrize("template", list(TEMPLATES))
@pytest.mark.parametrize("side", ["left", "right"])
def test_overflow_of_both_texts_is_in_the_order_of_hugging_face(
    gpt2: BPETokenizer, peer: Any, template: str, side: Any
) -> None:
    truncation = Truncation(10, side=side, stride=1, overflow=True)
    pair = (" the fox 12" * 4, " 中\né" * 5)
    gpt2.template = TEMPLATES[template]
    try:
        ours = gpt2.prepare(*pair, truncation=truncation, with_offsets=True)
    finally:
        gpt2.template = None
    configure(peer, TEMPLATES[template], truncation, None)
    wanted = peer_rows(peer.encode_batch([pair]), overflow=True)
    assert len(wanted) > 16
    assert [row[1] for row in rows_of(ours)] == [row[1] for row in wanted]


def test_rows_of_equal_length_are_arrays() -> None:
    tokenizer = ByteTokenizer()
    rows = tokenizer.prepare(["ab", "c"], padding=Padding(pad_id=9, multiple_of=3))
    assert rows.ids.tolist() == [[97, 98, 9], [99, 9, 9]]
    assert rows.attention_mask.tolist() == [[True, True, False], [True, False, False]]
    assert rows.special_mask.tolist() == [[False, False, True], [False, True, True]]
    assert rows.lengths.tolist() == [3, 3]
    assert rows.ids.dtype == np.uint32


def test_rows_of_unequal_length_are_a_list() -> None:
    rows = ByteTokenizer().prepare(["ab", "c"])
    with pytest.raises(ConfigError, match=r"1 to 2 tokens.*padding=Padding"):
        _ = rows.ids
    assert [row.tolist() for row in rows.rows(rows.flat_ids)] == [[97, 98], [99]]


def test_overflow_covers_every_token() -> None:
    tokenizer = ByteTokenizer()
    text = "abcdefghij"
    for side, stride in itertools.product(("left", "right"), (0, 2)):
        truncation = Truncation(4, side=side, stride=stride, overflow=True)  # type: ignore[arg-type]
        rows = tokenizer.prepare([text, "x"], truncation=truncation)
        parts = [bytes(row.tolist()).decode() for row in rows.rows(rows.flat_ids)]
        of_text = [p for p, s in zip(parts, rows.samples, strict=True) if s == 0]
        assert set("".join(of_text)) == set(text)
        assert of_text[0] == (text[:4] if side == "right" else text[-4:])
        assert parts[-1] == "x"


def test_no_texts_make_no_rows() -> None:
    rows = ByteTokenizer().prepare([], padding=Padding(pad_id=0))
    assert len(rows) == 0
    assert rows.ids.shape == (0, 0)


def test_begin_and_end_tokens_stand_around_each_text() -> None:
    tokenizer = ByteTokenizer(["<s>", "</s>"])
    tokenizer.template = Template.around(bos_id=256, eos_id=257)
    assert tokenizer.prepare("a").ids.tolist() == [[256, 97, 257]]
    pair = tokenizer.prepare("a", "b")
    assert pair.ids.tolist() == [[256, 97, 257, 256, 98, 257]]
    assert pair.type_ids.tolist() == [[0, 0, 0, 1, 1, 1]]
    assert pair.sequences.tolist() == [[-1, 0, -1, -1, 1, -1]]
    assert tokenizer.prepare("a", add_template=False).ids.tolist() == [[97]]
    assert tokenizer.encode("a") == [97]


def test_a_template_is_saved_but_changes_no_fingerprint(tmp_path: Path) -> None:
    tokenizer = ByteTokenizer(["<s>"])
    before = tokenizer.fingerprint
    plain = load_again(tokenizer, tmp_path)
    tokenizer.template = Template.around(bos_id=256)
    loaded = load_again(tokenizer, tmp_path)
    assert loaded.template == tokenizer.template
    assert loaded == tokenizer != plain
    assert tokenizer.fingerprint == before == loaded.fingerprint


def load_again(tokenizer: ByteTokenizer, folder: Path) -> Any:
    tokenizer.save(folder / "tokenizer.json")
    return load(folder)


@pytest.mark.parametrize(
    "template",
    [
        5,
        {},
        {"single": [], "pair": []},
        {"single": [["A", 0]], "pair": [["A", 0]]},
        {"single": [["B", 0]], "pair": [["A", 0], ["B", 0]]},
        {"single": [["A", 0], [300, 0]], "pair": [["A", 0], ["B", 0]]},
        {"single": [["A", -1]], "pair": [["A", 0], ["B", 0]]},
        {"single": [["A"]], "pair": [["A", 0], ["B", 0]]},
        {"single": [[["A"], 0]], "pair": [["A", 0], ["B", 0]]},
        {"single": [[None, 0]], "pair": [["A", 0], ["B", 0]]},
        {"single": [["A", "0"]], "pair": [["A", 0], ["B", 0]]},
        {"single": [["A", 0], [True, 0]], "pair": [["A", 0], ["B", 0]]},
    ],
)
def test_a_wrong_template_in_a_file_is_refused(tmp_path: Path, template: Any) -> None:
    import json

    file = tmp_path / "tokenizer.json"
    ByteTokenizer().save(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), "template": template}))
    with pytest.raises(DataError, match=r"template|type id|token id"):
        load(file)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_length": 0}, "max_length=0 must be a whole number of 1 or more"),
        ({"max_length": 4, "side": "up"}, "side='up' must be 'left' or 'right'"),
        ({"max_length": 4, "strategy": "none"}, "strategy='none' must be one of longest_first"),
        ({"max_length": 4, "stride": 1}, "no effect without overflow=True"),
    ],
)
def test_a_truncation_that_makes_no_sense_is_refused(values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Truncation(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pad_id": -1}, "pad_id=-1 must be"),
        ({"pad_id": 0, "length": 0}, "length=0 must be"),
        ({"pad_id": 0, "multiple_of": 0}, "multiple_of=0 must be"),
        ({"pad_id": 0, "side": ""}, "side='' must be"),
    ],
)
def test_a_padding_that_makes_no_sense_is_refused(values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Padding(**values)


@pytest.mark.parametrize(
    ("texts", "pairs", "truncation", "message"),
    [
        (["a", "b"], ["c"], None, "2 texts but 1 pairs"),
        (["a"], "b", None, "both be one text, or both be several"),
        ("a", None, Truncation(9, strategy="only_second"), "'only_second' needs pairs"),
        ("a", None, Truncation(2), "max_length=2 leaves no room .* 2 tokens; use at least 3"),
        ("a", "b", Truncation(5), "no room for two texts"),
        ("abc", None, Truncation(3, stride=1, overflow=True), "stride=1 must be below the 1"),
        ("a", "bcdef", Truncation(7, strategy="only_first"), "the second text alone has 5 tokens"),
    ],
)
def test_contradicting_arguments_are_refused(
    texts: Any, pairs: Any, truncation: Truncation | None, message: str
) -> None:
    tokenizer = ByteTokenizer(["<s>", "</s>"])
    tokenizer.template = Template.around(bos_id=256, eos_id=257)
    with pytest.raises(ConfigError, match=message):
        tokenizer.prepare(texts, pairs, truncation=truncation)


def test_offsets_come_only_when_asked_for() -> None:
    with pytest.raises(ConfigError, match="with_offsets=True"):
        _ = ByteTokenizer().prepare("a").offsets
