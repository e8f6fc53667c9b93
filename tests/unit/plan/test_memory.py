"""Planned bytes follow the published per-parameter figures and what autograd really keeps."""

import pytest
import torch

from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.ops.attention.materialized import MAX_KEYS
from lmworks.ops.attention.sinks import EXTRA_DIMS
from lmworks.plan.layer_memory import MAX_WRITTEN_OUT_KEYS, SINK_DIMS
from lmworks.plan.memory import (
    activation_bytes,
    num_moments,
    readable_bytes,
    training_bytes,
)
from lmworks.train.optim.build import build_optimizer
from lmworks.train.optim.config import AdamWConfig, MuonConfig, SGDConfig

VALUES = {
    "vocab_size": 50,
    "max_seq_len": 64,
    "d_model": 64,
    "num_layers": 3,
    "attention": {"num_heads": 4, "num_kv_heads": 2},
}
LAYER_NORM = {"norm": {"kind": "layernorm"}}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_adamw_takes_16_bytes_per_parameter(precision):
    config = ModelConfig.preset("gpt2-small")
    parts = training_bytes(
        config, precision=precision, optimizer="adamw", micro_batch_size=1, context_length=8
    )
    del parts["activations"]
    assert sum(parts.values()) == 16 * 124_439_808


@pytest.mark.parametrize("optim", [AdamWConfig(), MuonConfig(), SGDConfig()], ids=lambda c: c.kind)
@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize("mtp", ["none", "sequential"])
def test_planned_moments_are_those_that_the_optimizer_holds(optim, tie_embeddings, mtp):
    changes = {"tie_embeddings": tie_embeddings, "position": {"kind": "learned"}, **LAYER_NORM}
    config = ModelConfig.model_validate(VALUES | changes | {"mtp": {"kind": mtp}})
    optimizer = build_optimizer(optim, Decoder(config).named_parameters())
    held = sum(t.numel() for name, t in optimizer.state_tensors().items() if name != "step")
    assert num_moments(config, optim.kind) == held


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(12, "12 B"), (3482, "3.4 KiB"), (5 << 20, "5.0 MiB"), (3 << 29, "1.5 GiB")],
)
def test_bytes_are_shown_in_the_unit_that_fits(size_bytes, text):
    assert readable_bytes(size_bytes) == text


MOE = {"kind": "moe", "d_ff": 48, "num_experts": 8}


def saved_bytes(config: ModelConfig, dtype: torch.dtype, batch_size: int, length: int) -> int:
    """Bytes of the distinct storages that autograd keeps, without weights and constant tables."""
    model = Decoder(config).to(dtype).train()
    known = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model.train_hidden(torch.zeros(batch_size, length, dtype=torch.long))
        for hidden in (out.hidden_BTC, *out.mtp_hidden):  # kept by the head
            kept[hidden.untyped_storage().data_ptr()] = hidden.untyped_storage()
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mlp": {"activation": "gelu"}},
        {"block": "parallel"},
        {"norm_position": "double"},
        {"norm_position": "reordered"},
        {"norm_position": "deepnorm"},
        {"norm": {"unit_offset": True}},
        {"norm": {"unit_offset": True}, "norm_position": "double"},
        {"residual_scale": 0.2, "embedding_scale": 8.0},
        {"position": {"kind": "alibi"}},
        {"position": {"kind": "t5"}},
        {"position": {"pairing": "interleaved", "rotary_fraction": 0.5}},
        {"position": {"kind": "learned"}},
        {"mlp": MOE},
        {"mlp": MOE | {"num_shared_experts": 2, "activation": "gelu"}},
        {"mlp": MOE | {"router": {"top_k": 4, "score": "sigmoid"}, "balance": {"z_weight": 0.1}}},
        {"mlp": MOE | {"router": {"kind": "hash"}}},
        {"mtp": {"kind": "sequential", "depth": 2}},
        {"mtp": {"kind": "parallel", "depth": 2}},
        LAYER_NORM | {"mtp": {"kind": "sequential"}},
        {"attention": {"num_heads": 4, "qk_norm": True}},
        {"attention": {"num_heads": 4, "qk_norm": True}, "position": {"kind": "none"}},
        {"attention": {"num_heads": 4, "logit_softcap": 5.0}},
        LAYER_NORM,
        LAYER_NORM | {"norm_position": "post", "use_bias": True, "mlp": {"activation": "relu2"}},
    ],
    ids=str,
)
def test_planned_activations_are_what_autograd_keeps(changes, precision):
    config = ModelConfig.model_validate(VALUES | changes)
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    planned = activation_bytes(config, num_tokens=4 * 48, context_length=48, precision=precision)
    assert planned == pytest.approx(saved_bytes(config, dtype, 4, 48), rel=0.05)


LATENT = {"kind": "mla", "num_heads": 4, "kv_rank": 24, "nope_dim": 16, "rope_dim": 8, "v_dim": 16}
WINDOW = {"kind": "window", "size": 40}
SINK_WINDOW = WINDOW | {"num_sink_tokens": 4}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "attention",
    [
        {"qk_norm": True, "qk_norm_scope": "full"},
        {"logit_softcap": 5.0},
        {"mask": WINDOW},
        {"mask": SINK_WINDOW},
        {"mask": {"kind": "block", "block_size": 16, "num_global_tokens": 3}},
        {"mask": {"kind": "strided", "stride": 8, "window": 8}},
        {"mask": WINDOW, "logit_softcap": 5.0},
        {"mask": SINK_WINDOW, "logit_softcap": 5.0},
        {"sinks": True},
        {"sinks": True, "mask": WINDOW},
        {"sinks": True, "logit_softcap": 5.0},
        LATENT,
        LATENT | {"q_rank": 32, "v_dim": 24},
        LATENT | {"q_rank": 32, "mask": WINDOW},
    ],
    ids=str,
)
@pytest.mark.parametrize("length", [100, 600])
def test_planned_activations_of_attention_are_what_autograd_keeps(attention, length, precision):
    sizes = {} if "kind" in attention else {"num_heads": 4, "num_kv_heads": 2}
    changes = {"attention": sizes | attention, "max_seq_len": 600}
    config = ModelConfig.model_validate(VALUES | changes)
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    num_tokens = 2 * length
    planned = activation_bytes(
        config, num_tokens=num_tokens, context_length=length, precision=precision
    )
    assert planned == pytest.approx(saved_bytes(config, dtype, 2, length), rel=0.05)


def test_recomputation_keeps_one_row_per_block_and_one_block():
    config = ModelConfig.preset("gpt2-small")
    sizes = {
        recomputes: activation_bytes(
            config, num_tokens=1, context_length=8, precision="bf16", recomputes=recomputes
        )
        for recomputes in (False, True)
    }
    final_norm = 2 * 768 * 2
    block = (sizes[False] - final_norm) // 12
    assert sizes[True] == 12 * 768 * 2 + block + final_norm


def test_accumulated_gradients_are_fp32():
    config = ModelConfig.preset("tiny")
    parts = training_bytes(
        config,
        precision="bf16",
        optimizer="sgd",
        micro_batch_size=1,
        context_length=8,
        accumulates=True,
    )
    assert parts["gradients"] == parts["optimizer moments"] == 4 * config.num_params()


def test_planned_limit_of_written_out_attention_is_the_kernels():
    assert MAX_WRITTEN_OUT_KEYS == MAX_KEYS


def test_planned_growth_of_heads_with_sinks_is_the_kernels():
    assert SINK_DIMS == EXTRA_DIMS
