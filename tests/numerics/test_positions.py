"""Rotations, slopes and buckets equal those of transformers, for the configs of published models.

transformers computes frequencies in fp32: a power of theta has the relative error of its exponent,
ln(theta) eps = 13 x 6e-8 for theta = 500,000, and the scalings add a few roundings: 2e-6.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmworks.nn.config import AlibiConfig, RopeConfig, T5Config, yarn_mscale
from lmworks.nn.position import AlibiBias, Rope, T5Bias

transformers = pytest.importorskip("transformers")
rope_utils = pytest.importorskip("transformers.modeling_rope_utils")


def peer_frequencies(rope_parameters: dict, head_dim: int, max_seq_len: int, **kwargs):
    config = transformers.LlamaConfig(
        hidden_size=8 * head_dim, num_attention_heads=8, head_dim=head_dim,
        max_position_embeddings=max_seq_len, rope_parameters=rope_parameters,
    )  # fmt: skip
    function = rope_utils.ROPE_INIT_FUNCTIONS[rope_parameters["rope_type"]]
    return function(config, torch.device("cpu"), **kwargs)


# (ours, transformers', head_dim, max_seq_len). Published config.json files, but for the first.
CASES = {
    "linear x4 (LongChat, 2306.15595)": (
        {"scaling": {"kind": "linear", "factor": 4.0}},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        128, 16384,
    ),
    "Llama-3.1-8B": (
        {"theta": 5e5, "scaling": {"kind": "llama3", "factor": 8.0}},
        {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        128, 131072,
    ),
    "Llama-3.2-1B": (
        {"theta": 5e5, "scaling": {"kind": "llama3", "factor": 32.0}},
        {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        64, 131072,
    ),
    "Qwen2.5 with YaRN, as its model card says": (
        {"theta": 1e6, "scaling": {"kind": "yarn", "factor": 4.0, "original_max_seq_len": 32768}},
        {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
         "original_max_position_embeddings": 32768},
        128, 131072,
    ),
    "DeepSeek-V3": (
        {"scaling": {"kind": "yarn", "factor": 40.0, "original_max_seq_len": 4096,
                     "attention_factor": 1.0}},
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "beta_fast": 32, "beta_slow": 1,
         "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
        64, 163840,
    ),
    "gpt-oss-20b": (
        {"theta": 1.5e5, "scaling": {"kind": "yarn", "factor": 32.0, "original_max_seq_len": 4096,
                                     "truncate": False}},
        {"rope_type": "yarn", "rope_theta": 1.5e5, "factor": 32.0, "beta_fast": 32.0,
         "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 4096},
        64, 131072,
    ),
    "a ramp that ends beyond the last pair": (
        {"scaling": {"kind": "yarn", "factor": 2.0, "original_max_seq_len": 2**20}},
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0,
         "original_max_position_embeddings": 2**20},
        64, 2**21,
    ),
    "half of each head": (
        {"rotary_fraction": 0.5, "scaling": {"kind": "linear", "factor": 2.0}},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.5},
        64, 4096,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_scaled_frequencies_are_the_peers(case):
    ours, theirs, head_dim, max_seq_len = case
    config = RopeConfig.model_validate(ours)
    expected, factor = peer_frequencies(theirs, head_dim, max_seq_len)
    found = torch.tensor(config.frequencies(head_dim))
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)
    assert config.scaling.rotation_scale == pytest.approx(factor, rel=1e-6)


def test_ntk_is_what_the_dynamic_peer_computes_for_the_longest_sequence():
    # transformers stretches by factor * length / max_seq_len - (factor - 1): 7 here.
    expected, _ = peer_frequencies(
        {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, 128, 4096, seq_len=16384
    )
    config = RopeConfig.model_validate({"scaling": {"kind": "ntk", "factor": 7.0}})
    found = torch.tensor(config.frequencies(128))
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)


def test_ntk_interpolates_the_slowest_pair_by_its_factor_and_the_fastest_not():
    plain = RopeConfig().frequencies(64)
    ntk = RopeConfig.model_validate({"scaling": {"kind": "ntk", "factor": 8.0}}).frequencies(64)
    assert ntk[0] == plain[0]
    assert plain[-1] / ntk[-1] == pytest.approx(8.0)


def test_rotation_has_yarns_factor_in_it():
    scaling = {"kind": "yarn", "factor": 4.0, "original_max_seq_len": 64}
    rope = Rope(RopeConfig.model_validate({"scaling": scaling}), head_dim=16)
    cos, sin, _ = rope(torch.tensor([0, 5]))
    expected = torch.full((2, 8), 0.1 * math.log(4.0) + 1.0)
    torch.testing.assert_close((cos.square() + sin.square()).sqrt(), expected)


def test_mscale_is_deepseeks():
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_get_mscale

    for factor, weight in [(40.0, 1.0), (40.0, 0.707), (1.0, 1.0)]:
        assert yarn_mscale(factor, weight) == pytest.approx(yarn_get_mscale(factor, weight))


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 16, 20, 32, 71])
def test_alibi_is_blooms(num_heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    T = 9
    slope_times_key = build_alibi_tensor(torch.ones(1, T), num_heads, torch.float32)
    position = torch.arange(T)
    # BLOOM adds slope * key: the same after softmax, which takes a constant per query away.
    expected = slope_times_key.view(num_heads, 1, T) - slope_times_key.view(num_heads, T, 1)
    found = AlibiBias(AlibiConfig(), num_heads=num_heads)(position, position)[0]
    seen = torch.ones(T, T).tril().bool()
    torch.testing.assert_close(found[:, seen], expected[:, seen])


@pytest.mark.parametrize("max_bias", [4.0, 8.0])
def test_alibi_slopes_are_mpts(max_bias):
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    num_heads, T = 12, 7
    expected = build_mpt_alibi_tensor(num_heads, T, max_bias).view(num_heads, T)
    found = AlibiBias(AlibiConfig(max_bias=max_bias), num_heads=num_heads)
    bias = found(torch.tensor([T - 1]), torch.arange(T))
    torch.testing.assert_close(bias[0, :, 0], expected)


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (16, 40), (7, 1000)])
def test_t5_bias_is_the_peers(num_buckets, max_distance):
    peer_layer = transformers.models.t5.modeling_t5.T5Attention(
        transformers.T5Config(
            is_decoder=True, num_heads=3, relative_attention_num_buckets=num_buckets,
            relative_attention_max_distance=max_distance,
        ),
        has_relative_attention_bias=True,
    )  # fmt: skip
    T = 1500
    bias = T5Bias(T5Config(num_buckets=num_buckets, max_distance=max_distance), num_heads=3)
    with torch.no_grad():
        bias.weight.copy_(torch.arange(num_buckets * 3).view(num_buckets, 3))
        peer_layer.relative_attention_bias.weight.copy_(bias.weight)
        expected = peer_layer.compute_bias(T, T)[0]
        position = torch.arange(T)
        assert torch.equal(bias(position, position)[0], expected)


def score(signal, position_q: int, position_k: int) -> float:
    """One score of fixed queries and keys under a rotation or a bias, for the last of 3 heads."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 3, 1, 16, generator=generator)
    query, key = torch.tensor([position_q]), torch.tensor([position_k])
    if isinstance(signal, Rope):
        from lmworks.nn.position import rotate

        q, k = rotate(q, signal(query)), rotate(k, signal(key))
        return float((q.double() * k.double()).sum(-1)[0, -1, 0])
    return float((q * k).sum(-1)[0, -1, 0] + signal(query, key)[0, -1, 0, 0].detach())


