"""The native AdamW step and gradient norm against torch.optim, the reference and themselves."""

import pytest
import torch

from lmworks.base.errors import ConfigError
from lmworks.ops import native
from lmworks.ops.adamw import adamw_step_
from lmworks.ops.dispatch import use_kernels
from lmworks.ops.global_norm import global_norm

# Around the vector width, the unrolling and the 65,536 elements of one task.
SIZES = [1, 15, 16, 17, 1000, 65535, 65536, 65537, 150_001]
SETTINGS = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}


@pytest.fixture(params=["portable", "avx2", "avx512"])
def isa(request, monkeypatch):
    native.load()
    monkeypatch.setenv("LMWORKS_ISA", request.param)
    try:
        native.isa_name()
    except ConfigError as err:
        pytest.skip(str(err))


def make_params(dtype=torch.float32, sizes=SIZES):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


def make_grads(params, step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 + step)
    return [torch.randn(p.shape, generator=generator).to(dtype) for p in params]


def make_moments(params):
    return [[torch.zeros(p.shape) for p in params] for _ in range(2)]


def run(params, *, steps, grad_dtype=torch.float32, masters=None, **changes):
    """Step in place; returns the moments."""
    exp_avgs, exp_avg_sqs = make_moments(params)
    for step in range(1, steps + 1):
        grads = make_grads(params, step, grad_dtype)
        adamw_step_(
            params, grads, exp_avgs, exp_avg_sqs, masters=masters, step=step,
            **{**SETTINGS, **changes},
        )  # fmt: skip
    return exp_avgs, exp_avg_sqs


@pytest.mark.usefixtures("isa")
def test_100_steps_equal_torch_adamw():
    mine, peers = make_params(sizes=[17, 5000]), make_params(sizes=[17, 5000])
    peer = torch.optim.AdamW(peers, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run(mine, steps=100)
    for step in range(1, 101):
        for param, grad in zip(peers, make_grads(peers, step), strict=True):
            param.grad = grad
        peer.step()
    for got, want in zip(mine, peers, strict=True):
        # Each step rounds the weight once (2^-24 of it) and the update a few times (lr * 2^-22).
        bound = 100 * (2**-24 * float(want.abs().max()) + 1e-2 * 2**-22)
        assert float((got - want).abs().max()) <= bound


@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("isa")
def test_every_size_equals_the_reference(grad_dtype):
    mine, wanted = make_params(), make_params()
    moments = run(mine, steps=3, grad_dtype=grad_dtype, grad_scale=0.3)
    with use_kernels("reference"):
        want_moments = run(wanted, steps=3, grad_dtype=grad_dtype, grad_scale=0.3)
    for got, want in zip(mine, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    for got, want in zip(moments, want_moments, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("isa")
def test_a_bfloat16_parameter_is_its_float32_master_rounded():
    params = make_params(torch.bfloat16)
    masters = [p.float() for p in params]
    twins = [m.clone() for m in masters]
    run(params, steps=5, masters=masters, grad_dtype=torch.bfloat16)
    run(twins, steps=5, grad_dtype=torch.bfloat16)
    for param, master, twin in zip(params, masters, twins, strict=True):
        assert torch.equal(master, twin)
        assert torch.equal(param, master.bfloat16())


def test_updates_too_small_for_bfloat16_are_not_lost():
    param = torch.ones(64, dtype=torch.bfloat16)
    run([param], steps=200, masters=[param.float()], lr=1e-4, weight_decay=0.5)
    assert float(param.float().mean()) < 0.995


def test_grad_scale_equals_scaled_gradients():
    scaled, plain = make_params(), make_params()
    exp_avgs, exp_avg_sqs = make_moments(scaled)
    grads = make_grads(scaled, 1)
    adamw_step_(scaled, grads, exp_avgs, exp_avg_sqs, step=1, grad_scale=0.25, **SETTINGS)
    quartered = [grad * 0.25 for grad in grads]
    adamw_step_(plain, quartered, *make_moments(plain), step=1, **SETTINGS)
    assert all(torch.equal(a, b) for a, b in zip(scaled, plain, strict=True))


def test_threads_do_not_change_a_bit():
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            params = make_params()
            run(params, steps=2)
            results.append((params, global_norm(params)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0], strict=True))
    assert results[0][1] == results[1][1]


def test_strided_tensors_are_updated_too():
    base = torch.randn(30, 20)
    strided, plain = base.clone().T, base.T.contiguous()
    grad = torch.randn(30, 20).T
    adamw_step_([strided], [grad], *make_moments([strided]), step=1, **SETTINGS)
    adamw_step_([plain], [grad], *make_moments([plain]), step=1, **SETTINGS)
    torch.testing.assert_close(strided, plain, rtol=1e-6, atol=1e-6)


def test_float64_goes_through_the_reference():
    param = torch.ones(3, dtype=torch.float64)
    moments = [[torch.zeros(3, dtype=torch.float64)] for _ in range(2)]
    adamw_step_([param], [torch.ones(3, dtype=torch.float64)], *moments, step=1, **SETTINGS)
    torch.testing.assert_close(param, torch.full((3,), 1 - 1e-3 - 1e-2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 0}, "steps count from 1"),
        ({"grads": []}, "lengths"),
        ({"grads": [torch.ones(2)]}, "one shape"),
        ({"params": [torch.ones(3, dtype=torch.bfloat16)]}, "without a float32 master"),
        ({"masters": [None, None]}, "2 masters for 1 params"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changes, message):
    lists = {"params": [torch.ones(3)], "grads": [torch.ones(3)],
             "exp_avgs": [torch.ones(3)], "exp_avg_sqs": [torch.ones(3)]}  # fmt: skip
    with pytest.raises(ValueError, match=message):
        adamw_step_(**{**lists, "step": 1, **SETTINGS, **changes})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("isa")
def test_the_norm_equals_float64_arithmetic(dtype):
    tensors = make_params(dtype)
    want = torch.cat([t.double() for t in tensors]).norm().item()
    assert global_norm(tensors) == pytest.approx(want, rel=1e-6)


@pytest.mark.usefixtures("isa")
def test_the_norm_of_huge_and_tiny_values_keeps_its_range():
    assert global_norm([torch.full((10_000,), 1e30)]) == pytest.approx(1e32, rel=1e-6)
    assert global_norm([torch.full((10_000,), 1e-30)]) == pytest.approx(1e-28, rel=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.usefixtures("isa")
def test_one_bad_element_shows_in_the_norm(bad):
    tensors = make_params()
    tensors[-1][77_777] = bad
    assert str(global_norm(tensors)) == str(bad)


def test_the_norm_of_nothing_is_zero():
    assert global_norm([]) == 0.0


def test_the_norm_takes_strided_and_mixed_tensors():
    tensors = [torch.ones(4, 6).T[::2], torch.ones(3, dtype=torch.bfloat16)]
    assert global_norm(tensors) == pytest.approx(15**0.5)
