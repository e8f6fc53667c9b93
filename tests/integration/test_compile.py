"""A run that changed over to compiled code resumes to the losses of the uninterrupted one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

RECIPE: dict[str, Any] = {
    "model": {"d_model": 32, "num_layers": 2, "attention": {"num_heads": 2}, "mlp": {"d_ff": 64}},
    "tokenizer": {"kind": "byte"},
    "schedule": {"kind": "constant", "warmup_steps": 0},
    "train": {"steps": 3, "batch_size": 4, "context_length": 32, "precision": "bf16"},
    "eval": {"every": 2},
    "sample": {"prompts": []},
    "checkpoint": {"every": 2},
}


def lmworks(*arguments: str) -> None:
    command = [sys.executable, "-m", "lmworks.cli.main", "train", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


EXPERTS = {
    "mlp": {"kind": "moe", "d_ff": 16, "num_experts": 4},
    "layer_kinds": {"dense": {"mlp": {"kind": "dense", "d_ff": 64}}, "experts": {}},
    "layer_pattern": ["dense", "experts"],
    "mtp": {"kind": "sequential"},
}


@pytest.mark.slow
@pytest.mark.parametrize("model", [{}, EXPERTS], ids=["dense", "experts"])
def test_losses_after_the_change_over_survive_an_interruption(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    text, recipe = tmp_path / "text.txt", tmp_path / "recipe.yaml"
    text.write_text("\n<|endoftext|>\n".join(f"{n} follows {n - 1}" for n in range(400)))
    data = {"kind": "text", "files": [str(text)], "val_fraction": 0.2}
    sections = {**RECIPE, "data": data, "model": {**RECIPE["model"], **model}}
    recipe.write_text(yaml.safe_dump(sections))
    straight, interrupted = tmp_path / "straight", tmp_path / "interrupted"
    for run in (straight, interrupted):
        lmworks(str(recipe), "--run", str(run))
        (run / "compiled.json").write_text('{"compiled_after_step": 5}')
    lmworks("--resume", str(straight), "train.steps=12")
    for steps in (4, 8, 12):  # before, after and long after the change-over
        lmworks("--resume", str(interrupted), f"train.steps={steps}")
    assert "compiled code from step 6 on" in (straight / "metrics.jsonl").read_text()
    assert losses(interrupted) == losses(straight)
