"""The trainer between steps: metrics, evaluation, samples, stopping, failing, resuming."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lmworks.base.config import load
from lmworks.base.errors import CheckpointError, ConfigError, StorageError, TrainingError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.pretrained import load_pretrained, save_pretrained
from lmworks.models.upcycle import upcycle
from lmworks.tokenizer import Tokenizer
from lmworks.train import loop
from lmworks.train import step as step_module
from lmworks.train.checkpoint import Best, CheckpointStore
from lmworks.train.evaluate import Report
from lmworks.train.loop import Outcome, train
from lmworks.train.loss import Losses, training_losses
from lmworks.train.metrics import read_metrics
from lmworks.train.prepare import change_recipe, prepare
from lmworks.train.recipe import Recipe, SampleConfig, load_recipe
from lmworks.train.run_folder import RunFolder
from lmworks.train.step import TrainStep


class SilentDisplay:
    """Keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def __enter__(self) -> "SilentDisplay":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def progress(self, step: int, **numbers: float) -> None:
        pass

    def message(self, text: str) -> None:
        self.messages.append(text)


def sampler(model: Decoder, tokenizer: Tokenizer, config: SampleConfig) -> list[str]:
    torch.rand(3)  # a sampler may draw from torch's generator
    return ["continued" for _ in config.prompts]


def run_training(run: RunFolder, **options: Any) -> Outcome:
    return train(run, sampler=sampler, display=SilentDisplay(), **options)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("prepared")
    text = folder / "text.txt"
    text.write_text("\n<|endoftext|>\n".join(f"the number {n} is after {n - 1}" for n in range(90)))
    values = {
        "model": {"d_model": 16, "num_layers": 1, "attention": {"num_heads": 2}, "dropout": 0.1},
        "tokenizer": {"kind": "byte"},
        "data": {"kind": "text", "files": [str(text)], "val_fraction": 0.2},
        "train": {
            "steps": 8,
            "batch_size": 4,
            "micro_batch_size": 2,
            "context_length": 16,
            "compile": "off",
        },
        "eval": {"every": 2},
        "sample": {"every": 3},
        "checkpoint": {"every": 2, "keep_last": 2},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values))
    run = RunFolder(folder / "run")
    loaded = load_recipe(folder / "recipe.yaml", ["train.precision=fp32"])
    prepare(run, loaded, overwrite=False, say=lambda line: None)
    return run


