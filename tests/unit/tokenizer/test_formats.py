"""Tokenizer files: ours, Hugging Face's and tiktoken's, well-formed and hostile."""

import base64
import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmworks import _text
from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer import formats, huggingface, load, load_tiktoken, save
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte import ByteTokenizer
from lmworks.tokenizer.readable import bytes_to_readable, readable_to_bytes
from lmworks.tokenizer.train import train_bpe_from_iterator

BYTES = [bytes([i]) for i in range(256)]


@given(st.binary(max_size=40))
def test_readable_bytes_read_back(data: bytes) -> None:
    assert readable_to_bytes(bytes_to_readable(data)) == data


def test_readable_bytes_are_readable() -> None:
    assert bytes_to_readable(" the é \\ ".encode() + b"\xff") == " the é \\\\ \\xff"


@pytest.mark.parametrize("text", ["\\", "\\q", "\\x1", "\\xZZ", "\ud800"])
def test_unreadable_bytes_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="token"):
        readable_to_bytes(text)


@pytest.mark.parametrize("form", ["lmworks", "hf"])
def test_each_format_reads_back_equal(bpe: BPETokenizer, form: Any, tmp_path: Path) -> None:
    save(bpe, tmp_path / "tokenizer.json", format=form)
    assert load(tmp_path) == bpe


def test_tiktoken_ranks_read_back_equal(bpe: BPETokenizer, tmp_path: Path) -> None:
    save(bpe, tmp_path / "x.tiktoken", format="tiktoken")
    assert load_tiktoken(tmp_path / "x.tiktoken", bpe.pattern, bpe.special_tokens) == bpe


def test_all_options_survive_our_format(tmp_path: Path) -> None:
    tokenizer = BPETokenizer(
        [*BYTES, None, b"ab", b"\xff\\"],
        [(97, 98), (255, 92)],
        pattern="qwen2",
        special_tokens={"<é>": 256},
        added_tokens={"<tool>": 300},
        ignore_merges=True,
        normalizer="NFC",
    )
    for form in ("lmworks", "hf"):
        save(tokenizer, tmp_path / "t.json", format=form)  # type: ignore[arg-type]
        assert load(tmp_path / "t.json") == tokenizer


def test_only_bpe_has_foreign_formats(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="byte tokenizer has no 'hf' format"):
        save(ByteTokenizer(), tmp_path / "t.json", format="hf")
    assert not list(tmp_path.iterdir())


def test_merges_that_ids_do_not_order_have_no_tiktoken_form() -> None:
    tokenizer = BPETokenizer(
        [*BYTES, b"ab", b"bc"], [(98, 99), (97, 98)], pattern="gpt2", special_tokens={}
    )
    with pytest.raises(DataError, match="no tiktoken form"):
        formats.to_tiktoken(tokenizer)


def test_tokens_that_no_merge_reaches_are_taken_whole(tmp_path: Path) -> None:
    # Rank 256 is three bytes: tiktoken finds it only as a whole piece.
    (tmp_path / "x.tiktoken").write_bytes(rank_file([*BYTES, b"abc", b"bc"]))
    tokenizer = load_tiktoken(tmp_path / "x.tiktoken", "gpt2")
    assert tokenizer.ignore_merges
    assert tokenizer.encode("abc") == [256]
    assert tokenizer.encode("abcd") == [256, 100]  # "bc" meets "a" inside the longer piece


def rank_file(tokens: list[bytes]) -> bytes:
    return b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(tokens))


def test_a_long_token_of_merged_halves_reads_back(tmp_path: Path) -> None:
    tokenizer = train_bpe_from_iterator(["a" * (1 << 17)], 300)
    assert max(len(token or b"") for token in tokenizer.tokens) == 1 << 17
    save(tokenizer, tmp_path / "x.tiktoken", format="tiktoken")
    assert load_tiktoken(tmp_path / "x.tiktoken", "gpt2", tokenizer.special_tokens) == tokenizer


def test_a_long_token_that_no_merge_reaches_takes_no_quadratic_work(tmp_path: Path) -> None:
    token = random.Random(0).randbytes(1_000_000)
    (tmp_path / "x.tiktoken").write_bytes(rank_file([*BYTES, token]))
    assert load_tiktoken(tmp_path / "x.tiktoken", "gpt2").encode(token)[0] < 256


# ---- against the peers ----


