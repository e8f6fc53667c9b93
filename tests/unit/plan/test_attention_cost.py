"""Cache bytes and arithmetic per byte are those of counts by hand, and show what they are for."""

import pytest

from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.plan.attention_cost import AttentionCost, attention_costs

H, D, T, LAYERS = 8, 16, 100, 3
MODEL = {
    "vocab_size": 50,
    "max_seq_len": T,
    "d_model": H * D,
    "num_layers": LAYERS,
    "mlp": {"d_ff": 64},
    "attention": {"num_heads": H},
}
LATENT = {"kind": "mla", "num_heads": H, "kv_rank": 64, "nope_dim": D, "rope_dim": 8, "v_dim": D}


def costs(**changes) -> dict[str, AttentionCost]:
    config = ModelConfig.model_validate(MODEL | changes)
    return {cost.name: cost for cost in attention_costs(config, context_length=T)}


def test_mha_by_hand():
    cost = costs()["MHA"]
    assert cost.cache_bytes_per_token == LAYERS * 2 * H * D * 2
    assert cost.cache_bytes == T * cost.cache_bytes_per_token
    # The last query: 2 products of 2 FLOPs per element with T keys; T keys and values, 2 vectors.
    flops, elements = 4 * T * H * D, 2 * T * H * D + 2 * H * D
    assert cost.decode_flops_per_byte == pytest.approx(flops / (2 * elements))
    # All queries: sum of t keys; queries, keys, values and outputs once each.
    flops, elements = 4 * H * D * (T * (T + 1) / 2), 4 * T * H * D
    assert cost.prefill_flops_per_byte == pytest.approx(flops / (2 * elements))


def test_gqa_by_hand():
    cost = costs(attention={"num_heads": H, "num_kv_heads": 2})["this model"]
    assert cost.cache_bytes_per_token == LAYERS * 2 * 2 * D * 2
    flops, elements = 4 * T * H * D, 2 * T * 2 * D + 2 * H * D
    assert cost.decode_flops_per_byte == pytest.approx(flops / (2 * elements))
    assert cost.shape == "2 x 2 x 16"


def test_mla_by_hand():
    cost = costs(attention=LATENT)["this model"]
    assert cost.cache_bytes_per_token == LAYERS * (64 + 8) * 2
    flops = 2 * T * H * (64 + 8 + 64)
    elements = T * (64 + 8) + H * (64 + 8 + 64)
    assert cost.decode_flops_per_byte == pytest.approx(flops / (2 * elements))
    flops, elements = 2 * H * (D + 8 + D) * (T * (T + 1) / 2), 2 * T * H * (D + 8 + D)
    assert cost.prefill_flops_per_byte == pytest.approx(flops / (2 * elements))


def test_windows_by_hand():
    mask = {"kind": "window", "size": 10}
    cost = costs(attention={"num_heads": H, "mask": mask}, max_seq_len=1000)["this model"]
    flops, elements = 4 * 10 * H * D, 2 * 10 * H * D + 2 * H * D
    assert cost.decode_flops_per_byte == pytest.approx(flops / (2 * elements))
    flops = 4 * H * D * (sum(range(1, 11)) + 90 * 10)
    assert cost.prefill_flops_per_byte == pytest.approx(
        flops // T * T / (2 * 4 * T * H * D), rel=1e-6
    )


@pytest.mark.parametrize("attention", [{"num_heads": H, "num_kv_heads": 2}, LATENT])
@pytest.mark.parametrize("mask", [{"kind": "full"}, {"kind": "window", "size": 4}])
def test_planned_cache_is_the_real_one(attention, mask):
    kinds = {"local": {"attention": {"mask": mask}}, "global": {}}
    config = ModelConfig.model_validate(
        MODEL
        | {"attention": attention, "layer_kinds": kinds, "layer_pattern": ["local*2", "global"]}
    )
    (own, *_) = attention_costs(config, context_length=T, element_bytes=4)
    assert own.cache_bytes == Decoder(config).new_cache(1).size_bytes == config.kv_cache_bytes(T, 4)
    assert own.cache_bytes_per_token == config.kv_cache_bytes_per_token(4)


def test_each_variant_shows_its_reason():
    found = costs()
    mha, mqa, mla = found["MHA"], found["MQA"], found["MLA"]
    gqa, window = found["GQA, 4 per key"], found["MHA, window 25"]
    # Fewer key-value heads: smaller cache, more arithmetic for each byte of it.
    sizes = [c.cache_bytes for c in (mha, gqa, mqa)]
    assert sizes == [sizes[0], sizes[0] // 4, sizes[0] // 8]
    assert mha.decode_flops_per_byte < 1 < gqa.decode_flops_per_byte < mqa.decode_flops_per_byte
    # Latents: a cache as of 2.25 heads (paper, table 1), arithmetic beyond MQA's.
    assert mla.cache_bytes_per_token == LAYERS * 9 * D // 2 * 2
    assert mla.decode_flops_per_byte > mqa.decode_flops_per_byte
    # A window bounds the cache and changes the ratio of decoding hardly at all.
    assert window.cache_bytes < mha.cache_bytes
    assert window.decode_flops_per_byte == pytest.approx(mha.decode_flops_per_byte, rel=0.05)


def test_a_model_of_layers_of_two_kinds_is_summed():
    kinds = {"local": {"attention": {"mask": {"kind": "window", "size": 4}}}, "global": {}}
    mixed = costs(layer_kinds=kinds, layer_pattern=["local", "global", "global"])["this model"]
    assert mixed.shape == "2 x 8 x 16, 4 tokens + 2 x 8 x 16"
    per_layer = 2 * H * D * 2
    assert mixed.cache_bytes == per_layer * (2 * T + 4 - 1 + 32 + 32)
