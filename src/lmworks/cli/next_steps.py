"""What to type after a run: the same lines wherever a command ends with a trained model."""

import os
import shlex
import shutil
import sys
from pathlib import Path

PROGRAM = "lmworks"


def next_steps(run: Path, *, with_report: bool) -> str:
    """The commands that use `run`, one a line with what each does."""
    program = typed_program()
    folder = shlex.quote(str(run))
    commands = [
        (f"{program} chat {folder}", "talk to it"),
        (f"{program} generate {folder} --prompt 'Once upon a time'", "continue a text"),
        (f"{program} eval {folder}", "score it on held-out text"),
    ]
    if with_report:
        commands.append((f"{program} report {folder}", "write report.html"))
    width = max(len(command) for command, _ in commands)
    return "\n".join(["next:", *(f"  {command:<{width}}  {what}" for command, what in commands)])


def typed_program() -> str:
    """`lmworks`, or where it lies if a shell would not find it (an environment not activated)."""
    if shutil.which(PROGRAM) is not None or Path(sys.argv[0]).name != PROGRAM:
        return PROGRAM
    return os.path.relpath(sys.argv[0])
