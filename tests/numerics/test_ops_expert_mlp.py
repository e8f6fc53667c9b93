"""The native experts against their plain twin: values, gradients, edges, compilation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.base.errors import ConfigError
from lmworks.nn.config import GATED_ACTIVATIONS
from lmworks.ops import native
from lmworks.ops.activation import GATE_ACTIVATIONS, PLAIN_ACTIVATIONS
from lmworks.ops.dispatch import use_kernels
from lmworks.ops.expert_mlp import ExpertWeights, Rows, expert_mlp

ACTIVATIONS = [*PLAIN_ACTIVATIONS, *GATE_ACTIVATIONS]


def _runnable_isas():
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("portable", "avx2", "avx512"):
            patch.setenv("LMWORKS_ISA", name)
            try:
                found.append(native.isa_name())
            except ConfigError:
                break
    return found


ISAS = _runnable_isas()


def make_inputs(loads, num_tokens, d_model, d_ff, *, activation, dtype=torch.float32, spare=0):
    """x, rows with `loads[e]` tokens for expert e and `spare` rows of none, weights."""
    g = torch.Generator().manual_seed(sum(loads) + d_ff)
    tokens = [torch.randperm(num_tokens, generator=g)[:load] for load in loads]
    tokens.append(torch.zeros(spare, dtype=torch.int64))
    token = torch.cat(tokens)
    rows = Rows(token, torch.rand(len(token), generator=g), torch.tensor(loads).cumsum(0))
    size = (len(loads), d_ff, d_model)
    gate, up = torch.randn(2, *size, generator=g).to(dtype) / d_model**0.5
    down = (torch.randn(len(loads), d_model, d_ff, generator=g) / d_ff**0.5).to(dtype)
    x = torch.randn(num_tokens, d_model, generator=g).to(dtype)
    is_gated = activation in GATED_ACTIVATIONS
    return x, rows, ExpertWeights(gate if is_gated else None, up, down)


def run(backend, x, rows, experts, activation):
    """Output, and the gradients of x, the rows' weights and the matrices of a random sum."""
    leaves = [
        t.detach().clone().requires_grad_() if t is not None else None
        for t in (x, rows.weight_S, *experts)
    ]
    with use_kernels(backend):
        out = expert_mlp(
            leaves[0],
            rows._replace(weight_S=leaves[1]),
            ExpertWeights(*leaves[2:]),
            activation=activation,
        )
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out.dtype)
        out.backward(grad)
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf is not None)]


def assert_equals_twin(x, rows, experts, activation, tolerance, *, term_sizes=(1.0,) * 6):
    """Each result within `tolerance` of the twin's, by norms; the twin runs in float64.

    Where terms cancel, their rounding stays: it is measured by their sizes.
    """
    exact = ExpertWeights(*(None if w is None else w.double() for w in experts))
    wanted = run("reference", x.double(), rows, exact, activation)
    results = run("cpu", x, rows, experts, activation)
    for got, want, size in zip(results, wanted, term_sizes, strict=False):
        assert got.dtype in (x.dtype, torch.float32)
        norm = want.double().norm().clamp(min=max(size, 1.0))
        assert (got.double() - want.double()).norm() <= tolerance * norm


