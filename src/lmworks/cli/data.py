"""`lmworks data pack` and `lmworks data inspect`: text to token shards, and a look at them."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from lmworks.cli.faults import FAULTS_STATUS, add_on_error_option, print_faults
from lmworks.cli.parser import make_parser, positive_int
from lmworks.cli.signals import sigterm_unwinds

if TYPE_CHECKING:
    from lmworks.base.errors import DataError
    from lmworks.data.pack import PackReport
    from lmworks.data.shard import Manifest, ShardSet
    from lmworks.tokenizer.base import Tokenizer

_HELP = """usage: lmworks data COMMAND [options]

commands:
  pack     tokenize text files into shards for training
  inspect  what a shard folder holds, and whether it is intact

`lmworks data COMMAND --help` shows a command's options and an example."""


def main(argv: list[str]) -> int:
    """Run `lmworks data ...` and return its exit status."""
    commands = {"pack": _pack, "inspect": _inspect}
    if not argv or argv[0] in ("-h", "--help"):
        print(_HELP)
        return 0
    if argv[0] not in commands:
        print(f"error: no command 'data {argv[0]}'; known: inspect, pack", file=sys.stderr)
        return 2
    return commands[argv[0]](argv[1:])


def _pack(argv: list[str]) -> int:
    args = _pack_parser().parse_args(argv)
    from lmworks import tokenizer as tokenizers
    from lmworks.data.pack import pack

    tokenizer = tokenizers.load(args.tokenizer)
    faults: list[DataError] = []
    try:
        with sigterm_unwinds(), _progress_bar() as progress:
            report = pack(
                args.inputs,
                args.out,
                tokenizer,
                val_fraction=args.val_fraction,
                piece_chars=None if args.whole_documents else args.piece_chars,
                num_threads=args.threads,
                max_shard_tokens=args.shard_tokens,
                text_field=args.text_field,
                overwrite=args.overwrite,
                on_fault=None if args.on_error == "stop" else faults.append,
                progress=progress,
            )
    finally:
        print_faults(faults)
    _print_report(report, args.tokenizer)
    return FAULTS_STATUS if faults and args.on_error == "fail" else 0


def _inspect(argv: list[str]) -> int:
    args = _inspect_parser().parse_args(argv)
    from lmworks import tokenizer as tokenizers
    from lmworks.data.shard import open_shards

    tokenizer = tokenizers.load(args.tokenizer) if args.tokenizer else None
    for folder in _shard_folders(args.folder):
        shards = open_shards(
            folder,
            tokenizer_fingerprint=tokenizer.fingerprint if tokenizer else None,
            verify=args.verify,
        )
        _print_shards(folder, shards, tokenizer, args)
    return 0


def _pack_parser() -> argparse.ArgumentParser:
    from lmworks.data.pack import DEFAULT_PIECE_CHARS
    from lmworks.data.shard import DEFAULT_MAX_SHARD_TOKENS

    parser = make_parser(
        "data pack",
        "Tokenize text (.txt and .jsonl, also as .gz and .zst) into token shards: files,\n"
        "directories, globs, URLs, - for standard input. The output folder appears whole or not\n"
        "at all.",
        "lmworks data pack examples/text --tokenizer tokenizer.json --out tokens"
        " --val-fraction 0.05",
    )
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="text file, directory, glob, URL or -")
    add("--tokenizer", required=True, type=Path, metavar="FILE", help="tokenizer file")
    add("--out", required=True, type=Path, metavar="DIR", help="folder to create")
    add(
        "--val-fraction",
        type=float,
        default=0.0,
        metavar="F",
        help="share of the text held out into DIR/val, chosen by a hash of the text; the rest goes"
        " to DIR/train (default: 0, all in DIR)",
    )
    cutting = parser.add_mutually_exclusive_group()
    cutting.add_argument(
        "--piece-chars",
        type=positive_int,
        default=DEFAULT_PIECE_CHARS,
        metavar="N",
        help="with --val-fraction, deal out longer documents in pieces of about N characters, cut"
        f" at blank lines (default: {DEFAULT_PIECE_CHARS:,})",
    )
    cutting.add_argument("--whole-documents", action="store_true", help="never cut a document")
    add(
        "--threads",
        type=positive_int,
        metavar="N",
        help="(default: every core; the output does not depend on it)",
    )
    add_on_error_option(parser)
    add(
        "--shard-tokens",
        type=positive_int,
        default=DEFAULT_MAX_SHARD_TOKENS,
        metavar="N",
        help=f"tokens per shard, about (default: {DEFAULT_MAX_SHARD_TOKENS:,})",
    )
    add(
        "--text-field",
        default="text",
        metavar="F",
        help="JSON field or Parquet column of the text (default: text)",
    )
    add("--overwrite", action="store_true", help="replace DIR if it holds token shards already")
    return parser


