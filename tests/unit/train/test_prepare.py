"""Preparing a run: what is written, what is reused, what is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmworks import tokenizer as tokenizers
from lmworks.base.config import Loaded
from lmworks.base.errors import ConfigError, DataError, StorageError, TrainingError
from lmworks.data.shard import open_shards
from lmworks.train.metrics import MetricsLog, read_metrics, truncate_metrics
from lmworks.train.prepare import check_folder, check_inputs, prepare
from lmworks.train.recipe import Recipe, load_recipe
from lmworks.train.run_folder import RunFolder

Resolve = Callable[..., Loaded[Recipe]]


@pytest.fixture
def resolve(tmp_path: Path) -> Resolve:
    """Resolve a recipe whose text is `corpus/`."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    stories = [f"Story {n}: the cat saw {n} dogs and ran home." for n in range(60)]
    (corpus / "a.txt").write_text("\n<|endoftext|>\n".join(stories))
    values: dict[str, Any] = {
        "tokenizer": {"kind": "byte"},
        "data": {"kind": "text", "files": [str(corpus)], "val_fraction": 0.2},
        "model": {"d_model": 16, "num_layers": 1, "attention": {"num_heads": 2}},
        "train": {"steps": 4, "batch_size": 2, "context_length": 16, "precision": "fp32"},
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    return lambda *overrides: load_recipe(file, overrides)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "test")


def prepare_quietly(
    run: RunFolder, loaded: Loaded[Recipe], *, overwrite: bool = False
) -> list[str]:
    lines: list[str] = []
    prepare(run, loaded, overwrite=overwrite, say=lines.append)
    return lines


def corpus_of(loaded: Loaded[Recipe]) -> Path:
    assert loaded.config.data.kind == "text"
    return Path(loaded.config.data.files[0])


@pytest.mark.parametrize(
    "overrides",
    [
        ["tokenizer.kind=byte"],
        ["tokenizer.kind=char"],
        ["tokenizer.kind=word", "tokenizer.vocab_size=40"],
        ["tokenizer.kind=bpe", "tokenizer.vocab_size=280"],
    ],
    ids=["byte", "char", "word", "bpe"],
)
def test_every_kind_of_tokenizer_gives_shards_that_decode_to_the_text(
    run: RunFolder, resolve: Resolve, overrides: list[str]
) -> None:
    prepare_quietly(run, resolve(*overrides))
    tokenizer = tokenizers.load(run.tokenizer)
    shards = open_shards(run.data / "train", tokenizer_fingerprint=tokenizer.fingerprint)
    text = tokenizer.decode(shards.read(0, shards.num_tokens).tolist())
    assert " the cat saw" in text
    recipe = load_recipe(run.recipe).config
    assert recipe.model.vocab_size == tokenizer.vocab_size


def test_jsonl_text_trains_a_bpe_on_the_text_alone(run: RunFolder, resolve: Resolve) -> None:
    loaded = resolve("tokenizer.kind=bpe", "tokenizer.vocab_size=280", "data.val_fraction=0.3")
    (corpus_of(loaded) / "a.txt").unlink()
    lines = [f'{{"text": "story {n} of the cat", "zzzz": "zzzzzzzz"}}' for n in range(50)]
    (corpus_of(loaded) / "b.jsonl").write_text("\n".join(lines))
    prepare_quietly(run, loaded)
    tokenizer = tokenizers.load(run.tokenizer)
    assert not [i for i in range(tokenizer.vocab_size) if b"zz" in tokenizer.token_bytes(i)]
    assert not list(run.path.glob(".corpus*"))


def test_unchanged_text_and_settings_reuse_tokenizer_and_shards(
    run: RunFolder, resolve: Resolve
) -> None:
    prepare_quietly(run, resolve())
    shards = (run.data / "train").stat().st_ino
    again = prepare_quietly(run, resolve("train.steps=9"), overwrite=True)
    assert again[0].startswith("reusing")
    assert (run.data / "train").stat().st_ino == shards


def test_changed_text_is_prepared_again(run: RunFolder, resolve: Resolve) -> None:
    prepare_quietly(run, resolve())
    with (corpus_of(resolve()) / "a.txt").open("a") as file:
        file.write("\n<|endoftext|>\nOne more story.")
    assert not prepare_quietly(run, resolve(), overwrite=True)[0].startswith("reusing")


def test_shards_packed_before_are_used_in_place(run: RunFolder, resolve: Resolve) -> None:
    prepare_quietly(run, resolve())
    home = run.path.rename(run.path.with_name("packed"))
    overrides = [
        "data.kind=shards",
        f"data.train={home / 'data/train'}",
        f"data.val={home / 'data/val'}",
        "tokenizer.kind=file",
        f"tokenizer.path={home / 'tokenizer.json'}",
    ]
    prepare_quietly(run, resolve(*overrides))
    assert not run.data.exists()
    assert load_recipe(run.recipe).config.model.vocab_size == 257


