"""Fused head + cross-entropy against its plain PyTorch twin: values, gradients, edges, memory."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.base.errors import ConfigError
from lmworks.ops import native
from lmworks.ops.dispatch import use_kernels
from lmworks.ops.linear_cross_entropy import cpu, linear_cross_entropy, reference
from lmworks.ops.linear_cross_entropy.terms import check_arguments


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


@pytest.fixture(params=ISAS)
def isa(request, monkeypatch):
    monkeypatch.setenv("LMWORKS_ISA", request.param)


def make_inputs(tokens, d_model, vocab_size, *, dtype=torch.float32, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, d_model, generator=generator)
    weight = torch.randn(vocab_size, d_model, generator=generator) * (spread / d_model**0.5)
    targets = torch.randint(0, vocab_size, (tokens,), generator=generator)
    return hidden.to(dtype), weight.to(dtype), targets


def run(backend, hidden, weight, targets, *, bias=None, **options):
    """Terms and gradients (hidden, weight, bias) of loss_sum + z_loss_sum."""
    leaves = [t.detach().clone().requires_grad_() for t in (hidden, weight, bias) if t is not None]
    bias_leaf = leaves[2] if bias is not None else None
    with use_kernels(backend):
        terms = linear_cross_entropy(leaves[0], leaves[1], targets, bias_V=bias_leaf, **options)
    grads = torch.autograd.grad(terms.loss_sum + terms.z_loss_sum, leaves)
    return terms, grads


def relative_error(got, want):
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


def assert_equals_reference(hidden, weight, targets, *, tolerance=1e-5, **options):
    terms, grads = run("cpu", hidden, weight, targets, **options)
    want_terms, want_grads = run("reference", hidden, weight, targets, **options)
    assert int(terms.num_tokens) == int(want_terms.num_tokens)
    for got, want in zip([*terms[:2], *grads], [*want_terms[:2], *want_grads], strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        assert relative_error(got, want) <= tolerance


VARIANTS = [
    {},
    {"z_loss_weight": 1e-2},
    {"logit_softcap": 3.0},
    {"z_loss_weight": 1e-2, "logit_softcap": 3.0},
    {"ignore_index": 7},
]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.usefixtures("isa")
def test_float32_equals_the_reference(options):
    hidden, weight, targets = make_inputs(300, 32, 1003, spread=4.0)
    targets[::3] = options.get("ignore_index", -100)
    assert_equals_reference(hidden, weight, targets, **options)


@pytest.mark.usefixtures("isa")
def test_a_bias_has_the_gradient_of_the_reference():
    hidden, weight, targets = make_inputs(40, 16, 77)
    assert_equals_reference(hidden, weight, targets, bias=torch.randn(77), z_loss_weight=0.1)


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.usefixtures("isa")
def test_bfloat16_is_as_near_to_float64_as_the_reference(options):
    hidden, weight, targets = make_inputs(3000, 64, 503, dtype=torch.bfloat16, spread=2.0)
    targets[::5] = options.get("ignore_index", -100)
    exact_terms, exact_grads = run(
        "reference", hidden.double(), weight.double(), targets, **options
    )
    terms, grads = run("cpu", hidden, weight, targets, **options)
    want_terms, want_grads = run("reference", hidden, weight, targets, **options)
    # Both round logits, their gradient and the results to 8 bits; on top of that the kernel rounds
    # the partial sum of up to 8 chunks: one more rounding each, at most 2^-9, of a growing sum.
    for got, want, exact in zip(
        [*terms[:2], *grads],
        [*want_terms[:2], *want_grads],
        [*exact_terms[:2], *exact_grads],
        strict=True,
    ):
        assert relative_error(got, exact) <= 1.1 * relative_error(want, exact) + 4 * 2**-9


@settings(max_examples=50)
@given(
    tokens=st.integers(0, 40),
    d_model=st.integers(1, 20),
    vocab_size=st.integers(1, 150),
    chunk=st.integers(1, 40),
    is_hidden_strided=st.booleans(),
    is_weight_strided=st.booleans(),
    z_loss_weight=st.sampled_from([0.0, 0.01]),
    logit_softcap=st.sampled_from([0.0, 2.0]),
    isa=st.sampled_from(ISAS),
    data=st.data(),
)
def test_any_shape_stride_mask_and_chunk_equals_the_reference(  # noqa: PLR0917
    tokens, d_model, vocab_size, chunk, is_hidden_strided, is_weight_strided, z_loss_weight,
    logit_softcap, isa, data,
):  # fmt: skip
    hidden, weight, targets = make_inputs(tokens, d_model, vocab_size, seed=tokens)
    ignored = data.draw(st.lists(st.booleans(), min_size=tokens, max_size=tokens))
    targets[torch.tensor(ignored, dtype=torch.bool)] = -100
    if is_hidden_strided:
        hidden = hidden.T.contiguous().T
    if is_weight_strided:
        weight = weight.repeat_interleave(2, dim=1)[:, ::2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMWORKS_ISA", isa)
        patch.setattr(cpu, "chunk_tokens", lambda *_: max(min(chunk, tokens), 1))
        assert_equals_reference(
            hidden, weight, targets, z_loss_weight=z_loss_weight, logit_softcap=logit_softcap
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_chunk_size_does_not_change_the_losses(monkeypatch, dtype):
    hidden, weight, targets = make_inputs(200, 16, 90, dtype=dtype)
    results = []
    for chunk in (1, 7, 64, 200):
        monkeypatch.setattr(cpu, "chunk_tokens", lambda *_, chunk=chunk: chunk)
        results.append(run("cpu", hidden, weight, targets, z_loss_weight=0.1))
    for terms, grads in results[1:]:
        # oneDNN may sum d_model in another order for another shape: a few roundings.
        unit = torch.finfo(dtype).eps
        for got, want in zip(
            [*terms[:2], *grads], [*results[0][0][:2], *results[0][1]], strict=True
        ):
            assert relative_error(got, want) <= 4 * unit


def test_a_weight_gradient_over_many_bfloat16_chunks_does_not_stagnate(monkeypatch):
    # 600 equal contributions: added one by one in bfloat16 the sum would stop at 256 of them.
    monkeypatch.setattr(cpu, "chunk_tokens", lambda *_: 1)
    hidden = torch.ones(600, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16)
    _, (_, grad_weight) = run("cpu", hidden, weight, torch.zeros(600, dtype=torch.int64))
    assert grad_weight.flatten().tolist() == [-300.0, 300.0]


@pytest.mark.parametrize("magnitude", [1e4, -1e4])
@pytest.mark.usefixtures("isa")
def test_extreme_logits_stay_finite_and_right(magnitude):
    hidden = torch.tensor([[magnitude], [magnitude]])
    weight = torch.tensor([[1.0], [-1.0], [0.5], [0.0]])
    assert_equals_reference(hidden, weight, torch.tensor([0, 1]), z_loss_weight=1e-6)


@pytest.mark.usefixtures("isa")
def test_a_minus_infinite_logit_gets_no_probability():
    bias = torch.zeros(40)
    bias[5:] = -torch.inf
    terms, grads = run("cpu", torch.zeros(3, 2), torch.zeros(40, 2), torch.tensor([0, 1, 2]),
                       bias=bias)  # fmt: skip
    assert terms.loss_sum.item() == pytest.approx(3 * torch.log(torch.tensor(5.0)).item())
    assert not grads[2][5:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("isa")
def test_a_nan_reaches_the_loss_and_the_gradient_of_its_token_only(dtype):
    hidden, weight, targets = make_inputs(4, 8, 50, dtype=dtype)
    hidden[2] = torch.nan
    terms, grads = run("cpu", hidden, weight, targets)
    assert terms.loss_sum.isnan()
    assert grads[0].isnan().all(dim=1).tolist() == [False, False, True, False]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("tokens", [0, 5])
def test_nothing_to_predict_gives_zero_loss_and_zero_gradients(backend, tokens):
    hidden, weight, targets = make_inputs(tokens, 8, 30)
    terms, grads = run(backend, hidden, weight, targets.fill_(-100), z_loss_weight=0.1)
    assert [t.item() for t in terms] == [0.0, 0.0, 0.0]
    assert not any(grad.any() for grad in grads)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("target", [-1, 30, 2**40])
def test_a_target_outside_the_vocabulary_is_named(backend, target):
    hidden, weight, targets = make_inputs(5, 8, 30)
    targets[3] = target
    with use_kernels(backend), pytest.raises(IndexError, match=rf"targets\[3\]={target} .* 29"):
        linear_cross_entropy(hidden, weight, targets)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, w, t: (h[:, :4], w, t), "must be \\(tokens, d_model\\)"),
        (lambda h, w, t: (h, w, t[:2]), "one per token"),
        (lambda h, w, t: (h, w, t.int()), "torch.int64"),
        (lambda h, w, t: (h.bfloat16(), w, t), "one dtype"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        check_arguments(*change(*make_inputs(5, 8, 30)), None)


def test_the_gradient_is_scaled_by_the_incoming_one():
    hidden, weight, targets = make_inputs(6, 8, 30)
    _, (want, _) = run("cpu", hidden, weight, targets)
    leaf = hidden.clone().requires_grad_()
    terms = linear_cross_entropy(leaf, weight, targets)
    (terms.loss_sum / terms.num_tokens).backward()
    torch.testing.assert_close(leaf.grad, want / 6)


def test_two_backward_passes_add_up():
    hidden, weight, targets = make_inputs(6, 8, 30)
    leaf = hidden.clone().requires_grad_()
    loss = linear_cross_entropy(leaf, weight, targets).loss_sum
    loss.backward(retain_graph=True)
    once = leaf.grad.clone()
    loss.backward()
    assert torch.equal(leaf.grad, 2 * once)


def test_the_weight_gradient_is_handed_over_without_a_copy():
    hidden, weight, targets = make_inputs(6, 8, 30)
    weight.requires_grad_()
    loss = linear_cross_entropy(hidden, weight, targets).loss_sum
    saved = loss.grad_fn.saved_tensors[1].data_ptr()
    loss.backward()
    assert weight.grad.data_ptr() == saved


def test_the_parts_of_the_loss_cannot_be_differentiated_apart():
    hidden, weight, targets = make_inputs(6, 8, 30)
    terms = linear_cross_entropy(hidden.requires_grad_(), weight, targets, z_loss_weight=0.1)
    with pytest.raises(ValueError, match="differentiate loss_sum \\+ z_loss_sum"):
        (terms.loss_sum + 2 * terms.z_loss_sum).backward()


def test_a_second_derivative_is_refused():
    hidden, weight, targets = make_inputs(6, 8, 30)
    loss = linear_cross_entropy(hidden.requires_grad_(), weight, targets).loss_sum
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, hidden, create_graph=True)


def test_without_grad_only_the_loss_is_computed(monkeypatch):
    hidden, weight, targets = make_inputs(6, 8, 30)
    want, _ = run("cpu", hidden, weight, targets)
    monkeypatch.setattr(cpu._WeightGradient, "add", None)
    with torch.no_grad():
        got = linear_cross_entropy(hidden, weight.requires_grad_(), targets)
    assert torch.equal(got.loss_sum, want.loss_sum)
    assert not got.loss_sum.requires_grad


@pytest.mark.parametrize("trained", [0, 1])
def test_a_frozen_input_gets_no_gradient(trained):
    hidden, weight, targets = make_inputs(6, 8, 30)
    _, want = run("cpu", hidden, weight, targets)
    leaves = [hidden, weight]
    leaves[trained].requires_grad_()
    linear_cross_entropy(*leaves, targets).loss_sum.backward()
    assert torch.equal(leaves[trained].grad, want[trained])
    assert leaves[1 - trained].grad is None


def test_autocast_computes_in_bfloat16_and_returns_float32_gradients():
    hidden, weight, targets = make_inputs(60, 8, 30)
    _, want = run("cpu", hidden.bfloat16(), weight.bfloat16(), targets)
    with torch.autocast("cpu", torch.bfloat16):
        _, got = run("cpu", hidden, weight, targets)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == torch.float32
        assert torch.equal(g, w.float())


@pytest.mark.parametrize("bias", [None, torch.zeros(30)])
def test_torch_library_accepts_the_operator(bias):
    hidden, weight, targets = make_inputs(12, 8, 30)
    leaves = (hidden.requires_grad_(), weight.requires_grad_(), targets, bias)
    native.load()
    torch.library.opcheck(
        torch.ops.lmworks.linear_cross_entropy.default,
        (*leaves, -100, 0.1, 0.0, True, True, False),
    )


@pytest.mark.slow
def test_it_compiles_without_a_graph_break():
    # In a child process: the run-time type checks of the tests cannot be traced.
    code = """
