"""Attention equals that of transformers: biases, norms, windows, soft-caps, sinks, latents. fp32.

Layers are compared one by one, on random weights and the same input. Tolerance: as for whole models
(see test_model_peers), 1e-5 of the largest output.
"""

import pytest
import torch
from torch import Tensor

from lmworks.nn.attention.cache import KVCache
from lmworks.nn.attention.gqa import GroupedQueryAttention
from lmworks.nn.attention.mask import KeySpan, layer_mask, visible
from lmworks.nn.attention.mla import LatentAttention
from lmworks.nn.config import AttentionConfig, MLAConfig, NormConfig, RopeConfig, yarn_mscale
from lmworks.nn.position import Rope

transformers = pytest.importorskip("transformers")

B, T, C = 2, 150, 64
SIZES = {
    "hidden_size": C,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "rms_norm_eps": 1e-6,
    "attn_implementation": "eager",
}
NAMES = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o"}


def randomize(module: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(0.0, 0.3, generator=generator)


def assert_same_attention(config: AttentionConfig, peer, head_dim: int = 16, **changes) -> None:
    """`peer` reads the rotations and the additive mask that we work out."""
    settings = {"d_model": C, "norm": NormConfig(eps=1e-6), "use_bias": False} | changes
    layer = GroupedQueryAttention(config, **settings, dropout=0.0, layer=0).eval()
    randomize(peer)
    weights = {}
    for name, tensor in peer.state_dict().items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)  # noqa: PLW2901
        weights[name] = tensor
    layer.load_state_dict(weights)
    index = torch.arange(T)
    rotation = Rope(RopeConfig(), head_dim=head_dim)(index)
    tiles = 1 if config.sinks else 2  # gpt-oss takes each angle once
    angles = [part[None].tile(1, 1, tiles) for part in (rotation.cos, rotation.sin)]
    x = torch.randn(B, T, C, generator=torch.Generator().manual_seed(1))
    seen = visible(config.mask, index, index)
    added = torch.zeros(T, T).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        made = layer_mask(config.mask, T, KeySpan(0, 0, T), torch.device("cpu"))
        ours = layer(x, rotation=rotation, mask=made)
        theirs: Tensor = peer(x, position_embeddings=tuple(angles), attention_mask=added)[0]
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


def test_qwen2_with_biases_of_q_k_and_v():
    from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

    peer = Qwen2Attention(transformers.Qwen2Config(**SIZES), 0).eval()
    config = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=16, qkv_bias=True)
    assert_same_attention(config, peer)


def test_olmo2_with_norms_over_all_heads():
    from transformers.models.olmo2.modeling_olmo2 import Olmo2Attention

    peer = Olmo2Attention(transformers.Olmo2Config(**SIZES), 0).eval()
    config = AttentionConfig(
        num_heads=4, num_kv_heads=2, head_dim=16, qk_norm=True, qk_norm_scope="full"
    )
    assert_same_attention(config, peer)


def test_mistral_with_a_window():
    from transformers.models.mistral.modeling_mistral import MistralAttention

    peer = MistralAttention(transformers.MistralConfig(**SIZES, sliding_window=9), 0).eval()
    config = AttentionConfig(
        num_heads=4, num_kv_heads=2, head_dim=16, mask={"kind": "window", "size": 9}
    )
    assert_same_attention(config, peer)


def test_gemma2_with_a_window_a_soft_cap_and_its_own_scale():
    from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention

    sizes = SIZES | {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 9}
    peer = Gemma2Attention(transformers.Gemma2Config(**sizes, attn_logit_softcapping=2.0), 0)
    config = AttentionConfig(
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        scale=24**-0.5,
        logit_softcap=2.0,
        mask={"kind": "window", "size": 9},
    )
    assert_same_attention(config, peer.eval(), head_dim=32)


@pytest.mark.parametrize("window", [0, 9])
def test_gpt_oss_with_sinks(window):
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

    sizes = SIZES | {"head_dim": 16, "sliding_window": 9}
    settings = transformers.GptOssConfig(**sizes)
    peer = GptOssAttention(settings, 0 if window else 1).eval()
    mask = {"kind": "window", "size": window} if window else {"kind": "full"}
    config = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=16, sinks=True, mask=mask)
    assert_same_attention(config, peer, use_bias=True)


