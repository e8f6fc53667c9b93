"""When the blocks change over to compiled code, and what a resumed run does about it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from torch import nn

from lmworks.base.errors import ConfigError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Block, Decoder
from lmworks.train import blocks as blocks_module
from lmworks.train import compile as compile_module
from lmworks.train.compile import Compilation, compile_blocks


class Clock:
    """Stands in for the `time` module: every look at it is `step_s` later."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def perf_counter(self) -> float:
        self.now_s += self.step_s
        return self.now_s


CONFIG = ModelConfig.model_validate(
    {
        "vocab_size": 9,
        "max_seq_len": 8,
        "d_model": 8,
        "num_layers": 2,
        "attention": {"num_heads": 2},
        "mlp": {"d_ff": 8},
        "mtp": {"kind": "sequential"},
    }
)


@pytest.fixture
def model() -> Decoder:
    return Decoder(CONFIG)


@pytest.fixture
def switched(monkeypatch: pytest.MonkeyPatch) -> list[Decoder]:
    """Models that were compiled; nothing is really compiled."""
    done: list[Decoder] = []
    monkeypatch.setattr(compile_module, "compile_blocks", done.append)
    return done


def make(model: Decoder, folder: Path, **changes: Any) -> Compilation:
    options = {"mode": "auto", "total_steps": 1000, **changes}
    return Compilation(
        model, recipe_file=folder / "recipe.yaml", record=folder / "compiled.json", **options
    )


def start_child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the compiling process run `code` instead."""

    def start(recipe_file: Path, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code], stderr=errors)

    monkeypatch.setattr(compile_module, "_start", start)


def run_until_note(compilation: Compilation, word: str, *, first: int = 0) -> int:
    """Go through steps until a line with `word` comes; returns the step."""
    for step in range(first, first + 200_000):
        if word in compilation.before_step(step):
            return step
    raise AssertionError(f"no line with {word!r}")


def test_off_never_compiles(model: Decoder, tmp_path: Path, switched: list[Any]) -> None:
    compilation = make(model, tmp_path, mode="off")
    assert [compilation.before_step(step) for step in range(9)] == [""] * 9
    assert not switched


def test_on_compiles_before_the_first_step(
    model: Decoder, tmp_path: Path, switched: list[Any]
) -> None:
    assert "from step 1 on" in make(model, tmp_path, mode="on").before_step(0)
    assert switched == [model]


def test_a_short_run_is_not_compiled(
    model: Decoder, tmp_path: Path, switched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_module, "time", Clock(step_s=0.01))
    compilation = make(model, tmp_path)
    assert [compilation.before_step(step) for step in range(20)] == [""] * 20
    assert not switched


def test_a_long_run_changes_over_when_the_other_process_is_done(
    model: Decoder, tmp_path: Path, switched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_module, "time", Clock(step_s=1.0))
    start_child(monkeypatch, "")
    compilation = make(model, tmp_path)
    started = run_until_note(compilation, "on the side")
    step = run_until_note(compilation, "compiled code", first=started + 1)
    assert switched == [model]
    assert json.loads((tmp_path / "compiled.json").read_text()) == {"compiled_after_step": step}
    assert compilation.before_step(step + 1) == ""


def test_a_failed_compilation_leaves_the_run_as_it_is_and_says_why(
    model: Decoder, tmp_path: Path, switched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_module, "time", Clock(step_s=1.0))
    start_child(monkeypatch, "raise SystemExit('the compiler is broken')")
    compilation = make(model, tmp_path)
    started = run_until_note(compilation, "on the side")
    run_until_note(compilation, "the compiler is broken", first=started + 1)
    assert not switched
    assert not (tmp_path / "compiled.json").exists()


def test_a_long_message_of_the_compiler_stops_nobody(
    model: Decoder, tmp_path: Path, switched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_module, "time", Clock(step_s=1.0))
    start_child(monkeypatch, "raise SystemExit('x' * 1_000_000 + '\\nlast line')")
    compilation = make(model, tmp_path)
    started = run_until_note(compilation, "on the side")
    run_until_note(compilation, "(last line)", first=started + 1)


def test_a_run_that_must_be_compiled_needs_a_compiler(
    model: Decoder, tmp_path: Path, switched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler found.*install"):
        make(model, tmp_path, mode="on").before_step(0)
    assert not switched


def test_without_a_compiler_the_run_goes_on_and_says_so(
    model: Decoder, tmp_path: Path, switched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_module, "time", Clock(step_s=1.0))
    monkeypatch.setenv("CXX", "no-such-compiler")
    run_until_note(make(model, tmp_path), "no C++ compiler found")
    assert not switched


def test_a_resumed_run_changes_over_at_the_recorded_step(
    model: Decoder, tmp_path: Path, switched: list[Any]
) -> None:
    (tmp_path / "compiled.json").write_text('{"compiled_after_step": 7}')
    assert run_until_note(make(model, tmp_path), "compiled code", first=3) == 7
    assert run_until_note(make(model, tmp_path), "compiled code", first=9) == 9


def test_closing_ends_the_other_process(
    model: Decoder, tmp_path: Path, switched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_module, "time", Clock(step_s=1.0))
    start_child(monkeypatch, "import time; time.sleep(600)")
    compilation = make(model, tmp_path)
    run_until_note(compilation, "on the side")
    compilation.close()
    assert compilation.before_step(50) == ""
    assert not switched


# torch's own compiler uses it when it is imported.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.slow
def test_compiled_blocks_train_like_plain_ones_and_only_in_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks_module, "Block", nn.Linear)  # the checks of types stop the compiler
    torch.manual_seed(0)
    plain = nn.ModuleList([nn.Linear(4, 4)])
    compiled = nn.ModuleList([nn.Linear(4, 4)])
    compiled.load_state_dict(plain.state_dict())
    compile_blocks(compiled)
    x = torch.randn(5, 4)
    torch.testing.assert_close(compiled[0](x), plain[0](x))
    plain[0](x).sum().backward()
    compiled[0](x).sum().backward()
    pairs = zip(compiled.parameters(), plain.parameters(), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a.grad, b.grad)
    with torch.no_grad():
        assert torch.equal(compiled[0](x), plain[0](x))


def test_every_block_is_compiled_and_multi_token_prediction_too(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled.append(function))
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    compile_blocks(model)
    assert compiled == [block.forward for block in blocks]
    assert len(blocks) == 3
