"""`lmworks train` as a user meets it: output, exit status, and what happens when things run out."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lmworks.cli.main import main
from lmworks.models.pretrained import load_pretrained, open_run
from lmworks.train.checkpoint import CheckpointStore

RECIPES = Path(__file__).parents[2] / "recipes"
MIB = 1 << 20


@pytest.fixture(scope="session")
def finished(
    launch: Callable[..., int], tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    assert launch(["train", str(tiny_recipe), "--run", str(run)], run) == 0
    return run


def test_a_finished_run_says_what_to_type_next(
    launch: Callable[..., int], tiny_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    status = launch(["train", str(tiny_recipe), "train.steps=2", "--run", str(run)], run)
    output = launch.output.read_text()  # type: ignore[attr-defined]
    assert status == 0, output
    for line in ("finished: step 2 of 2", f"lmworks chat {run}", f"lmworks report {run}"):
        assert line in output


def test_a_finished_run_opens_as_a_model(finished: Path) -> None:
    assert load_pretrained(finished).config.vocab_size == 257
    assert open_run(finished).tokenizer.vocab_size == 257


def test_a_finished_run_is_not_overwritten(
    finished: Path, tiny_recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(tiny_recipe), "--run", str(finished)]) == 2
    assert "holds a run already (step-15)" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(
    launch: Callable[..., int],
    tiny_recipe: Path,
    tmp_path: Path,
    number: signal.Signals,
    status: int,
) -> None:
    run = tmp_path / "run"
    argv = ["train", str(tiny_recipe), "train.steps=100000", "--run", str(run)]
    assert launch(argv, run, kill_after_s=0.0, number=number) == status
    output = launch.output.read_text()  # type: ignore[attr-defined]
    assert f"go on with: lmworks train --resume {run}" in output
    assert CheckpointStore(run / "checkpoints", keep_last=1, keep_best=False).latest() is not None


def test_running_out_of_memory_names_the_biggest_tensors(
    launch: Callable[..., int], tiny_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    argv = ["train", str(tiny_recipe), "model.d_model=2048", "--run", str(run)]
    status = launch(argv, run, address_space=400 * MIB)
    output = launch.output.read_text()  # type: ignore[attr-defined]
    assert status == 2, output
    assert "error: out of memory. Biggest tensors: optimizer moments" in output
    assert "Try train.micro_batch_size=1" in output


def test_a_full_disk_keeps_the_run_resumable(
    launch: Callable[..., int], tiny_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    argv = ["train", str(tiny_recipe), "checkpoint.every=5", "--run", str(run)]
    status = launch(argv, run, file_size=20_000)
    output = launch.output.read_text()  # type: ignore[attr-defined]
    assert status == 2, output
    assert "the disk is full or a size limit was hit" in output
    assert "the run starts again from step 0" in output
    assert not list((run / "checkpoints").iterdir())
    assert launch(["train", "--resume", str(run)], run) == 0


def test_a_disk_that_fills_while_logging_is_one_error_line(
    launch: Callable[..., int], tiny_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    # Below the size of a checkpoint, which comes last.
    argv = ["train", str(tiny_recipe), "checkpoint.every=100", "train.steps=90", "--run", str(run)]
    status = launch(argv, run, file_size=15_000)
    output = launch.output.read_text()  # type: ignore[attr-defined]
    assert status == 2, output
    assert f"error: could not write {run / 'metrics.jsonl'}" in output
    assert "Traceback" not in output
    assert launch(["train", "--resume", str(run), "train.steps=5"], run) == 0


@pytest.mark.parametrize("name", ["tiny_cpu", "seed_17m"])
def test_shipped_recipes_dry_run(
    name: str, tiny_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tiny_recipe.with_name("text.txt")
    argv = [f"data.files=[{text}]", "--run", str(tmp_path / "run"), "--dry-run"]
    assert main(["train", str(RECIPES / f"{name}.yaml"), *argv]) == 0
    assert "everything fits together" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("data", "message"), [(b"", "no text in"), (b"text \xff", "not UTF-8: byte 5")]
)
def test_a_dry_run_reads_the_beginning_of_the_text(
    data: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(data)
    argv = [f"data.files=[{text}]", "--run", str(tmp_path / "run"), "--dry-run"]
    assert main(["train", str(RECIPES / "tiny_cpu.yaml"), *argv]) == 2
    assert message in capsys.readouterr().err


def test_gpt2_small_dry_runs_on_packed_shards(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        f"tokenizer.path={finished / 'tokenizer.json'}",
        f"data.train={finished / 'data/train'}",
        f"data.val={finished / 'data/val'}",
        "--run",
        str(tmp_path / "run"),
        "--dry-run",
    ]
    assert main(["train", str(RECIPES / "gpt2_small.yaml"), *argv]) == 2
    assert "model.vocab_size=50257, but the tokenizer has 257" in capsys.readouterr().err
    assert main(["train", str(RECIPES / "gpt2_small.yaml"), *argv, "model.vocab_size=257"]) == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no recipe given"),
        (["nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--resume", "nowhere"], "nowhere: no such run folder"),
        ([str(RECIPES / "tiny_cpu.yaml"), "train.stepz=1"], "did you mean 'steps'"),
        ([str(RECIPES / "tiny_cpu.yaml"), "--from", "step-1"], "--resume RUN"),
    ],
)
def test_wrong_arguments_are_explained(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *argv]) == 2
    assert message in capsys.readouterr().err


def test_print_config_gives_a_recipe_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(RECIPES / "tiny_cpu.yaml"), "train.steps=777", "--print-config"]) == 0
    file = tmp_path / "printed.yaml"
    file.write_text(capsys.readouterr().out)
    assert main(["train", str(file), "--print-config"]) == 0
    assert "steps: 777" in capsys.readouterr().out


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    assert "lmworks train recipes/tiny_cpu.yaml" in capsys.readouterr().out
