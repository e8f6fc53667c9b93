"""BPE training: merges equal the reference, and every wrong input is told plainly."""

import os
import random
import time
from pathlib import Path

import pytest

from lmworks import _text
from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer.train import train_bpe, train_bpe_from_iterator
from lmworks.tokenizer.train_reference import train_bpe_reference

EOT = b"<|endoftext|>"
BLOCK_BYTES = 2 << 20  # kBlockBytes in bpe_train_count.cpp


def native_merges(
    texts: list[bytes], max_merges: int, *, specials: list[bytes], num_threads: int = 1
) -> list[tuple[bytes, bytes]]:
    trainer = _text.BpeTrainer("gpt2", specials, num_threads)
    trainer.count_texts(texts)
    return trainer.train(max_merges, None)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "corpus.txt"
    path.write_bytes(content)
    return path


def synthetic_corpus(num_bytes: int) -> bytes:
    """Zipf-like words of a seeded source in documents of some sentences."""
    rng = random.Random(0)
    letters = "etaoinshrdlu"
    words = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(4000)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    parts: list[str] = []
    size = 0
    while size < num_bytes:
        line = " ".join(rng.choices(words, weights, k=400))
        parts.append(line + rng.choice([".\n", "<|endoftext|>", " 中文é\n\n", "'s 12 "]))
        size += len(parts[-1])
    return "".join(parts).encode()


def test_most_frequent_pair_is_merged_first() -> None:
    assert native_merges([b"ababab cd"], 1, specials=[]) == [(b"a", b"b")]


def test_tie_goes_to_the_greatest_pair_of_byte_strings() -> None:
    assert native_merges([b"ab", b"zz", b"za"], 3, specials=[])[0] == (b"z", b"z")
    # "BA" + "A" > "B" + "Z" as strings, yet pairs are compared: first ("BA", ...), then ("B", ...)
    texts = [b"BAA"] * 5 + [b"BZ"] * 5 + [b"BA"]
    assert native_merges(texts, 3, specials=[])[1:] == [(b"BA", b"A"), (b"B", b"Z")]


def test_sentence_of_sennrich_gives_the_merges_of_the_cs336_handout() -> None:
    texts = [b"low"] * 5 + [b"lower"] * 2 + [b"widest"] * 3 + [b"newest"] * 6
    merges = native_merges(texts, 6, specials=[])
    assert [a + b for a, b in merges] == [b"st", b"est", b"ow", b"low", b"west", b"ne"]


def test_no_merge_spans_a_special_token() -> None:
    merges = native_merges([b"ab" + EOT + b"cd" + EOT], 99, specials=[EOT])
    assert sorted(merges) == [(b"a", b"b"), (b"c", b"d")]


def test_longest_of_overlapping_special_tokens_splits() -> None:
    merges = native_merges([b"xy<a><a>xy"], 9, specials=[b"<a>", b"<a><a>xy"])
    assert merges == [(b"x", b"y")]


def test_run_of_one_letter_is_merged_as_the_reference_does() -> None:
    for length in range(2, 40):
        text = b"a" * length
        assert native_merges([text], 99, specials=[]) == train_bpe_reference([text], 99)


@pytest.fixture(scope="module")
def corpus() -> bytes:
    return synthetic_corpus(3 * BLOCK_BYTES)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_file_cut_into_blocks_gives_the_merges_of_the_whole_text(
    tmp_path: Path, corpus: bytes, num_threads: int
) -> None:
    trainer = _text.BpeTrainer("gpt2", [EOT], num_threads)
    assert trainer.count_file(bytes(write(tmp_path, corpus)), False, None) is None
    assert trainer.train(600, None) == native_merges([corpus], 600, specials=[EOT])


