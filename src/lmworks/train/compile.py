"""Compiles the blocks of a model with torch.compile, without making the user wait.

A run starts at once with the plain blocks. When what is left of it is worth a compilation, another
process compiles one block for the same shapes and fills the cache on disk; when that is done, this
process loads the machine code in a second or two and goes on with it. All blocks share one
compilation, and later runs of the same shape find it in the cache.

Compiled code rounds differently in the last bits. The step at which the run changed over is
therefore written into the run folder, and a resumed run changes over at the same step, so that its
losses are those of the uninterrupted one.

Only training uses the compiled blocks: evaluation and sampling see other shapes all the time.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Literal

import torch
from torch import nn

from lmworks.base.config import load
from lmworks.base.errors import ConfigError
from lmworks.base.storage import write_json
from lmworks.data.loader import Batch
from lmworks.models.decoder import Block, Decoder
from lmworks.train.blocks import replace_blocks
from lmworks.train.optim import build_optimizer
from lmworks.train.recipe import Recipe
from lmworks.train.state import round_parameters
from lmworks.train.step import TrainStep, recompute_activations

Mode = Literal["auto", "off", "on"]

_PROBE_STEPS = 3
"""Steps timed before `auto` decides."""
_MIN_REMAINING_S = 180.0
"""A compilation takes about a minute on the side and pays back a quarter of what is left."""
_NICENESS = 10
"""Of the compiling process: a tenth of the cores while training keeps them busy."""
_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


class Compilation:
    """Decides before each step whether the blocks of `model` run compiled from now on.

    Args:
        mode: `on` compiles before the first step; `off` never; `auto` as told above.
        recipe_file: resolved recipe, from which the other process builds the same block.
        record: JSON file that keeps the step of the change-over across sessions.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        mode: Mode,
        total_steps: int,
        recipe_file: Path,
        record: Path,
    ) -> None:
        self._model = model
        self._total_steps = total_steps
        self._recipe_file = recipe_file
        self._record = record
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._step_times_s: list[float] = []
        self._previous_s: float | None = None
        self._switch_step = _recorded_step(record)
        self._is_open = mode != "off"
        if mode == "on" and self._switch_step is None:
            self._switch_step = 0

    def before_step(self, step: int) -> str:
        """Call before the step that follows `step` finished ones; returns a line if one is due."""
        if not self._is_open:
            return ""
        if self._switch_step is not None:
            return self._switch(step) if step >= self._switch_step else ""
        return self._poll(step) if self._process is not None else self._consider(step)

    def close(self) -> None:
        """End a compilation that is still under way."""
        self._is_open = False
        if self._process is not None:
            self._process.terminate()
            self._end_process()

    def _consider(self, step: int) -> str:
        now_s = time.perf_counter()
        if self._previous_s is not None:
            self._step_times_s.append(now_s - self._previous_s)
        self._previous_s = now_s
        if len(self._step_times_s) < _PROBE_STEPS:
            return ""
        remaining_s = (self._total_steps - step) * statistics.median(self._step_times_s)
        if remaining_s < _MIN_REMAINING_S:
            self._is_open = False
            return ""
        if compiler() is None:
            self._is_open = False
            return "not compiling the model: no C++ compiler found"
        # A file, because a long message would fill a pipe that nobody reads and stop the process.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = _start(self._recipe_file, self._errors)
        return "compiling the model on the side"

    def _poll(self, step: int) -> str:
        assert self._process is not None, "polled only while a compilation runs"
        if self._process.poll() is None:
            return ""
        status, errors = self._end_process()
        if status == 0:
            return self._switch(step)
        self._is_open = False
        last_line = (errors.splitlines() or ["no message"])[-1]
        return f"going on uncompiled: the compilation failed ({last_line})"

    def _end_process(self) -> tuple[int, str]:
        """Wait for the process; its exit status and what it wrote to standard error."""
        assert self._process is not None, "ended only once"
        assert self._errors is not None, "opened with the process"
        status, self._process = self._process.wait(), None
        with self._errors as file:
            file.seek(0)
            return status, file.read().decode(errors="replace").strip()

    def _switch(self, step: int) -> str:
        if compiler() is None:
            raise ConfigError(
                "no C++ compiler found, and this run is compiled (train.compile=on, or "
                f"{self._record} says so); install g++ or clang++, or name one with CXX=PATH"
            )
        if self._switch_step is None:
            write_json(self._record, {"compiled_after_step": step})
        self._is_open = False
        compile_blocks(self._model)
        return f"compiled code from step {step + 1} on"


def compile_blocks(model: nn.Module) -> None:
    """Make every block run compiled while gradients are recorded, and as it stands otherwise.

    Recomputation in the backward pass, if it is there, stays outside the compiled code. Parameter
    names gain a `.block` part: build the optimizer first.
    """
    os.environ.setdefault(_CACHE_VARIABLE, str(_cache_folder()))
    replace_blocks(model, _CompiledInTraining)


def compiler() -> str | None:
    """Path of the C++ compiler that torch.compile would use."""
    names = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++", "c++"]
    return next((path for path in map(shutil.which, names) if path), None)


class _CompiledInTraining(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self._compiled: Callable[..., Any] = torch.compile(block.forward, dynamic=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return self._compiled(*args, **kwargs)
        return self.block(*args, **kwargs)


def _recorded_step(record: Path) -> int | None:
    if not record.exists():
        return None
    return int(json.loads(record.read_text(encoding="utf-8"))["compiled_after_step"])


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lmworks" / "compiled"


def _start(recipe_file: Path, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", __name__, str(recipe_file), str(torch.get_num_threads())]
    # A group of its own, so that Ctrl-C reaches training alone; not a session of its own, among
    # which Linux shares the cores evenly whatever their niceness.
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=errors, stdin=subprocess.DEVNULL,
        process_group=0,
    )  # fmt: skip


def _fill_cache(recipe_file: Path, num_threads: int) -> None:
    """Compile a block of each kind in the recipe's model: train one layer of each for one step."""
    torch.set_num_threads(num_threads)
    recipe = load(Recipe, recipe_file).config
    train = recipe.train
    model = Decoder(recipe.model.one_layer_of_each_kind())
    for block in model.modules():
        if isinstance(block, Block):
            block.skip_scale = recipe.model.skip_scale  # follows the depth of the whole model
    if train.precision == "bf16":
        round_parameters(model, torch.bfloat16)
    optimizer = build_optimizer(recipe.optim, model.named_parameters())
    if train.activation_checkpointing == "full":
        recompute_activations(model)
    compile_blocks(model)
    step = TrainStep(
        model,
        optimizer,
        micro_batch_size=train.micro_batch_size,
        num_micro_batches=train.batch_size // train.micro_batch_size,
        clip_norm=train.clip_norm,
        z_loss_weight=train.z_loss_weight,
    )
    tokens = torch.zeros(train.micro_batch_size, train.context_length, dtype=torch.int64).numpy()
    documents = tokens.astype("int32") if recipe.loader.separate_documents else None
    step(Batch(tokens, tokens, documents), lr=0.0)


if __name__ == "__main__":
    os.nice(_NICENESS)
    _fill_cache(Path(sys.argv[1]), int(sys.argv[2]))
