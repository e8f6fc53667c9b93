"""The first forward pass of an upcycled model is the dense one's."""

from pathlib import Path

import pytest
import torch

from lmworks.base.errors import ConfigError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.pretrained import load_pretrained, save_pretrained
from lmworks.models.upcycle import upcycle, upcycled_config

VALUES = {
    "vocab_size": 61,
    "max_seq_len": 32,
    "d_model": 32,
    "num_layers": 4,
    "attention": {"num_heads": 4, "num_kv_heads": 2},
    "mlp": {"d_ff": 48},
}
TOKENS = torch.randint(61, (2, 20), generator=torch.Generator().manual_seed(1))


def make_model(**changes) -> Decoder:
    """With weights that make every part matter."""
    model = Decoder(ModelConfig.model_validate(VALUES | changes)).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.5 if weight.ndim == 1 else 0.0, 0.2, generator=generator)
    return model


def upcycled(model: Decoder, **options) -> Decoder:
    options = {"num_experts": 4, "top_k": 2, **options}
    return upcycle(model, generator=torch.Generator().manual_seed(5), **options)


@pytest.mark.parametrize("granularity", [1, 2, 6])
@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_first_forward_pass_is_the_dense_one(granularity, top_k, every):
    model = make_model()
    mixture = upcycled(model, granularity=granularity, top_k=top_k, every=every)
    with torch.no_grad():
        # A few roundings of fp32 (2^-24) in each of 4 layers, on logits of size 10.
        torch.testing.assert_close(mixture(TOKENS), model(TOKENS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"mlp": {"activation": "relu2", "d_ff": 48}},
        {"block": "parallel", "norm_position": "double"},
        {"mtp": {"kind": "sequential", "depth": 2}},
        {"tie_embeddings": True, "norm_position": "post"},
        {
            "layer_kinds": {"local": {"position": {"theta": 100.0}}, "global": {}},
            "layer_pattern": ["local", "global"],
        },
    ],
    ids=str,
)
def test_the_first_forward_pass_is_the_dense_one_whatever_the_block(changes):
    model = make_model(**changes)
    mixture = upcycled(model, granularity=2)
    with torch.no_grad():
        dense, sparse = model.train_hidden(TOKENS), mixture.train_hidden(TOKENS)
    torch.testing.assert_close(sparse.hidden_BTC, dense.hidden_BTC, rtol=1e-4, atol=1e-4)
    for a, b in zip(sparse.mtp_hidden, dense.mtp_hidden, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_bf16_stays_bf16_and_equal_within_its_rounding():
    model = make_model().bfloat16()
    mixture = upcycled(model)
    assert {p.dtype for p in mixture.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        dense, sparse = model(TOKENS).float(), mixture(TOKENS).float()
    assert (sparse - dense).abs().max() < 0.05 * dense.abs().max()


def test_tokens_go_to_different_experts():
    routing = upcycled(make_model()).train_hidden(TOKENS).routing
    assert routing is not None
    assert bool((routing.tokens_per_expert > 0).sum(-1).min() >= 3)


def test_shards_of_a_copy_are_chosen_together():
    routing = upcycled(make_model(), granularity=3).train_hidden(TOKENS).routing
    assert routing is not None
    by_copy = routing.tokens_per_expert.unflatten(1, (4, 3))
    assert torch.equal(by_copy, by_copy[..., :1].expand_as(by_copy))


def test_sizes_are_those_of_the_copies():
    dense = ModelConfig.model_validate(VALUES)
    config = upcycled_config(dense, num_experts=8, top_k=2, granularity=4, every=2)
    kinds = [layer.mlp.kind for layer in config.layers()]
    assert kinds == ["dense", "moe", "dense", "moe"]
    mlp = config.last_layer.mlp
    assert (mlp.num_experts, mlp.d_ff, mlp.router.top_k, mlp.router.scale) == (32, 12, 8, 4.0)
    router = 32 * 32
    extra = 2 * (router + 7 * 3 * 32 * 48)
    assert config.num_params() - dense.num_params() == extra
    assert config.num_active_params() - dense.num_params() == 2 * (router + 3 * 32 * 48)


def test_an_upcycled_model_is_saved_and_loaded(tmp_path: Path):
    mixture = upcycled(make_model(), granularity=2)
    save_pretrained(tmp_path / "moe", mixture)
    with torch.no_grad():
        assert torch.equal(load_pretrained(tmp_path / "moe")(TOKENS), mixture(TOKENS))


def test_the_generator_alone_decides():
    first, second = (upcycled(make_model()).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"granularity": 5}, "granularity=5 does not divide mlp.d_ff=48"),
        ({}, {"top_k": 9}, "top_k=9 is more than num_experts=4"),
        ({}, {"every": 5}, "every=5 is not between 1 and num_layers=4"),
        ({"mlp": {"kind": "moe", "d_ff": 8, "num_experts": 2}}, {}, "only a dense model"),
        ({"use_bias": True}, {}, "experts have no biases"),
        (
            {"layer_kinds": {"wide": {"mlp": {"d_ff": 64}}}, "layer_pattern": ["wide"]},
            {},
            "upcycling needs one kind",
        ),
    ],
)
def test_what_cannot_be_upcycled_is_refused(changes, options, message):
    with pytest.raises(ConfigError, match=message):
        upcycled(make_model(**changes), **options)