def filled_t5() -> T5Bias:
    bias = T5Bias(T5Config(), num_heads=3)
    torch.nn.init.normal_(bias.weight, generator=torch.Generator().manual_seed(1))
    return bias


def rope(**values) -> Rope:
    return Rope(RopeConfig.model_validate(values), head_dim=16)


RELATIVE = {
    "rope": rope(),
    "interleaved": rope(pairing="interleaved"),
    "partial": rope(rotary_fraction=0.5),
    "yarn": rope(scaling={"kind": "yarn", "factor": 4.0, "original_max_seq_len": 256}),
    "llama3": rope(scaling={"kind": "llama3", "original_max_seq_len": 256}),
    "alibi": AlibiBias(AlibiConfig(), num_heads=3),
    "t5": filled_t5(),
}


@pytest.mark.parametrize("signal", RELATIVE.values(), ids=RELATIVE)
@given(start=st.integers(0, 1000), distance=st.integers(0, 1000), shift=st.integers(0, 2000))
def test_scores_depend_on_the_distance_only(signal, start, distance, shift):
    here = score(signal, start + distance, start)
    there = score(signal, start + distance + shift, start + shift)
    # fp32 cosines and products: 16 terms of a few units, each good to 1e-7.
    assert here == pytest.approx(there, abs=2e-5)


@pytest.mark.parametrize("signal", RELATIVE.values(), ids=RELATIVE)
def test_scores_do_depend_on_the_distance(signal):
    assert abs(score(signal, 100, 99) - score(signal, 100, 0)) > 0.01
