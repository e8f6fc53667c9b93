"""`lmworks convert SOURCE TARGET --to hf|lmworks|gguf`: the same model in another form."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lmworks.base.config import suggest
from lmworks.base.errors import ConfigError
from lmworks.base.sizes import parse_bytes
from lmworks.cli.parser import make_parser

if TYPE_CHECKING:
    from lmworks.models.convert import Form

FORMS: tuple["Form", ...] = ("hf", "lmworks", "gguf")


def main(argv: list[str]) -> int:
    """Write the target."""
    args = _parser().parse_args(argv)
    form = _form(args.to or ("gguf" if args.target.suffix == ".gguf" else ""))
    from lmworks.models.convert import convert

    run = convert(
        args.source,
        args.target,
        to=form,
        tensor_type=args.dtype.lower(),
        max_shard_bytes=parse_bytes(args.max_shard, "--max-shard"),
    )
    print(
        f"{args.target}: {run.model.num_params() / 1e6:.1f} M parameters, "
        f"{run.tokenizer.vocab_size} tokens"
        f"{'' if run.chat_template is None else ', chat template'}",
        file=sys.stderr,
    )
    return 0


def _form(name: str) -> "Form":
    for form in FORMS:
        if form == name:
            return form
    what = f"--to {name}: not a form" if name else "--to is missing"
    raise ConfigError(f"{what}{suggest(name, FORMS)}")


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "convert",
        "Write a model in another form. Tokenizer and chat template come along.",
        "lmworks convert runs/demo out/demo-hf --to hf --dtype bf16",
    )
    add = parser.add_argument
    add("source", type=Path, metavar="SOURCE", help="run, checkpoint, model folder or .gguf file")
    add("target", type=Path, metavar="TARGET", help="new folder, or new file for gguf")
    add("--to", default="", metavar="FORM", help="hf|lmworks|gguf (default: by a name in .gguf)")
    add(
        "--dtype",
        default="",
        metavar="TYPE",
        help="fp32|fp16|bf16, for gguf also q8_0|q4_0|q4_1 (default: as the source is stored)",
    )
    add("--max-shard", default="5GB", metavar="SIZE", help="most bytes per file, for hf")
    return parser
