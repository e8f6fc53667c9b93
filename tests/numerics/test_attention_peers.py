"""Attention equals that of transformers: biases, norms, windows, soft-caps and sinks, in fp32.

Layers are compared one by one, on random weights and the same input. Tolerance: as for whole models
(see test_model_peers), 1e-5 of the largest output.
"""

import pytest
import torch
from torch import Tensor

from lmworks.nn.attention.gqa import GroupedQueryAttention
from lmworks.nn.attention.mask import KeySpan, layer_mask, visible
from lmworks.nn.config import AttentionConfig, NormConfig, RopeConfig
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
