"""From a recipe to a run folder that is ready to train: tokenizer, shards, resolved recipe.

Everything is written whole or not at all, `recipe.yaml` last: a folder that has it is prepared.
A preparation that was killed, or a run that starts again, reuses tokenizer and shards when the text
and the settings they were made from are the same (by checksum).
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lmworks import tokenizer as tokenizers
from lmworks.base.config import Config, Loaded, load
from lmworks.base.errors import CheckpointError, ConfigError
from lmworks.base.storage import remove_parts, sha256_file, write_json, write_text
from lmworks.data.loader import Loader
from lmworks.data.pack import pack
from lmworks.data.read import DocumentReader, first_text, list_files
from lmworks.data.shard import open_shards, read_manifest
from lmworks.models.pretrained import checkpoint_folder
from lmworks.tokenizer import Tokenizer
from lmworks.train import recipe as recipes
from lmworks.train.accelerate import configure
from lmworks.train.checkpoint import CheckpointStore
from lmworks.train.environment import describe_environment
from lmworks.train.memory import require_memory
from lmworks.train.metrics import METRICS_FILE, check_packages
from lmworks.train.recipe import FileTokenizer, Recipe, ShardData, TextData, check_vocab_size
from lmworks.train.run_folder import RunFolder

Say = Callable[[str], None]
_SHOWN_CHARS = 4096


def prepare(run: RunFolder, loaded: Loaded[Recipe], *, overwrite: bool, say: Say) -> Recipe:
    """Make `run` ready for `train` and return the resolved recipe; `say` gets one line per step.

    Raises:
        ConfigError: the folder holds another run (unless `overwrite`), or the recipe does not fit
            its data or tokenizer.
        DataError: a text, tokenizer or shard file is missing or wrong.
        TrainingError: the machine has less memory than the training needs.
    """
    check_inputs(loaded)
    check_folder(run, overwrite=overwrite)
    with run.lock():
        _clear(run)
        tokenizer = _prepare_data(run, loaded.config, say)
        _check_windows(run, loaded.config)
        recipe, sources = resolve(loaded, tokenizer, say)
        require_memory(recipe)
        environment = describe_environment()
        write_json(run.environment, {**environment, "sources": sources})
        write_text(run.recipe, annotated_yaml(recipe, sources))
    return recipe


# A resumed run may go further, look more often or keep more; what it computes stays.
CHANGEABLE = ("train.steps", "train.max_tokens", "eval.", "sample.", "checkpoint.", "log.")


def change_recipe(run: RunFolder, overrides: Sequence[str], *, write: bool) -> Recipe:
    """The recipe of a run with `overrides` on top, saved if `write`; for resuming.

    Raises:
        ConfigError: an override would change what the run computes, or another process trains it.
    """
    for item in overrides:
        key = item.partition("=")[0]
        if not key.startswith(CHANGEABLE):
            raise ConfigError(
                f"{item}: a resumed run keeps its recipe; only these can change: "
                f"{', '.join(name.rstrip('.') for name in CHANGEABLE)}"
            )
    loaded = load(Recipe, run.recipe, overrides)
    check_packages(loaded.config.log)
    if overrides and write:
        with run.lock():
            environment = read_environment(run)
            changed = {key: src for key, src in loaded.sources.items() if src == "override"}
            sources = {**environment["sources"], **changed}
            write_json(run.environment, {**environment, "sources": sources})
            write_text(run.recipe, annotated_yaml(loaded.config, sources))
    return loaded.config


def read_environment(run: RunFolder) -> dict[str, Any]:
    """What `prepare` wrote into environment.json."""
    try:
        return dict(json.loads(run.environment.read_text(encoding="utf-8")))
    except (OSError, ValueError) as err:
        raise CheckpointError(f"{run.environment}: missing or damaged ({err})") from None


def check_inputs(loaded: Loaded[Recipe]) -> None:
    """Raise before any work if a file that the recipe names does not exist or cannot fit."""
    recipe = loaded.config
    check_packages(recipe.log)
    if recipe.train.init_from:
        checkpoint_folder(recipe.train.init_from)
    if isinstance(recipe.data, TextData):
        if not recipe.data.files:
            raise ConfigError("data.files is empty: name text files or folders, data.files=[PATH]")
        list_files(recipe.data.files)
    if isinstance(recipe.tokenizer, FileTokenizer):
        tokenizer = tokenizers.load(recipe.tokenizer.path)
        if loaded.sources["model.vocab_size"] != "default":
            check_vocab_size(recipe.model.vocab_size, tokenizer.vocab_size)
        if isinstance(recipe.data, ShardData):
            for folder in (recipe.data.train, recipe.data.val):
                _check_fingerprint(Path(folder), tokenizer)


def describe_text(recipe: Recipe) -> str | None:
    """A line about the beginning of the recipe's text; None when it trains on shards.

    Raises:
        DataError: a text file cannot be read or holds something else, or there is no text at all.
    """
    if not isinstance(recipe.data, TextData):
        return None
    files = list_files(recipe.data.files)
    begin = first_text(files)[:_SHOWN_CHARS]
    line = f"{len(files)} files, beginning with {begin[:40]!r}"
    if isinstance(recipe.tokenizer, FileTokenizer):
        tokenizer = tokenizers.load(recipe.tokenizer.path)
        num_tokens = len(tokenizer.encode(begin, disallowed_special=()))
        line += f" ({num_tokens:,} tokens of {len(begin):,} characters)"
    return line


def check_folder(run: RunFolder, *, overwrite: bool) -> None:
    """Raise ConfigError if `run` holds something that a new run must not replace."""
    if not run.path.exists():
        return
    if not run.path.is_dir():
        raise ConfigError(f"{run.path} is a file; the run needs a folder: --run DIR")
    if not run.is_prepared:
        known = {run.tokenizer.name, run.data.name, run.data_source.name, run.environment.name}
        others = [p.name for p in run.path.iterdir() if p.name not in known and p.name[0] != "."]
        if others:
            raise ConfigError(
                f"{run.path} is not empty and not a run folder (it has {sorted(others)[0]}); "
                "choose another with --run"
            )
        return
    latest = CheckpointStore(run.checkpoints, keep_last=1, keep_best=False).latest()
    if latest is not None and not overwrite:
        raise ConfigError(
            f"{run.path} holds a run already ({latest}). Go on with it: lmworks train --resume "
            f"{run.path}; or use it: lmworks chat {run.path}; or start anew with --overwrite, or "
            "elsewhere with --run DIR"
        )


def shard_folders(run: RunFolder, recipe: Recipe) -> tuple[Path, Path]:
    """Where the run's training and evaluation shards lie."""
    if isinstance(recipe.data, ShardData):
        return Path(recipe.data.train), Path(recipe.data.val)
    return run.data / "train", run.data / "val"


