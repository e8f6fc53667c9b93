"""The decoder as a whole: blocks are their equations, starts are reproducible, errors are clear."""

import itertools
import math
import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from lmworks.base.errors import ConfigError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Block, Decoder

VALUES = {
    "vocab_size": 61,
    "max_seq_len": 32,
    "d_model": 32,
    "num_layers": 2,
    "attention": {"num_heads": 4, "num_kv_heads": 2},
    "mlp": {"d_ff": 48},
}
TOKENS = torch.randint(61, (2, 20), generator=torch.Generator().manual_seed(1))


def make_config(**changes) -> ModelConfig:
    return ModelConfig.model_validate(VALUES | changes)


def make_model(seed: int = 0, **changes) -> Decoder:
    return Decoder(make_config(**changes), generator=torch.Generator().manual_seed(seed)).eval()


def lively(model: torch.nn.Module) -> torch.nn.Module:
    """The model with weights that make every part matter, norms away from one."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.5 if weight.ndim == 1 else 0.0, 0.2, generator=generator)
    return model


def make_block(norm_position: str, block: str, **changes) -> Block:
    config = make_config(norm_position=norm_position, block=block, **changes)
    return lively(Block(config, next(config.layers()), layer=0).double())


X = torch.randn(2, 6, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def test_serial_pre_norm_block_is_its_formula():
    b = make_block("pre", "serial")
    x = X + b.attention(b.attention_norm(X))
    torch.testing.assert_close(b(X)[0], x + b.mlp(b.mlp_norm(x)))


def test_serial_post_norm_block_is_its_formula():
    b = make_block("post", "serial")
    x = b.attention_norm(X + b.attention(X))
    torch.testing.assert_close(b(X)[0], b.mlp_norm(x + b.mlp(x)))


def test_serial_double_norm_block_is_its_formula():
    b = make_block("double", "serial")
    x = X + b.attention_out_norm(b.attention(b.attention_norm(X)))
    torch.testing.assert_close(b(X)[0], x + b.mlp_out_norm(b.mlp(b.mlp_norm(x))))


def test_serial_reordered_norm_block_is_its_formula():
    b = make_block("reordered", "serial")
    x = X + b.attention_out_norm(b.attention(X))
    torch.testing.assert_close(b(X)[0], x + b.mlp_out_norm(b.mlp(x)))


def test_deepnorm_block_is_its_formula():
    b = make_block("deepnorm", "serial", num_layers=8)
    x = b.attention_norm(2 * X + b.attention(X))
    torch.testing.assert_close(b(X)[0], b.mlp_norm(2 * x + b.mlp(x)))


def test_scaled_residuals_are_their_formula():
    b = make_block("pre", "serial", residual_scale=0.3)
    x = X + 0.3 * b.attention(b.attention_norm(X))
    torch.testing.assert_close(b(X)[0], x + 0.3 * b.mlp(b.mlp_norm(x)))


def test_embedding_scale_multiplies_what_enters_but_not_the_tied_head():
    plain = lively(make_model(tie_embeddings=True))
    scaled = make_model(tie_embeddings=True, embedding_scale=4.0)
    scaled.load_state_dict(plain.state_dict())
    head = plain.head_weight_VC.detach().clone()
    with torch.no_grad():
        plain.embed.weight.mul_(4)
        torch.testing.assert_close(scaled(TOKENS), plain.hidden(TOKENS) @ head.T)


def test_parallel_pre_norm_block_is_its_formula():
    b = make_block("pre", "parallel")
    h = b.attention_norm(X)
    torch.testing.assert_close(b(X)[0], X + b.attention(h) + b.mlp(h))


def test_parallel_post_norm_block_is_its_formula():
    b = make_block("post", "parallel")
    torch.testing.assert_close(b(X)[0], b.attention_norm(X + b.attention(X) + b.mlp(X)))


def test_parallel_double_norm_block_is_its_formula():
    b = make_block("double", "parallel")
    h = b.attention_norm(X)
    torch.testing.assert_close(b(X)[0], X + b.attention_out_norm(b.attention(h) + b.mlp(h)))


KINDS = [
    *itertools.product(
        ["pre", "post", "double", "reordered", "deepnorm"], ["serial", "parallel"], ["rope"]
    ),
    *itertools.product(["pre"], ["serial"], ["learned", "sinusoidal", "none", "alibi", "t5"]),
]


@pytest.mark.parametrize(("norm_position", "block", "position"), KINDS)
def test_gradient_reaches_every_parameter(norm_position, block, position):
    model = lively(
        make_model(
            norm_position=norm_position,
            block=block,
            position={"kind": position},
            norm={"kind": "layernorm"},
            use_bias=True,
            attention={"num_heads": 4, "num_kv_heads": 2, "qk_norm": True},
        )
    )
    F.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.roll(-1, 1).flatten()).backward()
    # A constant added to every key moves all of a query's scores alike; only query-key norm and
    # rotation make the key bias matter, so it is checked with the rest.
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("position", ["rope", "learned", "none"])
def test_fresh_model_is_as_unsure_as_the_vocabulary_is_large(tied, position):
    config = ModelConfig.model_validate(
        VALUES
        | {"vocab_size": 1000, "d_model": 256, "mlp": {"d_ff": 256}}
        | {"tie_embeddings": tied, "position": {"kind": position}}
    )
    tokens = torch.randint(1000, (8, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        loss = F.cross_entropy(Decoder(config)(tokens[:, :-1]).mT, tokens[:, 1:])
    # Logits of std s cost s^2 / 2 more than ln V; here s = 0.02 sqrt(256) = 0.32.
    assert math.log(1000) - 0.05 < float(loss) < math.log(1000) + 0.15


def test_start_depends_on_the_generator_alone():
    torch.manual_seed(1)
    first = make_model(seed=5).state_dict()
    torch.manual_seed(2)
    second = make_model(seed=5).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["embed.weight"], make_model(seed=6).state_dict()["embed.weight"])


def test_building_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    make_model()
    assert torch.equal(torch.get_rng_state(), before)


def test_start_is_gpt2s():
    model = make_model(
        d_model=256, use_bias=True, norm={"kind": "layernorm"}, mlp={"activation": "gelu"},
        init={"std": 0.1},
    )  # fmt: skip
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert not weight.any()
        elif "norm" in name:
            assert bool((weight == 1).all())
        else:
            is_residual = name.endswith(("attention.o.weight", "mlp.down.weight"))
            expected = 0.1 / math.sqrt(2 * 2) if is_residual else 0.1
            assert float(weight.detach().std()) == pytest.approx(expected, rel=0.05)


def test_start_of_residual_outputs_can_stay_unscaled():
    model = make_model(d_model=256, init={"std": 0.1, "scale_residual": False})
    assert float(model.layers[0].mlp.down.weight.detach().std()) == pytest.approx(0.1, rel=0.05)


def test_start_with_deepnorm_is_deepnets():
    model = make_model(d_model=256, num_layers=2, norm_position="deepnorm", init={"std": 0.1})
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            is_scaled = ".mlp." in name or name.endswith(("v.weight", "o.weight"))
            expected = 0.1 * 16**-0.25 if is_scaled else 0.1
            assert float(weight.detach().std()) == pytest.approx(expected, rel=0.05), name


def test_offset_norms_start_without_effect():
    plain, offset = make_model(), make_model(norm={"unit_offset": True})
    torch.testing.assert_close(offset(TOKENS), plain(TOKENS))


def test_start_in_bf16_is_the_rounded_fp32_start():
    fp32, bf16 = make_model(), make_model(seed=9).to(torch.bfloat16)
    bf16.reset_parameters(torch.Generator().manual_seed(0))
    assert torch.equal(fp32.embed.weight.bfloat16(), bf16.embed.weight)


def test_tied_head_is_the_embedding():
    model = make_model(tie_embeddings=True)
    assert model.head_weight_VC is model.embed.weight
    assert "head.weight" not in model.state_dict()
    assert make_model().head_weight_VC.data_ptr() != make_model().embed.weight.data_ptr()


@pytest.mark.parametrize(("norm_position", "block", "position"), KINDS)
def test_packed_documents_are_as_if_alone(norm_position, block, position):
    kinds = {"norm_position": norm_position, "block": block, "position": {"kind": position}}
    model = lively(make_model(**kinds))
    lengths = [5, 1, 11, 3]
    ids = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]
    tokens = TOKENS[:1]
    with torch.no_grad():
        packed = model(tokens, document_ids_BT=ids)
        alone = torch.cat([model(piece) for piece in tokens.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-4)


def test_later_tokens_do_not_change_earlier_logits():
    model = lively(make_model())
    changed = TOKENS.clone()
    changed[:, 12] += 1
    changed %= 61
    with torch.no_grad():
        before, after = model(TOKENS), model(changed)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert not torch.allclose(before[:, 12:], after[:, 12:])


def test_soft_capped_logits_stay_under_the_cap():
    plain, capped = make_model(init={"std": 1.0}), make_model(init={"std": 1.0}, logit_softcap=2.0)
    with torch.no_grad():
        torch.testing.assert_close(capped(TOKENS), 2 * torch.tanh(plain(TOKENS) / 2))


def test_dropout_is_on_in_training_only():
    model = make_model(dropout=0.3)
    assert torch.equal(model(TOKENS), model(TOKENS))
    assert torch.equal(model(TOKENS), make_model()(TOKENS))
    model.train()
    assert not torch.equal(model(TOKENS), model(TOKENS))


def test_hidden_times_head_is_the_forward_pass():
    model = lively(make_model())
    with torch.no_grad():
        assert torch.equal(model.hidden(TOKENS) @ model.head_weight_VC.T, model(TOKENS))


def test_sequence_longer_than_the_context_is_refused():
    with pytest.raises(ConfigError, match=r"33 tokens are longer than .*max_seq_len=32"):
        make_model()(torch.zeros(1, 33, dtype=torch.long))


def test_context_counts_cached_tokens_too():
    model = make_model()
    cache = model.new_cache(1)
    model(torch.zeros(1, 30, dtype=torch.long), cache=cache)
    with pytest.raises(ConfigError, match=r"33 tokens are longer than .*max_seq_len=32"):
        model(torch.zeros(1, 3, dtype=torch.long), cache=cache)
    assert cache.length == 30


def test_packed_documents_cannot_be_cached():
    model = make_model()
    with pytest.raises(ValueError, match="document_ids_BT"):
        model(TOKENS, cache=model.new_cache(2), document_ids_BT=torch.zeros_like(TOKENS))


def test_cache_has_the_models_shape_and_dtype():
    cache = make_model().to(torch.bfloat16).new_cache(3, max_seq_len=10)
    assert cache.keys[1].shape == (3, 2, 10, 8)
    assert cache.keys[1].dtype == torch.bfloat16
    per_token = make_config().kv_cache_bytes_per_token()
    assert cache.size_bytes == 3 * 10 * per_token


def test_bf16_model_is_near_fp32():
    model = make_model()
    with torch.no_grad():
        expected, found = model(TOKENS), make_model().to(torch.bfloat16)(TOKENS)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.02)


@pytest.mark.slow
def test_model_is_one_graph_for_torch_compile():
    # In a process of its own: run-time shape checks would break the graph.
    code = """
import torch
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
tokens = torch.arange(20).view(2, 10)
for preset in ["tiny", "gpt2-small"]:
    values = ModelConfig.preset_values(preset) | {"d_model": 48, "num_layers": 2}
    model = Decoder(ModelConfig.model_validate(values))
    graph = torch.compile(model, fullgraph=True, backend="eager")
    ids = torch.tensor([[0] * 5 + [1] * 5] * 2)
    assert torch.equal(graph(tokens), model(tokens))
    packed = graph(tokens, document_ids_BT=ids)
    assert torch.equal(packed, model(tokens, document_ids_BT=ids))
"""
    env = os.environ | {"LMWORKS_TYPECHECK": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
