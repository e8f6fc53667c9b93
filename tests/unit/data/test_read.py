"""Documents come out of every format in order, and every fault is named with its place."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lmworks.base.errors import ConfigError, DataError
from lmworks.data.read import DocumentReader, first_text

LINES = b'{"text": "one"}\n{"text": "two\\n"}\n'


def texts(*inputs: Path, text_field: str = "text") -> list[str]:
    return [d.text for d in DocumentReader(inputs, text_field=text_field)]


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def zst(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    compressed: bytes = zstandard.ZstdCompressor().compress(data)
    return compressed


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.txt", "A.\n\nB. é\n")) == ["A.\n\nB. é"]


def test_separator_lines_divide_a_text_file(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "A\nB\n<|endoftext|>\n\nC\n<|endoftext|>\r\nD")
    assert [(d.text, d.where) for d in DocumentReader([file])] == [
        ("A\nB", f"{file}:1"),
        ("C", f"{file}:4"),
        ("D", f"{file}:7"),
    ]


def test_a_separator_inside_a_line_is_text(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.txt", "say <|endoftext|>\n")) == ["say <|endoftext|>"]


def test_documents_without_text_are_skipped(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.txt", "<|endoftext|>\n \n<|endoftext|>\nA\n")) == ["A"]


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.txt", b"\xef\xbb\xbfA")) == ["A"]


@pytest.mark.parametrize(
    ("suffix", "encode"),
    [("jsonl", bytes), ("jsonl.gz", gzip.compress), ("jsonl.zst", zst), ("JSONL", bytes)],
)
def test_json_lines_give_their_text_unchanged(
    tmp_path: Path, suffix: str, encode: Callable[[bytes], bytes]
) -> None:
    assert texts(write(tmp_path / f"a.{suffix}", encode(LINES))) == ["one", "two\n"]


@pytest.mark.parametrize(("suffix", "encode"), [("gz", gzip.compress), ("zst", zst)])
def test_compressed_text_is_text(
    tmp_path: Path, suffix: str, encode: Callable[[bytes], bytes]
) -> None:
    file = write(tmp_path / f"a.txt.{suffix}", encode(b"A\n<|endoftext|>\nB"))
    assert texts(file) == ["A", "B"]


def test_zst_frames_in_a_row_are_one_file(tmp_path: Path) -> None:
    many = b"".join(zst(f'{{"text": "{"x" * i}"}}\n'.encode()) for i in range(1, 400))
    assert [len(t) for t in texts(write(tmp_path / "a.jsonl.zst", many))] == [*range(1, 400)]


def test_the_field_can_be_chosen(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.jsonl", '{"body": "x"}\n'), text_field="body") == ["x"]


def test_a_directory_is_walked_in_sorted_order_without_other_and_hidden_files(
    tmp_path: Path,
) -> None:
    for name in ("b/a.txt", "a.txt", "b.txt", "b/c/d.txt", ".git/x.txt", "README.md"):
        write(tmp_path / name, name)
    assert texts(tmp_path) == ["a.txt", "b.txt", "b/a.txt", "b/c/d.txt"]


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl.gz", gzip.compress(LINES * 1000))
    write(tmp_path / "b.txt", "b" * 1000)
    reader = DocumentReader([tmp_path])
    seen = [reader.read_bytes for _ in reader]
    assert seen == sorted(seen)
    assert reader.read_bytes == reader.total_bytes


def test_no_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="no input given"):
        DocumentReader([])


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path / "books.txt", "A")
    with pytest.raises(DataError, match=r"book\.txt: no such file.*did you mean 'books\.txt'"):
        DocumentReader([tmp_path / "book.txt"])


def test_a_file_that_is_known_to_be_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.feather: a \.feather file is no text; .*\.jsonl"):
        DocumentReader([write(tmp_path / "a.feather", "A")])


def test_a_parquet_file_has_a_document_in_each_row(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    pq.write_table(pyarrow.table({"body": ["one", None, " ", "two\n"]}), tmp_path / "a.parquet")
    documents = list(DocumentReader([tmp_path], text_field="body"))
    assert [document.text for document in documents] == ["one", "two\n"]
    assert documents[1].where == f"{tmp_path / 'a.parquet'}:4"


def test_a_directory_without_text_names_the_allowed_suffixes(tmp_path: Path) -> None:
    write(tmp_path / "README.md", "A")
    with pytest.raises(DataError, match=r"no text file in this directory; allowed: \.txt"):
        DocumentReader([tmp_path])


def test_bytes_that_are_not_utf8_are_located(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", b"\xef\xbb\xbfA\n<|endoftext|>\nB\xe9C\n")
    with pytest.raises(DataError, match=r"a\.txt:3: not UTF-8: byte 20 is 0xe9.*iconv"):
        texts(file)


def test_utf16_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="iconv -f UTF-16"):
        texts(write(tmp_path / "a.txt", "hello".encode("utf-16")))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "x"', "not valid JSON"),
        ('["x"]', "expected a JSON object, got list"),
        ('{"txt": "x", "id": 1}', r"no field 'text' among \['txt', 'id'\].*mean 'txt'.*text-field"),
        ('{"text": 3}', "field 'text' is int, must be a string"),
        ('{"text": "\\ud83d"}', "half of a surrogate pair"),
        ("[" * 100_000, "not valid JSON"),
        (b'{"text": "\xff"}', "not UTF-8: byte 25 is 0xff"),
    ],
)
def test_a_bad_json_line_is_located(tmp_path: Path, line: str | bytes, message: str) -> None:
    raw = line if isinstance(line, bytes) else line.encode()
    file = write(tmp_path / "a.jsonl", b'{"text": "ok"}\n' + raw + b"\n")
    with pytest.raises(DataError, match=rf"a\.jsonl:2: .*{message}"):
        texts(file)


def test_an_escaped_pair_of_surrogates_is_a_character(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.jsonl", json.dumps({"text": "🙂"}))) == ["🙂"]


@pytest.mark.parametrize(("suffix", "encode"), [("jsonl.gz", gzip.compress), ("jsonl.zst", zst)])
def test_a_compressed_file_that_was_cut_short_is_refused(
    tmp_path: Path, suffix: str, encode: Callable[[bytes], bytes]
) -> None:
    file = write(tmp_path / f"a.{suffix}", encode(LINES * 100)[:-6])
    with pytest.raises(DataError, match="cannot be read to its end"):
        texts(file)


def test_a_file_that_is_not_gzip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read to its end"):
        texts(write(tmp_path / "a.jsonl.gz", LINES))


def test_a_read_error_is_named(tmp_path: Path) -> None:
    # Readable by its mode even for root, but its first page is not mapped: reading fails with EIO.
    source = Path("/proc/self/mem")
    if not source.exists():
        pytest.skip("needs Linux's /proc")
    (tmp_path / "a.txt").symlink_to(source)
    with pytest.raises(DataError, match=r"a\.txt: cannot be read"):
        texts(tmp_path / "a.txt")


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "A\n<|endoftext|>\nB")
    documents = iter(DocumentReader([file]))
    assert next(documents).text == "A"
    write(file, "another text")
    with pytest.raises(DataError, match=r"a\.txt: changed while it was read"):
        list(documents)


def test_separators_are_found_wherever_blocks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmworks.data import read

    text = "A\nB\n<|endoftext|>\nC <|endoftext|>\n<|endoftext|> D\n<|endoftext|>\r\n\nE\n"
    file = write(tmp_path / "a.txt", text * 2)
    whole = [(d.text, d.where) for d in DocumentReader([file])]
    assert [text for text, _ in whole] == [
        "A\nB",
        "C <|endoftext|>\n<|endoftext|> D",
        "E\nA\nB",
        "C <|endoftext|>\n<|endoftext|> D",
        "E",
    ]
    for block_bytes in range(1, len(text)):
        monkeypatch.setattr(read, "_BLOCK_BYTES", block_bytes)
        assert [(d.text, d.where) for d in DocumentReader([file])] == whole


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lmworks.data import read

    monkeypatch.setattr(read, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(read, "_BLOCK_BYTES", 100)
    with pytest.raises(DataError, match="a line of more than 1,000 bytes"):
        texts(write(tmp_path / "a.txt", "x" * 2000))


def test_the_first_text_is_found_without_reading_all(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "\n<|endoftext|>\n \n")
    write(tmp_path / "b.txt", " one" + " more" * 200_000)
    write(tmp_path / "c.jsonl", '{"text": ""}\n{"text": "two"}\n')
    assert first_text([tmp_path / "c.jsonl"]) == "two"
    begin = first_text([tmp_path])
    assert begin.startswith(" one more")
    assert len(begin) < 500_000


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b" \n", "no text in .*a.txt"),
        ("a.txt", b"text \xff", "not UTF-8: byte 5"),
        ("a.txt.gz", b"text", "cannot be read to its end"),
        ("a.jsonl", b"text", "not valid JSON"),
        ("a.jsonl", b"", "no text in"),
    ],
)
def test_files_that_do_not_begin_with_text_are_refused(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        first_text([write(tmp_path / name, data)])
