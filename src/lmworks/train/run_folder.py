"""The folder of one run: where everything lies, who may write to it, and how far it has come.

RUN/
├── recipe.yaml         resolved recipe; comments name the source of values
├── environment.json    versions, machine, git state, command, source of every value
├── tokenizer.json      the tokenizer of the run
├── data/{train,val}/   token shards, when the recipe names text files
├── compiled.json      the step from which compiled code ran, if any
├── metrics.jsonl       all numbers and samples
├── checkpoints/        step-N/ and the pointers `latest` and `best`
├── tensorboard/        when asked for
└── report.html         `lmworks report RUN`
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from lmworks.base.errors import CheckpointError, ConfigError, StorageError

RECIPE_FILE = "recipe.yaml"
ENVIRONMENT_FILE = "environment.json"
LOCK_FILE = ".lock"


class RunFolder:
    """Paths of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe = self.path / RECIPE_FILE
        self.environment = self.path / ENVIRONMENT_FILE
        self.tokenizer = self.path / "tokenizer.json"
        self.data = self.path / "data"
        self.data_source = self.path / "data_source.json"
        self.checkpoints = self.path / "checkpoints"
        self.compiled = self.path / "compiled.json"
        self.report = self.path / "report.html"

    @property
    def is_prepared(self) -> bool:
        """Whether the run has its recipe, which is written last."""
        return self.recipe.is_file()

    def require_prepared(self) -> None:
        """Raise CheckpointError unless this is the folder of a run."""
        if not self.path.is_dir():
            raise CheckpointError(f"{self.path}: no such run folder")
        if not self.is_prepared:
            raise CheckpointError(f"{self.path}: not a run folder (it has no {RECIPE_FILE})")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes to the run; the lock goes when the process does.

        A folder that was made for the lock and is still empty when the work fails goes too.
        """
        made = [p for p in (self.path, *self.path.parents) if not p.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = (self.path / LOCK_FILE).open("a+")
        except OSError as err:
            raise StorageError(
                f"{self.path}: no run folder can be written there ({err.strerror}); "
                "choose another with --run"
            ) from None
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.seek(0)
                raise ConfigError(
                    f"{self.path}: process {handle.read().strip() or '?'} is training in this run "
                    "folder; wait for it, stop it, or choose another folder with --run"
                ) from None
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
            try:
                yield
            except BaseException:
                self._remove_if_empty(made)
                raise

    def _remove_if_empty(self, made: list[Path]) -> None:
        """Remove these folders, the innermost first, if they hold nothing but the lock."""
        if not made or [p.name for p in self.path.iterdir()] != [LOCK_FILE]:
            return
        with contextlib.suppress(OSError):  # another process may have put something there
            (self.path / LOCK_FILE).unlink()
            for folder in made:
                folder.rmdir()
