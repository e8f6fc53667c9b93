"""Runs `lmworks train` in real processes that share one start-up.

Reads one JSON object per line and runs `argv` in a forked child:
    argv             the command line
    metrics          the run's metrics.jsonl
    kill_after_s     send `signal` that long after the child wrote its first metrics; null: never
    signal           number
    address_space    bytes of memory beyond what the process has, or null
    file_size        largest file in bytes, or null
    output           file that gets the child's standard output and error
Answers with the child's exit status (negative: the signal that ended it).
"""

import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

# Imported here, so that the children need not.
import lmworks.cli.train
import lmworks.serve.generate
import lmworks.train.loop  # noqa: F401
from lmworks.cli.main import main

POLL_S = 0.001
CRASHED = 70
EMPTY = (0, 0)


def run(request: dict[str, Any]) -> int:
    metrics = Path(request["metrics"])
    before = stamp(metrics)
    child = os.fork()
    if child == 0:
        be_child(request)
    if request["kill_after_s"] is not None and is_training(child, metrics, before):
        time.sleep(request["kill_after_s"])
        os.kill(child, request["signal"])
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def be_child(request: dict[str, Any]) -> NoReturn:
    status = CRASHED
    try:
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if request["address_space"] is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + request["address_space"]
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        if request["file_size"] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_size"],) * 2)
        status = main(request["argv"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def is_training(child: int, metrics: Path, before: tuple[int, int]) -> bool:
    """Wait until the child has written metrics; False if it ended before."""
    while stamp(metrics) in (before, EMPTY):
        info = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is not None:
            return False
        time.sleep(POLL_S)
    return True


def stamp(file: Path) -> tuple[int, int]:
    """What changes whenever the file grows or is written anew."""
    status = file.stat() if file.exists() else None
    return (status.st_ino, status.st_size) if status and status.st_size else EMPTY


if __name__ == "__main__":
    for line in sys.stdin:
        print(run(json.loads(line)), flush=True)
