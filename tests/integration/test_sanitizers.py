"""The tokenizer core under the address and undefined-behaviour sanitizers."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
SCANNERS = [
    "text/boundaries.cpp",
    "text/char_masks.cpp",
    "text/pretokenize.cpp",
    "text/unicode*.cpp",
    "kernels/dispatch.cpp",
]
SOURCES = {
    "text_train_test": [*SCANNERS, "text/bpe_train_*.cpp"],
    "text_encode_test": [
        *SCANNERS,
        "text/bpe_[!t]*.cpp",
        "text/char_rules.cpp",
        "text/token_buffer.cpp",
        "text/utf8_encode.cpp",
        "text/word_ranges.cpp",
    ],
    "text_vocabulary_test": ["text/rank_file.cpp", "text/vocabulary.cpp"],
}
# Compiled once per instruction set, as in CMakeLists.txt.
ISA_SOURCE = "text/isa/char_masks.cpp"
ISA_FLAGS = {"portable": [], "avx2": ["-mavx2"], "avx512": ["-mavx512f", "-mavx512bw"]}
FLAGS = ["-std=c++20", "-g", "-O2", "-fsanitize=address,undefined", "-fno-sanitize-recover"]


def build(name: str, folder: Path) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    command = [compiler, *FLAGS, "-pthread", f"-I{CSRC / 'include'}"]
    objects = []
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    for isa, flags in ISA_FLAGS.items() if is_x86 else [("portable", [])]:
        objects.append(str(folder / f"char_masks_{isa}.o"))
        compile_one = [*command, *flags, f"-DLMWORKS_ISA={isa}", "-c", str(CSRC / ISA_SOURCE)]
        subprocess.run([*compile_one, "-o", objects[-1]], check=True)
    sources = [CSRC / "tests" / f"{name}.cpp"]
    sources += [file for glob in SOURCES[name] for file in sorted(CSRC.glob(glob))]
    program = folder / name
    subprocess.run([*command, *map(str, sources), *objects, "-o", str(program)], check=True)
    return program


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_the_core_runs_clean(name: str, tmp_path: Path) -> None:
    program = build(name, tmp_path)
    for isa in ("", "portable"):  # "": the best of this machine
        done = subprocess.run(
            [str(program)],
            cwd=tmp_path,
            env={**os.environ, "LMWORKS_ISA": isa},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "ok\n"
