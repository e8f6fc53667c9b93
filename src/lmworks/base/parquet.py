"""The texts of one column of a Parquet file, row after row, in constant memory.

The package pyarrow reads it (extra `parquet`), batch by batch out of one row group after another.
A row whose text is null holds no text. Whatever is wrong is a DataError that names the place.
"""

import importlib.util
from collections.abc import Iterator
from itertools import accumulate
from typing import IO, TYPE_CHECKING, Any

from lmworks.base.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 1024
_SHOWN_COLUMNS = 12


class ParquetTexts:
    """Iterates over (number of the row, from 1; its text or None) of an open Parquet file."""

    def __init__(
        self, name: str, raw: IO[bytes], column: str, *, begin: int = 0, is_remote: bool = False
    ) -> None:
        """Args:
            name: of the file, for messages.
            raw: the file, which can be sought in and stays the caller's to close.
            column: of the texts; a top-level column of strings.
            begin: rows to pass over.
            is_remote: `raw` has errors of its own, which shall be DataErrors too.

        Raises:
            ConfigError: pyarrow is not installed.
            DataError: it is no Parquet file, or has no such column of strings.
        """
        check_installed(name)
        import pyarrow.parquet

        self._name = name
        self._column = column
        self._begin = begin
        self._failures: tuple[type[Exception], ...] = (
            (Exception,) if is_remote else (pyarrow.ArrowException, OSError)
        )
        try:
            self._file = pyarrow.parquet.ParquetFile(raw)
            schema = self._file.schema_arrow
        except self._failures as err:
            raise DataError(f"{name}: no Parquet file that can be read ({_reason(err)})") from None
        self._check_column(schema)
        self.num_rows: int = self._file.metadata.num_rows

    def __iter__(self) -> Iterator[tuple[int, str | None]]:
        groups = range(self._file.num_row_groups)
        sizes = [self._file.metadata.row_group(i).num_rows for i in groups]
        ends = list(accumulate(sizes))
        wanted = [i for i in groups if ends[i] > self._begin]
        number = ends[wanted[0]] - sizes[wanted[0]] if wanted else 0
        try:
            for batch in self._file.iter_batches(
                _BATCH_ROWS, row_groups=wanted, columns=[self._column], use_threads=False
            ):
                for text in self._texts(batch.column(0), number):
                    number += 1
                    if number > self._begin:
                        yield number, text
        except DataError:
            raise
        except self._failures as err:
            raise DataError(
                f"{self._name}:{number}: cannot be read further ({_reason(err)}); the file may be "
                "damaged or cut short"
            ) from None

    def _texts(self, values: "pa.Array", number: int) -> Iterator[str | None]:
        for value in values:
            number += 1
            try:
                yield value.as_py()
            except UnicodeDecodeError as err:
                raise DataError(
                    f"{self._name}:{number}: not UTF-8: byte {err.start} of the text ({err.reason})"
                ) from None

    def _check_column(self, schema: "pa.Schema") -> None:
        names: list[str] = schema.names
        if names.count(self._column) != 1:
            from lmworks.base.config import suggest

            hint = suggest(self._column, names) if names else "; it has none"
            raise DataError(
                f"{self._name}: no column {self._column!r} among {names[:_SHOWN_COLUMNS]}"
                f"{hint if 'did you mean' in hint else ''} (--text-field chooses the column)"
            )
        kind = schema.field(self._column).type
        if not _is_text(kind):
            raise DataError(
                f"{self._name}: column {self._column!r} is {kind}, must be string"
                " (--text-field chooses the column)"
            )


def check_installed(name: str) -> None:
    """ConfigError, naming the file that needs it, when there is no pyarrow."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(
            f"{name}: .parquet files need the package pyarrow; pip install 'lmworks[parquet]'"
        )


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _reason(err: Exception) -> str:
    return (str(err).splitlines() or [type(err).__name__])[0]