def test_windows_are_those_of_transformers_masks():
    from transformers.masking_utils import sliding_window_causal_mask_function

    rule = sliding_window_causal_mask_function(7)
    index = torch.arange(20)
    config = AttentionConfig(num_heads=1, head_dim=2, mask={"kind": "window", "size": 7})
    theirs = torch.tensor([[bool(rule(0, 0, q, k)) for k in index] for q in index])
    assert torch.equal(visible(config.mask, index, index), theirs)


@pytest.mark.parametrize("q_rank", [None, 24])
@pytest.mark.parametrize("yarn", [False, True])
def test_deepseek_v3_latents(q_rank, yarn):
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    sizes = SIZES | {
        "q_lora_rank": q_rank, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
        "v_head_dim": 10, "num_key_value_heads": 4, "rope_interleave": True,
    }  # fmt: skip
    scale = 20**-0.5
    if yarn:
        sizes["rope_parameters"] = {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1,
            "original_max_position_embeddings": 64,
        }  # fmt: skip
        scale *= yarn_mscale(40.0) ** 2
    settings = transformers.DeepseekV3Config(**sizes)
    peer = DeepseekV3Attention(settings, 0).eval()
    config = MLAConfig(
        num_heads=4, q_rank=q_rank or 0, kv_rank=20, nope_dim=12, rope_dim=8, v_dim=10, scale=scale
    )
    assert_same_latent_attention(config, peer)


def test_deepseek_v2_latents():
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention

    sizes = SIZES | {
        "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
        "v_head_dim": 10, "num_key_value_heads": 4,
    }  # fmt: skip
    peer = DeepseekV2Attention(transformers.DeepseekV2Config(**sizes), 0).eval()
    config = MLAConfig(num_heads=4, q_rank=24, kv_rank=20, nope_dim=12, rope_dim=8, v_dim=10)
    assert_same_latent_attention(config, peer, complex_angles=True)


LATENT_NAMES = {
    "q_a_proj": "q_down", "q_a_layernorm": "q_norm", "q_b_proj": "q_up", "q_proj": "q",
    "kv_a_proj_with_mqa": "kv_down", "kv_a_layernorm": "kv_norm", "kv_b_proj": "kv_up",
    "o_proj": "o",
}  # fmt: skip


def assert_same_latent_attention(config: MLAConfig, peer, *, complex_angles: bool = False) -> None:
    """Prefill, and decoding token by token in the absorbed form."""
    layer = LatentAttention(
        config, d_model=C, norm=NormConfig(eps=1e-6), use_bias=False, dropout=0.0, layer=0
    ).eval()
    randomize(peer)
    state = peer.state_dict().items()
    layer.load_state_dict({LATENT_NAMES[n.split(".")[0]] + ".weight": t for n, t in state})
    index = torch.arange(T)
    rope = Rope(RopeConfig(pairing="interleaved"), head_dim=8)
    rotation = rope(index)
    angles: Tensor | tuple[Tensor, ...] = tuple(
        part[None].tile(1, 1, 2) for part in (rotation.cos, rotation.sin)
    )
    if complex_angles:
        angles = torch.complex(rotation.cos, rotation.sin)[None]
    x = torch.randn(B, T, C, generator=torch.Generator().manual_seed(1))
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    added = torch.zeros(T, T).masked_fill(future, torch.finfo(torch.float32).min)[None, None]
    cache = KVCache([config.cache_shape], batch_size=B, max_seq_len=T)
    with torch.no_grad():
        ours = layer(x, rotation=rotation)
        theirs: Tensor = peer(x, position_embeddings=angles, attention_mask=added)[0]
        pieces = []
        for piece in x.split([100] + [1] * 50, dim=1):
            end = cache.length + piece.shape[1]
            turn = rope(torch.arange(cache.length, end))
            pieces.append(layer(piece, rotation=turn, cache=cache))
            cache.advance(piece.shape[1])
    assert theirs.std() > 0.1
    bound = 1e-5 * float(theirs.abs().max())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=bound)
    torch.testing.assert_close(torch.cat(pieces, dim=1), theirs, rtol=0, atol=bound)
