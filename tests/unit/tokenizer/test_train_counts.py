"""Counts on disk: kept in files, added up, spilled under a memory limit; files that change."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks import _text

EOT = b"<|endoftext|>"
MB = 1 << 20


def new_trainer(num_threads: int = 1, **options: Any) -> _text.BpeTrainer:
    return _text.BpeTrainer("gpt2", [EOT], num_threads, **options)


def many_words(num_words: int) -> bytes:
    """Mostly distinct words, of 1 to 40 bytes."""
    rng = random.Random(1)
    parts = []
    for _ in range(num_words):
        length = rng.randint(16, 40) if rng.random() < 0.05 else rng.randint(1, 9)
        parts.append("".join(rng.choices("etaoinsrhldcumé", k=length)))
    return " ".join(parts).encode()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_bytes(many_words(200_000))
    return path


@pytest.fixture(scope="module")
def whole(corpus: Path) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Merges and saved counts without a limit."""
    trainer = new_trainer()
    trainer.count_file(bytes(corpus), False, None)
    counts = corpus.with_suffix(".counts")
    trainer.save_counts(bytes(counts))
    return trainer.train(500, None), counts.read_bytes()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_spilling_changes_neither_merges_nor_saved_counts(
    corpus: Path, whole: tuple[list[tuple[bytes, bytes]], bytes], num_threads: int, tmp_path: Path
) -> None:
    spill, saved = tmp_path / "spill", tmp_path / "saved"
    spill.mkdir()
    trainer = new_trainer(
        num_threads, max_memory_bytes=num_threads * 4 * MB, spill_folder=bytes(spill)
    )
    trainer.count_file(bytes(corpus), False, None)
    has_spilled = bool(open_temporary_files(spill))
    trainer.save_counts(bytes(saved))
    assert has_spilled
    assert list(spill.iterdir()) == []  # nothing stays behind, even if the process is killed
    assert saved.read_bytes() == whole[1]
    merging = new_trainer(max_memory_bytes=16 * MB, spill_folder=bytes(spill))
    merging.add_counts(bytes(saved))
    assert merging.train(500, None) == whole[0]


def open_temporary_files(folder: Path) -> list[str]:
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if exists(fd)]
    return [link for link in links if link.startswith(str(folder))]


def exists(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_merging_goes_on_from_what_was_spilled(
    corpus: Path, whole: tuple[list[tuple[bytes, bytes]], bytes], tmp_path: Path
) -> None:
    trainer = new_trainer(2, max_memory_bytes=12 * MB, spill_folder=bytes(tmp_path))
    trainer.count_file(bytes(corpus), False, None)
    assert trainer.train(500, None) == whole[0]


def test_words_that_do_not_fit_the_limit_are_told_with_the_number(
    corpus: Path, tmp_path: Path
) -> None:
    trainer = new_trainer(max_memory_bytes=4 * MB, spill_folder=bytes(tmp_path))
    trainer.count_file(bytes(corpus), False, None)
    with pytest.raises(MemoryError, match=r"merging the \d+ distinct pieces takes at least \d+ by"):
        trainer.train(500, None)


def test_limit_that_no_table_fits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MemoryError, match="is below 8388608, the least for 2 threads"):
        new_trainer(2, max_memory_bytes=MB, spill_folder=bytes(tmp_path))
    with pytest.raises(ValueError, match="needs a folder"):
        new_trainer(max_memory_bytes=16 * MB)


