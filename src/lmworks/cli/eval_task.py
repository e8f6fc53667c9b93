"""`lmworks eval RUN --task FILE.jsonl`: the share of questions that a model answers rightly."""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmworks.base.errors import DataError
from lmworks.base.storage import check_writable, write_text
from lmworks.cli.progress import progress_bar
from lmworks.eval.task_file import read_task

if TYPE_CHECKING:
    from lmworks.eval.task import Figure, Outcome

_NAMES = {
    "acc": "accuracy",
    "acc_bytes": "accuracy, per byte",
    "acc_tokens": "accuracy, per token",
    "exact_match": "exact match",
}
_DEFAULT_BATCH_SIZE = 8


def run_task(args: argparse.Namespace) -> int:
    """Print the figures, as a table or as JSON; write what became of each question."""
    items = read_task(args.task, limit=args.limit)
    if args.output:
        check_writable(args.output)
    from lmworks.eval.task import answers, chance, summary
    from lmworks.models.pretrained import open_run

    run = open_run(args.run)
    start = time.perf_counter()
    outcomes: list[Outcome] = []
    batch_size = args.batch_size or _DEFAULT_BATCH_SIZE
    with progress_bar(f"answering {args.task}") as progress:
        try:
            for outcome in answers(run, items, batch_size=batch_size, uses_chat=args.chat):
                outcomes.append(outcome)
                progress(len(outcomes), len(items))
        except DataError as err:
            raise DataError(f"{args.task}: {err}") from None
    elapsed_s = time.perf_counter() - start
    if args.output:
        _write(args.output, outcomes)
    figures, guessed = summary(outcomes), chance(items.values())
    num_cut = sum(outcome.is_cut for outcome in outcomes)
    if args.json:
        row = {"run": str(args.run), "task": str(args.task)} | _values(figures)
        row |= {"chance": guessed} if guessed is not None else {}
        row |= {"num_items": len(outcomes), "num_cut": num_cut, "elapsed_s": elapsed_s}
        print(json.dumps(row))
    else:
        print(_table(figures, guessed))
        cut = f", {num_cut} of them cut to fit the context" if num_cut else ""
        print(f"{'questions':<20} {len(outcomes):,}{cut}, {elapsed_s:.1f} s")
    return 0


def _write(file: Path, outcomes: "Sequence[Outcome]") -> None:
    lines = []
    for outcome in outcomes:
        row = asdict(outcome)
        lines.append(json.dumps(row | row.pop("details"), ensure_ascii=False) + "\n")
    write_text(file, "".join(lines))


def _values(figures: "dict[str, Figure]") -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, figure in figures.items():
        row |= {name: figure.value, f"{name}_stderr": figure.stderr}
    return row


def _table(figures: "dict[str, Figure]", guessed: float | None) -> str:
    lines = []
    for name, figure in figures.items():
        tail = f"   (guessing: {guessed:.3f})" if name == "acc" and guessed is not None else ""
        lines.append(
            f"{_NAMES[name]:<20} {figure.value:.3f} ± {figure.stderr:.3f} of "
            f"{figure.num_items:,}{tail}"
        )
    return "\n".join(lines)
