"""The report: everything in one file, nothing from the run taken as markup."""

import json
import re
from pathlib import Path

import pytest
import yaml

from lmworks.base.errors import CheckpointError, DataError
from lmworks.models.config import ModelConfig
from lmworks.train.metrics import MetricsLog, read_metrics
from lmworks.train.prepare import prepare
from lmworks.train.recipe import load_recipe
from lmworks.train.report import readable_count, write_report
from lmworks.train.report_plots import load_map, smoothed
from lmworks.train.run_folder import RunFolder

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("report")
    text = folder / "text.txt"
    text.write_text("\n<|endoftext|>\n".join(f"the number {n} is after {n - 1}" for n in range(90)))
    values = {
        "model": {"d_model": 16, "num_layers": 1, "attention": {"num_heads": 2}},
        "tokenizer": {"kind": "byte"},
        "data": {"kind": "text", "files": [str(text)], "val_fraction": 0.2},
        "train": {"steps": 100, "batch_size": 2, "context_length": 16, "precision": "fp32"},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values))
    run = RunFolder(folder / "<demo>")
    prepare(run, load_recipe(folder / "recipe.yaml"), overwrite=False, say=lambda line: None)
    return run


def log_steps(run: RunFolder, num_steps: int) -> None:
    log = MetricsLog(run.path, [])
    for step in range(1, num_steps + 1):
        log.write(
            "train",
            step,
            tokens=32 * step,
            loss=5 / step,
            z_loss=0.0,
            lr=1e-3,
            grad_norm=1.0,
            tokens_per_s=1000.0 + step,
            mfu=0.25,
            elapsed_s=float(step),
        )
    log.write("eval", num_steps, loss=2.5, bits_per_byte=1.75)
    log.write("sample", num_steps, prompt="<b>Once", text=" & <script>alert(1)</script>")
    log.close()


@pytest.fixture(scope="module")
def page(run: RunFolder) -> str:
    log_steps(run, 100)
    return write_report(run).read_text(encoding="utf-8")


def test_the_page_refers_to_nothing_outside_itself(page: str) -> None:
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"', page)
    assert "@import" not in page


def test_samples_and_names_are_escaped(page: str) -> None:
    assert "<script>" not in page
    assert "<b>&lt;b&gt;Once</b> &amp; &lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<h1>&lt;demo&gt;</h1>" in page


def test_the_page_shows_curves_figures_and_the_source_of_values(page: str) -> None:
    assert page.count("<svg") == 4
    assert "2.500" in page
    assert "1.750" in page
    assert re.search(r"model\.vocab_size</td><td>257</td><td>tokenizer", page)


def test_plots_take_their_ink_from_the_page(page: str) -> None:
    assert "currentColor" in page
    assert "#010203" not in page


def test_the_same_run_gives_the_same_page(run: RunFolder, page: str) -> None:
    assert write_report(run).read_text(encoding="utf-8") == page


def test_a_run_without_steps_has_no_report(run: RunFolder, tmp_path: Path) -> None:
    empty = RunFolder(tmp_path / "empty")
    empty.path.mkdir()
    empty.recipe.write_text(run.recipe.read_text())
    with pytest.raises(DataError, match="no training step is logged yet"):
        write_report(empty)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a run folder"):
        write_report(RunFolder(tmp_path))


def test_smoothing_a_constant_changes_nothing() -> None:
    assert smoothed([2.0] * 9, 5) == pytest.approx([2.0] * 9)


@pytest.mark.parametrize(
    ("count", "text"),
    [(87, "87"), (1_000, "1.00 K"), (4_260_000, "4.26 M"), (22_696_448, "22.7 M")],
)
def test_counts_have_three_digits_and_a_unit(count: int, text: str) -> None:
    assert readable_count(count) == text


@pytest.mark.parametrize("line", ["\x7fELF", "[1]", '{"kind": "train"}'])
def test_a_damaged_line_of_the_metrics_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"metrics\.jsonl:1: damaged"):
        read_metrics(tmp_path)


def test_losses_of_further_tokens_have_a_plot_of_their_own(run: RunFolder) -> None:
    assert "Loss of further tokens" not in write_report(run).read_text(encoding="utf-8")
    records = [
        {**record, "mtp_loss_1": 3.0, "mtp_loss_2": 4.0} if record["kind"] == "train" else record
        for record in read_metrics(run.path)
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (run.path / "metrics.jsonl").write_text(text)
    page = write_report(run).read_text(encoding="utf-8")
    assert "Loss of further tokens" in page
    assert "2 further on" in page


def test_loads_of_experts_are_a_map(run: RunFolder) -> None:
    model = ModelConfig.model_validate(
        {
            "vocab_size": 9,
            "max_seq_len": 8,
            "d_model": 8,
            "num_layers": 20,
            "attention": {"num_heads": 2},
            "mlp": {"kind": "moe", "d_ff": 8, "num_experts": 2},
            "mtp": {"kind": "parallel", "depth": 1},
        }
    )
    records = [
        {"kind": "routing", "step": step, "load_percent": [[200 - step, step]] * 21}
        for step in (0, 20, 40)
    ]
    svg = load_map(records, model)
    assert svg.count("<image") == 12 + 1  # at most twelve layers, and the scale
    assert "layer 0<" in svg
    assert "depth 1<" in svg
    assert load_map([], model) == ""
