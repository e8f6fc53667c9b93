"""`lmworks tokenizer train|encode|decode|compare|inspect`: text to token ids and back."""

import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from lmworks.cli import tokenizer_train
from lmworks.cli.parser import make_parser, pattern_names, positive_int

if TYPE_CHECKING:
    from lmworks.tokenizer.base import Tokenizer
    from lmworks.tokenizer.template import Template, TemplateItem

_HELP = """usage: lmworks tokenizer COMMAND [options]

commands:
  train    learn a vocabulary from text files
  encode   text to token ids
  decode   token ids to text
  compare  byte, character, word and BPE tokenizers on one file
  inspect  what a tokenizer file holds

`lmworks tokenizer COMMAND --help` shows a command's options and an example."""

_COLORS = ("black on bright_cyan", "black on bright_yellow", "black on bright_green")


def main(argv: list[str]) -> int:
    """Run `lmworks tokenizer ...` and return its exit status."""
    commands = {
        "train": tokenizer_train.main,
        "encode": _encode,
        "decode": _decode,
        "compare": _compare,
        "inspect": _inspect,
    }
    if not argv or argv[0] in ("-h", "--help"):
        print(_HELP)
        return 0
    if argv[0] not in commands:
        known = ", ".join(commands)
        print(f"error: no command 'tokenizer {argv[0]}'; known: {known}", file=sys.stderr)
        return 2
    return commands[argv[0]](argv[1:])


def _encode(argv: list[str]) -> int:
    parser = make_parser(
        "tokenizer encode",
        "Print the token ids of a text: the argument, a file, or standard input.",
        "lmworks tokenizer encode tokenizer.json 'Hello world' --show",
    )
    add = parser.add_argument
    add("tokenizer", type=Path, metavar="TOKENIZER", help="tokenizer file")
    add("text", nargs="?", help="text to encode (default: --file, or standard input)")
    add("--file", type=Path, help="encode this file")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--show", action="store_true", help="print the pieces in colour instead")
    form.add_argument(
        "--offsets",
        action="store_true",
        help="print each token on a line: id, the characters that it stands for, text",
    )
    add("--special", action="store_true", help="special tokens in the text are tokens")
    add("--template", action="store_true", help="put the template's tokens around the text")
    args = parser.parse_args(argv)

    from lmworks.base.errors import ConfigError
    from lmworks.tokenizer import load
    from lmworks.tokenizer.compare import read_text

    if args.text is not None and args.file is not None:
        raise ConfigError("give a text or --file, not both")
    tokenizer = load(args.tokenizer)
    if args.template and tokenizer.template is None:
        raise ConfigError(f"{args.tokenizer}: this tokenizer has no template")
    if args.text is not None:
        text: str | bytes = args.text
    else:
        text = read_text(args.file) if args.file else sys.stdin.buffer.read()
    allowed = tokenizer.special_tokens if args.special else ()
    if not (args.offsets or args.template):
        ids = tokenizer.encode(text, allowed_special=allowed, disallowed_special=())
        spans = None
    else:
        rows = tokenizer.prepare(
            text,
            add_template=args.template,
            with_offsets=args.offsets,
            allowed_special=allowed,
            disallowed_special=(),
        )
        ids = rows.flat_ids.tolist()
        spans = rows.offsets[0].tolist() if args.offsets else None
    if spans is not None:
        for token_id, (begin, end) in zip(ids, spans, strict=True):
            print(f"{token_id} {begin} {end} {_piece(tokenizer, token_id)!r}")
    elif args.show:
        _print_pieces(tokenizer, ids, text)
    else:
        print(*ids)
    return 0


def _piece(tokenizer: "Tokenizer", token_id: int) -> str:
    return tokenizer.token_bytes(token_id).decode("utf-8", "backslashreplace")


def _print_pieces(tokenizer: "Tokenizer", ids: list[int], text: str | bytes) -> None:
    from rich.console import Console
    from rich.text import Text

    from lmworks.tokenizer.base import to_bytes

    shown = Text()
    for i, token_id in enumerate(ids):
        shown.append(_piece(tokenizer, token_id).replace("\n", "⏎\n"), _COLORS[i % len(_COLORS)])
    console = Console(highlight=False)
    console.print(shown)
    size_bytes = len(to_bytes(text))
    ratio = f", {size_bytes / len(ids):.2f} bytes/token" if ids else ""
    console.print(f"{len(ids):,} tokens, {size_bytes:,} bytes{ratio}")