def test_blocks_are_not_cut_inside_a_special_token_with_blanks(tmp_path: Path) -> None:
    special = b"a b c d"
    corpus = (special + b"xy z ") * (BLOCK_BYTES // 6)
    trainer = _text.BpeTrainer("gpt2", [special], 2)
    trainer.count_file(bytes(write(tmp_path, corpus)), False, None)
    assert trainer.train(50, None) == native_merges([corpus], 50, specials=[special])


@pytest.mark.slow
def test_merges_of_a_2_mb_text_equal_the_reference() -> None:
    text = synthetic_corpus(2 << 20)
    want = train_bpe_reference([text], 2000, special_tokens=[EOT.decode()])
    assert native_merges([text], 2000, specials=[EOT], num_threads=2) == want


def test_vocabulary_is_bytes_then_merges_then_special_tokens(tmp_path: Path) -> None:
    tokenizer = train_bpe([write(tmp_path, b"low lower lowest " * 9)], 260)
    assert tokenizer.vocab_size == 260
    assert tokenizer.token_bytes(97) == b"a"
    assert len(tokenizer.token_bytes(256)) == 2
    assert tokenizer.special_tokens == {"<|endoftext|>": 259}


def test_files_and_iterator_give_the_same_tokenizer(tmp_path: Path) -> None:
    text = synthetic_corpus(20_000)
    from_file = train_bpe([write(tmp_path, text)], 400)
    from_texts = train_bpe_from_iterator([text.decode()], 400)
    assert from_file.fingerprint == from_texts.fingerprint


def test_small_corpus_gives_a_smaller_vocabulary() -> None:
    assert train_bpe_from_iterator(["aaaa"], 1000).vocab_size == 256 + 2 + 1
    assert train_bpe_from_iterator(["a"], 1000).vocab_size == 256 + 1


def test_progress_ends_at_all_merges(tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    train_bpe(
        [write(tmp_path, synthetic_corpus(20_000))],
        600,
        progress=lambda phase, done, total: calls.append((phase, done, total)),
    )
    assert ("merge", 128, 600 - 257) in calls


def test_exception_in_progress_stops_the_training(tmp_path: Path) -> None:
    def stop(phase: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_bpe([write(tmp_path, b"some text")], 300, progress=stop)


def test_empty_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"empty corpus: no text in .*corpus\.txt"):
        train_bpe([write(tmp_path, b"")], 300)
    with pytest.raises(DataError, match="empty corpus"):
        train_bpe([write(tmp_path, EOT * 3)], 300)
    with pytest.raises(DataError, match="empty corpus"):
        train_bpe_from_iterator([], 300)


def test_vocabulary_smaller_than_bytes_and_specials_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"vocab_size=256 .* use 257 or more"):
        train_bpe_from_iterator(["text"], 256)
    with pytest.raises(ConfigError, match=r"vocab_size=3000000; fewer than 2097151"):
        train_bpe_from_iterator(["text"], 3_000_000)
    assert train_bpe_from_iterator(["text"], 257).vocab_size == 257


def test_file_that_is_not_utf8_is_refused_with_the_offset(tmp_path: Path) -> None:
    corpus = b"word " * BLOCK_BYTES  # five blocks; the first error is told, not the first found
    broken = bytearray(corpus)
    broken[1_000_003] = broken[-7] = 0xE9
    with pytest.raises(DataError, match=r"corpus\.txt is not UTF-8: invalid byte at .* 1,000,003"):
        train_bpe([write(tmp_path, bytes(broken))], 300, num_threads=2)


def test_file_that_is_not_utf8_is_allowed_as_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xff\xfe\xff\xfe\xff\xfe")
    tokenizer = train_bpe([path], 258, allow_invalid_utf8=True)
    assert tokenizer.token_bytes(256) == b"\xff\xfe"


@pytest.mark.parametrize(
    ("name", "message"), [("missing.txt", "no such file"), (".", "no text file in this directory")]
)
def test_path_that_holds_no_text_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        train_bpe([tmp_path / name], 300)


def test_no_files_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one text file"):
        train_bpe([], 300)


def test_special_tokens_must_be_distinct_and_not_empty() -> None:
    with pytest.raises(ConfigError, match="repeat"):
        train_bpe_from_iterator(["text"], 300, special_tokens=["<a>", "<a>"])
    with pytest.raises(ConfigError, match="empty"):
        train_bpe_from_iterator(["text"], 300, special_tokens=[""])


def test_special_tokens_are_checked_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_text, "BpeTrainer")
    with pytest.raises(DataError, match="2000 bytes"):
        train_bpe_from_iterator(["text"], 300, special_tokens=["x" * 2000])
    with pytest.raises(DataError, match="not valid Unicode"):
        train_bpe_from_iterator(["text"], 300, special_tokens=["\ud800"])


def test_many_small_texts_take_no_fixed_cost_each() -> None:
    start_s = time.process_time()
    assert len(native_merges([b"abc"] * 300_000, 2, specials=[])) == 2
    # A walk over a table per text would take several seconds.
    assert time.process_time() - start_s < 2


def test_a_file_whose_name_is_not_utf8_is_read(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.txt")
    path.write_bytes(b"some text")
    assert train_bpe([path], 258).vocab_size == 258


def test_unknown_pattern_and_thread_count_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gpt2'"):
        train_bpe_from_iterator(["text"], 300, pattern="gpt-2")
    with pytest.raises(ConfigError, match="num_threads=0"):
        train_bpe_from_iterator(["text"], 300, num_threads=0)


@pytest.mark.parametrize("num_threads", [0, 1025])
def test_a_number_of_threads_out_of_bounds_is_refused(num_threads: int) -> None:
    with pytest.raises(ConfigError, match=f"num_threads={num_threads}; use 1 to 1024"):
        train_bpe_from_iterator(["text"], 300, num_threads=num_threads)
