"""Every form of attention equals the plain one, in value and gradient.

Shapes: B batch, H query heads, K kv heads, T queries, S keys, D head_dim.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lmworks.nn.attention.mask import KeySpan, layer_mask
from lmworks.nn.config import WindowMaskConfig
from lmworks.ops.attention import attention
from lmworks.ops.attention.materialized import MAX_KEYS, materialized_attention
from lmworks.ops.attention.reference import reference_attention
from lmworks.ops.dispatch import use_kernels

BF16_EPS = 2.0**-8


def random_qkv(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of shape (B, H or K, T, D), laid out as the model does: heads next to D in memory."""
    batch, num_heads, num_kv_heads, num_tokens, head_dim = shape
    generator = torch.Generator().manual_seed(seed)

    def draw(heads: int) -> Tensor:
        x = torch.randn(batch, num_tokens, heads, head_dim, generator=generator)
        return x.to(dtype).transpose(1, 2).requires_grad_()

    return draw(num_heads), draw(num_kv_heads), draw(num_kv_heads)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return reference_attention(q, k, v, mask=None, logit_softcap=0.0, dropout=0.0)


@settings(max_examples=40)
@given(
    batch=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    num_tokens=st.integers(1, 33),
    head_dim=st.sampled_from([1, 4, 32]),
)
def test_materialized_equals_the_plain_form_in_value_and_gradient(
    batch: int, kv_heads: int, groups: int, num_tokens: int, head_dim: int
) -> None:
    shape = (batch, kv_heads * groups, kv_heads, num_tokens, head_dim)
    qkv = random_qkv(shape, torch.float64)
    expected, actual = plain(*qkv), materialized_attention(*qkv)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn(expected.shape, dtype=torch.float64)
    wanted = torch.autograd.grad((expected * weight).sum(), qkv)
    got = torch.autograd.grad((actual * weight).sum(), qkv)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_materialized_passes_gradcheck() -> None:
    assert torch.autograd.gradcheck(
        materialized_attention, random_qkv((1, 2, 1, 4, 2), torch.float64)
    )


@pytest.mark.parametrize("num_tokens", [1, 7, 256, MAX_KEYS, MAX_KEYS + 1])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_bf16_attention_is_within_rounding_of_float64(num_tokens: int, num_kv_heads: int) -> None:
    q, k, v = random_qkv((1, 4, num_kv_heads, num_tokens, 16), torch.bfloat16)
    expected = plain(q.double(), k.double(), v.double())
    # Scores s are rounded to 8 bits, so weights move by a factor of e^(eps |s|), |s| < 6 here; then
    # weights and output are rounded once each. |v| < 5 bounds the whole.
    bound = BF16_EPS * (6 + 2) * float(v.detach().abs().max())
    assert float((attention(q, k, v).double() - expected).detach().abs().max()) < bound


def test_fp32_attention_equals_the_plain_form() -> None:
    qkv = random_qkv((2, 6, 2, 40, 8), torch.float32)
    torch.testing.assert_close(attention(*qkv), plain(*qkv), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_plain_form_can_be_forced(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    qkv = random_qkv((1, 4, 2, 40, 16), dtype)
    monkeypatch.setattr("lmworks.ops.attention.reference_attention", lambda q, *_, **__: q)
    assert not torch.equal(attention(*qkv), qkv[0])
    with use_kernels("reference"):
        assert torch.equal(attention(*qkv), qkv[0])


def test_one_query_sees_every_key() -> None:
    q, k, v = random_qkv((2, 4, 2, 9, 8), torch.bfloat16)
    last = attention(q[:, :, -1:], k, v)
    expected = plain(q.double(), k.double(), v.double())[:, :, -1:]
    torch.testing.assert_close(last.double(), expected, rtol=0, atol=BF16_EPS * 8 * 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_last_of_fewer_queries_than_keys_is_at_the_last_key(dtype: torch.dtype) -> None:
    q, k, v = random_qkv((2, 4, 2, 9, 8), dtype)
    expected = plain(q.double(), k.double(), v.double())[:, :, -4:]
    bound = 1e-5 if dtype == torch.float32 else BF16_EPS * 8 * 5
    torch.testing.assert_close(attention(q[:, :, -4:], k, v).double(), expected, rtol=0, atol=bound)


def test_a_mask_limits_what_a_query_sees() -> None:
    q, k, v = random_qkv((1, 2, 2, 4, 8), torch.float32)
    mask = torch.eye(4, dtype=torch.bool)
    torch.testing.assert_close(attention(q, k, v, mask=mask), v)


def test_soft_capped_scores_follow_the_formula() -> None:
    q, k, v = random_qkv((1, 2, 1, 6, 4), torch.float64)
    scores = 2.0 * torch.tanh((q @ k.transpose(-1, -2) / 4**0.5) / 2.0)
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(attention(q, k, v, logit_softcap=2.0), expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("queries", [1, 3, 9])
def test_bias_and_scale_are_the_plain_form_in_value_and_gradient(
    masked: bool, queries: int
) -> None:
    q, k, v = random_qkv((2, 4, 2, 9, 6), torch.float64)
    q = q[:, :, -queries:]
    bias = torch.randn(4, queries, 9, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 1, queries, 9) < 0.5 if masked else None
    if mask is not None:
        mask[..., 0] = True
    options = {"mask": mask, "bias": bias, "scale": 0.7}
    actual, expected = attention(q, k, v, **options), reference_attention(q, k, v, **options)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    inputs = (q, k, v, bias)
    weight = torch.randn(expected.shape, dtype=torch.float64)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    got = torch.autograd.grad((actual * weight).sum(), inputs)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_bias_and_scale_follow_the_formula() -> None:
    q, k, v = random_qkv((1, 2, 1, 6, 4), torch.float64)
    bias = torch.randn(2, 6, 6, dtype=torch.float64)
    scores = 0.3 * q @ k.transpose(-1, -2) + bias
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(attention(q, k, v, bias=bias, scale=0.3), expected)


def test_dropout_leaves_the_mean_unchanged() -> None:
    qkv = random_qkv((1, 1, 1, 8, 4), torch.float32)
    torch.manual_seed(0)
    mean = attention(*(x.expand(4000, -1, -1, -1) for x in qkv), dropout=0.5).mean(0, keepdim=True)
    # A weight is 0 or doubled: its standard error over 4,000 draws is at most 1 / sqrt(4000).
    torch.testing.assert_close(mean, attention(*qkv), rtol=0, atol=5 * 3 / 4000**0.5)


class CountElements(TorchDispatchMode):
    """Elements that all operators together put out: the work, where it is bound by memory."""

    def __init__(self) -> None:
        super().__init__()
        self.num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.num_elements += sum(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))
        return out


@pytest.mark.parametrize("cap", [0.0, 5.0])
@pytest.mark.parametrize("sinks", [0, 3])
def test_work_under_a_window_grows_with_the_length_and_not_its_square(
    sinks: int, cap: float
) -> None:
    config = WindowMaskConfig(size=100, num_sink_tokens=sinks)
    work = []
    for num_tokens in (1280, 2560):
        qkv = random_qkv((1, 2, 1, num_tokens, 4), torch.float32)
        mask = layer_mask(config, num_tokens, KeySpan(0, 0, num_tokens), torch.device("cpu"))
        with CountElements() as counter:
            attention(*qkv, mask=mask, logit_softcap=cap).sum().backward()
        work.append(counter.num_elements)
    # The first block reads fewer keys than the others, so twice the length is a little more.
    assert work[1] < 2.2 * work[0]