@pytest.fixture
def run(prepared: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the prepared run, at step 0."""
    shutil.copytree(prepared.path, tmp_path / "run")
    return RunFolder(tmp_path / "run")


@pytest.fixture(scope="module")
def straight(prepared: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The same run, trained to its end without a stop."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    shutil.copytree(prepared.path, folder)
    run_training(RunFolder(folder))
    return RunFolder(folder)


def numbers(run: RunFolder) -> list[dict[str, Any]]:
    """Metrics without what depends on the clock, and without events."""
    clock = {"tokens_per_s", "mfu", "elapsed_s"}
    return [
        {key: value for key, value in record.items() if key not in clock}
        for record in read_metrics(run.path)
        if record["kind"] != "event"
    ]


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Send this process a signal during a given step."""

    def arrange(step: int, *signals: signal.Signals) -> None:
        original = TrainStep.__call__
        calls = iter(range(1, 1000))

        def call(self: TrainStep, *args: Any, **options: Any) -> Any:
            if next(calls) == step:
                for number in signals:
                    os.kill(os.getpid(), number)
            return original(self, *args, **options)

        monkeypatch.setattr(TrainStep, "__call__", call)

    return arrange


def test_a_run_logs_every_step_evaluation_and_sample(straight: RunFolder) -> None:
    kinds: dict[str, list[int]] = {}
    for record in read_metrics(straight.path):
        kinds.setdefault(record["kind"], []).append(record["step"])
    assert kinds["train"] == list(range(1, 9))
    assert kinds["eval"] == [2, 4, 6, 8]
    assert kinds["sample"] == [3, 6, 8]
    first = read_metrics(straight.path)[1]
    assert first.keys() == {
        *("kind", "step", "tokens", "loss", "z_loss", "lr", "grad_norm"),
        *("tokens_per_s", "mfu", "elapsed_s"),
    }


def test_training_lowers_the_loss(straight: RunFolder) -> None:
    losses = [record["loss"] for record in numbers(straight) if record["kind"] == "eval"]
    assert losses[-1] < losses[0]


def test_bits_per_byte_of_a_byte_tokenizer_follow_from_the_loss(straight: RunFolder) -> None:
    record = next(record for record in numbers(straight) if record["kind"] == "eval")
    # One token per byte, but for the end-of-text tokens, which stand for no byte.
    assert record["bits_per_byte"] > record["loss"] / 0.6931471805599453
    assert record["bits_per_byte"] < 1.1 * record["loss"] / 0.6931471805599453


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_after_the_step_and_the_rest_is_bit_equal(
    run: RunFolder,
    straight: RunFolder,
    stop_at: Callable[..., None],
    number: signal.Signals,
) -> None:
    stop_at(3, number)
    outcome = run_training(run)
    assert (outcome.step, outcome.signal) == (3, number)
    assert CheckpointStore(run.checkpoints, keep_last=9, keep_best=True).latest() == "step-3"
    assert run_training(run).step == 8
    assert numbers(run) == numbers(straight)


def test_a_second_interrupt_quits_at_once(run: RunFolder, stop_at: Callable[..., None]) -> None:
    stop_at(3, signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_training(run)
    assert CheckpointStore(run.checkpoints, keep_last=9, keep_best=True).latest() == "step-2"


def test_going_back_to_an_older_checkpoint_repeats_the_rest(
    straight: RunFolder, tmp_path: Path
) -> None:
    shutil.copytree(straight.path, tmp_path / "run")
    again = RunFolder(tmp_path / "run")
    run_training(again, resume_from="step-6")
    assert numbers(again) == numbers(straight)


def test_a_longer_run_goes_on_from_the_finished_one(straight: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(straight.path, tmp_path / "run")
    longer = RunFolder(tmp_path / "run")
    change_recipe(longer, ["train.steps=10"], write=True)
    assert run_training(longer).step == 10


def test_what_a_run_computes_cannot_change_on_resume(straight: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"train\.batch_size=2: a resumed run keeps its recipe"):
        change_recipe(straight, ["train.batch_size=2"], write=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_failed_step_is_saved_and_its_replay_sees_the_same_batch(
    run: RunFolder, straight: RunFolder, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    calls = iter(range(100))

    def fail_in_step_5(*args: Any, **options: Any) -> Losses:
        losses = training_losses(*args, **options)
        # Two micro-batches per step: calls 8 and 9 are step 5.
        return losses._replace(total=losses.total * value) if next(calls) == 9 else losses

    monkeypatch.setattr(step_module, "training_losses", fail_in_step_5)
    with pytest.raises(
        TrainingError, match=f"step 5: loss is {value}.*windows 16 to 19 .*--from failed-step-5"
    ):
        run_training(run)
    monkeypatch.setattr(step_module, "training_losses", training_losses)
    run_training(run, resume_from="failed-step-5")
    assert numbers(run) == numbers(straight)


def test_a_failed_step_is_reported_even_if_the_disk_is_full(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(path: Path, snapshot: Any) -> Path:
        raise StorageError(f"could not write {path}: the disk is full")

    monkeypatch.setattr(loop, "write_snapshot", no_space)

    def not_a_number(*args: Any, **options: Any) -> Losses:
        losses = training_losses(*args, **options)
        return losses._replace(total=losses.total * float("nan"))

    monkeypatch.setattr(step_module, "training_losses", not_a_number)
    with pytest.raises(TrainingError, match=r"step 1: loss is nan.*the disk is full.*from step 0"):
        run_training(run)


def test_running_out_of_memory_names_the_biggest_tensors_and_what_to_reduce(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*args: Any, **options: Any) -> Losses:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried ...")

    monkeypatch.setattr(step_module, "training_losses", no_memory)
    with pytest.raises(TrainingError, match="out of memory") as caught:
        run_training(run)
    message = str(caught.value)
    for part in ("weights", "optimizer moments", "activations", "train.micro_batch_size=1"):
        assert part in message


def test_a_full_disk_says_which_step_is_safe(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = CheckpointStore.save

    def full_from_step_4(self: CheckpointStore, snapshot: Any) -> Path:
        if snapshot.progress.step >= 4:
            raise StorageError("could not write step-4: the disk is full")
        return save(self, snapshot)

    monkeypatch.setattr(CheckpointStore, "save", full_from_step_4)
    with pytest.raises(StorageError, match="step-2 is safe: lmworks train --resume"):
        run_training(run)


def evaluations(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> None:
    """Let the evaluations of a run find these losses, one after the other."""
    found = iter(losses)
    monkeypatch.setattr(loop, "evaluate", lambda *_, **__: Report(next(found), 1, 1))


def test_the_best_checkpoint_is_the_best_of_the_saved_steps(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_recipe(run, ["checkpoint.every=4", "checkpoint.keep_last=1"], write=True)
    evaluations(monkeypatch, [4.0, 3.0, 1.0, 2.0])  # after steps 2, 4, 6 and 8
    run_training(run)
    store = CheckpointStore(run.checkpoints, keep_last=1, keep_best=True)
    assert (store.best(), store.load().progress.best) == ("step-8", Best(8, 2.0))


def test_weights_that_predict_nan_are_not_saved(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluations(monkeypatch, [4.0, float("nan")])
    with pytest.raises(TrainingError, match=r"step 4: the held-out loss is nan.*step-2 is safe"):
        run_training(run)
    assert CheckpointStore(run.checkpoints, keep_last=1, keep_best=True).names() == ["step-2"]


def test_two_processes_cannot_train_in_one_folder(run: RunFolder) -> None:
    with run.lock(), pytest.raises(ConfigError, match="is training in this run folder"):
        run_training(run)


def test_the_recipe_of_a_run_that_is_training_does_not_change(run: RunFolder) -> None:
    before = run.recipe.read_bytes()
    with run.lock(), pytest.raises(ConfigError, match="is training in this run folder"):
        change_recipe(run, ["train.steps=9"], write=True)
    assert run.recipe.read_bytes() == before


def test_a_damaged_checkpoint_is_refused_with_the_way_out(
    straight: RunFolder, tmp_path: Path
) -> None:
    shutil.copytree(straight.path, tmp_path / "run")
    damaged = RunFolder(tmp_path / "run")
    (damaged.checkpoints / "step-8" / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*--from step-6"):
        run_training(damaged)


@pytest.fixture
def tensorboard_run(run: RunFolder) -> RunFolder:
    pytest.importorskip("tensorboard")
    change_recipe(run, ["log.tensorboard=true"], write=True)
    return run


def test_tensorboard_events_are_written_when_asked(tensorboard_run: RunFolder) -> None:
    run_training(tensorboard_run)
    assert list((tensorboard_run.path / "tensorboard").glob("events.*"))


def test_weights_and_biases_are_logged_offline_when_asked(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    change_recipe(run, ["log.wandb=offline", "train.steps=2"], write=True)
    run_training(run)
    wandb.teardown()  # its own process may still be writing after the run has ended
    [file] = (run.path / "wandb").glob("offline-run-*/*.wandb")
    assert b"train/loss" in file.read_bytes()


@pytest.mark.parametrize(
    ("override", "package", "way_out"),
    [
        ("log.tensorboard=true", "tensorboard", "log.tensorboard=false"),
        ("log.wandb=offline", "wandb", "log.wandb=off"),
    ],
)
def test_a_package_that_is_missing_is_named_before_any_work(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, override: str, package: str, way_out: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    before = run.recipe.read_bytes()
    with pytest.raises(ConfigError, match=f"needs the package {package}.*set {way_out}"):
        change_recipe(run, [override], write=True)
    assert run.recipe.read_bytes() == before


def test_the_resolved_recipe_loads_and_names_its_sources(run: RunFolder) -> None:
    text = run.recipe.read_text()
    assert "precision: fp32  # override" in text
    assert "vocab_size: 257  # tokenizer" in text
    assert isinstance(load_recipe(run.recipe).config, Recipe)
    environment = json.loads(run.environment.read_text())
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["sources"]["train.precision"] == "override"


def test_losses_of_every_depth_are_logged(run: RunFolder) -> None:
    values = yaml.safe_load(run.recipe.read_text())
    values["model"]["mtp"] = {"kind": "sequential", "depth": 2}
    run.recipe.write_text(yaml.safe_dump(values))
    run_training(run)
    steps = [record for record in read_metrics(run.path) if record["kind"] == "train"]
    assert all(record["mtp_loss_1"] > 0 and record["mtp_loss_2"] > 0 for record in steps)


def test_what_routers_do_is_logged(run: RunFolder) -> None:
    values = yaml.safe_load(run.recipe.read_text())
    values["model"]["mlp"] = {"kind": "moe", "d_ff": 8, "num_experts": 4}
    values["log"] = {"routing_every": 4}
    run.recipe.write_text(yaml.safe_dump(values))
    run_training(run)
    records = read_metrics(run.path)
    steps = [record for record in records if record["kind"] == "train"]
    for key in ("balance_loss", "load_entropy", "starved_experts", "dropped", "router_z_loss"):
        assert all(isinstance(record[key], int | float) for record in steps)
    tables = [record for record in records if record["kind"] == "routing"]
    assert [table["step"] for table in tables] == [4, 8]
    assert all(
        sum(map(sum, table["load_percent"])) == pytest.approx(400, abs=2) for table in tables
    )


def test_a_dense_model_logs_nothing_of_routers(straight: RunFolder) -> None:
    assert not [r for r in read_metrics(straight.path) if r["kind"] == "routing"]
    assert "load_entropy" not in read_metrics(straight.path)[1]


def starting_from(run: RunFolder, source: Path, **model: Any) -> RunFolder:
    """The prepared run, to start from the weights in another folder."""
    values = yaml.safe_load(run.recipe.read_text())
    values["train"]["init_from"] = str(source)
    values["model"] = ModelConfig.preset_values(str(source)) | model
    run.recipe.write_text(yaml.safe_dump(values))
    return run


def first_loss(run: RunFolder) -> float:
    return float(next(r["loss"] for r in read_metrics(run.path) if r["kind"] == "train"))


def test_a_run_starts_from_the_weights_of_another(run: RunFolder, straight: RunFolder) -> None:
    trainer = loop.Trainer(
        starting_from(run, straight.path), load(Recipe, run.recipe).config, sampler=sampler
    )
    trainer.close()
    expected = load_pretrained(straight.path).state_dict()
    weights = trainer.state.snapshot().weights
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_an_upcycled_run_starts_at_the_loss_of_the_dense_one(
    run: RunFolder, straight: RunFolder, tmp_path: Path
) -> None:
    again = RunFolder(tmp_path / "dense")
    shutil.copytree(run.path, again.path)
    run_training(starting_from(again, straight.path, dropout=0.0))
    mixture = upcycle(
        load_pretrained(straight.path),
        num_experts=4,
        top_k=2,
        granularity=2,
        generator=torch.Generator().manual_seed(0),
    )
    save_pretrained(tmp_path / "moe", mixture)
    run_training(starting_from(run, tmp_path / "moe", dropout=0.0))
    # Equal up to rounding, of bf16 where the machine prefers it.
    assert first_loss(run) == pytest.approx(first_loss(again), rel=5e-3)
    assert first_loss(run) < first_loss(straight) - 0.1


def test_a_resumed_run_needs_its_origin_no_more(
    run: RunFolder, straight: RunFolder, tmp_path: Path
) -> None:
    origin = shutil.copytree(straight.path, tmp_path / "origin")
    run_training(starting_from(run, origin))
    shutil.rmtree(origin)
    change_recipe(run, ["train.steps=10"], write=True)
    assert run_training(run).step == 10


def test_weights_of_another_architecture_are_no_start(run: RunFolder, straight: RunFolder) -> None:
    starting_from(run, straight.path, num_layers=2)
    with pytest.raises(CheckpointError, match=r"do not match the model: missing layers\.1"):
        run_training(run)
