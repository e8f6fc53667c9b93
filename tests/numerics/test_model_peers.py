"""Logits equal those of transformers for a family of each kind, on random weights in fp32.

Between them: pre-, post-, double and reordered norm, scaled residuals, serial and parallel blocks,
all attention head layouts, query-key norm, both soft-caps, learned positions, rotation
(whole, partial, interleaved, scaled), ALiBi, LayerNorm and RMSNorm.
Tolerance: both sides add the same terms in another order. A logit is the end of a few hundred
additions in sequence, each with a relative error of 6e-8 of the largest partial sum, so the
difference stays under 1e-5 of the largest logit.
"""

import pytest
import torch
from torch import Tensor

from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder

transformers = pytest.importorskip("transformers")

V, T, C, L = 97, 24, 64, 3
TOKENS = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(5))


def randomize(model: torch.nn.Module) -> None:
    """Weights large enough that every part of the model matters, norms away from one."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.2, generator=generator)
            if weight.ndim == 1:
                weight.add_(0.5)


def assert_same_logits(config: ModelConfig, weights: dict[str, Tensor], peer) -> None:
    model = Decoder(config).eval()
    model.load_state_dict(weights)
    with torch.no_grad():
        ours, theirs = model(TOKENS), peer(TOKENS).logits
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


def llama_weights(peer, renamed: dict[str, str]) -> dict[str, Tensor]:
    """State dict of a Llama-like model under our names; `renamed` maps further parts of names."""
    names = {
        "model.": "",
        "embed_tokens": "embed",
        "self_attn": "attention",
        "q_proj": "q",
        "k_proj": "k",
        "v_proj": "v",
        "o_proj": "o",
        "gate_proj": "gate",
        "up_proj": "up",
        "down_proj": "down",
        "lm_head": "head",
    } | renamed
    weights = {}
    for name, tensor in peer.state_dict().items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)  # noqa: PLW2901
        weights[name] = tensor
    return weights


LLAMA_NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_llama(num_kv_heads):
    peer = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=V, hidden_size=C, intermediate_size=80, num_hidden_layers=L,
            num_attention_heads=4, num_key_value_heads=num_kv_heads, rms_norm_eps=1e-6,
            max_position_embeddings=32,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        )
    ).eval()  # fmt: skip
    randomize(peer)
    config = ModelConfig.model_validate(
        {
            "vocab_size": V, "max_seq_len": 32, "d_model": C, "num_layers": L,
            "norm": {"eps": 1e-6}, "mlp": {"d_ff": 80},
            "attention": {"num_heads": 4, "num_kv_heads": num_kv_heads},
            "position": {"kind": "rope", "theta": 500.0},
        }
    )  # fmt: skip
    assert_same_logits(config, llama_weights(peer, LLAMA_NORMS), peer)


def test_qwen3_with_query_key_norm_and_wide_heads():
    peer = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=V, hidden_size=C, intermediate_size=80, num_hidden_layers=L,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6,
            max_position_embeddings=32, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        )
    ).eval()  # fmt: skip
    randomize(peer)
    config = ModelConfig.model_validate(
        {
            "vocab_size": V, "max_seq_len": 32, "d_model": C, "num_layers": L,
            "norm": {"eps": 1e-6}, "mlp": {"d_ff": 80}, "tie_embeddings": True,
            "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "qk_norm": True},
            "position": {"kind": "rope", "theta": 1e6},
        }
    )  # fmt: skip
    weights = llama_weights(peer, LLAMA_NORMS)
    del weights["head.weight"]
    assert_same_logits(config, weights, peer)


def test_gemma2_with_double_norm_and_soft_caps():
    peer = transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(
            vocab_size=V, hidden_size=C, intermediate_size=80, num_hidden_layers=L,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16,
            rms_norm_eps=1e-6, max_position_embeddings=32, sliding_window=32,
            attn_logit_softcapping=5.0, final_logit_softcapping=3.0, attn_implementation="eager",
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        )
    ).eval()  # fmt: skip
    randomize(peer)
    config = ModelConfig.model_validate(
        {
            "vocab_size": V, "max_seq_len": 32, "d_model": C, "num_layers": L,
            "norm": {"eps": 1e-6, "unit_offset": True}, "norm_position": "double",
            "logit_softcap": 3.0, "embedding_scale": C**0.5, "tie_embeddings": True,
            "mlp": {"activation": "geglu_tanh", "d_ff": 80},
            "attention": {"num_heads": 4, "num_kv_heads": 2, "logit_softcap": 5.0},
        }
    )  # fmt: skip
    norms = {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "attention_out_norm",
        "pre_feedforward_layernorm": "mlp_norm",
        "post_feedforward_layernorm": "mlp_out_norm",
    }
    weights = llama_weights(peer, norms)
    del weights["head.weight"]
    assert_same_logits(config, weights, peer)


def test_olmo2_with_reordered_norm():
    peer = transformers.Olmo2ForCausalLM(
        transformers.Olmo2Config(
            vocab_size=V, hidden_size=C, intermediate_size=80, num_hidden_layers=L,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
            rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        )
    ).eval()  # fmt: skip
    randomize(peer)
    config = ModelConfig.model_validate(
        {
            "vocab_size": V, "max_seq_len": 32, "d_model": C, "num_layers": L,
            "norm": {"eps": 1e-6}, "norm_position": "reordered", "mlp": {"d_ff": 80},
            "attention": {
                "num_heads": 4, "num_kv_heads": 2, "qk_norm": True, "qk_norm_scope": "full",
            },
        }
    )  # fmt: skip
    norms = {
        "post_attention_layernorm": "attention_out_norm",
        "post_feedforward_layernorm": "mlp_out_norm",
    }
    assert_same_logits(config, llama_weights(peer, norms), peer)


def test_granite_with_scaled_residuals():
    peer = transformers.GraniteForCausalLM(
        transformers.GraniteConfig(
            vocab_size=V, hidden_size=C, intermediate_size=80, num_hidden_layers=L,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
            rms_norm_eps=1e-6, residual_multiplier=0.22, embedding_multiplier=12.0,
            attention_multiplier=0.25,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        )
    ).eval()  # fmt: skip
    randomize(peer)
    config = ModelConfig.model_validate(
        {
            "vocab_size": V, "max_seq_len": 32, "d_model": C, "num_layers": L,
            "norm": {"eps": 1e-6}, "residual_scale": 0.22, "embedding_scale": 12.0,
            "mlp": {"d_ff": 80}, "attention": {"num_heads": 4, "num_kv_heads": 2},
        }
    )  # fmt: skip
    assert_same_logits(config, llama_weights(peer, LLAMA_NORMS), peer)


def test_cohere_with_parallel_blocks():
    peer = transformers.CohereForCausalLM(
        transformers.CohereConfig(
            vocab_size=V, hidden_size=C, intermediate_size=80, num_hidden_layers=L,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
            logit_scale=1.0, layer_norm_eps=1e-5, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        )
    ).eval()  # fmt: skip
    randomize(peer)
    config = ModelConfig.model_validate(
        {
            "vocab_size": V, "max_seq_len": 32, "d_model": C, "num_layers": L,
            "norm": {"kind": "layernorm", "eps": 1e-5}, "block": "parallel",
            "mlp": {"d_ff": 80}, "tie_embeddings": True,
            "attention": {"num_heads": 4, "num_kv_heads": 2},
            "position": {"pairing": "interleaved"},
        }
    )  # fmt: skip
    weights = llama_weights(peer, LLAMA_NORMS)
    del weights["head.weight"]
    assert_same_logits(config, weights, peer)


def test_phi_with_partial_rotation():
    peer = transformers.PhiForCausalLM(
        transformers.PhiConfig(
            vocab_size=V, hidden_size=C, intermediate_size=80, num_hidden_layers=L,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
            partial_rotary_factor=0.5, bos_token_id=0, eos_token_id=0,
        )
    ).eval()  # fmt: skip
    assert peer.config.rope_parameters["partial_rotary_factor"] == 0.5
    randomize(peer)
    torch.nn.init.zeros_(peer.lm_head.bias)
    config = ModelConfig.model_validate(
        {
            "vocab_size": V, "max_seq_len": 32, "d_model": C, "num_layers": L,
            "norm": {"kind": "layernorm", "eps": 1e-5}, "block": "parallel", "use_bias": True,
            "mlp": {"activation": "gelu_tanh", "d_ff": 80},
            "attention": {"num_heads": 4, "num_kv_heads": 2},
            "position": {"rotary_fraction": 0.5},
        }
    )  # fmt: skip
    names = {
        "final_layernorm": "norm", "input_layernorm": "attention_norm",
        "attention.dense": "attention.o", "fc1": "up", "fc2": "down",
    }  # fmt: skip
    weights = llama_weights(peer, names)
    del weights["head.bias"]
    assert_same_logits(config, weights, peer)


def test_mpt_with_alibi():
    peer = transformers.MptForCausalLM(
        transformers.MptConfig(
            vocab_size=V, d_model=C, expansion_ratio=4, n_layers=L, n_heads=4, max_seq_len=32,
            use_cache=False,
        )
    ).eval()  # fmt: skip
    randomize(peer)
    config = ModelConfig.model_validate(
        {
            "vocab_size": V, "max_seq_len": 32, "d_model": C, "num_layers": L,
            "norm": {"kind": "layernorm", "eps": 1e-5}, "mlp": {"activation": "gelu"},
            "attention": {"num_heads": 4}, "position": {"kind": "alibi"}, "tie_embeddings": True,
        }
    )  # fmt: skip
    names = {
        "transformer.wte": "embed", "transformer.blocks": "layers", "transformer.norm_f": "norm",
        "norm_1": "attention_norm", "norm_2": "mlp_norm", "attn.out_proj": "attention.o",
        "ffn": "mlp", "attn.Wqkv": "qkv",
    }  # fmt: skip
    weights = {}
    for name, tensor in llama_weights(peer, names).items():
        if "qkv" in name:
            for part, piece in zip("qkv", tensor.split(C), strict=True):
                weights[name.replace("qkv", f"attention.{part}")] = piece
        elif name != "head.weight":
            weights[name] = tensor
    assert_same_logits(config, weights, peer)


def test_llama31_with_its_scaled_rotation():
    scaling = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    peer = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=V, hidden_size=C, intermediate_size=80, num_hidden_layers=L,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
            max_position_embeddings=32,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 500.0,
                "original_max_position_embeddings": 8, **scaling,
            },
        )
    ).eval()  # fmt: skip
    randomize(peer)
    config = ModelConfig.model_validate(
        {
            "vocab_size": V, "max_seq_len": 32, "d_model": C, "num_layers": L,
            "norm": {"eps": 1e-6}, "mlp": {"d_ff": 80},
            "attention": {"num_heads": 4, "num_kv_heads": 2},
            "position": {
                "theta": 500.0, "scaling": {"kind": "llama3", "original_max_seq_len": 8, **scaling},
            },
        }
    )  # fmt: skip
    assert_same_logits(config, llama_weights(peer, LLAMA_NORMS), peer)


GPT_CONFIG = {
    "vocab_size": V, "max_seq_len": 32, "d_model": C, "num_layers": L,
    "norm": {"kind": "layernorm", "eps": 1e-5}, "use_bias": True,
    "mlp": {"activation": "gelu_tanh"}, "tie_embeddings": True,
    "attention": {"num_heads": 4}, "position": {"kind": "learned"},
}  # fmt: skip


def gpt_weights(peer, names: dict[str, str]) -> dict[str, Tensor]:
    """State dict of GPT-1 or GPT-2, whose matrices are transposed and whose q, k, v are fused."""
    weights = {}
    for name, tensor in peer.state_dict().items():
        if name.endswith(("lm_head.weight", ".attn.bias")):
            continue
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)  # noqa: PLW2901
        if tensor.ndim == 2 and not name.startswith(("embed", "position")):
            tensor = tensor.T  # noqa: PLW2901
        if "c_attn" in name:
            for part, piece in zip("qkv", tensor.split(C), strict=True):
                weights[name.replace("c_attn", part)] = piece
        else:
            weights[name] = tensor
    return weights


PARTS = {".attn.": ".attention.", "attention.c_proj": "attention.o", "c_fc": "up", "c_proj": "down"}


def test_gpt2_with_learned_positions():
    peer = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=V, n_positions=32, n_embd=C, n_layer=L, n_head=4, bos_token_id=0,
            eos_token_id=0,
        )
    ).eval()  # fmt: skip
    randomize(peer)
    names = {
        "transformer.wte": "embed", "transformer.wpe": "position", "transformer.h": "layers",
        "transformer.ln_f": "norm", "ln_1": "attention_norm", "ln_2": "mlp_norm",
    }  # fmt: skip
    config = ModelConfig.model_validate(GPT_CONFIG)
    assert_same_logits(config, gpt_weights(peer, names | PARTS), peer)


def test_gpt1_with_post_norm():
    peer = transformers.OpenAIGPTLMHeadModel(
        transformers.OpenAIGPTConfig(vocab_size=V, n_positions=32, n_embd=C, n_layer=L, n_head=4)
    ).eval()
    randomize(peer)
    names = {
        "transformer.tokens_embed": "embed", "transformer.positions_embed": "position",
        "transformer.h": "layers", "ln_1": "attention_norm", "ln_2": "mlp_norm",
    }  # fmt: skip
    config = ModelConfig.model_validate(GPT_CONFIG | {"norm_position": "post"})
    assert_same_logits(config, gpt_weights(peer, names | PARTS), peer)