def test_a_folder_with_other_files_is_left_alone(run: RunFolder, resolve: Resolve) -> None:
    run.path.mkdir(parents=True)
    (run.path / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match=r"not a run folder \(it has thesis.tex\)"):
        prepare_quietly(run, resolve(), overwrite=True)
    assert [p.name for p in run.path.iterdir()] == ["thesis.tex"]


def test_a_new_run_forgets_when_the_old_one_changed_over_to_compiled_code(
    run: RunFolder, resolve: Resolve
) -> None:
    prepare_quietly(run, resolve())
    run.compiled.write_text('{"compiled_after_step": 3}')
    prepare_quietly(run, resolve(), overwrite=True)
    assert not run.compiled.exists()


def test_a_run_with_checkpoints_needs_overwrite(run: RunFolder, resolve: Resolve) -> None:
    prepare_quietly(run, resolve())
    (run.checkpoints / "step-3").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"\(step-3\).*--resume.*--overwrite"):
        check_folder(run, overwrite=False)
    prepare_quietly(run, resolve(), overwrite=True)
    assert not run.checkpoints.exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.files=[]"], "data.files is empty"),
        (["data.files=[nowhere]"], "nowhere: no such file"),
        (["tokenizer.kind=file", "tokenizer.path=nowhere.json"], "nowhere.json"),
    ],
)
def test_missing_inputs_are_found_before_any_work(
    run: RunFolder, resolve: Resolve, overrides: list[str], message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        check_inputs(resolve(*overrides))
    with pytest.raises((ConfigError, DataError), match=message):
        prepare_quietly(run, resolve(*overrides))
    assert not run.path.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "no text|empty"), (b"caf\xe9 au lait " * 50, "not UTF-8")],
    ids=["empty", "latin-1"],
)
@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_text_that_cannot_be_used_leaves_no_run(
    run: RunFolder, resolve: Resolve, content: bytes, message: str, kind: str
) -> None:
    loaded = resolve(f"tokenizer.kind={kind}")
    (corpus_of(loaded) / "a.txt").write_bytes(content)
    with pytest.raises((ConfigError, DataError), match=message):
        prepare_quietly(run, loaded)
    assert not run.is_prepared
    assert not run.data.exists()


def test_a_context_longer_than_the_text_is_refused_before_there_is_a_run(
    run: RunFolder, resolve: Resolve
) -> None:
    with pytest.raises(DataError, match=r"context_length=9999 is longer than the \d+ tokens"):
        prepare_quietly(run, resolve("train.context_length=9999"))
    assert not run.is_prepared


@pytest.mark.parametrize(
    "overrides",
    [
        ["tokenizer.kind=byte"],
        ["tokenizer.kind=char"],
        ["tokenizer.kind=bpe", "tokenizer.vocab_size=257"],
    ],
    ids=["byte", "char", "bpe"],
)
def test_a_text_of_one_character_is_refused_with_what_is_missing(
    run: RunFolder, resolve: Resolve, overrides: list[str]
) -> None:
    loaded = resolve(*overrides)
    (corpus_of(loaded) / "a.txt").write_text("a")
    with pytest.raises(ConfigError, match="give more text"):
        prepare_quietly(run, loaded)
    assert not run.is_prepared


def test_a_vocabulary_that_the_text_cannot_fill_is_explained(
    run: RunFolder, resolve: Resolve
) -> None:
    loaded = resolve("tokenizer.kind=bpe", "tokenizer.vocab_size=9000", "model.vocab_size=9000")
    with pytest.raises((ConfigError, DataError), match=r"9000|9,000"):
        prepare_quietly(run, loaded)


def test_metrics_are_cut_back_to_a_step_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, [])
    for step in (1, 2, 3):
        log.write("train", step, loss=1 / step)
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3]
    truncate_metrics(tmp_path, after_step=2)
    assert read_metrics(tmp_path) == [
        {"kind": "train", "step": 1, "loss": 1.0},
        {"kind": "train", "step": 2, "loss": 0.5},
    ]


def test_preparing_again_after_a_kill_starts_clean(run: RunFolder, resolve: Resolve) -> None:
    prepare_quietly(run, resolve())
    run.recipe.unlink()
    shutil.rmtree(run.data / "val")
    run.data_source.unlink()
    (run.path / ".recipe.yaml.part-12345678").write_text("half")
    prepare_quietly(run, resolve())
    assert run.is_prepared
    assert (run.data / "val").is_dir()
    assert not list(run.path.glob("*.part-*"))


def test_a_run_under_a_file_is_refused_plainly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    run = RunFolder(tmp_path / "file" / "run")
    with pytest.raises(StorageError, match="no run folder can be written there"), run.lock():
        pass


def test_a_model_larger_than_the_memory_leaves_no_run(run: RunFolder, resolve: Resolve) -> None:
    loaded = resolve("model.num_layers=1000000000")
    with pytest.raises(TrainingError, match=r"needed, this machine has .* Biggest tensors"):
        prepare_quietly(run, loaded)
    assert not run.is_prepared
