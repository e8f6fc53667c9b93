"""Rotary positions depend on distances only; tables stay exact through every conversion."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmworks.nn.config import AlibiConfig, RopeConfig
from lmworks.nn.position import (
    AlibiBias,
    LearnedPositions,
    Rope,
    SinusoidalPositions,
    packed_positions,
    rotate,
)


def make_rope(head_dim: int = 16, **values) -> Rope:
    return Rope(RopeConfig.model_validate(values), head_dim=head_dim)


ROPE = make_rope()


def score(q, k, rope, position_q: int, position_k: int) -> float:
    turned_q = rotate(q, rope(torch.tensor([position_q])))
    turned_k = rotate(k, rope(torch.tensor([position_k])))
    return float((turned_q.double() * turned_k.double()).sum())


@given(
    seed=st.integers(0, 10_000),
    distance=st.integers(0, 1000),
    start=st.integers(0, 1000),
    shift=st.integers(0, 2000),
)
def test_rope_scores_are_translation_invariant(seed, distance, start, shift):
    q, k = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(seed))
    here = score(q, k, ROPE, start + distance, start)
    there = score(q, k, ROPE, start + distance + shift, start + shift)
    # fp32 tables and products: 16 terms of a few units, each good to 1e-7.
    assert here == pytest.approx(there, abs=2e-5)


@given(seed=st.integers(0, 10_000), position=st.integers(0, 4095))
def test_rope_keeps_lengths(seed, position):
    x = torch.randn(1, 1, 1, 16, generator=torch.Generator().manual_seed(seed))
    turned = rotate(x, ROPE(torch.tensor([position])))
    torch.testing.assert_close(turned.norm(), x.norm())


def test_learned_positions_are_not_translation_invariant():
    positions = LearnedPositions(max_seq_len=32, d_model=16)
    torch.nn.init.normal_(positions.weight, generator=torch.Generator().manual_seed(0))
    x = torch.randn(1, 1, 16, generator=torch.Generator().manual_seed(1))
    vectors = [positions.add_to(x, torch.tensor([p])) for p in (0, 3, 10, 13)]
    near, far = (vectors[0] * vectors[1]).sum(), (vectors[2] * vectors[3]).sum()
    assert abs(near - far) > 0.1


def test_rope_is_its_formula():
    """Pair i of a token at m turns by m theta^(-2i/D), as a complex product (RoFormer, eq. 13)."""
    rope = make_rope(head_dim=8, theta=100.0)
    x = torch.randn(1, 1, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned = rotate(x, rope(torch.arange(5)))
    for m in range(5):
        for i in range(4):
            angle = m * 100.0 ** (-2 * i / 8)
            pair = complex(x[0, 0, m, i], x[0, 0, m, i + 4])
            expected = pair * complex(math.cos(angle), math.sin(angle))
            found = complex(turned[0, 0, m, i], turned[0, 0, m, i + 4])
            assert found == pytest.approx(expected, abs=1e-6)


def test_interleaved_rope_turns_neighbours():
    rope = make_rope(head_dim=8, theta=100.0, pairing="interleaved")
    x = torch.randn(1, 1, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned = rotate(x, rope(torch.arange(5)))
    for m in range(5):
        for i in range(4):
            angle = m * 100.0 ** (-2 * i / 8)
            pair = complex(x[0, 0, m, 2 * i], x[0, 0, m, 2 * i + 1])
            expected = pair * complex(math.cos(angle), math.sin(angle))
            found = complex(turned[0, 0, m, 2 * i], turned[0, 0, m, 2 * i + 1])
            assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_partial_rope_turns_the_first_elements_as_a_smaller_head_and_leaves_the_rest(pairing):
    x = torch.randn(2, 3, 5, 16, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(5)
    turned = rotate(x, make_rope(16, rotary_fraction=0.375, pairing=pairing)(positions))
    expected = rotate(x[..., :6], make_rope(6, pairing=pairing)(positions))
    assert torch.equal(turned[..., :6], expected)
    assert torch.equal(turned[..., 6:], x[..., 6:])


def test_rotations_of_packed_rows_are_each_rows_own():
    x = torch.randn(2, 3, 4, 16, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[0, 1, 2, 3], [0, 1, 0, 1]])
    turned = rotate(x, ROPE(positions))
    for row in range(2):
        assert torch.equal(turned[row], rotate(x[row : row + 1], ROPE(positions[row]))[0])


def test_rope_angles_are_exact_far_out():
    rotation = make_rope(head_dim=4, theta=500_000.0)(torch.tensor([200_000]))
    angle = 200_000 * 500_000.0**-0.5
    assert float(rotation.cos[0, 1]) == pytest.approx(math.cos(angle), abs=1e-7)


HUGE = [1e-3, 1.0, 32.0, 1e6, 1e9, 1e15, 1e300, 2**40, 10**400, float("inf")]


@given(
    kind=st.sampled_from(["linear", "ntk", "yarn", "llama3"]),
    theta=st.sampled_from([1.0 + 1e-15, 2.0, 1e4, 1e15, 1e300]),
    numbers=st.lists(st.sampled_from(HUGE), min_size=5, max_size=5),
    head_dim=st.sampled_from([2, 4, 128]),
)
def test_any_scaling_is_refused_or_gives_finite_frequencies(kind, theta, numbers, head_dim):
    keys = {
        "linear": ["factor"],
        "ntk": ["factor"],
        "yarn": ["factor", "original_max_seq_len", "beta_fast", "beta_slow"],
        "llama3": ["factor", "original_max_seq_len", "low_freq_factor", "high_freq_factor"],
    }[kind]
    scaling = {"kind": kind} | dict(zip(keys, numbers, strict=False))
    try:
        config = RopeConfig.model_validate({"theta": theta, "scaling": scaling})
    except ValueError:
        return
    found = config.frequencies(head_dim)
    assert len(found) == head_dim // 2
    assert all(0 <= frequency <= 1 for frequency in found)


def test_sinusoids_are_the_papers():
    positions = SinusoidalPositions(d_model=6)
    added = positions.add_to(torch.zeros(1, 50, 6), torch.arange(50))
    for p in (0, 1, 49):
        for i in range(3):
            angle = p / 10000 ** (2 * i / 6)
            assert float(added[0, p, 2 * i]) == pytest.approx(math.sin(angle), abs=1e-6)
            assert float(added[0, p, 2 * i + 1]) == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize(
    "convert",
    [
        lambda m: m.to(torch.bfloat16),
        lambda m: m.half(),
        lambda m: m.double(),
        lambda m: m.to("meta").to_empty(device="cpu"),
        lambda m: m.bfloat16().float(),
    ],
)
@pytest.mark.parametrize("kind", ["rope", "alibi", "sinusoidal"])
def test_tables_stay_exact_through_conversions(convert, kind):
    def make():
        if kind == "rope":
            return make_rope()
        if kind == "alibi":
            return AlibiBias(AlibiConfig(), num_heads=6)
        return SinusoidalPositions(d_model=8)

    expected = dict(make().named_buffers())
    found = dict(convert(make()).named_buffers())
    assert all(torch.equal(found[name], table) for name, table in expected.items())
    assert make().state_dict() == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_rotation_keeps_the_dtype(dtype):
    assert rotate(torch.ones(1, 1, 3, 16, dtype=dtype), ROPE(torch.arange(3))).dtype == dtype


def test_packed_positions_restart_where_the_document_changes():
    ids = torch.tensor([[5, 5, 5, 2, 2, 5, 7, 7], [0, 0, 0, 0, 0, 0, 0, 0]], dtype=torch.int32)
    assert packed_positions(ids).tolist() == [[0, 1, 2, 0, 1, 0, 0, 1], [*range(8)]]
