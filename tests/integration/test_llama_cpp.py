"""llama.cpp loads the GGUF files that are written here and computes the same.

Needs a Python with llama_cpp: this one, or the one that LMWORKS_LLAMA_CPP_PYTHON names.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmworks.models import gguf

from ..unit.models.gguf.small_models import CONFIGS, model_of, vocabulary

pytestmark = pytest.mark.slow

RUNNER = Path(__file__).parent / "llama_cpp_runner.py"
# Their GELU is a table in F16, ours is exact.
_HAS_GELU = ("gpt2", "gemma2", "gemma3")
# llama.cpp takes queries without a latent only from models of 26 or 27 layers.
_SMALL = [name for name in CONFIGS if name != "deepseek v2 lite"]
PROMPTS = ("The capital of France is", "def fibonacci(n):\n    ")
NUM_GREEDY = 24


@pytest.fixture(scope="module")
def python() -> str:
    found = os.environ.get("LMWORKS_LLAMA_CPP_PYTHON", sys.executable)
    run = subprocess.run([found, "-c", "import llama_cpp"], capture_output=True, check=False)
    if run.returncode:
        pytest.skip("needs llama-cpp-python, here or in LMWORKS_LLAMA_CPP_PYTHON")
    return found


def llama_cpp(python: str, model: Path, prompts: list[Any], num_tokens: int) -> dict[str, Any]:
    asked, out = model.with_suffix(".json"), model.with_suffix(".npz")
    asked.write_text(json.dumps({"prompts": prompts, "num_tokens": num_tokens}), encoding="utf-8")
    run = subprocess.run(
        [python, str(RUNNER), str(model), str(asked), str(out)],
        capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    with np.load(out) as found:
        return dict(found)


@pytest.mark.parametrize("name", _SMALL)
def test_every_architecture_gives_the_same_logits(python: str, name: str, tmp_path: Path) -> None:
    model, path = model_of(name), tmp_path / "model.gguf"
    gguf.save(path, model, vocabulary(), tensor_type="f32")
    ids = [5, 9, 200, 3, 17, 17, 42, 299, 0, 1, 2, 3, 4, *range(100, 130)]
    theirs = llama_cpp(python, path, [ids], 1)["logits_0"]
    with torch.inference_mode():
        ours = model(torch.tensor([ids]))[0].numpy()
    largest = abs(ours).max()
    np.testing.assert_allclose(
        theirs, ours, rtol=0, atol=largest * (2e-3 if name in _HAS_GELU else 1e-5)
    )


# How far the token that llama.cpp takes may be behind our best, in logits of some 40. Products of
# quantized weights and of BF16 are made there with activations in 8 bits or BF16; Gemma's GELU is
# a table in F16.
_REGRET = {"f32": 0.03, "f16": 0.03, "bf16": 0.5, "q8_0": 0.5, "q4_0": 0.5, "q4_1": 0.5}


@pytest.mark.parametrize("tensor_type", _REGRET)
@pytest.mark.parametrize("source", ["smollm2_file", "gemma3_file"])
def test_real_models_give_the_same_text(
    python: str, source: str, tensor_type: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    loaded = gguf.load(request.getfixturevalue(source))
    path = tmp_path / "model.gguf"
    gguf.save(
        path, loaded.model, loaded.tokenizer, tensor_type=tensor_type,
        chat_template=loaded.chat_template, special_ids=loaded.special_ids,
    )  # fmt: skip
    theirs = llama_cpp(python, path, list(PROMPTS), NUM_GREEDY)
    ours = gguf.load(path)
    for i, prompt in enumerate(PROMPTS):
        template = ours.tokenizer.template
        bos = [ours.special_ids["bos"]] if template is not None else []
        ids = [*bos, *map(int, ours.tokenizer.encode(prompt))]
        assert theirs[f"ids_{i}"].tolist() == ids
        taken = theirs[f"greedy_{i}"].tolist()
        with torch.inference_mode():
            logits = ours.model(torch.tensor([ids + taken[:-1]]))[0, len(ids) - 1 :].numpy()
        regret = logits.max(axis=1) - logits[np.arange(len(taken)), taken]
        assert regret.max() < _REGRET[tensor_type], (prompt, regret)
