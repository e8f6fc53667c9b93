"""The training loop: steps, and what happens between them.

    outcome = train(RunFolder("runs/demo"), sampler=sampler)

After each step, in this order: numbers to metrics.jsonl; then, when due, evaluation, samples and a
checkpoint. A signal stops the run after the step and saves; a loss that is not finite stops it with
the state before the step saved for replay. None of these touches the random state or the data
position that the next step sees, so a resumed run repeats the uninterrupted one bit for bit.
"""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch

from lmworks.base.config import load
from lmworks.base.errors import StorageError, TrainingError
from lmworks.data.shard import ShardSet, open_shards
from lmworks.models.decoder import Decoder
from lmworks.models.pretrained import load_pretrained
from lmworks.tokenizer import Tokenizer
from lmworks.tokenizer import load as load_tokenizer
from lmworks.train.accelerate import configure
from lmworks.train.checkpoint import (
    FAILED_PREFIX,
    Best,
    CheckpointStore,
    Snapshot,
    write_snapshot,
)
from lmworks.train.compile import Compilation
from lmworks.train.display import Display, open_display
from lmworks.train.evaluate import evaluate, token_byte_counts
from lmworks.train.memory import explain_out_of_memory
from lmworks.train.metrics import MetricsLog, open_sinks, truncate_metrics
from lmworks.train.prepare import shard_folders
from lmworks.train.recipe import Recipe, SampleConfig
from lmworks.train.run_folder import RunFolder
from lmworks.train.signals import StopRequest, stop_on_signals
from lmworks.train.state import TrainingState
from lmworks.train.step import NonFiniteError, StepReport, TrainStep

Sampler = Callable[[Decoder, Tokenizer, SampleConfig], list[str]]
"""Continues each prompt; given from outside because generation is a layer of its own (serve)."""


@dataclass(frozen=True)
class Outcome:
    """How a session of training ended."""

    step: int
    total_steps: int
    signal: signal.Signals | None
    """The signal that stopped it, or None when the run is finished."""


def train(
    run: RunFolder,
    *,
    sampler: Sampler,
    resume_from: str | None = None,
    display: Display | None = None,
) -> Outcome:
    """Train a prepared run from its newest checkpoint (or `resume_from`, or the start) to its end.

    Raises:
        TrainingError: the loss is not finite, or memory ran out.
        StorageError: a checkpoint or metrics could not be written; older checkpoints are intact.
        CheckpointError: the checkpoint to resume from is missing, damaged or of another model.
    """
    recipe = load(Recipe, run.recipe).config
    with run.lock(), _determinism(recipe):
        trainer = Trainer(run, recipe, sampler=sampler, resume_from=resume_from)
        shown = display or open_display(trainer.total_steps, trainer.state.step)
        with contextlib.closing(trainer), stop_on_signals() as stop, shown:
            return trainer.run_steps(stop, shown)


