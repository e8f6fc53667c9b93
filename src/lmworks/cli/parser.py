"""The argument parser that all commands share: a description, options, and a worked example."""

import argparse


def make_parser(prog: str, description: str, example: str) -> argparse.ArgumentParser:
    """Parser of `lmworks PROG`; `example` is shown under the options exactly as typed."""
    return argparse.ArgumentParser(
        prog=f"lmworks {prog}",
        description=description,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
