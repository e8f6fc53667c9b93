"""The tokenizer core under the address and undefined-behaviour sanitizers."""

import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
SOURCES = {
    "text_train_test": ["bpe_train_*.cpp", "pretokenize.cpp", "unicode*.cpp"],
    "text_encode_test": [
        "bpe_encode*.cpp",
        "pretokenize.cpp",
        "unicode*.cpp",
        "word_ranges.cpp",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_the_core_runs_clean(name: str, tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    sources = [CSRC / "tests" / f"{name}.cpp"]
    sources += [file for glob in SOURCES[name] for file in sorted((CSRC / "text").glob(glob))]
    flags = ["-std=c++20", "-g", "-O2", "-fsanitize=address,undefined", "-fno-sanitize-recover"]
    command = [compiler, *flags, "-pthread", f"-I{CSRC / 'include'}", *map(str, sources)]
    subprocess.run([*command, "-o", str(tmp_path / name)], check=True)
    done = subprocess.run(
        [str(tmp_path / name)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ok\n"
