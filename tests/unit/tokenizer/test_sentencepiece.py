"""SentencePiece BPE: equal to the `sentencepiece` package, the slow twin and Hugging Face's."""

import io
import json
import pickle
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.base.errors import DataError
from lmworks.tokenizer import sentencepiece, sentencepiece_model, sentencepiece_reference
from lmworks.tokenizer.charsmap import Charsmap
from lmworks.tokenizer.sentencepiece import SentencePieceTokenizer
from lmworks.tokenizer.sentencepiece_huggingface import from_huggingface, to_huggingface
from lmworks.tokenizer.sentencepiece_text import TextRules
from lmworks.tokenizer.sentencepiece_vocabulary import BYTE_NAMES, PieceType, Vocabulary

CORPUS = """The quick brown fox doesn't jump over the lazy dog; it's 12345 o'clock, WE'LL SEE.
def main(argv):   for i in range(100):   print("hello world", i)
Größe, naïve café, Ελληνικά γράμματα, русский текст, 中文没有空格的句子。 日本語 한국어 ﬁne ½
The other there then these those while where whether weather hello hello world world the of of
the thing that they thought through --- ---- ===== aaaa aaa aa banana ananas """
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_digits": True,
    },
    "gemma": {
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "allow_whitespace_only_pieces": True,
        "user_defined_symbols": ["<tag>", "<ta", "\n", "▁▁", "▁▁▁", "he"],
    },
    "defaults": {},
    "cased": {
        "normalization_rule_name": "nfkc_cf",
        "byte_fallback": True,
        "user_defined_symbols": ["ﬁx", "a  b", " "],
    },
    "suffix": {
        "treat_whitespace_as_suffix": True,
        "normalization_rule_name": "nmt_nfkc_cf",
    },
    "unknowns": {
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "character_coverage": 0.98,
    },
    "unsplit": {
        "split_by_whitespace": False,
        "split_by_unicode_script": False,
        "split_by_number": False,
        "remove_extra_whitespaces": False,
        "control_symbols": ["<c>"],
        "character_coverage": 0.98,
    },
}
FRAGMENTS = (
    *(
        "the",
        " of",
        "he",
        "hello",
        " world",
        "aaa",
        "aa",
        "a",
        "---",
        "12",
        "中文",
        "语",
        "é",
        "🙂",
    ),
    *(" ", "  ", "▁", "\n", "\t", "\u3000", "\u200b", "\xad", "\x00", "ﬁ", "ﬁx", "½", "Ａ", "ß"),
    *("e\u0301", "\u0301", "か\u3099", "\u1100\u1161", "한", "a  b", "\ufffd", "<unk>", "<s>"),
    *("<tag>", "<ta", "<c>", "<0x41>"),
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=12).map(
    lambda parts: "".join(parts).encode("utf-8", "replace").decode("utf-8")
)


def _train(config: dict[str, Any]) -> bytes:
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    model = io.BytesIO()
    trainer.train(
        sentence_iterator=iter(CORPUS.split("\n") * 2),
        model_writer=model,
        model_type="bpe",
        vocab_size=500,
        hard_vocab_limit=False,
        minloglevel=2,
        **config,
    )
    return model.getvalue()


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def model(request: pytest.FixtureRequest) -> bytes:
    """A .model file of each configuration in turn."""
    return _train(CONFIGS[request.param])


@pytest.fixture(scope="module")
def peer(model: bytes) -> Any:
    """The `sentencepiece` package's processor."""
    return pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=model)


@pytest.fixture(scope="module")
def ours(model: bytes) -> SentencePieceTokenizer:
    """The same model in this library."""
    return sentencepiece.from_model(model)


@pytest.fixture(scope="module")
def llama() -> SentencePieceTokenizer:
    """A model with byte fallback and a dummy space."""
    return sentencepiece.from_model(_train(CONFIGS["llama"]))


@pytest.fixture(scope="module")
def gemma() -> SentencePieceTokenizer:
    """A model without a dummy space, with user-defined symbols."""
    return sentencepiece.from_model(_train(CONFIGS["gemma"]))


def _encode(tokenizer: SentencePieceTokenizer, text: str | bytes) -> list[int]:
    return tokenizer.encode(text, disallowed_special=())


# ---- against the sentencepiece package ----


@settings(max_examples=300)
@given(text=TEXTS)
def test_ids_are_those_of_sentencepiece(text: str, peer: Any, ours: SentencePieceTokenizer) -> None:
    assert _encode(ours, text) == peer.encode(text)