def swiglu_term_sizes(x, rows, experts):
    """The norm of each result of `run` if all terms of its sums had one sign.

    Legend: T tokens, L rows of one expert, C d_model, F d_ff.
    """
    out_TC = torch.zeros(x.shape, dtype=torch.float64)
    grad_TC = torch.randn(x.shape, generator=torch.Generator().manual_seed(9)).to(x.dtype).double()
    d_x_TC, d_weight_S = torch.zeros_like(out_TC), torch.zeros(len(rows.token_S)).double()
    d_gate, d_up, d_down = (torch.zeros(w.shape).double() for w in experts)
    begin = 0
    for e, end in enumerate(rows.ends_E.tolist()):
        part, begin = slice(begin, end), end
        token_L, weight_L1 = rows.token_S[part], rows.weight_S[part, None].double()
        x_LC, grad_LC = x[token_L].double(), grad_TC[token_L]
        gate_FC, up_FC, down_CF = (w[e].double() for w in experts)
        g_LF, u_LF = x_LC @ gate_FC.T, x_LC @ up_FC.T
        sigmoid_LF = g_LF.sigmoid()
        slope_LF = sigmoid_LF * (1 + g_LF * (1 - sigmoid_LF))
        hidden_LF = (g_LF * sigmoid_LF * u_LF).abs()
        d_hidden_LF = weight_L1 * (grad_LC.abs() @ down_CF.abs())
        d_g_LF, d_u_LF = (
            d_hidden_LF * (u_LF * slope_LF).abs(),
            d_hidden_LF * (g_LF * sigmoid_LF).abs(),
        )
        out_TC.index_add_(0, token_L, weight_L1 * (hidden_LF @ down_CF.abs().T))
        d_x_TC.index_add_(0, token_L, d_g_LF @ gate_FC.abs() + d_u_LF @ up_FC.abs())
        d_weight_S[part] = (grad_LC.abs() * (hidden_LF @ down_CF.abs().T)).sum(-1)
        d_gate[e], d_up[e] = d_g_LF.T @ x_LC.abs(), d_u_LF.T @ x_LC.abs()
        d_down[e] = (weight_L1 * grad_LC.abs()).T @ hidden_LF
    return [float(t.norm()) for t in (out_TC, d_x_TC, d_weight_S, d_gate, d_up, d_down)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values_and_gradients_equal_the_twin(activation, isa, monkeypatch):
    monkeypatch.setenv("LMWORKS_ISA", isa)
    inputs = make_inputs([7, 0, 50, 1, 31], 50, 37, 29, activation=activation, spare=3)
    # A few ulp of float32 (6e-8) per sum of 37 terms; the activations add 2e-7.
    assert_equals_twin(*inputs, activation, 2e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
def test_bfloat16_rounds_only_what_is_stored(activation, isa, monkeypatch):
    monkeypatch.setenv("LMWORKS_ISA", isa)
    inputs = make_inputs(
        [70, 0, 200, 1, 131], 200, 64, 48, activation=activation, dtype=torch.bfloat16
    )
    # bfloat16 rounds by at most 2^-9 = 0.002; up to three roundings lie on the way.
    assert_equals_twin(*inputs, activation, 0.008)


@settings(max_examples=60, deadline=None)
@given(
    loads=st.lists(st.integers(0, 20), min_size=1, max_size=6),
    d_model=st.integers(1, 40),
    d_ff=st.integers(1, 40),
    spare=st.integers(0, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_any_loads_and_sizes_equal_the_twin(loads, d_model, d_ff, spare, dtype):
    inputs = make_inputs(loads, 20, d_model, d_ff, activation="swiglu", spare=spare, dtype=dtype)
    # Of bfloat16 some five roundings count here where no others average them out, and silu passes
    # a relative error of its input on up to |input| times.
    tolerance = 2e-6 if dtype == torch.float32 else 0.02
    term_sizes = swiglu_term_sizes(*inputs)
    assert_equals_twin(*inputs, "swiglu", tolerance, term_sizes=term_sizes)


def test_strided_inputs_are_read_as_they_are():
    x, rows, experts = make_inputs([5, 9], 12, 8, 6, activation="swiglu")
    strided = ExpertWeights(
        *(torch.stack([w, w], dim=-1)[..., 0] for w in experts if w is not None)
    )
    with use_kernels("cpu"):
        plain = expert_mlp(x, rows, experts, activation="swiglu")
        assert torch.equal(
            expert_mlp(x.T.contiguous().T, rows, strided, activation="swiglu"), plain
        )


def test_reference_has_the_gradients_of_finite_differences():
    x, rows, experts = make_inputs([2, 0, 3], 3, 4, 3, activation="geglu", dtype=torch.float64)
    leaves = [t.double().requires_grad_() for t in (x, rows.weight_S, *experts)]

    def f(x, weight, gate, up, down):
        weights = ExpertWeights(gate, up, down)
        return expert_mlp(x, rows._replace(weight_S=weight), weights, activation="geglu")

    assert torch.autograd.gradcheck(f, leaves)


def test_results_do_not_change_from_run_to_run():
    inputs = make_inputs([70, 0, 200, 131], 200, 64, 48, activation="swiglu")
    first, second = (run("cpu", *inputs, "swiglu") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_without_gradients_the_output_is_the_same():
    x, rows, experts = make_inputs([5, 0, 9], 12, 8, 6, activation="swiglu", dtype=torch.bfloat16)
    recorded = run("cpu", x, rows, experts, "swiglu")[0]
    with torch.inference_mode():
        assert torch.equal(expert_mlp(x, rows, experts, activation="swiglu"), recorded)


def test_frozen_experts_get_no_gradient():
    x, rows, experts = make_inputs([5, 9], 12, 8, 6, activation="swiglu")
    x.requires_grad_()
    expert_mlp(x, rows, experts, activation="swiglu").sum().backward()
    assert x.grad is not None
    assert all(w.grad is None for w in experts)


def test_a_second_derivative_is_refused():
    x, rows, experts = make_inputs([5, 9], 12, 8, 6, activation="swiglu")
    x.requires_grad_()
    (grad,) = torch.autograd.grad(
        expert_mlp(x, rows, experts, activation="swiglu").sum(), x, create_graph=False
    )
    assert grad.shape == x.shape
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(
            expert_mlp(x, rows, experts, activation="swiglu").sum(), x, create_graph=True
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ends_E": torch.tensor([5, 4])}, "ends must rise"),
        ({"ends_E": torch.tensor([5, 15])}, "ends must rise to at most 14"),
        ({"token_S": torch.full((14,), 12)}, r"token 12 is outside \[0, 12\)"),
    ],
)
def test_rows_outside_are_refused(change, message):
    x, rows, experts = make_inputs([5, 9], 12, 8, 6, activation="swiglu")
    with pytest.raises(RuntimeError, match=message), use_kernels("cpu"):
        expert_mlp(x, rows._replace(**change), experts, activation="swiglu")


def test_arguments_that_do_not_fit_are_refused():
    x, rows, experts = make_inputs([5, 9], 12, 8, 6, activation="swiglu")
    with pytest.raises(ValueError, match="down has shape"):
        expert_mlp(x, rows, experts._replace(down_ECF=experts.up_EFC), activation="swiglu")
    with pytest.raises(ValueError, match=r"x is torch.float64, the experts are torch.float32"):
        expert_mlp(x.double(), rows, experts, activation="swiglu")
    with pytest.raises(ValueError, match="'relu' is not a gated one"):
        expert_mlp(x, rows, experts, activation="relu")


def test_operator_keeps_torchs_contract():
    x, rows, experts = make_inputs([5, 0, 9], 12, 8, 6, activation="swiglu")
    leaves = [t.requires_grad_() for t in (x, rows.weight_S, *experts)]
    arguments = (leaves[0], rows.token_S, leaves[1], rows.ends_E, *leaves[2:], "swiglu", True)
    # Not the comparison of outputs: the second one has rows that nothing writes or reads.
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.lmworks.expert_mlp.default, arguments, test_utils=checks)