class Trainer:
    """One session of a run. Construction restores the checkpoint; `run_steps` trains to the end."""

    def __init__(
        self, run: RunFolder, recipe: Recipe, *, sampler: Sampler, resume_from: str | None = None
    ) -> None:
        self.run = run
        self.recipe = recipe
        self.total_steps = recipe.train.total_steps
        self.tokenizer = load_tokenizer(run.tokenizer)
        self.sampler = sampler
        self.store = CheckpointStore(
            run.checkpoints,
            keep_last=recipe.checkpoint.keep_last,
            keep_best=recipe.checkpoint.keep_best,
        )
        self.store.clean()
        train_shards, self.val_shards = open_run_shards(run, recipe, self.tokenizer)
        resume_from = resume_from or self.store.latest()
        with explain_out_of_memory(recipe):
            is_fresh = resume_from is None and recipe.train.init_from != ""
            weights = load_pretrained(recipe.train.init_from).state_dict() if is_fresh else None
            self.state = TrainingState(recipe, train_shards, weights=weights)
        self._restore(resume_from)
        self._saved_step = self.state.step
        self._flops_per_token = recipe.model.flops_per_token(
            recipe.train.context_length, training=True
        )
        self._peak_flops_per_s = configure(recipe.train.precision).peak_flops_per_s
        self._token_bytes = token_byte_counts(self.tokenizer)
        self._evaluated: Best | None = None
        self._step = TrainStep(
            self.state.model,
            self.state.optimizer,
            micro_batch_size=recipe.train.micro_batch_size,
            num_micro_batches=recipe.train.batch_size // recipe.train.micro_batch_size,
            clip_norm=recipe.train.clip_norm,
            z_loss_weight=recipe.train.z_loss_weight,
        )
        is_timed = recipe.train.compile == "auto"
        self._compilation = Compilation(
            self.state.model,
            # When a compilation ends depends on the clock, which deterministic runs must not see.
            mode="off" if recipe.train.deterministic and is_timed else recipe.train.compile,
            total_steps=self.total_steps,
            recipe_file=run.recipe,
            record=run.compiled,
        )
        self.log = MetricsLog(
            run.path,
            open_sinks(
                run.path,
                recipe.log,
                config=recipe.model_dump(mode="json"),
                next_step=self.state.step + 1,
            ),
        )

    def run_steps(self, stop: StopRequest, display: Display) -> Outcome:
        """Train until the last step or a stop request; the end is always saved."""
        state = self.state
        self._started_s = time.perf_counter() - state.elapsed_s
        self._event("started" if state.step == 0 else "resumed")
        with explain_out_of_memory(self.recipe):
            while state.step < self.total_steps and not stop:
                if note := self._compilation.before_step(state.step):
                    self._event(note)
                    display.message(note)
                self._train_one_step(display)
                self._between_steps(display)
        if state.step > self._saved_step:
            self._save()
        self._event("finished" if state.step >= self.total_steps else "stopped")
        return Outcome(state.step, self.total_steps, stop.signal)

    def close(self) -> None:
        """Close the logs and end a compilation that is under way."""
        self._compilation.close()
        self.log.close()

    def _train_one_step(self, display: Display) -> None:
        state, recipe = self.state, self.recipe
        began_s = time.perf_counter()
        lr = recipe.schedule.lr_at(state.step, self.total_steps, recipe.optim.lr_peak)
        before = state.loader.state_dict(), state.random_state()
        state.model.train()
        try:
            report = self._step(state.loader.next_batch(), lr=lr)
        except NonFiniteError as err:
            self._fail(err, *before)
        state.step += 1
        state.tokens += report.num_tokens
        now_s = time.perf_counter()
        state.elapsed_s = now_s - self._started_s
        self._log_step(report, lr, now_s - began_s, display)

    def _log_step(self, report: StepReport, lr: float, took_s: float, display: Display) -> None:
        tokens_per_s = self.recipe.train.tokens_per_step / took_s
        mfu = tokens_per_s * self._flops_per_token / self._peak_flops_per_s
        self.log.write(
            "train",
            self.state.step,
            tokens=self.state.tokens,
            loss=report.loss,
            z_loss=report.z_loss,
            **{f"mtp_loss_{k}": loss for k, loss in enumerate(report.mtp_losses, start=1)},
            **({} if report.routing is None else report.routing.scalars()),
            lr=lr,
            grad_norm=report.grad_norm,
            tokens_per_s=round(tokens_per_s, 1),
            mfu=round(mfu, 4),
            elapsed_s=round(self.state.elapsed_s, 3),
        )
        balance = None
        if report.routing is not None:
            balance = report.routing.scalars()["load_entropy"]
            if self.state.step % self.recipe.log.routing_every == 0:
                self.log.write("routing", self.state.step, **report.routing.table())
        display.progress(
            self.state.step,
            loss=report.loss,
            tokens_per_s=tokens_per_s,
            mfu=mfu,
            lr=lr,
            balance=balance,
        )

    def _between_steps(self, display: Display) -> None:
        step, recipe = self.state.step, self.recipe
        is_last = step >= self.total_steps
        with unchanged_random_state():
            if is_last or step % recipe.eval.every == 0:
                self._evaluate(display)
            if recipe.sample.prompts and (is_last or step % recipe.sample.every == 0):
                self._sample(display)
        if is_last or step % recipe.checkpoint.every == 0:
            self._save()

    def _evaluate(self, display: Display) -> None:
        report = evaluate(
            self.state.model,
            self.val_shards,
            batch_size=self.recipe.train.micro_batch_size,
            context_length=self.recipe.train.context_length,
            token_bytes=self._token_bytes,
            max_batches=self.recipe.eval.max_batches,
            separate_documents=self.recipe.loader.separate_documents,
        )
        step = self.state.step
        if not math.isfinite(report.loss):
            raise TrainingError(
                f"step {step}: the held-out loss is {report.loss}, so this step is not saved; "
                f"{self._safe_step()}"
            )
        self._evaluated = Best(step, report.loss)
        self.log.write("eval", step, loss=report.loss, bits_per_byte=report.bits_per_byte)
        display.message(
            f"step {step}  held-out loss {report.loss:.4f}  {report.bits_per_byte:.4f} bits/byte"
        )

    def _sample(self, display: Display) -> None:
        prompts = self.recipe.sample.prompts
        self.state.model.eval()
        texts = self.sampler(self.state.model, self.tokenizer, self.recipe.sample)
        for prompt, text in zip(prompts, texts, strict=True):
            self.log.write("sample", self.state.step, prompt=prompt, text=text)
            display.message(f"step {self.state.step}  sample: {prompt}{text}".rstrip())

    def _save(self) -> None:
        # Only a step that is saved can be the best checkpoint, however good one in between was.
        self.state.best = better(self.state.best, self._evaluated, saved_step=self.state.step)
        try:
            # First, so that no power cut leaves a checkpoint without the numbers that led to it.
            self.log.sync()
            self.store.save(self.state.snapshot())
        except StorageError as err:
            raise StorageError(f"{err}; {self._safe_step()}") from err
        self._saved_step = self.state.step
        self._event("checkpoint")

    def _safe_step(self) -> str:
        latest = self.store.latest()
        if latest is None:
            return "no checkpoint has been written yet: the run starts again from step 0"
        return f"{latest} is safe: lmworks train --resume {self.run.path}"

    def _fail(self, err: NonFiniteError, loader: dict[str, Any], rng: dict[str, Any]) -> NoReturn:
        """Save the state before the failed step, from which it can be replayed, and stop."""
        failed = self.state.step + 1
        name = f"{FAILED_PREFIX}{failed}"
        now = self.state.snapshot()
        before: Snapshot = replace(now, rng=rng, progress=replace(now.progress, loader=loader))
        self.store.discard(name)
        try:
            path = write_snapshot(self.run.checkpoints / name, before)
        except StorageError as full:
            raise TrainingError(
                f"step {failed}: {err}; the state before it could not be kept for a replay "
                f"({full}); {self._safe_step()}"
            ) from full
        self._event(f"failed: {err}")
        first, size = loader["position"], self.recipe.train.batch_size
        raise TrainingError(
            f"step {failed}: {err}; no weight was changed. Its batch is windows {first} to "
            f"{first + size - 1} of the data; {path} holds the state before it. Replay it with: "
            f"lmworks train --resume {self.run.path} --from {name}. "
            "A lower optim.lr_peak, a longer warm-up or train.clip_norm usually helps"
        ) from None

    def _restore(self, name: str | None) -> None:
        """Go to the checkpoint, and drop the metrics that came after it."""
        if name is not None:
            self.state.restore(self.store.load(name), where=str(self.run.checkpoints / name))
            if not name.startswith(FAILED_PREFIX):
                self.store.point_latest_at(name)
        truncate_metrics(self.run.path, after_step=self.state.step)

    def _event(self, event: str) -> None:
        self.log.write("event", self.state.step, event=event)


def open_run_shards(
    run: RunFolder, recipe: Recipe, tokenizer: Tokenizer
) -> tuple[ShardSet, ShardSet]:
    """The training and evaluation tokens of a run, checked against its tokenizer."""
    train_folder, val_folder = shard_folders(run, recipe)
    return (
        open_shards(train_folder, tokenizer_fingerprint=tokenizer.fingerprint),
        open_shards(val_folder, tokenizer_fingerprint=tokenizer.fingerprint),
    )


def better(best: Best | None, evaluated: Best | None, *, saved_step: int) -> Best | None:
    """The best saved step, when `saved_step` is saved and `evaluated` is the newest evaluation."""
    if evaluated is None or evaluated.step != saved_step:
        return best
    return evaluated if best is None or evaluated.loss < best.loss else best


@contextlib.contextmanager
def unchanged_random_state() -> Iterator[None]:
    """Whatever is drawn inside leaves torch's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        yield


@contextlib.contextmanager
def _determinism(recipe: Recipe) -> Iterator[None]:
    """Within it, deterministic recipes refuse operations that may differ from run to run."""
    if not recipe.train.deterministic:
        # torch's switch imports its compiler, which takes seconds, even to stay off.
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
