"""Loading the compiled kernels and choosing an instruction set."""

import pytest

from lmworks.base.errors import ConfigError
from lmworks.ops import native


def test_the_portable_kernels_can_be_forced(monkeypatch):
    monkeypatch.setenv("LMWORKS_ISA", "portable")
    assert native.isa_name() == "portable"


def test_an_unknown_instruction_set_names_the_known_ones(monkeypatch):
    native.load()
    monkeypatch.setenv("LMWORKS_ISA", "avx9")
    with pytest.raises(ConfigError, match=r"LMWORKS_ISA=avx9.*portable, avx2, avx512"):
        native.isa_name()


def test_a_library_that_does_not_load_says_what_to_do(monkeypatch):
    def fail(path):
        raise OSError("undefined symbol")

    monkeypatch.setattr("torch.ops.load_library", fail)
    with pytest.raises(ConfigError, match=r"do not load with torch .*undefined symbol"):
        native.load.__wrapped__()


def test_a_missing_library_says_what_to_do(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="LMWORKS_KERNELS=reference"):
        native.load.__wrapped__()