@given(text=TEXTS)
def test_normalized_text_is_that_of_sentencepiece(
    text: str, peer: Any, ours: SentencePieceTokenizer
) -> None:
    assert ours.rules.apply(text) == peer.normalize(text)


@given(text=TEXTS)
def test_decoded_text_is_that_of_sentencepiece(
    text: str, peer: Any, ours: SentencePieceTokenizer
) -> None:
    ids = peer.encode(text)
    assert ours.decode(ids) == peer.decode(ids)


@given(data=st.data())
def test_any_ids_decode_as_in_sentencepiece(
    data: st.DataObject, peer: Any, ours: SentencePieceTokenizer
) -> None:
    # Control symbols are invisible there and spelt out here.
    known = sorted({*range(ours.vocab_size)} - {*ours.special_tokens.values()} | {ours.unk_id})
    ids = data.draw(st.lists(st.sampled_from(known), max_size=12))
    assert ours.decode(ids) == peer.decode(ids)


def test_bytes_that_are_not_utf8_are_each_a_replacement_character(
    peer: Any, ours: SentencePieceTokenizer
) -> None:
    text = b"the \xff\xe4\xb8 caf\xc3\xa9 \xed\xa0\x80"
    assert _encode(ours, text) == peer.encode(text)


def test_a_written_model_is_read_by_both(
    model: bytes, peer: Any, ours: SentencePieceTokenizer, tmp_path: Path
) -> None:
    sentencepiece.save(ours, tmp_path / "x.model")
    assert sentencepiece.load(tmp_path / "x.model") == ours
    processor = pytest.importorskip("sentencepiece").SentencePieceProcessor
    again = processor(model_file=str(tmp_path / "x.model"))
    for text in (CORPUS, "".join(FRAGMENTS), " ".join(FRAGMENTS)):
        assert again.encode(text) == peer.encode(text)
        assert again.decode(peer.encode(text)) == peer.decode(peer.encode(text))


# ---- against the slow twin ----


@st.composite
def vocabularies(draw: st.DrawFn) -> Vocabulary:
    """Few characters, equal scores, unused pieces and symbols, pieces better than their parts."""
    letters = draw(st.sampled_from(["ab", "aab▁", "abcé", "a中文▁🙂"]))
    pieces = draw(st.lists(st.text(letters, min_size=1, max_size=5), max_size=12, unique=True))
    common = [PieceType.NORMAL] * 6
    kind = st.sampled_from([*common, PieceType.UNUSED, PieceType.USER_DEFINED])
    types = [draw(kind) for _ in pieces]
    scores = [float(draw(st.integers(-2, 1))) for _ in pieces]
    with_bytes = draw(st.booleans())
    names = list(BYTE_NAMES) if with_bytes else []
    return Vocabulary(
        pieces=("<unk>", *pieces, *names),
        types=(PieceType.UNKNOWN, *types, *[PieceType.BYTE] * len(names)),
        scores=(0.0, *scores, *[0.0] * len(names)),
        fuse_unknown=draw(st.booleans()),
    )


@settings(max_examples=400)
@given(vocabulary=vocabularies(), text=st.text("ab▁cé中文🙂üx", max_size=60))
def test_native_ids_are_those_of_the_reference(vocabulary: Vocabulary, text: str) -> None:
    rules = TextRules(prefix="none", user_defined=vocabulary.user_defined)
    tokenizer = SentencePieceTokenizer(vocabulary, rules, special_tokens={})
    assert _encode(tokenizer, text) == sentencepiece_reference.encode(vocabulary, text)


def test_of_equal_scores_the_leftmost_is_joined_first() -> None:
    vocabulary = Vocabulary(
        pieces=("<unk>", "a", "b", "c", "ab", "bc", "ca"),
        types=(PieceType.UNKNOWN, *[PieceType.NORMAL] * 6),
        scores=(0.0, *[-9.0] * 3, *[-1.0] * 3),
    )
    tokenizer = SentencePieceTokenizer(vocabulary, TextRules(prefix="none"), special_tokens={})
    assert [_encode(tokenizer, text) for text in ("abc", "bca", "cab")] == [[4, 3], [5, 1], [6, 2]]


