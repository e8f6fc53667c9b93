"""Mutated GGUF files: a model or an error of ours, whatever is in them; never a crash, a hang or
memory that the file's size does not justify.

The work is done in a process whose address space is limited: an allocation that a forged number
asks for fails there with MemoryError, which is none of the errors allowed.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from lmworks.base.errors import CheckpointError, DataError
from lmworks.models import gguf

from .mutations import mutants
from .small_models import model_of, vocabulary

_RUN = """
import resource, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
import mutations
from lmworks.base.errors import CheckpointError, DataError
from lmworks.models import gguf

path, count, seed = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
files = [file.read_bytes() for file in sorted(path.glob("good-*.gguf"))]
for file in sorted(path.glob("good-*.gguf")):
    gguf.load(file)  # what is imported late counts as there
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
# Files are under 1 MB. A vocabulary's cache of pieces takes 100 MB of addresses whatever its size.
limit = used + 256 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
target, loaded, slowest = path / "bad.gguf", 0, 0.0
for data in mutations.mutants(files, count, seed):
    target.write_bytes(data)
    start = time.process_time()
    try:
        gguf.load(target)
        loaded += 1
    except (CheckpointError, DataError):
        pass
    except BaseException:
        (path / "culprit.gguf").write_bytes(data)
        raise
    slowest = max(slowest, time.process_time() - start)
print(loaded, slowest)
"""


def _good_files(folder: Path, *names: str) -> list[Path]:
    files = []
    for name in names:
        files.append(folder / f"good-{name}.gguf")
        gguf.save(files[-1], model_of(name), vocabulary(), tensor_type="q8_0")
    return files


def test_mutated_files_give_a_model_or_an_error_of_ours(tmp_path: Path) -> None:
    """A sample, without the limit on memory."""
    good = [file.read_bytes() for file in _good_files(tmp_path, "llama 3")]
    target, num_refused = tmp_path / "bad.gguf", 0
    for data in mutants(good, 60, seed=0):
        target.write_bytes(data)
        try:
            gguf.load(target)
        except (CheckpointError, DataError):
            num_refused += 1
    # Most changes hit what is checked; those of a weight's bytes give another model.
    assert 20 < num_refused < 60


@pytest.mark.slow
def test_ten_thousand_mutated_files_take_no_memory_and_no_time(tmp_path: Path) -> None:
    _good_files(tmp_path, "llama 3", "gemma3", "deepseek v3")
    here = str(Path(__file__).parent)
    run = subprocess.run(
        [sys.executable, "-c", _RUN, here, str(tmp_path), "10000", "1"],
        capture_output=True, text=True, timeout=3000, check=False,
    )  # fmt: skip
    assert run.returncode == 0, f"{tmp_path}/culprit.gguf: {run.stderr[-3000:]}"
    loaded, slowest = run.stdout.split()
    assert 0 < int(loaded) < 7000
    assert float(slowest) < 5
