"""Modes, seeds, protected tokens, limits and extension give the vocabulary that they promise."""

import random
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lmworks.base.errors import ConfigError, DataError, StorageError
from lmworks.tokenizer import BPETokenizer, ByteTokenizer, corpus, load_tiktoken, save
from lmworks.tokenizer.pretokenize import PATTERNS
from lmworks.tokenizer.train import train_bpe, train_bpe_from_iterator

EOT = "<|endoftext|>"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Words with many ties, some of them not ASCII."""
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdeé中 '1", k=rng.randint(1, 8))) for _ in range(400)]
    return [" ".join(rng.choices(words, k=200)) for _ in range(20)]


def token_ids(tokenizer: BPETokenizer) -> dict[bytes, int]:
    return {token: i for i, token in enumerate(tokenizer.tokens) if token is not None}


# ---- modes ----


@pytest.mark.parametrize("has_alphabet", [True, False])
def test_huggingface_mode_gives_the_ids_and_merges_of_its_trainer(
    texts: list[str], has_alphabet: bool
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    peer = tokenizers.Tokenizer(tokenizers.models.BPE())
    peer.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>", EOT],
        initial_alphabet=byte_level.alphabet() if has_alphabet else [],
        show_progress=False,
    )
    peer.train_from_iterator(texts, trainer)
    ours = train_bpe_from_iterator(
        texts,
        500,
        special_tokens=["<s>", EOT],
        mode="huggingface",
        initial_alphabet=has_alphabet,
    )
    assert ours.special_tokens == {"<s>": 0, EOT: 1}
    sample = "".join(texts)[:5000]
    assert ours.encode(sample) == peer.encode(sample).ids
    num_missing = 0 if has_alphabet else 256 - len(set("".join(texts).encode()))
    assert ours.vocab_size == peer.get_vocab_size() + num_missing


def test_tiktoken_mode_gives_a_rank_file_that_is_the_tokenizer(
    texts: list[str], tmp_path: Path
) -> None:
    ours = train_bpe_from_iterator(texts, 500, mode="tiktoken", seed_tokens=["zebra"])
    save(ours, tmp_path / "a.tiktoken", format="tiktoken")
    again = load_tiktoken(tmp_path / "a.tiktoken", "gpt2", {EOT: 499})
    assert again.tokens == ours.tokens
    assert again.merges == ours.merges
    assert ours.tokens[0] == b"!"
    tiktoken = pytest.importorskip("tiktoken")
    peer = tiktoken.Encoding(
        "ours", pat_str=PATTERNS["gpt2"], mergeable_ranks=token_ids(ours), special_tokens={EOT: 499}
    )
    sample = "".join(texts)[:5000] + " zebra"
    assert ours.encode(sample) == peer.encode(sample)


def test_modes_have_the_same_first_tokens_as_bytes(texts: list[str]) -> None:
    reference = train_bpe_from_iterator(texts, 500)
    tiktoken = train_bpe_from_iterator(texts, 500, mode="tiktoken")
    assert reference.merged_bytes == tiktoken.merged_bytes
    assert reference.tokens[97] == b"a"
    assert tiktoken.tokens[97 - 33] == b"a"


def test_any_regular_expression_is_a_pattern(texts: list[str], tmp_path: Path) -> None:
    unknown = f"(?:{PATTERNS['gpt2']})"  # the engine does not know that it is the same
    file = tmp_path / "a.txt"
    file.write_text(EOT.join(texts))
    known = train_bpe(file, 400)
    for got in (
        train_bpe(file, 400, pattern=unknown),
        train_bpe_from_iterator(texts, 400, pattern=unknown),
    ):
        assert got.merged_bytes == known.merged_bytes
        assert got.pattern == unknown


def test_a_text_for_an_unknown_pattern_is_cut_at_special_tokens_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "READ_BYTES", 50)
    monkeypatch.setattr(corpus, "MAX_UNCUT_BYTES", 1000)
    file = tmp_path / "a.txt"
    file.write_text(f"one two three four{EOT}" * 99)
    whole_text = r"^one|three.*"
    assert train_bpe(file, 400, pattern=whole_text) == train_bpe_from_iterator(
        ["one two three four"] * 99, 400, pattern=whole_text
    )
    file.write_text("one two three four. " * 99)
    with pytest.raises(DataError, match="is cut at special tokens only; put one between"):
        train_bpe(file, 400, pattern=whole_text)


# ---- limits ----


def test_counts_beyond_the_memory_limit_give_the_same_vocabulary(
    texts: list[str], tmp_path: Path
) -> None:
    limited = train_bpe_from_iterator(texts * 5, 500, max_memory="64MiB", spill_dir=tmp_path)
    assert limited == train_bpe_from_iterator(texts * 5, 500)
    assert list(tmp_path.iterdir()) == []


def test_a_memory_limit_that_is_too_small_is_told(texts: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_memory='100' is too small: "):
        train_bpe_from_iterator(texts, 500, max_memory="100", spill_dir=tmp_path)
    with pytest.raises(StorageError, match=r"could not write to .*nowhere"):
        train_bpe_from_iterator(texts, 500, max_memory="1GB", spill_dir=tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_rarer_pairs_are_not_merged() -> None:
    tokenizer = train_bpe_from_iterator(["ab ab cd"], 300, min_frequency=2)
    assert [a + b for a, b in tokenizer.merged_bytes] == [b"ab"]


def test_no_token_is_longer_than_allowed(texts: list[str]) -> None:
    tokenizer = train_bpe_from_iterator(texts, 500, max_token_bytes=3)
    assert max(len(token) for token in tokenizer.tokens if token) == 3


# ---- seeds and protected tokens ----


def test_seed_tokens_are_single_tokens(texts: list[str]) -> None:
    seeds = ["unicorn", " xylophone", "中文"]
    tokenizer = train_bpe_from_iterator(texts, 400, seed_tokens=seeds)
    assert [len(tokenizer.encode(seed)) for seed in seeds] == [1, 1, 1]
    assert tokenizer.vocab_size == 400


def test_protected_tokens_are_never_cut_or_merged() -> None:
    texts = ["a=>b a=>b =>=> "] * 20
    tokenizer = train_bpe_from_iterator(texts, 300, protected_tokens=["=>", " two words"])
    assert not any(b"=>" in token for token in tokenizer.tokens if token)
    assert tokenizer.added_tokens.keys() == {"=>", " two words"}
    arrow = tokenizer.added_tokens["=>"]
    assert tokenizer.encode("x=>y").count(arrow) == 1
    assert tokenizer.decode(tokenizer.encode("a=>b two words")) == "a=>b two words"


# ---- extension ----


def test_an_extended_vocabulary_keeps_all_its_ids(texts: list[str]) -> None:
    old = train_bpe_from_iterator(texts[:4], 400, protected_tokens=["=>"])
    new_texts = ["wholly other text => about zebras and zeppelins "] * 9
    new = train_bpe_from_iterator(
        new_texts, 430, extend=old, special_tokens=["<new>"], protected_tokens=["::"]
    )
    assert new.vocab_size == 430
    assert new.tokens[: len(old.tokens)] == old.tokens
    assert new.merges[: len(old.merges)] == old.merges
    assert new.special_tokens == {**old.special_tokens, "<new>": 428}
    assert new.added_tokens == {**old.added_tokens, "::": 429}
    assert all(new.token_bytes(i) == old.token_bytes(i) for i in range(400))
    new_sample, old_sample = new_texts[0], texts[0]
    assert len(new.encode(new_sample)) < len(old.encode(new_sample))
    assert new.decode(new.encode(old_sample)) == old_sample


def test_extending_in_two_steps_on_one_text_is_training_at_once(texts: list[str]) -> None:
    whole = train_bpe_from_iterator(texts, 500, special_tokens=[])
    first = train_bpe_from_iterator(texts, 380, special_tokens=[])
    second = train_bpe_from_iterator(texts, 500, extend=first)
    assert second == whole


def test_no_new_merge_makes_a_token_that_no_old_merge_made() -> None:
    tokens = [*(bytes([i]) for i in range(256)), b"xyz"]
    old = BPETokenizer(tokens, [], pattern="gpt2", special_tokens={}, ignore_merges=True)
    new = train_bpe_from_iterator(["xyz axyz xyzb"] * 9, 262, extend=old)
    assert new.merges
    assert not any(left + right == b"xyz" for left, right in new.merged_bytes)


def test_extension_cuts_and_composes_as_the_old_vocabulary() -> None:
    old = BPETokenizer(
        [bytes([i]) for i in range(256)],
        [],
        pattern="qwen2",
        special_tokens={"<e>": 256},
        normalizer="NFC",
    )
    decomposed = "cafe\u0301 "
    new = train_bpe_from_iterator([decomposed * 20], 262, extend=old)
    assert new.pattern == "qwen2"
    assert new.normalizer == old.normalizer
    assert any("é".encode() in token for token in new.tokens if token)
    assert not any("e\u0301".encode() in token for token in new.tokens if token)


# ---- what cannot be ----

BAD: list[tuple[Mapping[str, Any], str]] = [
    ({"mode": "hf"}, "mode='hf'"),
    ({"min_frequency": 0}, "min_frequency=0"),
    ({"max_token_bytes": 1}, "max_token_bytes=1"),
    ({"max_memory": "lots"}, "max_memory='lots' is no size; write bytes or a unit: 2GB"),
    ({"initial_alphabet": False}, "is of mode 'huggingface', not 'reference'"),
    ({"seed_tokens": [""]}, "a seed token is empty"),
    ({"seed_tokens": ["a", "a"]}, "seed token 'a' is given twice"),
    ({"seed_tokens": ["abc"], "max_token_bytes": 2}, "seed token 'abc' has 3 bytes, more than"),
    ({"seed_tokens": ["two words"]}, "is cut by the pattern into 'two', ' words'"),
    ({"seed_tokens": [f"a{EOT}"]}, "holds a special or protected token"),
    ({"seed_tokens": [string.ascii_letters]}, "vocab_size=300: "),
    ({"protected_tokens": [""]}, "a protected token is empty"),
    ({"protected_tokens": [EOT]}, "is given twice among the special and protected tokens"),
    ({"protected_tokens": ["=>"], "mode": "tiktoken"}, "cannot express protected tokens"),
    ({"special_tokens": "<s>"}, "is one text; pass a list"),
    ({"pattern": "gpt-2"}, "did you mean 'gpt2'"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_a_setting_that_cannot_be_is_told(settings: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        train_bpe_from_iterator(["some text"], 300, **settings)


def test_all_but_the_room_for_seeds_is_checked_before_the_text_is_read() -> None:
    def never() -> Any:
        raise AssertionError("the text was read")
        yield

    for settings, message in BAD:
        if message != "vocab_size=300: ":
            with pytest.raises(ConfigError):
                train_bpe_from_iterator(never(), 300, **settings)


def test_an_extension_that_cannot_be_is_told() -> None:
    old = train_bpe_from_iterator(["some text"], 258)
    with pytest.raises(ConfigError, match="leave the pattern out"):
        train_bpe_from_iterator(["text"], 300, extend=old, pattern="cl100k")
    with pytest.raises(ConfigError, match="no room for the 258 old ids and 0 special"):
        train_bpe_from_iterator(["text"], 257, extend=old)
    with pytest.raises(ConfigError, match="cannot extend a byte tokenizer"):
        train_bpe_from_iterator(["text"], 300, extend=ByteTokenizer())  # type: ignore[arg-type]
    protected = train_bpe_from_iterator(["some text"], 258, protected_tokens=["=>"])
    with pytest.raises(DataError, match="no tiktoken form"):
        train_bpe_from_iterator(["text"], 300, extend=protected, mode="tiktoken")


def test_a_single_path_is_an_input(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("some text")
    assert train_bpe(str(file), 258) == train_bpe([file], 258)
