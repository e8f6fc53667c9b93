"""GGUF: metadata in and out, vocabularies of both kinds, hostile files."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.base.errors import DataError
from lmworks.tokenizer import gguf, gguf_metadata, load, save
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.preprocess import Unknown
from lmworks.tokenizer.sentencepiece import SentencePieceTokenizer
from lmworks.tokenizer.sentencepiece_text import TextRules
from lmworks.tokenizer.sentencepiece_vocabulary import BYTE_NAMES, PieceType, Vocabulary
from lmworks.tokenizer.template import Template
from lmworks.tokenizer.train import train_bpe_from_iterator

TEXT = "the cat sat on the mat, 1234 Größe 中文 🙂\n\n  then the <tool> there"


@pytest.fixture(scope="module", params=["gpt2", "llama3", "qwen2", "smollm", "o200k"])
def byte_level(request: pytest.FixtureRequest) -> BPETokenizer:
    """A trained vocabulary of patterns that llama.cpp knows."""
    trained = train_bpe_from_iterator([TEXT * 20], 300, pattern=request.param, num_threads=1)
    return BPETokenizer(
        trained.tokens,
        trained.merges,
        pattern=trained.pattern,
        special_tokens=trained.special_tokens,
        added_tokens={"<tool>": trained.vocab_size + 3},
        ignore_merges=request.param == "llama3",
    )


@pytest.fixture(scope="module")
def pieces() -> SentencePieceTokenizer:
    """A small vocabulary with byte fallback."""
    words = ["▁", "t", "h", "e", "a", "▁t", "he", "▁the", "at", "\n", "\n\n"]
    names = ["<unk>", "<s>", "</s>", *BYTE_NAMES, *words]
    kinds = [PieceType.UNKNOWN, *[PieceType.CONTROL] * 2, *[PieceType.BYTE] * 256]
    kinds += [PieceType.NORMAL] * (len(words) - 2) + [PieceType.USER_DEFINED] * 2
    vocabulary = Vocabulary(
        pieces=tuple(names),
        types=tuple(kinds),
        scores=(*[0.0] * 259, *[-float(i) for i in range(len(words))]),
    )
    rules = TextRules(user_defined=vocabulary.user_defined)
    special = {"<unk>": 0, "<s>": 1, "</s>": 2}
    tokenizer = SentencePieceTokenizer(vocabulary, rules, special_tokens=special)
    tokenizer.template = Template.around(bos_id=1, eos_id=2)
    return tokenizer


# ---- vocabularies ----


def test_a_byte_level_vocabulary_reads_back_equal(byte_level: BPETokenizer, tmp_path: Path) -> None:
    save(byte_level, tmp_path / "x.gguf", format="gguf")
    again = load(tmp_path / "x.gguf")
    assert again == byte_level
    assert again.encode(TEXT) == byte_level.encode(TEXT)


def test_a_sentencepiece_vocabulary_and_its_template_read_back_equal(
    pieces: SentencePieceTokenizer, tmp_path: Path
) -> None:
    gguf.save(pieces, tmp_path / "x.gguf", special_ids={"padding": 0}, chat_template="{{ x }}")
    again = gguf.read(tmp_path / "x.gguf")
    assert again.tokenizer == pieces
    assert again.special_ids == {"bos": 1, "eos": 2, "unknown": 0, "padding": 0}
    assert again.chat_template == "{{ x }}"


def test_the_gguf_package_reads_what_was_written(
    byte_level: BPETokenizer, pieces: SentencePieceTokenizer, tmp_path: Path
) -> None:
    reader_of = pytest.importorskip("gguf").GGUFReader
    for i, tokenizer in enumerate((byte_level, pieces)):
        gguf.save(tokenizer, tmp_path / f"{i}.gguf")
        fields = reader_of(tmp_path / f"{i}.gguf").fields
        expected = {"general.architecture": "llama", **gguf.to_pairs(tokenizer)}
        for key, value in expected.items():
            assert fields[key].contents() == value, key


def test_a_file_of_the_gguf_package_is_read(tmp_path: Path) -> None:
    writer_of = pytest.importorskip("gguf").GGUFWriter
    writer = writer_of(tmp_path / "x.gguf", "llama")
    tokens = [*BYTE_NAMES, "<unk>", "▁", "a", "▁a"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 257 + [-2.0, -3.0, -1.0])
    writer.add_token_types([6] * 256 + [2, 1, 1, 1])
    writer.add_unk_token_id(256)
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = load(tmp_path / "x.gguf")
    assert tokenizer.encode("a b") == [259, 257, 0x62]


def test_bytes_without_a_token_are_left_out_as_in_llama_cpp(gpt2: BPETokenizer) -> None:
    pairs: dict[str, Any] = gguf.to_pairs(gpt2)
    place = pairs["tokenizer.ggml.tokens"].index("Z")
    pairs["tokenizer.ggml.token_type"][place] = PieceType.UNUSED
    tokenizer = gguf.from_pairs(pairs).tokenizer
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.unknown == Unknown()
    assert tokenizer.encode("1Z1") == tokenizer.encode("11")


def test_a_whole_tokenizer_json_goes_before_the_other_pairs(byte_level: BPETokenizer) -> None:
    from lmworks.tokenizer import huggingface

    pairs: dict[str, Any] = {"tokenizer.huggingface.json": huggingface.to_json(byte_level)}
    assert gguf.from_pairs(pairs).tokenizer == byte_level


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"tokenizer.ggml.model": "bert"}, "'bert' is not supported; known: gpt2, llama"),
        ({"tokenizer.ggml.model": None}, "no vocabulary"),
        ({"tokenizer.ggml.pre": "bloom"}, "'bloom' is not a known pre-tokenizer; known: .*qwen2"),
        ({"tokenizer.ggml.tokens": "a"}, "must be a list of text"),
        ({"tokenizer.ggml.tokens": ["a", "b"]}, "token_type has"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merge 0='ab' is not two tokens"),
        ({"tokenizer.ggml.bos_token_id": 1 << 30}, "bos_token_id=1073741824 is not the id"),
        ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token must be true or false"),
        ({"tokenizer.chat_template": 7}, "chat_template must be text"),
        ({"tokenizer.huggingface.json": "{"}, "huggingface.json: not valid JSON"),
    ],
)
def test_wrong_pairs_are_refused_by_name(
    changes: dict[str, Any], wanted: str, byte_level: BPETokenizer
) -> None:
    pairs = {**gguf.to_pairs(byte_level), **changes}
    pairs = {key: value for key, value in pairs.items() if value is not None}
    with pytest.raises(DataError, match=wanted):
        gguf.from_pairs(pairs)


def test_what_gguf_cannot_say_is_refused_on_writing(byte_level: BPETokenizer) -> None:
    other = BPETokenizer(
        byte_level.tokens,
        byte_level.merges,
        pattern="cl100k",
        special_tokens={},
        normalizer="NFC",
    )
    with pytest.raises(DataError, match="no pre-tokenizer of pattern 'cl100k'"):
        gguf.to_pairs(other)


# ---- the file format ----

VALUES = st.one_of(
    st.text(max_size=9),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.floats(width=32, allow_nan=False),
    st.lists(st.text(max_size=5), max_size=4),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4),
)


def _read(data: bytes, path: Path) -> dict[str, gguf_metadata.Value]:
    path.write_bytes(data)
    return gguf_metadata.read(path)


@given(pairs=st.dictionaries(st.text(max_size=9), VALUES, max_size=6))
def test_pairs_read_back(
    pairs: dict[str, gguf_metadata.Value], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "pairs.gguf"
    assert _read(gguf_metadata.to_bytes(pairs), path) == pairs


@settings(max_examples=300)
@given(data=st.data())
def test_a_broken_file_is_a_tokenizer_or_a_data_error(
    data: st.DataObject,
    pieces: SentencePieceTokenizer,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    whole = gguf_metadata.to_bytes(gguf.to_pairs(pieces))
    end = data.draw(st.sampled_from([len(whole), data.draw(st.integers(0, len(whole)))]))
    broken = bytearray(whole[:end])
    for _ in range(data.draw(st.integers(0, 3)) if broken else 0):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "broken.gguf"
    path.write_bytes(broken)
    try:
        tokenizer = load(path)
    except DataError:
        return
    tokenizer.encode(TEXT, disallowed_special=())


def _file(*pairs: bytes, version: int = 3, num_pairs: int | None = None) -> bytes:
    count = len(pairs) if num_pairs is None else num_pairs
    return b"GGUF" + struct.pack("<IQQ", version, 0, count) + b"".join(pairs) + bytes(64)


def _key(name: str, kind: int) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", "not a GGUF file"),
        (b"GGML" + bytes(40), "must begin with b'GGUF', found b'GGML'"),
        (_file(version=1), "version 1; versions 2 and 3"),
        (_file(version=0x03000000), "big-endian"),
        (_file(num_pairs=1 << 60), "cut short: the pairs takes at least"),
        (_file(_key("a", 8) + struct.pack("<Q", 1 << 62)), "a takes at least 4611686018427387904"),
        (_file(_key("a", 9) + struct.pack("<IQ", 4, 1 << 61)), "cut short: a takes"),
        (_file(_key("a", 9) + struct.pack("<IQ", 8, 1 << 61)), "cut short: a takes"),
        (_file(_key("a", 9) + struct.pack("<IQ", 9, 1)), "a is an array of arrays"),
        (_file(_key("a", 77)), "a is of type 77; types are 0 to 12"),
        (_file(_key("a", 7) + b"\1", _key("a", 7) + b"\0"), "key 'a' is given twice"),
    ],
)
def test_hostile_files_are_refused_before_anything_is_allocated(
    data: bytes, wanted: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=wanted):
        _read(data, tmp_path / "x.gguf")


def test_only_the_start_of_a_large_file_is_read(
    pieces: SentencePieceTokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    gguf.save(pieces, path)
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a sparse file of a terabyte
    assert load(path) == pieces


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.gguf: cannot be read \(No such file"):
        load(tmp_path / "nothing.gguf")


def test_our_json_holds_a_sentencepiece_tokenizer(
    pieces: SentencePieceTokenizer, tmp_path: Path
) -> None:
    pieces.save(tmp_path / "tokenizer.json")
    assert json.loads((tmp_path / "tokenizer.json").read_text())["kind"] == "sentencepiece"
    assert load(tmp_path) == pieces
    save(pieces, tmp_path / "x.model", format="sentencepiece")
    assert load(tmp_path / "x.model").encode(TEXT) == pieces.encode(TEXT)


def test_user_defined_pieces_have_plain_spaces_in_the_file(tmp_path: Path) -> None:
    """llama.cpp looks for them in the text as it is; Gemma has pieces of several spaces."""
    names = ["<unk>", "<s>", "</s>", *BYTE_NAMES, "▁▁", "a"]
    kinds = [PieceType.UNKNOWN, *[PieceType.CONTROL] * 2, *[PieceType.BYTE] * 256]
    vocabulary = Vocabulary(
        pieces=tuple(names),
        types=(*kinds, PieceType.USER_DEFINED, PieceType.NORMAL),
        scores=(0.0,) * len(names),
    )
    rules = TextRules(prefix="none", user_defined=vocabulary.user_defined)
    tokenizer = SentencePieceTokenizer(
        vocabulary, rules, special_tokens={"<unk>": 0, "<s>": 1, "</s>": 2}
    )
    gguf.save(tokenizer, tmp_path / "vocabulary.gguf")
    assert gguf_metadata.read(tmp_path / "vocabulary.gguf")["tokenizer.ggml.tokens"][259] == "  "
    loaded = gguf.load(tmp_path / "vocabulary.gguf")
    assert list(loaded.encode("a  a")) == list(tokenizer.encode("a  a")) == [260, 259, 260]