def _decode(argv: list[str]) -> int:
    parser = make_parser(
        "tokenizer decode",
        "Print the text of token ids: the arguments, or standard input.",
        "lmworks tokenizer decode tokenizer.json 15496 995",
    )
    add = parser.add_argument
    add("tokenizer", type=Path, metavar="TOKENIZER", help="tokenizer file")
    add("ids", nargs="*", metavar="ID", help="token ids (default: standard input)")
    args = parser.parse_args(argv)

    from lmworks.base.errors import DataError
    from lmworks.tokenizer import load

    words = args.ids or sys.stdin.read().replace(",", " ").split()
    try:
        ids = [int(word) for word in words]
    except ValueError as err:
        raise DataError(f"token ids must be whole numbers ({err})") from None
    print(load(args.tokenizer).decode(ids))
    return 0


def _compare(argv: list[str]) -> int:
    parser = make_parser(
        "tokenizer compare",
        "Train the four kinds on the first 90 % of a file and measure them on the rest.",
        "lmworks tokenizer compare corpus.txt --vocab-size 10000",
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="UTF-8 text (the first 20 MB are used)")
    add("--vocab-size", type=positive_int, default=10_000, metavar="N", help="(default: 10000)")
    add("--pattern", default="gpt2", metavar="P", help=f"{pattern_names()} (default: gpt2)")
    args = parser.parse_args(argv)

    from rich.console import Console
    from rich.table import Table

    from lmworks.tokenizer.compare import compare

    table = Table("kind", title=f"{args.file}: last 10 %, learnt on the rest")
    for name in ("vocabulary", "bytes/token", "unknown", "unknown %", "MB/CPU s"):
        table.add_column(name, justify="right")
    for row in compare(args.file, vocab_size=args.vocab_size, pattern=args.pattern):
        table.add_row(
            row.kind,
            f"{row.vocab_size:,}",
            f"{row.bytes_per_token:.2f}",
            f"{row.num_unknown:,}",
            f"{row.unknown_ratio:.2%}",
            f"{row.encode_mb_per_s:.1f}",
        )
    Console().print(table)
    return 0


def _inspect(argv: list[str]) -> int:
    parser = make_parser(
        "tokenizer inspect",
        "Show what a tokenizer file holds.",
        "lmworks tokenizer inspect tokenizer.json",
    )
    add = parser.add_argument
    add("tokenizer", type=Path, metavar="TOKENIZER", help="our JSON or a tokenizer.json")
    add(
        "--tokens",
        type=positive_int,
        default=10,
        metavar="N",
        help="how many to list (default: 10)",
    )
    args = parser.parse_args(argv)

    from lmworks.tokenizer import load
    from lmworks.tokenizer.inspection import inspect

    tokenizer = load(args.tokenizer)
    facts = inspect(tokenizer, num_shown=args.tokens)
    unused = f", {facts.num_unused_ids:,} ids unused" if facts.num_unused_ids else ""
    rows = {
        "kind": facts.kind + (f", pattern {facts.pattern}" if facts.pattern else ""),
        "vocabulary": f"{facts.vocab_size:,} tokens{unused}",
        "mean length": f"{facts.mean_token_bytes:.2f} bytes",
        "coverage": f"{facts.num_utf8_tokens:,} tokens are whole characters, others parts",
        "specials": _few(facts.special_tokens, args.tokens),
        **({"added": _few(facts.added_tokens, args.tokens)} if facts.added_tokens else {}),
        **({"template": _template_text(tokenizer, facts.template)} if facts.template else {}),
        "longest": ", ".join(f"{token!r} {i}" for i, token in facts.longest_tokens),
        "merges": f"{facts.num_merges:,}"
        + "".join(f"\n{'':13}{left!r} + {right!r}" for left, right in facts.first_merges),
        "fingerprint": facts.fingerprint,
    }
    for name, value in rows.items():
        print(f"{name:<13}{value}")
    return 0


def _few(tokens: Mapping[str, int], num_shown: int) -> str:
    shown = [f"{name} {token_id}" for name, token_id in islice(tokens.items(), num_shown)]
    if len(tokens) > num_shown:
        shown.append(f"... {len(tokens):,} in all")
    return ", ".join(shown) or "none"


def _template_text(tokenizer: "Tokenizer", template: "Template") -> str:
    def text(items: "tuple[TemplateItem, ...]") -> str:
        sources = (item.source for item in items)
        return " ".join(s if isinstance(s, str) else _piece(tokenizer, s) for s in sources)

    return f"{text(template.single)}; of a pair {text(template.pair)}"
