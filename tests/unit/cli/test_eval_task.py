"""`lmworks eval --task`: figures, results of each question, and refusals."""

import json
from pathlib import Path

import pytest

from lmworks.base.errors import ConfigError, DataError
from lmworks.cli.eval import main
from lmworks.cli.main import main as front_door

Capture = pytest.CaptureFixture[str]
QUESTIONS = [
    {"defaults": {"examples": "E. ", "max_new_tokens": 4}},
    {"id": "first", "context": "Q:", "choices": ["a", "bc"], "label": 0},
    {"context": "Q:", "choices": ["a", "bc"], "label": 1},
    {"prompt": "Q:", "answer": ["x"]},
]


@pytest.fixture
def task(tmp_path: Path) -> Path:
    file = tmp_path / "task.jsonl"
    file.write_text("\n".join(map(json.dumps, QUESTIONS)))
    return file


def test_the_figures_of_both_kinds_are_printed(tiny_run: Path, task: Path, capsys: Capture) -> None:
    assert main([str(tiny_run), "--task", str(task)]) == 0
    out = capsys.readouterr().out
    # One of two equal questions with the two labels is right.
    assert "accuracy             0.500 ± 0.354 of 2   (guessing: 0.500)" in out
    for name in ("accuracy, per byte", "accuracy, per token", "exact match", "questions"):
        assert name in out


def test_json_has_every_figure_with_its_error(tiny_run: Path, task: Path, capsys: Capture) -> None:
    main([str(tiny_run), "--task", str(task), "--json"])
    row = json.loads(capsys.readouterr().out)
    assert (row["acc"], row["exact_match"], row["chance"]) == (0.5, 0.0, 0.5)
    assert (row["num_items"], row["num_cut"]) == (3, 0)
    assert {"acc_stderr", "acc_bytes", "acc_tokens_stderr", "exact_match_stderr"} <= row.keys()


def test_what_became_of_each_question_is_written(
    tiny_run: Path, task: Path, tmp_path: Path
) -> None:
    output = tmp_path / "new" / "out.jsonl"
    main([str(tiny_run), "--task", str(task), "--output", str(output)])
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["line"] for row in rows] == [2, 3, 4]
    assert [row["id"] for row in rows] == ["first", None, None]
    assert rows[0]["is_correct"]["acc"] != rows[1]["is_correct"]["acc"]
    assert rows[0]["loglikelihoods"] == pytest.approx(rows[1]["loglikelihoods"], abs=1e-4)
    assert rows[2]["kind"] == "generation"
    assert rows[2]["num_tokens"] <= 4


def test_the_limit_is_on_questions(tiny_run: Path, task: Path, capsys: Capture) -> None:
    main([str(tiny_run), "--task", str(task), "--limit", "1", "--json"])
    assert json.loads(capsys.readouterr().out)["num_items"] == 1


def test_a_wrong_line_exits_2_with_file_line_and_nearest_key(task: Path, capsys: Capture) -> None:
    task.write_text('{"context": "a", "choises": []}\n')
    assert front_door(["eval", "no/such/run", "--task", str(task)]) == 2
    err = capsys.readouterr().err
    assert "task.jsonl:1: no such key 'choises'; did you mean 'choices'?" in err


def test_a_question_that_the_model_cannot_be_asked_is_named(tiny_run: Path, task: Path) -> None:
    task.write_text(json.dumps({"context": "Q", "choices": ["a", "b" * 99], "label": 0}))
    with pytest.raises(DataError, match=r"task\.jsonl: line 1: a choice has 100 tokens"):
        main([str(tiny_run), "--task", str(task)])


def test_a_model_without_chat_template_cannot_be_asked_in_one(tiny_run: Path, task: Path) -> None:
    with pytest.raises(ConfigError, match="has no chat template"):
        main([str(tiny_run), "--task", str(task), "--chat"])


@pytest.mark.parametrize("option", [["--stride", "4"], ["--context", "4"]])
def test_windows_have_no_meaning_for_questions(task: Path, option: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"{option[0]}: goes with --text and --split only"):
        main(["no/such/run", "--task", str(task), *option])


@pytest.mark.parametrize("option", [["--limit", "4"], ["--chat"], ["--output", "x"]])
def test_questions_have_options_that_texts_have_not(option: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"{option[0]}: goes with --task only"):
        main(["no/such/run", *option])
