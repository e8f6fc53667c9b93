"""`lmworks report`: what it prints, and the lines on what to type next."""

import sys
from pathlib import Path

import pytest

from lmworks.cli.next_steps import next_steps
from lmworks.cli.report import gist, main
from lmworks.train.metrics import MetricsLog, Record

TRAIN: Record = {"kind": "train", "step": 600, "tokens": 1_228_800, "elapsed_s": 185.4}
RECORDS: list[Record] = [
    TRAIN | {"step": 1},
    {"kind": "eval", "step": 300, "loss": 3.0, "bits_per_byte": 2.0},
    {"kind": "sample", "step": 300, "prompt": "It is", "text": " early"},
    TRAIN,
    {"kind": "eval", "step": 600, "loss": 2.5, "bits_per_byte": 1.75},
    {"kind": "sample", "step": 600, "prompt": "It is", "text": " a truth\nuniversal"},
    {"kind": "sample", "step": 600, "prompt": '"My dear', "text": '," said she'},
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with metrics; the page itself has its own tests."""
    log = MetricsLog(tmp_path, [])
    for record in RECORDS:
        values = {key: value for key, value in record.items() if key not in ("kind", "step")}
        log.write(record["kind"], record["step"], **values)
    log.close()
    monkeypatch.setattr("lmworks.train.report.write_report", lambda run: run.report)
    return tmp_path


def test_the_gist_has_the_last_samples_and_figures() -> None:
    assert gist(RECORDS) == (
        "what it writes after step 600:\n\n"
        "  It is a truth\n"
        "  universal\n\n"
        '  "My dear," said she\n\n'
        "trained   600 steps, 1,228,800 tokens in 3 min 05 s\n"
        "held out  loss 2.500 nats per token, 1.750 bits per byte"
    )


def test_a_run_without_samples_and_evaluations_has_a_gist() -> None:
    assert gist([TRAIN]) == "trained   600 steps, 1,228,800 tokens in 3 min 05 s"


def test_show_names_the_page_and_what_to_type_next(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--show"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("what it writes")
    assert f"report: {run / 'report.html'}" in out
    for command in ("chat", "generate", "eval"):
        assert f"  lmworks {command} {run}" in out


def test_without_show_there_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run)]) == 0
    assert capsys.readouterr().out == f"wrote {run / 'report.html'}\n"


def test_what_to_type_works_where_the_environment_is_not_activated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv/bin/lmworks"), "report"])
    assert ".venv/bin/lmworks chat runs/demo" in next_steps(Path("runs/demo"), with_report=False)


def test_a_folder_with_spaces_is_quoted_in_what_to_type_next() -> None:
    assert "chat 'my runs/one'" in next_steps(Path("my runs/one"), with_report=False)
