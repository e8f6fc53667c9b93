"""Counting that survives a kill: counts and position in a folder, written every so often.

    DIR/counts-N       the trainer's counts
    DIR/state.json     what was counted how, how far, and which counts belong to it; written last
    DIR/lock           held while a process works in the folder

A finished count stays and serves other vocabulary sizes. It is refused once the inputs or a setting
that changes the counts differ.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmworks import _text
from lmworks.base.errors import ConfigError, DataError, StorageError
from lmworks.base.sources import Source
from lmworks.base.storage import atomic_file, remove_parts, write_json

FORMAT, VERSION = "lmworks-counts", 1
STATE_NAME = "state.json"

MAX_SAVE_RATIO = 20
"""At least so many times as long as a save took passes before the next one."""


@dataclass(frozen=True, slots=True)
class Position:
    """Everything before it is counted."""

    source: int = 0
    offset: int = 0
    """Bytes of the source's content, decompressed."""
    line: int = 0
    """Lines of a JSON file, and what was wrong with some of them; rows of a Parquet file."""
    num_good: int = 0
    num_bad: int = 0
    first_bad: str = ""


class CountState:
    """The state of one count in a folder; see `open_state`."""

    def __init__(
        self, folder: Path, settings: dict[str, Any], sources: Sequence[Source], save_every_s: float
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._inputs: list[list[Any]] = [[s.name, s.size_bytes, s.version] for s in sources]
        self._save_every_s = save_every_s
        self._due_s = time.monotonic() + save_every_s
        self._number = 0
        self.saved = Position()
        self.faults: list[str] = []
        """What was wrong with files before the position."""

    def is_due(self) -> bool:
        """Enough time has passed since the last save."""
        return time.monotonic() >= self._due_s

    def save(self, trainer: _text.BpeTrainer, position: Position) -> None:
        """Write counts and position so that a kill at any moment leaves the old or the new ones."""
        start_s = time.monotonic()
        self._number += 1
        name = f"counts-{self._number}"
        with atomic_file(self._folder / name) as part:
            trainer.save_counts(os.fsencode(part))
        self.saved = position
        write_json(
            self._folder / STATE_NAME,
            {
                "format": FORMAT,
                "version": VERSION,
                "settings": self._settings,
                "inputs": self._inputs,
                "position": asdict(position),
                "faults": self.faults,
                "counts": name,
            },
        )
        self._remove_counts(except_name=name)
        took_s = time.monotonic() - start_s
        self._due_s = time.monotonic() + max(self._save_every_s, MAX_SAVE_RATIO * took_s)

    def load(self, trainer: _text.BpeTrainer) -> None:
        """Go on where the folder's count stopped, if it holds one."""
        path = self._folder / STATE_NAME
        if not path.exists():
            self._remove_counts(except_name="")
            return
        state = self._read(path)
        self._check_same(state)
        self._number = int(state["counts"].removeprefix("counts-"))
        self.saved = Position(**state["position"])
        self.faults = list(state["faults"])
        try:
            trainer.add_counts(os.fsencode(self._folder / state["counts"]))
        except (OSError, ValueError) as err:
            raise self._unusable(f"{state['counts']}: {err}") from None

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            if state["format"] != FORMAT or state["version"] != VERSION:
                raise ValueError(f"format {state['format']!r}, version {state['version']!r}")
            int(state["counts"].removeprefix("counts-"))
            Position(**state["position"])
            _ = state["settings"].items(), list(state["inputs"]), list(state["faults"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
            raise self._unusable(f"{STATE_NAME}: {err!r}") from None
        known: dict[str, Any] = state
        return known

    def _unusable(self, why: str) -> DataError:
        return DataError(f"{self._folder}: no counts to go on with ({why}); delete the folder")

    def _check_same(self, state: dict[str, Any]) -> None:
        remedy = f"use the same, or another folder than {self._folder}"
        for name, value in self._settings.items():
            before = state["settings"].get(name)
            if before != value:
                raise ConfigError(
                    f"cannot go on with the counts in {self._folder}: {name} was {before!r} and is "
                    f"{value!r} now; {remedy}"
                )
        before_by_name = {name: rest for name, *rest in state["inputs"]}
        now_by_name = {name: rest for name, *rest in self._inputs}
        for name, stamp in now_by_name.items():
            if name not in before_by_name:
                raise self._other_inputs(f"{name} was not among the inputs", remedy)
            if stamp != before_by_name[name]:
                raise self._other_inputs(f"{name} has changed", remedy)
        for name in before_by_name:
            if name not in now_by_name:
                raise self._other_inputs(f"{name} is not among the inputs any more", remedy)
        if state["inputs"] != self._inputs:
            raise self._other_inputs("the inputs are in another order", remedy)

    def _other_inputs(self, what: str, remedy: str) -> DataError:
        return DataError(f"cannot go on with the counts in {self._folder}: {what}; {remedy}")

    def _remove_counts(self, *, except_name: str) -> None:
        for path in self._folder.glob("counts-*"):
            if path.name != except_name:
                path.unlink()


@contextmanager
def open_state(
    folder: Path, settings: dict[str, Any], sources: Sequence[Source], *, save_every_s: float
) -> Iterator[CountState]:
    """The state in `folder`, which is made if need be and belongs to this process meanwhile.

    Args:
        folder: of this count alone.
        settings: what the counts depend on, besides the sources; JSON values.
        sources: all that is counted, in order; each must be readable twice.
        save_every_s: seconds between saves.

    Raises:
        ConfigError: a source cannot be read again, or another process works in the folder.
        StorageError: the folder cannot be made or written to.
    """
    if save_every_s <= 0:
        raise ConfigError(f"save_every_s={save_every_s}; use a positive number of seconds")
    for source in sources:
        if source.is_stream:
            raise ConfigError(
                f"{source.name}: what can be read only once cannot be resumed; write it to a file, "
                "or leave resume_dir out"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as err:
        raise StorageError(f"could not write to {folder}: {err.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{folder}: another process is counting there; wait for it") from None
        remove_parts(folder)
        yield CountState(folder, settings, sources, save_every_s)
    finally:
        os.close(lock)
