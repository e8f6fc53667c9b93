"""Every kind of input gives the tokenizer of its text, and bad ones among good ones are told."""

import gzip
import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer import corpus
from lmworks.tokenizer.train import train_bpe, train_bpe_from_iterator

DOCUMENTS = ["the cat sat on the mat\n", "a dog; the dog\n\n", "größer, 中文 中文\n", "  the end"]
TEXT = "<|endoftext|>".join(DOCUMENTS * 30)
VOCAB_SIZE = 300


def zst(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    compressed: bytes = zstandard.ZstdCompressor().compress(data)
    return compressed


def json_lines(documents: list[str], field: str = "text") -> bytes:
    return b"".join(json.dumps({field: text}).encode() + b"\n" for text in documents)


def parquet(documents: list[str], field: str = "text") -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    file = io.BytesIO()
    pytest.importorskip("pyarrow.parquet").write_table(
        pyarrow.table({field: [*documents, None]}), file, row_group_size=7
    )
    return file.getvalue()


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def expected() -> str:
    return train_bpe_from_iterator(DOCUMENTS * 30, VOCAB_SIZE).fingerprint


@pytest.mark.parametrize(
    ("name", "encode"),
    [
        ("a.txt", TEXT.encode),
        ("a.log", TEXT.encode),
        ("a.txt.gz", lambda: gzip.compress(TEXT.encode())),
        ("a.txt.zst", lambda: zst(TEXT.encode())),
        ("a.jsonl", lambda: json_lines(DOCUMENTS * 30)),
        ("a.jsonl.gz", lambda: gzip.compress(json_lines(DOCUMENTS * 30))),
        ("a.jsonl.zst", lambda: zst(json_lines(DOCUMENTS * 30))),
        ("a.parquet", lambda: parquet(DOCUMENTS * 30)),
    ],
)
def test_each_format_gives_the_same_tokenizer(
    tmp_path: Path, name: str, encode: Callable[[], bytes]
) -> None:
    file = write(tmp_path / name, encode())
    assert train_bpe(file, VOCAB_SIZE).fingerprint == expected()


def test_a_directory_and_a_glob_give_the_tokenizer_of_their_files(tmp_path: Path) -> None:
    for number in range(30):
        part = DOCUMENTS[:2] if number % 2 else DOCUMENTS[2:]
        write(tmp_path / f"{number}.jsonl", json_lines(part * 2))
    assert train_bpe(tmp_path, VOCAB_SIZE).fingerprint == expected()
    assert train_bpe([f"{tmp_path}/*.jsonl"], VOCAB_SIZE).fingerprint == expected()


def test_a_parquet_file_that_breaks_off_counts_up_to_there(tmp_path: Path) -> None:
    data = bytearray(parquet(DOCUMENTS * 300))
    data[len(data) // 2 : len(data) // 2 + 2000] = bytes(2000)
    file = write(tmp_path / "a.parquet", bytes(data))
    faults: list[DataError] = []
    train_bpe(file, VOCAB_SIZE, on_fault=faults.append)
    assert re.search(r"a\.parquet:\d+: cannot be read further .*; [\d,]+ rows", str(faults[0]))


def test_urls_give_the_tokenizer_of_their_text(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/in/a.jsonl.gz", gzip.compress(json_lines(DOCUMENTS * 30)))
    memory.pipe("/rows/a.parquet", parquet(DOCUMENTS * 30))
    try:
        assert train_bpe("memory://in/a.jsonl.gz", VOCAB_SIZE).fingerprint == expected()
        assert train_bpe("memory://rows", VOCAB_SIZE).fingerprint == expected()
        assert train_bpe("memory://in", VOCAB_SIZE).fingerprint == expected()
    finally:
        memory.rm("/in", recursive=True)
        memory.rm("/rows", recursive=True)
    file = write(tmp_path / "a.txt", TEXT)
    assert train_bpe(f"file://{file}", VOCAB_SIZE).fingerprint == expected()


def test_standard_input_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with write(tmp_path / "a", TEXT).open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert train_bpe("-", VOCAB_SIZE).fingerprint == expected()
    with write(tmp_path / "b", json_lines(DOCUMENTS * 30)).open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        trained = train_bpe("-", VOCAB_SIZE, input_form="jsonl")
        assert trained.fingerprint == expected()


def test_a_pipe_is_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, TEXT.encode())
    os.close(writing)
    try:
        assert train_bpe(f"/dev/fd/{reading}", VOCAB_SIZE).fingerprint == expected()
    finally:
        os.close(reading)


def test_another_field_and_empty_documents(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", json_lines(["", *DOCUMENTS * 30], "body") + b"\n \n")
    assert train_bpe(file, VOCAB_SIZE, text_field="body").fingerprint == expected()


def test_a_special_token_inside_a_json_document_splits_it(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", json_lines([TEXT]))
    assert train_bpe(file, VOCAB_SIZE).fingerprint == expected()


# ---- cutting streams ----


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "READ_BYTES", 64)
    monkeypatch.setattr(corpus, "_CUT_REACH_BYTES", 24)
    monkeypatch.setattr(corpus, "BATCH_BYTES", 200)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("special", ["<|endoftext|>", "cat sat on", "the\nthe", "x"])
def test_a_stream_cut_into_chunks_gives_the_tokenizer_of_the_whole(
    tmp_path: Path, special: str
) -> None:
    text = ("the cat sat on the mat the\nthe\n" + "aaaa" * 60 + "\n\n  1 x y\n") * 40
    plain = write(tmp_path / "a.txt", text)
    compressed = write(tmp_path / "b.txt.gz", gzip.compress(text.encode()))
    want = train_bpe(plain, VOCAB_SIZE, special_tokens=[special])
    assert train_bpe(compressed, VOCAB_SIZE, special_tokens=[special]) == want


@pytest.mark.usefixtures("small_chunks")
def test_chunks_are_the_text_and_bounded(tmp_path: Path) -> None:
    settings = corpus.TrainSettings(vocab_size=300, special_tokens=["<|endoftext|>"])
    blocks = [TEXT.encode()[i : i + 50] for i in range(0, len(TEXT.encode()), 50)]
    chunks = list(corpus.Cutter(settings).chunks("a", blocks))
    assert b"".join(chunks) == TEXT.encode()
    assert max(map(len, chunks)) < 400


@pytest.mark.parametrize(
    ("pattern", "specials", "blocks"),
    [
        (None, ["cat sat on"], [b"0123456789 cat sat", b" on the"]),
        (r"\w+|\W", ["<a>", "<a><b>"], [b"0123456789 <a>", b"<b> the end"]),
    ],
)
def test_no_chunk_ends_in_what_may_become_a_special_token(
    pattern: str | None, specials: list[str], blocks: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "READ_BYTES", 10)
    settings = corpus.TrainSettings(vocab_size=300, pattern=pattern, special_tokens=specials)
    longest = max(specials, key=len).encode()
    chunks = list(corpus.Cutter(settings).chunks("a", blocks))
    assert sum(longest in chunk for chunk in chunks) == 1


@pytest.mark.usefixtures("small_chunks")
def test_text_without_a_place_to_cut_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "MAX_UNCUT_BYTES", 10_000)
    file = write(tmp_path / "zeros.gz", gzip.compress(bytes(100_000)))
    with pytest.raises(DataError, match=r"zeros\.gz: no place to cut in .* is it text\?"):
        train_bpe(file, VOCAB_SIZE)


# ---- faults ----


def test_the_first_bad_file_is_raised(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", TEXT)
    write(tmp_path / "b.txt", b"caf\xe9")
    with pytest.raises(DataError, match=r"b\.txt is not UTF-8: invalid byte at offset 3"):
        train_bpe(tmp_path, VOCAB_SIZE)


def test_a_file_that_is_not_utf8_counts_for_nothing_when_faults_are_taken(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", TEXT)
    write(tmp_path / "b.txt", b"other words here " * 9999 + b"\xe9")
    write(tmp_path / "c.txt", "other words here ".encode("utf-16"))
    write(tmp_path / "d.txt", "cut short é".encode()[:-1])
    faults: list[DataError] = []
    assert train_bpe(tmp_path, VOCAB_SIZE, on_fault=faults.append).fingerprint == expected()
    assert [str(fault).split(";")[0].removeprefix(f"{tmp_path}/") for fault in faults] == [
        "b.txt is not UTF-8: invalid byte at offset 169,983",
        "c.txt is not UTF-8: invalid byte at offset 0",
        "d.txt is not UTF-8: invalid byte at offset 10",
    ]
    assert "iconv -f UTF-16" in str(faults[1])


def test_characters_across_blocks_are_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "READ_BYTES", 7)
    write(tmp_path / "a.txt", "中文🙂é" * 99)
    faults: list[DataError] = []
    train_bpe(tmp_path, VOCAB_SIZE, on_fault=faults.append)
    assert faults == []


def test_bad_lines_are_left_out_and_told_once_a_file(tmp_path: Path) -> None:
    lines = json_lines(DOCUMENTS * 30).splitlines(keepends=True)
    lines[3:3] = [b"{broken\n", b'{"other": 1}\n']
    write(tmp_path / "a.jsonl", b"".join(lines))
    faults: list[DataError] = []
    assert train_bpe(tmp_path, VOCAB_SIZE, on_fault=faults.append).fingerprint == expected()
    (fault,) = faults
    assert "a.jsonl:4: not valid JSON" in str(fault)
    assert "this and 1 more bad lines are left out, 120 lines are used" in str(fault)


def test_a_file_of_bad_lines_alone_is_given_up(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", TEXT)
    write(tmp_path / "b.jsonl", b'{"body": "x"}\n' * 5000)
    faults: list[DataError] = []
    train_bpe(tmp_path, VOCAB_SIZE, on_fault=faults.append)
    (fault,) = faults
    assert "b.jsonl:1: no field 'text'" in str(fault)
    assert str(fault).endswith("the first 1,000 lines are all bad: the file is left out")


@pytest.mark.parametrize("compress", [gzip.compress, zst])
def test_a_stream_that_is_cut_short_counts_up_to_there(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    rng_bytes = "".join(f"{number} is a number\n" for number in range(200_000)).encode()
    suffix = "gz" if compress is gzip.compress else "zst"
    write(tmp_path / f"a.txt.{suffix}", compress(rng_bytes)[:-1000])
    faults: list[DataError] = []
    tokenizer = train_bpe(tmp_path, VOCAB_SIZE, on_fault=faults.append)
    assert tokenizer.vocab_size == VOCAB_SIZE
    (fault,) = faults
    assert "cannot be read to its end" in str(fault)
    assert "bytes before that are used" in str(fault)
    with pytest.raises(DataError, match=r"damaged or cut short$"):
        train_bpe(tmp_path, VOCAB_SIZE)


def test_an_empty_file_is_no_fault(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", TEXT)
    for name in ("b.txt", "c.jsonl", "d.txt.gz", "e.txt.zst"):
        write(tmp_path / name, b"")
    assert train_bpe(tmp_path, VOCAB_SIZE).fingerprint == expected()


def test_when_nothing_is_left_the_reason_is_told(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", b"\xff")
    faults: list[DataError] = []
    with pytest.raises(DataError, match=r"empty corpus: no text in .*a\.txt; .*not UTF-8"):
        train_bpe(tmp_path, VOCAB_SIZE, on_fault=faults.append)


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", TEXT)

    def touch(phase: str, done: int, total: int) -> None:
        os.utime(file, ns=(1, 1))

    with pytest.raises(DataError, match=r"a\.txt: changed while it was read"):
        train_bpe([file, file], VOCAB_SIZE, progress=touch)
    os.utime(file)
    faults: list[DataError] = []
    train_bpe([file, file], VOCAB_SIZE, progress=touch, on_fault=faults.append)
    assert str(faults[0]).endswith("it is counted as it was read")


def test_a_remote_file_system_that_fails_gives_a_data_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/in/a.txt", b"text")

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise RuntimeError("connection reset")

    monkeypatch.setattr(type(memory), "open", lambda *args, **kwargs: Failing())
    try:
        with pytest.raises(DataError, match=r"memory://in/a\.txt: .*connection reset"):
            train_bpe("memory://in/a.txt", VOCAB_SIZE)
    finally:
        memory.rm("/in", recursive=True)


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", TEXT)
    write(tmp_path / "b.jsonl.gz", gzip.compress(json_lines(DOCUMENTS)))
    seen: list[tuple[int, int]] = []
    train_bpe(
        tmp_path,
        VOCAB_SIZE,
        progress=lambda phase, done, total: (
            seen.append((done, total)) if phase == "count" else None
        ),
    )
    assert seen[-1][0] == seen[-1][1] == sum(f.stat().st_size for f in tmp_path.iterdir())
    assert seen == sorted(seen)


def test_progress_of_a_stream_ends_at_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    with write(tmp_path / "a", TEXT).open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        train_bpe("-", 270, progress=lambda _, done, total: seen.append((done, total)))
    assert (len(TEXT.encode()), 0) in seen


def test_one_text_is_no_iterable_of_texts() -> None:
    with pytest.raises(ConfigError, match=r"pass \[text\]"):
        train_bpe_from_iterator("some text", VOCAB_SIZE)
    with pytest.raises(DataError, match="text 1 is int"):
        train_bpe_from_iterator(["a", 3], VOCAB_SIZE)  # type: ignore[list-item]