def test_hugging_face_loads_our_export_to_the_same_ids(
    bpe: BPETokenizer, texts: Any, tmp_path: Path
) -> None:
    peer = pytest.importorskip("tokenizers")
    save(bpe, tmp_path / "tokenizer.json", format="hf")
    theirs = peer.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.get_vocab_size() == bpe.vocab_size

    @given(texts)
    def check(text: str) -> None:
        ids = theirs.encode(text).ids
        assert bpe.encode(text, allowed_special="all") == ids
        assert bpe.decode(ids) == theirs.decode(ids, skip_special_tokens=False)

    check()


def test_we_load_what_hugging_face_trained_to_the_same_ids(texts: Any, tmp_path: Path) -> None:
    peer = pytest.importorskip("tokenizers")
    theirs = peer.Tokenizer(peer.models.BPE())
    theirs.pre_tokenizer = peer.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = peer.trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=peer.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    theirs.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    theirs.add_tokens(["tool"])
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = load(tmp_path)

    @given(texts)
    def check(text: str) -> None:
        text += "<|endoftext|>tool"
        assert ours.encode(text, allowed_special="all") == theirs.encode(text).ids

    check()


def test_tiktoken_gives_the_same_ids_from_our_ranks(bpe: BPETokenizer, texts: Any) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    specials = {"<|endoftext|>": 1000, "<|end|>": 1001}
    ours = BPETokenizer(
        [t for t in bpe.tokens if t is not None],
        bpe.merges,
        pattern=bpe.pattern,
        special_tokens=specials,
    )
    theirs = tiktoken.Encoding(
        "ours",
        pat_str=_text.PATTERNS[bpe.pattern],
        mergeable_ranks={token: i for i, token in enumerate(ours.tokens)},
        special_tokens=specials,
    )

    @given(texts, st.sampled_from(["all", {"<|end|>"}, set()]), st.sampled_from(["all", ()]))
    def check(text: str, allowed: Any, disallowed: Any) -> None:
        def ids_or_error(encode: Any) -> Any:
            try:
                return encode(text, allowed_special=allowed, disallowed_special=disallowed)
            except ValueError:
                return "forbidden"

        assert ids_or_error(ours.encode) == ids_or_error(theirs.encode)

    check()


# ---- hostile files ----


def own() -> dict[str, Any]:
    tokenizer = BPETokenizer.from_merges([(b"a", b"b")], pattern="gpt2", special_tokens=["<x>"])
    return {"format": "lmworks-tokenizer", "version": 1, "kind": "bpe", **tokenizer.content()}


def hf() -> dict[str, Any]:
    tokenizer = BPETokenizer.from_merges([(b"a", b"b")], pattern="cl100k", special_tokens=["<x>"])
    value: dict[str, Any] = json.loads(huggingface.to_json(tokenizer))
    return value


def changed(value: dict[str, Any], path: str, new: Any) -> dict[str, Any]:
    """A copy of `value` with the item at a dotted path replaced."""
    value = copy.deepcopy(value)
    *parents, last = path.split(".")
    at: Any = value
    for key in parents:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[int(last) if isinstance(at, list) else last] = new
    return value


def refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=message) as caught:
        load(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("path", "new", "message"),
    [
        ("version", 2, "version 2; this lmworks reads version 1"),
        ("version", True, "version True"),
        ("kind", "bep", "kind='bep'; known: bpe, byte"),
        ("kind", [1], "kind="),
        ("tokens", {}, "'tokens' must be a list"),
        ("tokens.97", 1, "'tokens' must be a list"),
        ("tokens.97", "", "empty"),
        ("tokens.97", "b", "tokens 97 and 98 are both"),
        ("tokens.97", "\\x", "backslash"),
        ("tokens.97", None, "0x61"),
        ("merges.0", [97], "'merges' must be"),
        ("merges.0", [97, 10**30], "not both tokens"),
        ("merges.0", [97, -1], "not both tokens"),
        ("merges.0", [97.0, 98], "'merges' must be"),
        ("merges.0", [98, 97], "not a token"),
        ("special_tokens", {"<x>": -1}, "id -1"),
        ("special_tokens", {"<x>": 10**30}, "not in 0"),
        ("special_tokens", {"<x>": True}, "object of token ids"),
        ("special_tokens", {"<x>": 97}, "used twice"),
        ("special_tokens", {"x" * 2000: 257}, "2000 bytes"),
        ("normalizer", "NFKC", "null, 'NFC' or a list of steps"),
        ("ignore_merges", 1, "true or false"),
        ("pattern", "gpt9", "unknown pre-tokenizer pattern"),
        ("extra", 1, "no such key 'extra'"),
    ],
)
def test_a_damaged_file_of_ours_is_refused(
    tmp_path: Path, path: str, new: Any, message: str
) -> None:
    refused(tmp_path, json.dumps(changed(own(), path, new)), message)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    value = own()
    del value["merges"]
    refused(tmp_path, json.dumps(value), "'merges' is missing")


