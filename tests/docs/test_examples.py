"""Every program in examples/ runs."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("program", "argument", "output"),
    [
        ("01_train_a_tokenizer.py", "out", "saved in out"),
        ("02_train_by_hand.py", "3", "step 2  loss"),
        ("03_tokens_and_text.py", "Elliot", "tokens of 'Elliot'"),
    ],
)
def test_example_runs(tmp_path: Path, program: str, argument: str, output: str) -> None:
    command = [sys.executable, str(EXAMPLES / program), argument]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert output in done.stdout


def test_every_example_is_tested_and_short() -> None:
    programs = sorted(EXAMPLES.glob("*.py"))
    assert [p.name for p in programs] == [
        "01_train_a_tokenizer.py",
        "02_train_by_hand.py",
        "03_tokens_and_text.py",
    ]
    assert all(len(p.read_text().splitlines()) < 80 for p in programs)
