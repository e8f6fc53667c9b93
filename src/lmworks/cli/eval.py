"""`lmworks eval RUN`: loss, perplexity and bits per byte on held-out text.

With --task the figures are shares of right answers instead; that is in eval_task.py.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from lmworks.base.errors import ConfigError, DataError
from lmworks.cli.eval_task import run_task
from lmworks.cli.parser import make_parser, positive_int
from lmworks.cli.progress import progress_bar

if TYPE_CHECKING:
    from lmworks.data.shard import ShardSet
    from lmworks.models.pretrained import Run
    from lmworks.train.evaluate import Report


class Windows(TypedDict):
    """Arguments that both evaluation functions take."""

    stride: int
    context_length: int
    batch_size: int | None
    progress: Callable[[int, int], None]


def main(argv: list[str]) -> int:
    """Print the figures, as a table or as JSON."""
    args = _parser().parse_args(argv)
    _refuse_options_of_the_other(args)
    if args.task:
        return run_task(args)
    if args.text and args.separate_documents:
        raise ConfigError("--separate-documents: a text file is one document; leave it out")
    text = read_text(args.text) if args.text else None
    from lmworks.models.pretrained import open_run

    run = open_run(args.run)
    context_length, stride = _windows(run, args)
    # Not the option's default: argparse would let `--split val` pass beside --text.
    args.split = args.split or "val"
    what = str(args.text or f"{args.split} split")
    start = time.perf_counter()
    with progress_bar(f"scoring {what}") as progress:
        report = _evaluate(
            run,
            text,
            args,
            {
                "stride": stride,
                "context_length": context_length,
                "batch_size": args.batch_size,
                "progress": progress,
            },
        )
    row: dict[str, str | int | float] = {
        "run": str(args.run),
        "text": what,
        "loss": report.loss,
        "perplexity": report.perplexity,
        "bits_per_byte": report.bits_per_byte,
        "num_tokens": report.num_tokens,
        "num_bytes": report.num_bytes,
        "context_length": context_length,
        "stride": stride,
        "elapsed_s": time.perf_counter() - start,
    }
    print(json.dumps(row) if args.json else _table(row))
    return 0


def _refuse_options_of_the_other(args: argparse.Namespace) -> None:
    """ConfigError for an option that would do nothing."""
    only_text = {"stride": "--stride", "context": "--context"}
    only_text["separate_documents"] = "--separate-documents"
    only_task = {"limit": "--limit", "chat": "--chat", "output": "--output"}
    for name, option in (only_text if args.task else only_task).items():
        if getattr(args, name):
            other = "goes with --text and --split" if args.task else "goes with --task"
            raise ConfigError(f"{option}: {other} only; leave it out")


def read_text(file: Path) -> str:
    """The text of a UTF-8 file; DataError when it is missing, empty or not UTF-8."""
    try:
        data = file.read_bytes()
    except OSError as err:
        raise DataError(f"{file}: cannot be read ({err.strerror})") from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as err:
        raise DataError(
            f"{file}: not UTF-8: byte {err.start} is 0x{data[err.start]:02x}; convert the file"
            " first (iconv -f LATIN1 -t UTF-8)"
        ) from None
    if not text:
        raise DataError(f"{file}: the file is empty, there is nothing to score")
    return text


def _windows(run: "Run", args: argparse.Namespace) -> tuple[int, int]:
    """(context length, stride), checked before anything is computed."""
    from lmworks.eval.perplexity import window_sizes
    from lmworks.eval.start import start_of_text

    start = start_of_text(run.tokenizer, run.special_ids)
    is_repeated = start.is_repeated and args.text is not None
    return window_sizes(
        run.model,
        context_length=args.context,
        stride=args.stride,
        num_repeated=len(start.ids) if is_repeated else 0,
    )


def _evaluate(
    run: "Run", text: str | None, args: argparse.Namespace, windows: "Windows"
) -> "Report":
    from lmworks.eval.perplexity import evaluate_shards, evaluate_text

    if text is not None:
        return evaluate_text(run.model, run.tokenizer, text, special_ids=run.special_ids, **windows)
    shards = _open_split(run, args.split)
    return evaluate_shards(run.model, shards, separate_documents=args.separate_documents, **windows)


def _open_split(run: "Run", split: str) -> "ShardSet":
    """The run's own shards, or those that its recipe names."""
    from lmworks.data.shard import open_shards

    folder = run.path.parent.parent if run.path.parent.name == "checkpoints" else run.path
    shards = folder / "data" / split
    if not shards.is_dir() and (folder / "recipe.yaml").is_file():
        from lmworks.train.recipe import load_recipe

        data = load_recipe(folder / "recipe.yaml").config.data
        if data.kind == "shards":
            shards = Path(data.val if split == "val" else data.train)
    if not shards.is_dir():
        raise ConfigError(
            f"{folder}: has no {split} data (no folder {shards}); score a text file instead: "
            "--text FILE"
        )
    return open_shards(shards, tokenizer_fingerprint=run.tokenizer.fingerprint)


def _table(row: dict[str, str | int | float]) -> str:
    lines = [
        ("loss", f"{row['loss']:.4f} nats/token"),
        ("perplexity", f"{row['perplexity']:.3f} per token"),
        ("bits per byte", f"{row['bits_per_byte']:.4f}"),
        ("scored", f"{row['num_tokens']:,} tokens, {row['num_bytes']:,} bytes of {row['text']}"),
        ("windows", f"{row['context_length']} tokens, stride {row['stride']}"),
        ("time", f"{row['elapsed_s']:.1f} s"),
    ]
    return "\n".join(f"{name:<14} {value}" for name, value in lines)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "eval",
        "Loss, perplexity and bits per byte of a trained model on text it has not seen;\n"
        "with --task its share of right answers.",
        "lmworks eval runs/demo --text examples/text/other.txt --stride 64 --json",
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="run, checkpoint, model folder or .gguf file")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--split", choices=("val", "train"), help="the run's own data (default: val)"
    )
    source.add_argument("--text", type=Path, metavar="FILE", help="a UTF-8 text file instead")
    source.add_argument(
        "--task",
        type=Path,
        metavar="FILE.jsonl",
        help="questions instead, one JSON object per line: context, choices and label, or prompt"
        " and answer",
    )
    add(
        "--stride",
        type=positive_int,
        metavar="N",
        help="tokens scored per window; smaller gives each token more context and takes longer"
        " (default: the context)",
    )
    add(
        "--context",
        type=positive_int,
        metavar="N",
        help="tokens per window (default: the model's max_seq_len)",
    )
    add(
        "--batch-size",
        type=positive_int,
        metavar="N",
        help="windows at once (default: some 8,000 tokens' worth); with --task choices at once"
        " (default: 8)",
    )
    add(
        "--separate-documents",
        action="store_true",
        help="with --split: hide each document from the next",
    )
    add("--limit", type=positive_int, metavar="N", help="with --task: the first N questions only")
    add(
        "--chat",
        action="store_true",
        help="with --task: ask in the format of the model's chat template",
    )
    add(
        "--output",
        type=Path,
        metavar="FILE.jsonl",
        help="with --task: write what became of each question",
    )
    add("--json", action="store_true", help="one line of JSON")
    return parser