def test_an_unused_piece_is_taken_apart_into_what_it_was_joined_from() -> None:
    vocabulary = Vocabulary(
        pieces=("<unk>", "a", "b", "ab", "abb"),
        types=(PieceType.UNKNOWN, *[PieceType.NORMAL] * 3, PieceType.UNUSED),
        scores=(0.0, 0.0, 0.0, -1.0, -2.0),
    )
    tokenizer = SentencePieceTokenizer(vocabulary, TextRules(prefix="none"), special_tokens={})
    assert _encode(tokenizer, "abbab") == [3, 2, 3]


@given(text=TEXTS, is_start=st.booleans(), has_prefix=st.booleans())
def test_aligned_rules_give_the_same_text(
    text: str, is_start: bool, has_prefix: bool, ours: SentencePieceTokenizer
) -> None:
    rules = ours.rules
    normalized, places = rules.apply_aligned(text, is_start=is_start, has_prefix=has_prefix)
    assert normalized == rules.apply(text, is_start=is_start, has_prefix=has_prefix)
    in_bytes = rules.apply_bytes(text.encode(), is_start=is_start, has_prefix=has_prefix)
    assert normalized.encode() == in_bytes
    assert len(places) == len(normalized)
    assert places == sorted(places)


# ---- streams, batches, offsets ----


@given(text=TEXTS)
def test_the_stream_decoder_gives_the_decoded_text(text: str, ours: SentencePieceTokenizer) -> None:
    ids = _encode(ours, text)
    decoder = ours.stream_decoder()
    for _ in range(2):  # it starts afresh
        assert "".join(map(decoder.feed, ids)) + decoder.finish() == ours.decode(ids)


@given(parts=st.lists(TEXTS, max_size=4))
def test_a_stream_of_small_blocks_has_the_ids_of_the_whole(
    parts: list[str], ours: SentencePieceTokenizer
) -> None:
    chunks = [char for part in parts for char in [*part, "<s>"]]
    with mock.patch.object(sentencepiece, "BLOCK_CHARS", 3):
        ids = list(ours.encode_iterable(chunks, allowed_special="all"))
    assert ids == ours.encode("".join(chunks), allowed_special="all")


@given(first=TEXTS, more=TEXTS)
def test_a_stable_prefix_keeps_its_ids(first: str, more: str, ours: SentencePieceTokenizer) -> None:
    text = first + "<s> the of" + more
    ready, held = ours.stable_prefix(text, allowed_special="all", disallowed_special=())
    assert ready + held == text
    parts = [ours.encode(part, allowed_special="all") for part in (ready, held + more)]
    assert [*parts[0], *parts[1]] == ours.encode(text + more, allowed_special="all")


def test_a_stream_without_a_dummy_space_is_not_held_back(gemma: SentencePieceTokenizer) -> None:
    ready, _ = gemma.stable_prefix("the world " * 9, allowed_special=(), disallowed_special=())
    assert len(ready) > 60


@given(texts=st.lists(TEXTS, max_size=5))
def test_batches_have_the_ids_of_single_texts(
    texts: list[str], ours: SentencePieceTokenizer
) -> None:
    single = [_encode(ours, text) for text in texts]
    assert ours.encode_batch(texts, num_threads=2, disallowed_special=()) == single
    specials = [text + "<s>" for text in texts]
    expected = [ours.encode(text, allowed_special="all") for text in specials]
    assert ours.encode_batch(specials, num_threads=2, allowed_special="all") == expected


@given(text=TEXTS)
def test_offsets_follow_each_other_and_have_the_ids(
    text: str, ours: SentencePieceTokenizer
) -> None:
    encoding = ours.encode_with_offsets(text, unit="byte", disallowed_special=())
    assert encoding.ids.tolist() == _encode(ours, text)
    begins, ends = encoding.offsets[:, 0].tolist(), encoding.offsets[:, 1].tolist()
    assert begins == sorted(begins)
    assert all(
        0 <= begin <= end <= len(text.encode()) for begin, end in zip(begins, ends, strict=True)
    )


def test_offsets_of_words_are_those_of_the_text(llama: SentencePieceTokenizer) -> None:
    text = "hello world"
    encoding = llama.encode_with_offsets(text)
    assert [text[a:b] for a, b in encoding.offsets] == ["hello", " world"]


# ---- special tokens ----


