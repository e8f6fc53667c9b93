"""`lmworks eval`: figures as table and JSON, from the run's data or a file."""

import json
import math
from pathlib import Path

import pytest

from lmworks.base.errors import ConfigError, DataError
from lmworks.cli.eval import main

Capture = pytest.CaptureFixture[str]


def evaluate(capsys: Capture, *arguments: str) -> dict:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_validation_split_is_the_default(tiny_run: Path, capsys: Capture) -> None:
    row = evaluate(capsys, str(tiny_run))
    assert (row["num_tokens"], row["num_bytes"]) == (14, 13)
    assert row["perplexity"] == pytest.approx(math.exp(row["loss"]))
    assert row["bits_per_byte"] == pytest.approx(row["loss"] * 14 / 13 / math.log(2))


def test_a_checkpoint_folder_finds_the_data_of_its_run(tiny_run: Path, capsys: Capture) -> None:
    assert evaluate(capsys, str(tiny_run / "checkpoints/step-1"))["num_tokens"] == 14


def test_a_text_file_is_scored_with_the_stride_asked_for(
    tiny_run: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("é" * 100)
    row = evaluate(capsys, str(tiny_run), "--text", str(file), "--stride", "16", "--context", "32")
    assert (row["num_tokens"], row["num_bytes"]) == (200, 200)
    assert (row["context_length"], row["stride"]) == (32, 16)


def test_the_table_names_every_figure(tiny_run: Path, capsys: Capture) -> None:
    main([str(tiny_run), "--separate-documents"])
    out = capsys.readouterr().out
    for name in ("loss", "perplexity", "bits per byte", "14 tokens", "stride 64"):
        assert name in out


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b"abc\xe9d", r"byte 3 is 0xe9"), (None, "cannot be read")],
)
def test_an_unusable_text_file_is_refused(
    tiny_run: Path, tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        main([str(tiny_run), "--text", str(file)])


def test_a_run_without_the_split_points_to_text_files(tiny_run: Path) -> None:
    with pytest.raises(ConfigError, match=r"no train data.*--text FILE"):
        main([str(tiny_run), "--split", "train"])


def test_a_text_file_has_no_documents_to_separate(tiny_run: Path) -> None:
    with pytest.raises(ConfigError, match="a text file is one document"):
        main([str(tiny_run), "--text", "x.txt", "--separate-documents"])


def test_split_and_text_exclude_each_other(tiny_run: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main([str(tiny_run), "--split", "val", "--text", "x.txt"])
    assert "not allowed with" in capsys.readouterr().err
