"""`lmworks COMMAND ...`: finds the command and imports only its file.

Each command lives in `lmworks/cli/<command>.py` and has `main(argv) -> int`. Nothing heavy is
imported here: torch alone takes seconds, and `lmworks --help` must answer at once.
"""

import difflib
import importlib
import os
import sys

import lmworks
from lmworks.base.errors import LmworksError

COMMANDS = {
    "tokenizer": "train, use, compare and inspect tokenizers",
    "data": "tokenize text into shards",
    "params": "parameters, FLOPs, memory and expected time of a recipe",
    "train": "train a model from a recipe, or resume a run",
    "generate": "continue a prompt with a trained model",
    "chat": "talk to a trained model in the terminal",
    "upcycle": "make a mixture of experts of a dense model",
    "eval": "held-out loss, perplexity and bits per byte",
    "convert": "write a model as a Hugging Face folder, a GGUF file or one of ours",
    "report": "write a run's report.html",
    "doctor": "versions, cores, instruction set, memory, torch build",
}

# GNU OpenMP threads spin at each barrier before they sleep. The default of 300,000 rounds makes a
# small model several times slower once anything else runs on the cores; 20,000 costs nothing.
SPIN_VARIABLE, SPIN_ROUNDS = "GOMP_SPINCOUNT", "20000"

USAGE_STATUS = 2
INTERRUPTED_STATUS = 130


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"lmworks {lmworks.__version__}")
        return 0
    command, rest = argv[0], argv[1:]
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "; `lmworks --help` lists them"
        print(f"error: no command {command!r}{hint}", file=sys.stderr)
        return USAGE_STATUS
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(SPIN_VARIABLE, SPIN_ROUNDS)
    return _run(command, rest)


def _run(command: str, argv: list[str]) -> int:
    try:
        status: int = importlib.import_module(f"lmworks.cli.{command}").main(argv)
    except LmworksError as err:
        print(f"error: {err}", file=sys.stderr)
        status = USAGE_STATUS
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = INTERRUPTED_STATUS
    except BrokenPipeError:
        # The reader (`head`, `less`) went away: that is its right, not an error of ours.
        sys.stderr.close()
        status = 0
    return status


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: lmworks COMMAND [options]",
            "",
            "Language models from raw text to a served model, on the hardware at hand.",
            "",
            "commands:",
            *lines,
            "",
            "`lmworks COMMAND --help` shows a command's options and an example.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
