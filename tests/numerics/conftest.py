"""transformers' models filled from GGUF files by way of gguf-py: none of our code takes part."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

_PLACES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {
    "llama": {"ffn_norm": "post_attention_layernorm"},
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}
_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}


@pytest.fixture(scope="session")
def transformers_of_gguf() -> Callable[[Path], Any]:
    """transformers' model of a GGUF file of Llama's or Gemma 3's architecture, in fp32."""
    return _model


def _model(file: Path) -> Any:
    gguf = pytest.importorskip("gguf")
    transformers = pytest.importorskip("transformers")
    reader = gguf.GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    vocab_size = len(reader.fields["tokenizer.ggml.tokens"].contents())
    settings = _settings(reader, architecture) | {"vocab_size": vocab_size}
    if architecture == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    else:
        model = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**settings))
    weights = {}
    for tensor in reader.tensors:
        name, value = _hf_name(tensor.name, architecture), _value(gguf, tensor)
        if architecture == "llama" and tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            value = _half_split(value, model.config.head_dim)
        if architecture == "gemma3" and "norm" in name:
            value = value - 1
        weights[name] = value
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


def _settings(reader: Any, architecture: str) -> dict[str, Any]:
    def value(key: str) -> Any:
        return reader.fields[f"{architecture}.{key}"].contents()

    heads = value("attention.head_count")
    size = value("embedding_length")
    settings = {
        "hidden_size": size,
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv"),
        "intermediate_size": value("feed_forward_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": value("context_length"),
        "rope_parameters": {"rope_type": "default", "rope_theta": value("rope.freq_base")},
        "tie_word_embeddings": True,
        "head_dim": size // heads,
    }
    if architecture == "gemma3":
        rope = settings.pop("rope_parameters")
        settings |= {
            "head_dim": value("attention.key_length"),
            "query_pre_attn_scalar": value("attention.key_length"),
            "sliding_window": value("attention.sliding_window"),
            "rope_parameters": {
                "full_attention": rope,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        }
    return settings


def _hf_name(name: str, architecture: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    _, layer, place, kind = name.split(".")
    return f"model.layers.{layer}.{(_PLACES | _NORMS[architecture])[place]}.{kind}"


def _value(gguf: Any, tensor: Any) -> torch.Tensor:
    array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(array.astype("float32"))


def _half_split(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """llama.cpp stores rows of rotated pairs side by side, transformers in two halves."""
    pairs = weight.reshape(-1, head_dim // 2, 2, weight.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)
