"""Runs `lmworks train` in real processes that share one start-up.

Reads one JSON object per line: {"argv": [...], "kill_after_s": x or null, "metrics": path}. The
command runs in a forked child. With `kill_after_s` the child gets SIGKILL that long after it wrote
its first metrics of this session. Answers with the child's exit status (negative: the signal).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

# Imported here, so that the children need not.
import lmworks.cli.train
import lmworks.serve.generate
import lmworks.train.loop  # noqa: F401
from lmworks.cli.main import main

POLL_S = 0.001


def run(argv: list[str], kill_after_s: float | None, metrics: Path) -> int:
    before = stamp(metrics)
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        status = 70
        try:
            status = main(argv)
        finally:
            os._exit(status)
    if kill_after_s is not None and is_training(child, metrics, before):
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_training(child: int, metrics: Path, before: tuple[int, int]) -> bool:
    """Wait until the child has written metrics; False if it ended before."""
    while stamp(metrics) == before:
        info = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is not None:
            return False
        time.sleep(POLL_S)
    return True


def stamp(file: Path) -> tuple[int, int]:
    if not file.exists():
        return 0, 0
    status = file.stat()
    return status.st_ino, status.st_size


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        code = run(request["argv"], request["kill_after_s"], Path(request["metrics"]))
        print(code, flush=True)
