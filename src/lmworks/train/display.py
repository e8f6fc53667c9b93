"""What the user sees while a run trains: a live line on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from lmworks.plan.time import readable_time

PLAIN_EVERY_S = 10.0
"""Seconds between two plain progress lines."""
_SMOOTHING = 0.95
"""Weight of the past in the shown speed; the metrics file has the raw one."""


class Display(Protocol):
    """Shows progress and messages; a context manager."""

    def __enter__(self) -> "Display": ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def progress(
        self,
        step: int,
        *,
        loss: float,
        tokens_per_s: float,
        mfu: float,
        lr: float,
        balance: float | None = None,
    ) -> None:
        """`balance`: entropy of the experts' loads over that of even ones, where there are any."""

    def message(self, text: str) -> None: ...


def open_display(total_steps: int, first_step: int) -> Display:
    """A live display if standard output is a terminal, else plain lines."""
    if sys.stdout.isatty():
        return _Live(total_steps, first_step)
    return _Plain(total_steps)


class _Speed:
    """Smoothed seconds per step, for the time left."""

    def __init__(self, total_steps: int) -> None:
        self._total_steps = total_steps
        self._last_s: float | None = None
        self._step_s: float | None = None

    def left(self, step: int) -> str:
        """Time left after `step`, from the wall time between calls (evaluations included)."""
        now_s = time.perf_counter()
        if self._last_s is not None:
            took_s = now_s - self._last_s
            old_s = took_s if self._step_s is None else self._step_s
            self._step_s = _SMOOTHING * old_s + (1 - _SMOOTHING) * took_s
        self._last_s = now_s
        if self._step_s is None:
            return "?"
        return readable_time(self._step_s * (self._total_steps - step))


class _Plain:
    def __init__(self, total_steps: int) -> None:
        self._total_steps = total_steps
        self._speed = _Speed(total_steps)
        self._printed_s = float("-inf")

    def __enter__(self) -> "_Plain":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def progress(
        self,
        step: int,
        *,
        loss: float,
        tokens_per_s: float,
        mfu: float,
        lr: float,
        balance: float | None = None,
    ) -> None:
        left = self._speed.left(step)
        now_s = time.perf_counter()
        if now_s - self._printed_s < PLAIN_EVERY_S and step < self._total_steps:
            return
        self._printed_s = now_s
        self.message(
            f"step {step}/{self._total_steps}  loss {loss:.3f}  {tokens_per_s:,.0f} tokens/s  "
            f"MFU {mfu:.1%}  lr {lr:.2e}{_experts(balance)}  left {left}"
        )

    def message(self, text: str) -> None:
        print(text, flush=True)


class _Live:
    def __init__(self, total_steps: int, first_step: int) -> None:
        self._speed = _Speed(total_steps)
        self._progress = Progress(
            TextColumn("[bold]step {task.completed}/{task.total}"),
            BarColumn(bar_width=None),
            TextColumn("loss [bold]{task.fields[loss]}[/]"),
            TextColumn("{task.fields[speed]} tokens/s"),
            TextColumn("MFU {task.fields[mfu]}"),
            TextColumn("lr {task.fields[lr]}{task.fields[experts]}"),
            TextColumn("left {task.fields[left]}"),
            console=Console(),
            expand=True,
        )
        self._task = self._progress.add_task(
            "",
            total=total_steps,
            completed=first_step,
            loss="-",
            speed="-",
            mfu="-",
            lr="-",
            experts="",
            left="?",
        )

    def __enter__(self) -> "_Live":
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def progress(
        self,
        step: int,
        *,
        loss: float,
        tokens_per_s: float,
        mfu: float,
        lr: float,
        balance: float | None = None,
    ) -> None:
        self._progress.update(
            self._task,
            completed=step,
            loss=f"{loss:.3f}",
            speed=f"{tokens_per_s:,.0f}",
            mfu=f"{mfu:.1%}",
            lr=f"{lr:.2e}",
            experts=_experts(balance),
            left=self._speed.left(step),
        )

    def message(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)


def _experts(balance: float | None) -> str:
    return "" if balance is None else f"  experts {balance:.0%} even"