def resolve(
    loaded: Loaded[Recipe], tokenizer: Tokenizer, say: Say
) -> tuple[Recipe, dict[str, str]]:
    """Fill in what only the tokenizer and the machine can tell; returns recipe and sources."""
    values, sources = loaded.config.model_dump(mode="json"), dict(loaded.sources)
    if sources["model.vocab_size"] == "default":
        values["model"]["vocab_size"] = tokenizer.vocab_size
        sources["model.vocab_size"] = "tokenizer"
    check_vocab_size(values["model"]["vocab_size"], tokenizer.vocab_size)
    acceleration = configure(loaded.config.train.precision)
    for note in acceleration.notes:
        say(note)
    if values["train"]["precision"] == "auto":
        values["train"]["precision"] = acceleration.precision
        sources["train.precision"] = "this machine"
    paths = (("tokenizer", "path"), ("data", "train"), ("data", "val"), ("train", "init_from"))
    for section, key in paths:
        if values[section].get(key):
            values[section][key] = str(Path(values[section][key]).resolve())
    return Recipe.model_validate(values), sources


def annotated_yaml(recipe: Config, sources: Mapping[str, str]) -> str:
    """YAML that loads to `recipe`, with a comment where a value is not a default."""
    return "\n".join(_annotated(recipe.model_dump(mode="json"), sources, "", "")) + "\n"


def _annotated(
    values: Mapping[str, Any], sources: Mapping[str, str], prefix: str, indent: str
) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{key}:"
            yield from _annotated(value, sources, f"{prefix}{key}.", indent + "  ")
        else:
            flow = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9)
            text = flow.removesuffix("...\n").strip()
            source = sources.get(prefix + key, "default")
            yield f"{indent}{key}: {text}" + ("" if source == "default" else f"  # {source}")


