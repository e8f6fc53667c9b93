"""Exceptions that a user can cause; messages name the field, the value and what would be right.

    LmworksError
    ├── ConfigError        a recipe, override or argument is wrong
    ├── DataError          a text, shard or tokenizer file is missing, corrupt or of another kind
    ├── CheckpointError    a checkpoint is missing, truncated or of another architecture
    ├── StorageError       a file could not be written (disk full, permission); nothing is lost
    └── TrainingError      training cannot go on (NaN loss, out of memory)

The command line prints them as one `error:` line and exits with status 2; anything else is a bug
and shows its traceback.
"""


class LmworksError(Exception):
    """Base of all errors that a user can cause."""


class ConfigError(LmworksError, ValueError):
    """A recipe, override or argument is wrong."""


class DataError(LmworksError, ValueError):
    """An input file, shard or tokenizer file is missing, corrupt or of another kind."""


class CheckpointError(LmworksError):
    """A checkpoint is missing, truncated or of another architecture."""


class StorageError(LmworksError, OSError):
    """A file could not be written; whatever was there before is intact."""


class TrainingError(LmworksError, RuntimeError):
    """Training cannot go on."""