def test_a_control_symbol_in_text_is_an_error_text_or_a_token(
    llama: SentencePieceTokenizer,
) -> None:
    with pytest.raises(DataError, match="'<s>'"):
        llama.encode("a <s>")
    assert 1 not in _encode(llama, "a <s>")
    ids = llama.encode("<s>hello<s> world", allowed_special="all")
    assert ids == [1, *llama.encode("hello"), 1, *llama.encode(" world")]
    assert llama.decode(ids) == "<s>hello<s> world"


# ---- files ----


def test_everything_survives_our_format_and_pickling(
    ours: SentencePieceTokenizer,
) -> None:
    content = json.loads(json.dumps(ours.content()))
    for again in (SentencePieceTokenizer.from_content(content), pickle.loads(pickle.dumps(ours))):
        assert again == ours
        assert _encode(again, CORPUS) == _encode(ours, CORPUS)


def test_models_of_other_types_are_refused_by_name() -> None:
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    model = io.BytesIO()
    trainer.train(
        sentence_iterator=iter(CORPUS.split("\n")),
        model_writer=model,
        vocab_size=120,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    with pytest.raises(DataError, match="'Unigram'; only BPE"):
        sentencepiece.from_model(model.getvalue())


@settings(max_examples=300)
@given(data=st.data())
def test_a_broken_model_is_a_tokenizer_or_a_data_error(
    data: st.DataObject, llama: SentencePieceTokenizer
) -> None:
    whole = sentencepiece.to_model(llama)
    end = data.draw(st.integers(0, len(whole)))
    broken = bytearray(whole[: data.draw(st.sampled_from([end, len(whole)]))])
    for _ in range(data.draw(st.integers(0, 3))):
        if broken:
            at = data.draw(st.integers(0, len(broken) - 1))
            broken[at] = data.draw(st.integers(0, 255))
    try:
        tokenizer = sentencepiece.from_model(bytes(broken))
    except DataError:
        return
    _encode(tokenizer, CORPUS)


@given(blob=st.binary(max_size=200))
def test_any_bytes_are_rules_or_a_data_error(blob: bytes) -> None:
    trie = blob[: len(blob) // 4 * 4]
    for content in (blob, len(trie).to_bytes(4, "little") + trie + b"a\0\xff\0"):
        try:
            charsmap = Charsmap(content)
        except DataError:
            continue
        assert isinstance("".join(charsmap.split(CORPUS)), str)


def _vocabulary(**changes: Any) -> Vocabulary:
    whole = {
        "pieces": ("<unk>", "a", "b", "ab"),
        "types": (PieceType.UNKNOWN, *[PieceType.NORMAL] * 3),
        "scores": (0.0, -1.0, -1.0, 0.0),
    }
    return Vocabulary(**{**whole, **changes})


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"pieces": ("<unk>", "a", "a", "ab")}, "pieces 1 and 2 are both 'a'"),
        ({"pieces": ("<unk>", "a", "", "ab")}, "piece 2 .* has 0 bytes"),
        ({"pieces": ("<unk>", "a", "\ud800", "ab")}, "not valid Unicode"),
        ({"pieces": ("<unk>", "a", "b" * 2000, "ab")}, "has 2000 bytes"),
        ({"scores": (0.0, float("nan"), 0.0, 0.0)}, "score of piece 1 is not a number"),
        ({"scores": (0.0,)}, "4 pieces but 1 scores"),
        ({"types": (PieceType.UNKNOWN,) * 4}, "both of type UNKNOWN"),
        ({"types": (PieceType.UNKNOWN, *[PieceType.BYTE] * 3)}, "'a' must be one of <0x00>"),
        ({"scores": None, "merges": ((1, 9),)}, "merge 0 joins ids 1 and 9"),
        ({"scores": None, "merges": ((2, 1),)}, "merge 0 makes 'ba'"),
        ({"scores": None, "merges": ((1, 2), (1, 2))}, "merge 1 .* is given twice"),
        ({"merges": ((1, 2),)}, "either scores or merges"),
    ],
)
def test_a_vocabulary_that_does_not_fit_together_is_refused(
    changes: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(DataError, match=wanted):
        _vocabulary(**changes)


# ---- Hugging Face ----

REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPEND = {"type": "Prepend", "prepend": "▁"}
SPLIT = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}


def _metaspace(scheme: str, split: bool) -> dict[str, Any]:
    return {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": scheme,
        "split": split,
    }


PIPELINES = {
    "llama": ({"type": "Sequence", "normalizers": [PREPEND, REPLACE]}, None),
    "gemma": (REPLACE, SPLIT),
    "always": (None, _metaspace("always", split=False)),
    "first": (None, _metaspace("first", split=False)),
    "words": (None, _metaspace("first", split=True)),
    "never": (None, _metaspace("never", split=True)),
}


