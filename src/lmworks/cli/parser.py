"""What the parsers of all commands share: description, options, a worked example, counts."""

import argparse
from typing import NoReturn


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error of a command."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; `{self.prog} --help` shows the options\n")


def make_parser(prog: str, description: str, example: str) -> argparse.ArgumentParser:
    """Parser of `lmworks PROG`; `example` is shown under the options exactly as typed."""
    return _Parser(
        prog=f"lmworks {prog}",
        description=description,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def positive_int(text: str) -> int:
    """A whole number of at least 1; `10_000` and `10,000` are fine. For `type=` of an option."""
    digits = text.replace("_", "").replace(",", "")
    if not digits.isascii() or not digits.isdigit() or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(digits)


def pattern_names() -> str:
    """The known pre-tokenizer patterns, for the help of an option."""
    from lmworks.tokenizer.pretokenize import PATTERNS

    return "|".join(PATTERNS)