def _inspect_parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "data inspect",
        "Show what a folder of token shards holds. File sizes are always checked.",
        "lmworks data inspect tokens --tokenizer tokenizer.json --verify",
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="what `lmworks data pack` wrote")
    add("--tokenizer", type=Path, metavar="FILE", help="decode the first tokens with it")
    add("--tokens", type=positive_int, default=64, metavar="N", help="how many (default: 64)")
    add("--verify", action="store_true", help="read everything and compare the checksums")
    return parser


@contextmanager
def _progress_bar() -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("tokenizing"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_report(report: "PackReport", tokenizer_file: Path) -> None:
    from rich.filesize import decimal

    speed_mb = report.text_bytes / 1e6 / report.elapsed_s
    print(
        f"packed {report.num_documents:,} documents, {decimal(report.text_bytes)} of text, into"
        f" {report.num_tokens:,} tokens: {report.bytes_per_token:.2f} bytes/token,"
        f" {speed_mb:.3g} MB/s, {report.elapsed_s:.1f} s"
    )
    for folder, manifest in report.manifests.items():
        share = manifest.text_bytes / max(1, report.text_bytes)
        print(f"  {folder}  {_summary(manifest)}  ({share:.1%} of the text)")
    first = next(iter(report.manifests))
    out = first if len(report.manifests) == 1 else first.parent
    print(f"next: lmworks data inspect {quote(str(out))} --tokenizer {quote(str(tokenizer_file))}")


def _summary(manifest: "Manifest") -> str:
    shards = f"{len(manifest.shards)} shard{'s' if len(manifest.shards) != 1 else ''}"
    return f"{manifest.num_documents:,} documents, {manifest.num_tokens:,} tokens, {shards}"


def _shard_folders(folder: Path) -> list[Path]:
    """The folder itself, or its train and val parts when `pack` split it."""
    from lmworks.data.shard import MANIFEST_NAME

    if (folder / MANIFEST_NAME).is_file():
        return [folder]
    parts = [folder / name for name in ("train", "val")]
    return [part for part in parts if (part / MANIFEST_NAME).is_file()] or [folder]


def _print_shards(
    folder: Path, shards: "ShardSet", tokenizer: "Tokenizer | None", args: argparse.Namespace
) -> None:
    manifest = shards.manifest
    rows = {
        "documents": f"{manifest.num_documents:,}",
        "tokens": f"{manifest.num_tokens:,}, as {manifest.dtype}",
        "text": f"{manifest.text_bytes:,} bytes, {manifest.bytes_per_token:.2f} bytes/token",
        "tokenizer": f"{manifest.tokenizer_kind}, vocab_size {manifest.vocab_size:,}, largest id"
        f" {manifest.max_token_id:,}, fingerprint {manifest.tokenizer_fingerprint[:16]}",
        "sources": _few(manifest.sources),
        "shards": f"{len(manifest.shards)}, "
        + ("every checksum matches" if args.verify else "sizes match (--verify reads them all)"),
    }
    ids = shards.read(0, min(args.tokens, shards.num_tokens))
    if tokenizer is not None:
        rows["begins"] = repr(tokenizer.decode(ids.tolist()))
    else:
        rows["begins"] = " ".join(map(str, ids.tolist())) + "  (--tokenizer FILE decodes them)"
    print(folder)
    for name, text in rows.items():
        print(f"  {name:<10} {text}")


def _few(sources: tuple[str, ...]) -> str:
    shown = ", ".join(sources[:4])
    return f"{shown} and {len(sources) - 4} more" if len(sources) > 4 else shown