import torch
from lmworks.ops.linear_cross_entropy import linear_cross_entropy
def mean_loss(hidden, weight, targets):
    terms = linear_cross_entropy(hidden, weight, targets, z_loss_weight=0.1)
    return (terms.loss_sum + terms.z_loss_sum) / terms.num_tokens
hidden, weight = torch.randn(12, 8, requires_grad=True), torch.randn(30, 8)
targets = torch.randint(0, 30, (12,))
results = []
for function in (mean_loss, torch.compile(mean_loss, fullgraph=True, backend="aot_eager")):
    loss = function(hidden, weight, targets)
    results.append((loss, *torch.autograd.grad(loss, hidden)))
torch.testing.assert_close(*results)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_threads_do_not_change_a_bit():
    hidden, weight, targets = make_inputs(700, 8, 300)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            logits = (hidden @ weight.T).contiguous()
            losses, z_losses = torch.empty(2, 700)
            torch.ops.lmworks.cross_entropy_rows_(
                logits, targets, losses, z_losses, -100, 0.1, 0.0, True
            )
            results.append((logits, losses, z_losses))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("options", [{}, {"z_loss_weight": 0.1, "logit_softcap": 2.0}])
def test_the_reference_passes_gradcheck(options):
    hidden, weight, targets = make_inputs(4, 3, 5, dtype=torch.float64)
    targets[1] = -100
    bias = torch.randn(5, dtype=torch.float64)

    def total(hidden, weight, bias):
        terms = reference.linear_cross_entropy(
            hidden, weight, targets, bias_V=bias,
            **{"ignore_index": -100, "z_loss_weight": 0.0, "logit_softcap": 0.0, **options},
        )  # fmt: skip
        return terms.loss_sum + terms.z_loss_sum

    leaves = [t.requires_grad_() for t in (hidden, weight, bias)]
    assert torch.autograd.gradcheck(total, leaves)


@pytest.mark.slow
def test_memory_stays_far_below_all_logits():
    # All logits would take 2048 * 65536 * 4 bytes = 512 MiB, and their gradient as much again.
    code = """
import resource, torch
from lmworks.ops.linear_cross_entropy import linear_cross_entropy
torch.set_num_threads(1)
hidden, weight = torch.randn(2048, 8, requires_grad=True), torch.randn(65536, 8, requires_grad=True)
targets = torch.randint(0, 65536, (2048,))
linear_cross_entropy(hidden[:1], weight, targets[:1]).loss_sum.backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
linear_cross_entropy(hidden, weight, targets).loss_sum.backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 160  # one chunk of 64 MiB, gradients, oneDNN's packing
