"""`lmworks tokenizer train`: learn a vocabulary from files, folders, URLs or standard input."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from lmworks.cli.faults import FAULTS_STATUS, add_on_error_option, print_faults
from lmworks.cli.parser import make_parser, pattern_names, positive_int
from lmworks.cli.signals import sigterm_unwinds

if TYPE_CHECKING:
    from lmworks.base.errors import DataError
    from lmworks.tokenizer.base import Tokenizer

_DESCRIPTION = """\
Learn a vocabulary from text: files, folders, globs, URLs (s3:// https:// zip:// ...), or - for
standard input. Text is UTF-8; .jsonl holds a document per line; both may be .gz or .zst."""

_EXAMPLES = """\
lmworks tokenizer train corpus.txt --vocab-size 10000 --out tokenizer.json
  lmworks tokenizer train books 'web/*.jsonl.zst' --vocab-size 32000 --out tokenizer.json \\
      --max-memory 8GB --resume-dir counts
  lmworks tokenizer train notes.txt --extend tokenizer.json --vocab-size 34000 --out larger.json
  zcat news.gz | lmworks tokenizer train - --mode huggingface --format hf --out tokenizer.json"""


def main(argv: list[str]) -> int:
    """Run `lmworks tokenizer train ...` and return its exit status."""
    args = _parser().parse_args(argv)
    _check(args)

    from lmworks.base.errors import LmworksError
    from lmworks.base.storage import check_writable
    from lmworks.tokenizer import save

    check_writable(args.out)
    start_s = time.monotonic()
    faults: list[DataError] = []
    on_fault = None if args.on_error == "stop" else faults.append
    try:
        with sigterm_unwinds(), _progress_bars() as bars:
            if args.kind == "bpe":
                tokenizer = _train_bpe(args, on_fault, bars)
            else:
                tokenizer = _train_other_kind(args, on_fault, bars)
    except KeyboardInterrupt:
        if args.resume_dir:
            print("the same command again goes on from the last save", file=sys.stderr)
        raise
    except LmworksError:
        # The error tells of a single fault itself.
        print_faults(faults if len(faults) > 1 else [])
        raise
    print_faults(faults)
    save(tokenizer, args.out, format=args.format)
    text = f"{bars.done_bytes / 1e6:,.1f} MB" + (", less what was left out," if faults else "")
    print(f"trained a {args.kind} tokenizer on {text} in {time.monotonic() - start_s:.1f} s")
    _print_result(args, tokenizer)
    return FAULTS_STATUS if faults and args.on_error == "fail" else 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("tokenizer train", _DESCRIPTION, _EXAMPLES)
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="text to learn from")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="file to write")
    parser.add_argument(
        "--format",
        choices=["lmworks", "hf", "tiktoken"],
        default="lmworks",
        help="our JSON, Hugging Face tokenizer.json or a tiktoken rank file (default: lmworks)",
    )
    _add_vocabulary_options(parser.add_argument_group("vocabulary"))
    _add_input_options(parser.add_argument_group("reading"))
    _add_work_options(parser.add_argument_group("work"))
    return parser


def _add_vocabulary_options(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add(
        "--vocab-size",
        type=positive_int,
        default=10_000,
        metavar="N",
        help="tokens, at most (default: 10000; the byte kind always has 256 and the special ones)",
    )
    add("--kind", choices=["bpe", "char", "byte", "word"], default="bpe", help="(default: bpe)")
    add(
        "--pattern",
        metavar="P",
        help=f"what cuts text into pieces: {pattern_names()}, or for bpe any regular expression "
        "(default: gpt2)",
    )
    add(
        "--special",
        nargs="*",
        metavar="TOKEN",
        help="special tokens: they split the text (default: <|endoftext|>)",
    )
    add(
        "--protect",
        nargs="+",
        default=[],
        metavar="TOKEN",
        help="tokens that are found in every text and never cut or merged",
    )
    add(
        "--seed",
        nargs="+",
        default=[],
        metavar="TOKEN",
        help="tokens that are in the vocabulary whatever the text holds",
    )
    add("--protect-file", type=Path, metavar="FILE", help="more of --protect, one per line")
    add("--seed-file", type=Path, metavar="FILE", help="more of --seed, one per line")
    add(
        "--mode",
        choices=["reference", "huggingface", "tiktoken"],
        help="order of ids and what is merged first of equally frequent pairs (default: "
        "reference, the greatest pair of byte strings)",
    )
    add(
        "--no-initial-alphabet",
        action="store_true",
        help="with --mode huggingface: bytes that the text lacks get ids behind all others",
    )
    add(
        "--min-frequency",
        type=positive_int,
        metavar="N",
        help="merge no pair that occurs less often (default: 1)",
    )
    add("--max-token-bytes", type=positive_int, metavar="N", help="make no longer token")
    add(
        "--extend",
        type=Path,
        metavar="TOKENIZER",
        help="add to this vocabulary and keep all its ids; --vocab-size counts all tokens",
    )


def _add_input_options(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add(
        "--text-field",
        default="text",
        metavar="F",
        help="JSON field or Parquet column of the text (default: text)",
    )
    add(
        "--input-form",
        choices=["text", "jsonl", "parquet"],
        help="what the inputs hold (default: by suffix; standard input: text)",
    )
    add_on_error_option(group)
    add(
        "--allow-invalid-utf8",
        action="store_true",
        help="learn from text that is not UTF-8 as from bytes",
    )


def _add_work_options(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--threads", type=positive_int, metavar="N", help="(default: every core)")
    add(
        "--max-memory",
        metavar="SIZE",
        help="of the counts, such as 2GB; beyond it they go to the disk (default: no limit)",
    )
    add("--spill-dir", type=Path, metavar="DIR", help="where to (default: the temporary folder)")
    add(
        "--resume-dir",
        type=Path,
        metavar="DIR",
        help="keep the counts here: a killed run goes on where it was, and a finished count serves "
        "other vocabulary sizes",
    )
    add(
        "--save-every",
        type=float,
        metavar="S",
        help="seconds between saves to --resume-dir (default: 60)",
    )


def _check(args: argparse.Namespace) -> None:
    """Options that contradict each other."""
    from lmworks.base.errors import ConfigError

    if args.kind != "bpe":
        if args.threads or args.allow_invalid_utf8:
            raise ConfigError(
                f"--threads and --allow-invalid-utf8 are of --kind bpe, not {args.kind}"
            )
        only_bpe = {
            "--protect": args.protect,
            "--protect-file": args.protect_file,
            "--seed": args.seed,
            "--seed-file": args.seed_file,
            "--mode": args.mode,
            "--no-initial-alphabet": args.no_initial_alphabet,
            "--min-frequency": args.min_frequency,
            "--max-token-bytes": args.max_token_bytes,
            "--extend": args.extend,
            "--max-memory": args.max_memory,
            "--resume-dir": args.resume_dir,
        }
        given = [name for name, value in only_bpe.items() if value]
        if given:
            raise ConfigError(f"{', '.join(given)}: only of --kind bpe, not {args.kind}")
        if args.format != "lmworks":
            raise ConfigError(f"--format {args.format} is of --kind bpe, not {args.kind}")
    if args.spill_dir and not args.max_memory:
        raise ConfigError("--spill-dir is used with --max-memory only; give both")
    if args.save_every is not None and not args.resume_dir:
        raise ConfigError("--save-every is used with --resume-dir only; give both")
    if args.format == "tiktoken" and (args.protect or args.protect_file):
        raise ConfigError(
            "--format tiktoken cannot express --protect; use --special, or --format hf"
        )


def _train_bpe(
    args: argparse.Namespace, on_fault: "Callable[[DataError], None] | None", bars: "_Bars"
) -> "Tokenizer":
    from lmworks.base.errors import ConfigError
    from lmworks.tokenizer import BPETokenizer, load, train_bpe

    extend = None if args.extend is None else load(args.extend)
    if not (extend is None or isinstance(extend, BPETokenizer)):
        raise ConfigError(f"--extend {args.extend}: a {extend.kind} tokenizer; only bpe grows")
    optional: dict[str, Any] = {
        "mode": args.mode,
        "min_frequency": args.min_frequency,
        "save_every_s": args.save_every,
    }
    return train_bpe(
        args.inputs,
        args.vocab_size,
        pattern=args.pattern,
        special_tokens=args.special,
        protected_tokens=[*args.protect, *_read_lines(args.protect_file)],
        seed_tokens=[*args.seed, *_read_lines(args.seed_file)],
        initial_alphabet=not args.no_initial_alphabet,
        max_token_bytes=args.max_token_bytes,
        extend=extend,
        max_memory=args.max_memory,
        spill_dir=args.spill_dir,
        num_threads=args.threads,
        text_field=args.text_field,
        input_form=args.input_form,
        allow_invalid_utf8=args.allow_invalid_utf8,
        on_fault=on_fault,
        resume_dir=args.resume_dir,
        progress=bars.report,
        **{name: value for name, value in optional.items() if value is not None},
    )


def _train_other_kind(
    args: argparse.Namespace, on_fault: "Callable[[DataError], None] | None", bars: "_Bars"
) -> "Tokenizer":
    from lmworks.base.sources import find_sources
    from lmworks.tokenizer.base import END_OF_TEXT
    from lmworks.tokenizer.compare import train_kind
    from lmworks.tokenizer.corpus import read_texts

    sources, faults = find_sources(args.inputs, form=args.input_form)
    for fault in faults:
        if on_fault is None:
            raise fault
        on_fault(fault)

    def texts() -> Iterator[str]:
        for text in read_texts(sources, text_field=args.text_field, on_fault=on_fault):
            yield text
            bars.report("count", bars.done_bytes + len(text.encode("utf-8")), 0)

    return train_kind(
        args.kind,
        texts(),
        vocab_size=args.vocab_size,
        pattern=args.pattern or "gpt2",
        special_tokens=[END_OF_TEXT] if args.special is None else args.special,
    )


def _read_lines(file: Path | None) -> list[str]:
    """The lines of a token list, without blank ones."""
    if file is None:
        return []
    from lmworks.tokenizer.compare import read_text

    return [line for line in read_text(file).split("\n") if line]


def _print_result(args: argparse.Namespace, tokenizer: "Tokenizer") -> None:
    if tokenizer.vocab_size < args.vocab_size and args.kind != "byte":
        print(f"  the text gives only {tokenizer.vocab_size:,} of the {args.vocab_size:,} tokens")
    print(
        f"  {args.out}  {tokenizer.vocab_size:,} tokens, fingerprint {tokenizer.fingerprint[:16]}"
    )
    if args.format != "tiktoken":
        print(f"next: lmworks tokenizer encode {quote(str(args.out))} 'Hello world' --show")


class _Bars:
    """One bar while counting bytes, then one while merging."""

    def __init__(self) -> None:
        self.done_bytes = 0
        self._bars: dict[str, Any] = {}

    def report(self, phase: str, done: int, total: int) -> None:
        """See train_bpe's `progress`."""
        if phase == "count":
            self.done_bytes = max(self.done_bytes, done)
        if phase not in self._bars:
            self.close()
            self._bars[phase] = _new_bar(phase, done)
        bar = self._bars[phase]
        bar.update(bar.task_ids[0], completed=done, total=total or None)

    def close(self) -> None:
        """Take the bars off the screen."""
        for bar in self._bars.values():
            bar.stop()


@contextmanager
def _progress_bars() -> Iterator[_Bars]:
    bars = _Bars()
    try:
        yield bars
    finally:
        bars.close()


def _new_bar(phase: str, done: int) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    is_count = phase == "count"
    amounts = (DownloadColumn(), TransferSpeedColumn()) if is_count else (MofNCompleteColumn(),)
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("counting" if is_count else "merging"),
        BarColumn(),
        *amounts,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        # Into a file or a pipe a transient bar would still write an empty line.
        disable=not console.is_terminal,
    )
    # What an earlier run has done says nothing about the speed of this one.
    bar.add_task("", total=None, completed=done)
    bar.start()
    return bar