def _trained_by_huggingface(*, has_bytes: bool, fuse: bool) -> dict[str, Any]:
    tokenizers = pytest.importorskip("tokenizers")
    peer = tokenizers.Tokenizer(
        tokenizers.models.BPE(unk_token="<unk>", byte_fallback=has_bytes, fuse_unk=fuse)
    )
    peer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(split=True)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        limit_alphabet=50,
        special_tokens=["<unk>", "<s>"],
        show_progress=False,
    )
    peer.train_from_iterator(CORPUS.split("\n"), trainer)
    value: dict[str, Any] = json.loads(peer.to_str())
    vocab = value["model"]["vocab"]
    for name in BYTE_NAMES if has_bytes else ():
        vocab[name] = len(vocab)
    return value


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("has_bytes", [True, False])
@pytest.mark.parametrize("fuse", [True, False])
def test_ids_are_those_of_hugging_face_both_ways(
    pipeline: str, has_bytes: bool, fuse: bool
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    value = _trained_by_huggingface(has_bytes=has_bytes, fuse=fuse)
    value["normalizer"], value["pre_tokenizer"] = PIPELINES[pipeline]
    ours = from_huggingface(value)
    peers = [tokenizers.Tokenizer.from_str(json.dumps(value))]
    peers.append(tokenizers.Tokenizer.from_str(to_huggingface(ours)))

    @settings(max_examples=60)
    @given(TEXTS)
    def check(text: str) -> None:
        ids = ours.encode(text, allowed_special="all")
        assert [peer.encode(text).ids for peer in peers] == [ids, ids]

    check()
    assert from_huggingface(json.loads(to_huggingface(ours))) == ours


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_a_sentencepiece_model_keeps_its_ids_in_tokenizer_json(name: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    ours = sentencepiece.from_model(_train(CONFIGS[name]))
    peer = tokenizers.Tokenizer.from_str(to_huggingface(ours))
    again = from_huggingface(json.loads(to_huggingface(ours)))

    @given(TEXTS)
    def check(text: str) -> None:
        ids = ours.encode(text, allowed_special="all")
        assert peer.encode(text).ids == again.encode(text, allowed_special="all") == ids

    check()


def test_what_tokenizer_json_cannot_say_is_refused_on_writing() -> None:
    with pytest.raises(DataError, match="its text rules replace characters"):
        to_huggingface(sentencepiece.from_model(_train({})))
    vocabulary = _vocabulary(
        pieces=("<unk>", "a", "b", "ab", "ba"),
        types=(PieceType.UNKNOWN, *[PieceType.NORMAL] * 4),
        scores=(0.0, -2.0, -2.0, -1.0, -1.0),
    )
    tokenizer = SentencePieceTokenizer(vocabulary, TextRules(), special_tokens={})
    with pytest.raises(DataError, match="pieces 3 and 4 have the same score"):
        to_huggingface(tokenizer)


@pytest.mark.parametrize(
    ("path", "value", "wanted"),
    [
        (("model", "ignore_merges"), True, "ignore_merges"),
        (("model", "byte_fallback"), 1, "byte_fallback"),
        (("model", "unk_token"), "nope", "unk_token='nope'"),
        (("model", "vocab"), {"a": -1}, "not an id"),
        (("model", "merges"), [["a"]], "neither"),
        (("normalizer",), {"type": "NFKC"}, "NFKC"),
        (("pre_tokenizer",), {"type": "Whitespace"}, "Whitespace"),
        (("decoder",), {"type": "WordPiece"}, "WordPiece"),
        (
            ("added_tokens",),
            [{"id": 1, "content": "<s>", "normalized": True, "special": True}],
            "normalized",
        ),
    ],
)
def test_what_cannot_be_reproduced_is_refused_by_name(
    path: tuple[str, ...], value: Any, wanted: str
) -> None:
    content: dict[str, Any] = {
        "model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1}, "merges": []},
        "normalizer": REPLACE,
        "pre_tokenizer": None,
        "added_tokens": [],
    }
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(DataError, match=wanted):
        from_huggingface(content)


def test_the_wire_format_refuses_endless_numbers() -> None:
    with pytest.raises(DataError, match="ends inside a number"):
        sentencepiece_model.parse(b"\xff" * 20)