def _clear(run: RunFolder) -> None:
    """Remove what an earlier run left, `recipe.yaml` first; tokenizer and shards may be reused."""
    run.recipe.unlink(missing_ok=True)
    for name in ("checkpoints", "tensorboard", "wandb"):
        shutil.rmtree(run.path / name, ignore_errors=True)
    for name in (METRICS_FILE, run.compiled.name, run.report.name, "wandb_id.txt"):
        (run.path / name).unlink(missing_ok=True)
    remove_parts(run.path)


def _prepare_data(run: RunFolder, recipe: Recipe, say: Say) -> Tokenizer:
    if isinstance(recipe.data, ShardData):
        assert isinstance(recipe.tokenizer, FileTokenizer), "the recipe checks this"
        tokenizer = tokenizers.load(recipe.tokenizer.path)
        tokenizer.save(run.tokenizer)
        return tokenizer
    source = _describe_source(recipe, recipe.data)
    if _is_made_from(run, source):
        say(f"reusing tokenizer and shards in {run.path}")
        return tokenizers.load(run.tokenizer)
    run.data_source.unlink(missing_ok=True)
    files = list_files(recipe.data.files)
    say(f"tokenizer: {recipe.tokenizer.kind} from {len(files)} files")
    tokenizer = build_tokenizer(recipe, files)
    tokenizer.save(run.tokenizer)
    shutil.rmtree(run.data, ignore_errors=True)
    report = pack(files, run.data, tokenizer, val_fraction=recipe.data.val_fraction)
    say(
        f"shards: {report.num_tokens:,} tokens of {report.num_documents:,} documents, "
        f"{report.bytes_per_token:.2f} bytes per token"
    )
    write_json(run.data_source, source)
    return tokenizer


def build_tokenizer(recipe: Recipe, files: list[Path]) -> Tokenizer:
    """Train (or load) the tokenizer that the recipe asks for, on the text of `files`."""
    config = recipe.tokenizer
    match config:
        case recipes.FileTokenizer():
            return tokenizers.load(config.path)
        case recipes.ByteTokenizer():
            from lmworks.tokenizer.byte import ByteTokenizer

            return ByteTokenizer()
        case recipes.BPETokenizer():
            return tokenizers.train_bpe(
                files,
                config.vocab_size,
                pattern=config.pattern,
                special_tokens=config.special_tokens,
            )
        case recipes.CharTokenizer():
            from lmworks.tokenizer.char import CharTokenizer

            return CharTokenizer.train(document.text for document in DocumentReader(files))
        case recipes.WordTokenizer():
            from lmworks.tokenizer.word import WordTokenizer

            words = (document.text for document in DocumentReader(files))
            return WordTokenizer.train(words, vocab_size=config.vocab_size)


def _describe_source(recipe: Recipe, data: TextData) -> dict[str, Any]:
    """What tokenizer and shards depend on."""
    source: dict[str, Any] = {
        "files": {str(file): sha256_file(file) for file in list_files(data.files)},
        "val_fraction": data.val_fraction,
        "tokenizer": recipe.tokenizer.model_dump(mode="json"),
    }
    if isinstance(recipe.tokenizer, FileTokenizer):
        source["tokenizer"]["sha256"] = sha256_file(recipe.tokenizer.path)
    return source


def _is_made_from(run: RunFolder, source: dict[str, Any]) -> bool:
    if not (run.data_source.is_file() and run.tokenizer.is_file()):
        return False
    try:
        return bool(json.loads(run.data_source.read_text(encoding="utf-8")) == source)
    except ValueError:
        return False


def _check_windows(run: RunFolder, recipe: Recipe) -> None:
    """Raise DataError now, not at the first step, if a window is longer than the text."""
    train_folder, _ = shard_folders(run, recipe)
    Loader(
        open_shards(train_folder),
        batch_size=recipe.train.batch_size,
        context_length=recipe.train.context_length,
        order=recipe.loader.order,
    )


def _check_fingerprint(folder: Path, tokenizer: Tokenizer) -> None:
    manifest = read_manifest(folder)
    if manifest.tokenizer_fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"{folder} was made with another tokenizer ({manifest.tokenizer_kind}, "
            f"{manifest.vocab_size} tokens) than tokenizer.path names; give that one"
        )
