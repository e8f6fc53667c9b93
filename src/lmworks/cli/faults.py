"""Bad files among good ones: the option that says what to do, and the list at the end."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmworks.base.errors import DataError

FAULTS_STATUS = 1
"""Exit status of `--on-error fail` when an input had a fault."""


def add_on_error_option(parser: "argparse._ActionsContainer") -> None:
    """The option `--on-error`, of commands that read many files."""
    parser.add_argument(
        "--on-error",
        choices=["skip", "fail", "stop"],
        default="skip",
        help="a bad file: leave it out and list it at the end (skip), the same with exit status 1 "
        "(fail), or end at once and write nothing (stop); default: skip",
    )


def print_faults(faults: Sequence["DataError"]) -> None:
    """List what was wrong with inputs, on standard error."""
    if not faults:
        return
    inputs = "1 input has a fault" if len(faults) == 1 else f"{len(faults):,} inputs have faults"
    print(f"warning: {inputs} (--on-error stop refuses such input):", file=sys.stderr)
    for fault in faults:
        print(f"  {fault}", file=sys.stderr)
