"""A few thousand mutated model folders; `fuzz_hf.py` runs any number."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NUM_CASES = 2000


@pytest.mark.slow
def test_mutated_folders_give_a_model_or_an_error_of_ours(tmp_path):
    script = Path(__file__).with_name("fuzz_hf.py")
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(NUM_CASES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    outcomes = json.loads(run.stdout)
    assert sum(outcomes.values()) == NUM_CASES
    assert outcomes["CheckpointError"] > NUM_CASES / 4  # mutations reach the reader
    assert outcomes["model and tokenizer"] > NUM_CASES / 50  # and some still load