def test_spill_folder_that_cannot_be_written_is_named(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    trainer = new_trainer(max_memory_bytes=4 * MB, spill_folder=bytes(folder))
    with pytest.raises(FileNotFoundError, match="cannot keep counts in the spill folder") as error:
        trainer.count_file(bytes(corpus), False, None)
    assert error.value.filename == bytes(folder)


def test_counts_of_two_parts_add_up_to_those_of_the_whole(tmp_path: Path) -> None:
    parts = [b"low lower lowest", b"low newest widest" + b"x" * 100]
    files = []
    for i, part in enumerate(parts):
        trainer = new_trainer()
        trainer.count_texts([part])
        files.append(tmp_path / str(i))
        trainer.save_counts(bytes(files[-1]))
    both, want = new_trainer(2), new_trainer()
    want.count_texts(parts)
    for file in files:
        both.add_counts(bytes(file))
    assert both.num_pieces == want.num_pieces
    assert both.train(20, None) == want.train(20, None)


def test_counting_goes_on_after_a_save(tmp_path: Path) -> None:
    trainer, want = new_trainer(), new_trainer()
    want.count_texts([b"low lower", b"newest"])
    trainer.count_texts([b"low lower"])
    trainer.save_counts(bytes(tmp_path / "counts"))
    trainer.count_texts([b"newest"])
    assert trainer.train(20, None) == want.train(20, None)


def test_counts_beyond_32_bits_stay_exact(tmp_path: Path) -> None:
    file = bytes(tmp_path / "counts")
    doubled = new_trainer()
    doubled.count_texts([b"ab ab ab cd cd"])
    for _ in range(40):
        doubled.save_counts(file)
        doubled.add_counts(file)
    assert doubled.num_pieces == 5 << 40
    # With 32 bits all counts would be 0 modulo 2**32; one more "xy" would be the most frequent.
    doubled.count_texts([b"xy"])
    assert doubled.train(3, None)[0] == (b"a", b"b")


def test_counts_that_would_overflow_64_bits_are_refused(tmp_path: Path) -> None:
    file = bytes(tmp_path / "counts")
    trainer = new_trainer()
    trainer.count_texts([b"ab"])
    for _ in range(62):
        trainer.save_counts(file)
        trainer.add_counts(file)
    trainer.save_counts(file)
    with pytest.raises(OverflowError, match="their sum exceeds 2\\^63"):
        trainer.add_counts(file)
    assert trainer.num_pieces == 1 << 62
    with pytest.raises(OverflowError, match="too large"):  # two bytes each: 2^63 in all
        trainer.train(1, None)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda b: b[:-1], "truncated"),
        (lambda b: b[:100], "truncated"),
        (lambda b: b[:5], "no file of counts"),
        (lambda b: b"", "no file of counts"),
        (lambda b: b"x" * 500, "no file of counts"),
        (lambda b: b[:8] + b"\x09" + b[9:], "its version is 9, not 1"),
        (lambda b: b + b"\0", "something follows its end"),
        (lambda b: b[:-4] + bytes([b[-4] ^ 1]) + b[-3:], "checksum"),
    ],
)
def test_damaged_file_of_counts_is_refused_and_adds_nothing(
    tmp_path: Path, harm: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / "counts"
    trainer = new_trainer()
    trainer.count_texts([many_words(100)])
    trainer.save_counts(bytes(path))
    path.write_bytes(harm(path.read_bytes()))
    other = new_trainer()
    with pytest.raises(ValueError, match=message):
        other.add_counts(bytes(path))
    assert other.num_pieces == 0


@settings(max_examples=200)
@given(data=st.data())
def test_any_changed_byte_of_a_file_of_counts_is_noticed(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.counts"
    trainer = new_trainer()
    trainer.count_texts([b"low lower lowest newest widest" + b"x" * 40])
    trainer.save_counts(bytes(path))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(ValueError, match="it"):
        new_trainer().add_counts(bytes(path))


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_any_bytes_as_counts_are_refused_plainly(tail: bytes) -> None:
    # A memory file: no name to clean up.
    with os.fdopen(os.memfd_create("counts"), "wb") as file:
        file.write(b"lmwcount\x01\0\0\0\0\0\0\0" + tail)
        file.flush()
        with pytest.raises(ValueError, match="it"):
            new_trainer().add_counts(f"/proc/self/fd/{file.fileno()}".encode())


def test_counts_of_another_pattern_or_other_special_tokens_are_refused(tmp_path: Path) -> None:
    path = bytes(tmp_path / "counts")
    new_trainer(settings=b"normalizer nfc").save_counts(path)
    others = [
        new_trainer(),
        _text.BpeTrainer("cl100k", [EOT], 1, settings=b"normalizer nfc"),
        _text.BpeTrainer("gpt2", [], 1, settings=b"normalizer nfc"),
    ]
    for other in others:
        with pytest.raises(ValueError, match="its pieces were cut otherwise: pattern gpt2, spec"):
            other.add_counts(path)


def test_missing_file_of_counts_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        new_trainer().add_counts(bytes(tmp_path / "none"))
    assert error.value.filename == bytes(tmp_path / "none")


def test_file_that_is_cut_short_while_it_is_read_is_an_error(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "shrinking.txt"
    path.write_bytes(corpus.read_bytes() * 20)
    script = (
        "import os, sys\n"
        "from lmworks import _text\n"
        "path = sys.argv[1].encode()\n"
        "trainer = _text.BpeTrainer('gpt2', [], 1)\n"
        "try:\n"
        "    trainer.count_file(path, False, lambda *_: os.truncate(path, 1000))\n"
        "except OSError as error:\n"
        "    print(error.filename == path, error.strerror)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("True the file changed while it was read: ")
    assert done.stdout.endswith(" bytes, now 1000\n")
