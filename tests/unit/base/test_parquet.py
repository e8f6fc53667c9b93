"""Parquet: the texts of a column in order, from any row, and a DataError for whatever is wrong."""

import io
import random
from pathlib import Path
from typing import Any

import pytest

from lmworks.base.errors import ConfigError, DataError
from lmworks.base.parquet import ParquetTexts
from lmworks.base.sources import find_sources

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = [None if i % 7 == 3 else f"text {i} größer 中文" * (i % 5) for i in range(3000)]


def parquet(columns: dict[str, Any], **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, **options)
    file.seek(0)
    return file


def rows(file: io.BytesIO, column: str = "text", begin: int = 0) -> list[tuple[int, str | None]]:
    return list(ParquetTexts("a.parquet", file, column, begin=begin))


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view"])
@pytest.mark.parametrize("row_group_size", [7, 1000, 10_000])
def test_rows_come_in_order_with_their_numbers(kind: str, row_group_size: int) -> None:
    column = pa.array(TEXTS, getattr(pa, kind)())
    file = parquet({"id": range(3000), "text": column}, row_group_size=row_group_size)
    assert rows(file) == list(enumerate(TEXTS, start=1))


def test_a_dictionary_of_strings_is_text() -> None:
    assert rows(parquet({"text": pa.array(["a", "b", "a"]).dictionary_encode()}))[2] == (3, "a")


@pytest.mark.parametrize("begin", [0, 1, 6, 7, 8, 1023, 1024, 2999, 3000, 5000])
def test_it_begins_at_any_row(begin: int) -> None:
    file = parquet({"text": TEXTS}, row_group_size=7)
    assert rows(file, begin=begin) == list(enumerate(TEXTS, start=1))[begin:]


def test_only_the_column_is_read() -> None:
    file = parquet({"text": ["a"] * 9, "image": [random.Random(0).randbytes(100_000)] * 9})
    reads: list[int] = []

    class Counting(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            reads.append(len(data))
            return data

    counting = Counting(file.getvalue())
    assert len(list(ParquetTexts("a.parquet", counting, "text"))) == 9
    assert sum(reads) < 80_000
    assert not counting.closed


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"txt": ["a"]}, r"no column 'text' among \['txt'\]; did you mean 'txt'\? \(--text-field"),
        ({"text": [1]}, "column 'text' is int64, must be string"),
        ({"text": [b"a"]}, "column 'text' is binary, must be string"),
        ({"text": [["a"]]}, "column 'text' is list"),
    ],
)
def test_a_table_without_such_texts_is_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        rows(parquet(columns))


def test_text_that_is_not_utf8_is_told_with_its_row() -> None:
    column = pa.Array.from_buffers(
        pa.string(), 2, pa.array([b"ab", b"c\xff"], pa.binary()).buffers()
    )
    with pytest.raises(DataError, match=r"a\.parquet:2: not UTF-8: byte 1 of the text"):
        rows(parquet({"text": column}))


def test_damaged_files_give_texts_or_a_data_error() -> None:
    whole = parquet({"text": TEXTS[:500]}, row_group_size=100).getvalue()
    rng = random.Random(0)
    num_refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            rows(io.BytesIO(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])))
        except DataError:
            num_refused += 1
    assert num_refused > 50


def test_without_pyarrow_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"a\.parquet.*lmworks\[parquet\]"):
        find_sources([path])


def test_a_stream_is_refused() -> None:
    sources, faults = find_sources(["-"], form="parquet")
    assert not sources
    assert "standard input: Parquet is read from its end" in str(faults[0])
