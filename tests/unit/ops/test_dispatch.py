"""The operator table: what is picked, what is forced, what is refused."""

import subprocess
import sys

import pytest
import torch

from lmworks.base.errors import ConfigError
from lmworks.ops import adamw, dispatch, global_norm, linear_cross_entropy
from lmworks.ops.dispatch import OPERATORS, Kernel, Operator, use_kernels

CPU = torch.device("cpu")


@pytest.fixture
def operator(monkeypatch):
    monkeypatch.setattr("lmworks.ops.dispatch.OPERATORS", {})
    kernel = Kernel(lambda: "cpu", device="cpu", dtypes=frozenset({torch.float32}))
    return Operator("toy", schema="toy() -> ()", reference=lambda: "plain", kernels={"cpu": kernel})


def test_a_fitting_kernel_is_picked(operator):
    assert operator.pick(CPU, torch.float32)() == "cpu"


def test_the_reference_serves_what_no_kernel_does(operator):
    assert operator.pick(CPU, torch.float64)() == "plain"
    assert operator.pick(torch.device("meta"), torch.float32)() == "plain"


def test_the_context_manager_forces_and_restores(operator):
    with use_kernels("reference"):
        assert operator.pick(CPU, torch.float32)() == "plain"
    assert operator.pick(CPU, torch.float32)() == "cpu"


def test_the_forced_backend_is_restored_after_an_error(operator):
    with pytest.raises(KeyError), use_kernels("reference"):
        raise KeyError
    assert operator.pick(CPU, torch.float32)() == "cpu"


def test_a_forced_kernel_that_is_missing_names_op_key_and_choices(operator):
    with use_kernels("cpu"), pytest.raises(ConfigError) as error:
        operator.pick(CPU, torch.float64)
    for part in ("'toy'", "'cpu'", "torch.float64", "reference", "torch.float32"):
        assert part in str(error.value)


def test_an_unknown_backend_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'reference'"), use_kernels("referense"):
        pass


def test_every_operator_states_a_schema_of_its_own_name():
    assert {adamw.OPERATOR, global_norm.OPERATOR, linear_cross_entropy.OPERATOR} <= set(
        OPERATORS.values()
    )
    for name, operator in OPERATORS.items():
        assert operator.schema.startswith(f"{name}(")


def test_the_environment_variable_forces_a_backend(monkeypatch):
    monkeypatch.setenv("LMWORKS_KERNELS", "reference")
    assert dispatch.Forced().backend == "reference"


def test_a_wrong_environment_variable_is_refused(monkeypatch):
    monkeypatch.setenv("LMWORKS_KERNELS", "fast")
    with pytest.raises(ConfigError, match="'fast': no such backend"):
        dispatch.Forced()


def test_importing_an_operator_loads_nothing_native():
    code = (
        "import torch, lmworks.ops.linear_cross_entropy, lmworks.ops.adamw;"
        "assert not hasattr(torch.ops.lmworks, 'cross_entropy_rows_')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