@pytest.mark.parametrize(
    ("path", "new", "message"),
    [
        ("model", [], "must be an object"),
        ("model.type", "Unigram", "'Unigram'"),
        ("model.byte_fallback", 1, "byte_fallback"),
        ("model.dropout", 0.1, "dropout"),
        ("model.end_of_word_suffix", "</w>", "end_of_word_suffix"),
        ("model.ignore_merges", "yes", "true or false"),
        ("model.vocab", [], "model.vocab must be"),
        ("model.vocab.a", 98, "given twice"),
        ("model.vocab.a", -1, "not an id"),
        ("model.vocab.a", 10**12, "not an id"),
        ("model.vocab.a", 1.5, "not an id"),
        ("model.vocab.中", 300, "spells no byte"),
        ("model.vocab.<x>", 300, "gives it 300"),
        ("model.merges", {}, "model.merges must be"),
        ("model.merges.0", "a", "neither"),
        ("model.merges.0", ["a", 1], "neither"),
        ("model.merges.0", ["a", "zz"], "'zz' is not in"),
        ("model.merges.0", ["b", "a"], "not a token"),
        ("added_tokens", {"a": 1}, "must be a list"),
        ("added_tokens.0", "x", "must be an object"),
        ("added_tokens.0.id", "1", "whole number"),
        ("added_tokens.0.id", 97, "97"),
        ("added_tokens.0.lstrip", 1, "lstrip must be true or false"),
        ("normalizer", {"type": "BertNormalizer"}, "BertNormalizer"),
        ("normalizer", "NFC", "expected an object"),
        ("decoder", {"type": "WordPiece"}, "WordPiece"),
        ("post_processor", {"type": "TemplateProcessing"}, "special_tokens must be"),
        ("pre_tokenizer", None, "pre_tokenizer"),
        ("pre_tokenizer", {"type": "Metaspace"}, "Metaspace"),
        ("pre_tokenizer.pretokenizers.0.pattern", {"Regex": "(a"}, "no regular expression"),
        ("pre_tokenizer.pretokenizers.0.pattern", {"Regex": "a{3}+"}, "repeats a repeat"),
        ("pre_tokenizer.pretokenizers.0.behavior", "removed", "behavior='removed' is not one of"),
        ("pre_tokenizer.pretokenizers.0.invert", 1, "invert must be true or false"),
        ("pre_tokenizer.pretokenizers.0.type", "ByteLevel", "ByteLevel, once"),
        ("pre_tokenizer.pretokenizers.0.type", "UnicodeScripts", "'UnicodeScripts' is not"),
    ],
)
def test_a_hugging_face_file_that_cannot_be_reproduced_is_refused(
    tmp_path: Path, path: str, new: Any, message: str
) -> None:
    refused(tmp_path, json.dumps(changed(hf(), path, new)), message)


def test_old_merges_and_missing_options_are_read(tmp_path: Path) -> None:
    value = changed(hf(), "model.merges.0", "a b")
    del value["model"]["ignore_merges"], value["model"]["type"], value["normalizer"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(value), encoding="utf-8")
    assert load(tmp_path).encode("ab") == [256]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a JSON object"),
        ("[1, 2]", "expected a JSON object"),
        ("{", "not valid JSON"),
        ("{}", "neither our format"),
        ('{"model": NaN}', "NaN is not a JSON number"),
        ('{"a": 1, "a": 2}', "'a' is given twice"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 10_000 + "}", "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        ("IQ== 0\nIg== 1\n", "tiktoken rank file"),
    ],
)
def test_what_is_no_tokenizer_file_is_refused(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    refused(tmp_path, text, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no ranks"),
        (b"IQ==\n", "line 1: expected"),
        (b"!!! 0\n", "not base64"),
        (b"I 0\n", "not base64"),
        (b"IQ== -1\n", "rank b'-1'"),
        (b"IQ== 999999999999\n", "rank"),
        (b"IQ== 2097152\n", "rank"),
        (b"IQ== 0\nIg== 0\n", "line 2: rank 0 is given twice"),
        (b"IQ== 0\nIQ== 1\n", "both"),
        (b"IQ== 0\n", "single bytes"),
        (b"IQ== 0\nISI= 1\n", "single bytes"),
    ],
)
def test_a_damaged_rank_file_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "x.tiktoken").write_bytes(text)
    with pytest.raises(DataError, match=message):
        load_tiktoken(tmp_path / "x.tiktoken", "gpt2")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such tokenizer file"):
        load(tmp_path / "nothing.json")
