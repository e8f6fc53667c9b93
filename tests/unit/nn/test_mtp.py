"""Multi-token prediction: modules are their equations, look only where they may, draft what they
predict, and are counted."""

import math

import pytest
import torch
from torch.nn import functional as F

from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder

VALUES = {
    "vocab_size": 61,
    "max_seq_len": 32,
    "d_model": 32,
    "num_layers": 3,
    "attention": {"num_heads": 4, "num_kv_heads": 2},
    "mlp": {"d_ff": 48},
}
KINDS = ["sequential", "parallel"]
TOKENS = torch.randint(61, (2, 20), generator=torch.Generator().manual_seed(1))


def make_config(kind: str, depth: int = 2, **changes) -> ModelConfig:
    return ModelConfig.model_validate(VALUES | {"mtp": {"kind": kind, "depth": depth}} | changes)


def make_model(kind: str, depth: int = 2, **changes) -> Decoder:
    """With weights that make every part matter."""
    model = Decoder(make_config(kind, depth, **changes)).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.5 if weight.ndim == 1 else 0.0, 0.2, generator=generator)
    return model


def test_sequential_modules_are_equations_21_to_23():
    model = make_model("sequential")
    out = model.train_hidden(TOKENS)
    rotation = model.ropes[0](torch.arange(20))
    h = out.hidden_BTC
    for depth, module in enumerate(model.mtp, start=1):
        following = model.embed(F.pad(TOKENS[:, depth:], (0, depth)))
        joined = torch.cat((module.hidden_norm(h), module.embed_norm(following)), dim=-1)
        h = module.norm(module.block(joined @ module.proj.weight.T, rotation=rotation)[0])
        torch.testing.assert_close(out.mtp_hidden[depth - 1], h)


def test_parallel_heads_are_last_layers_on_one_trunk():
    model = make_model("parallel")
    out = model.train_hidden(TOKENS)
    rotation = model.ropes[0](torch.arange(20))
    trunk = model.embed(TOKENS)
    for layer in model.layers[:-1]:
        trunk, _ = layer(trunk, rotation=rotation)
    heads = [model.layers[-1], *(module.block for module in model.mtp)]
    for found, head in zip((out.hidden_BTC, *out.mtp_hidden), heads, strict=True):
        torch.testing.assert_close(found, model.norm(head(trunk, rotation=rotation)[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_itself_is_as_without_further_heads(kind):
    with_heads = Decoder(make_config(kind)).eval()
    plain = Decoder(ModelConfig.model_validate(VALUES)).eval()
    assert torch.equal(with_heads(TOKENS), plain(TOKENS))
    assert torch.equal(with_heads.train_hidden(TOKENS).hidden_BTC, plain.hidden(TOKENS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_depth_sees_no_token_that_it_predicts(kind):
    model = make_model(kind)
    changed = TOKENS.clone()
    changed[:, 12] = (changed[:, 12] + 1) % 61
    with torch.no_grad():
        before, after = model.train_hidden(TOKENS), model.train_hidden(changed)
    for depth, (a, b) in enumerate(zip(before.mtp_hidden, after.mtp_hidden, strict=True), start=1):
        first = 12 - depth if kind == "sequential" else 12
        torch.testing.assert_close(a[:, :first], b[:, :first])
        assert not torch.allclose(a[:, first], b[:, first])


@pytest.mark.parametrize("kind", KINDS)
def test_packed_documents_are_as_if_alone(kind):
    model = make_model(kind)
    lengths = [5, 1, 11, 3]
    ids = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]
    tokens = TOKENS[:1]
    with torch.no_grad():
        packed = model.train_hidden(tokens, document_ids_BT=ids).mtp_hidden
        start = 0
        for length in lengths:
            alone = model.train_hidden(tokens[:, start : start + length]).mtp_hidden
            for depth in (1, 2):
                # The others look past the end of their document.
                rows = slice(start, start + max(0, length - depth))
                torch.testing.assert_close(
                    packed[depth - 1][:, rows],
                    alone[depth - 1][:, : rows.stop - rows.start],
                    rtol=1e-4,
                    atol=1e-4,
                )
            start += length


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_what_the_modules_predict(kind):
    model = make_model(kind)
    drafts = model.draft(TOKENS)
    out = model.train_hidden(TOKENS)
    for depth, hidden in enumerate((out.hidden_BTC, *out.mtp_hidden)):
        known = 20 - depth
        expected = (hidden @ model.head_weight_VC.T).argmax(-1)
        assert torch.equal(drafts[:, :known, depth], expected[:, :known])


def test_the_last_drafts_are_read_by_the_modules_that_follow():
    model = make_model("sequential")
    longer = TOKENS
    for depth in range(3):
        drafts = model.draft(TOKENS)[:, -1]
        assert torch.equal(model.draft(longer)[:, 19, depth], drafts[:, depth])
        longer = torch.cat((longer, drafts[:, depth : depth + 1]), dim=1)


def test_without_further_heads_the_draft_is_the_next_token():
    model = make_model("parallel")
    plain = Decoder(ModelConfig.model_validate(VALUES)).eval()
    plain.load_state_dict(
        {name: w for name, w in model.state_dict().items() if not name.startswith("mtp")}
    )
    assert torch.equal(plain.draft(TOKENS), model(TOKENS).argmax(-1)[..., None])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm_position", ["pre", "post", "double"])
@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_counts_and_shapes_are_those_of_the_real_model(kind, norm_position, tie_embeddings):
    changes = {"norm_position": norm_position, "tie_embeddings": tie_embeddings, "use_bias": True}
    config = make_config(kind, norm={"kind": "layernorm"}, **changes)
    with torch.device("meta"):
        model = Decoder(config)
    assert {k: tuple(v.shape) for k, v in model.state_dict().items()} == config.weight_shapes()
    assert sum(p.numel() for p in model.parameters()) == config.num_params()


def test_heads_count_as_parameters_but_not_as_active_ones():
    config, plain = make_config("sequential", 1), ModelConfig.model_validate(VALUES)
    block = 32 * (32 + 16 + 16 + 32) + 3 * 32 * 48 + 2 * 32
    assert config.num_params() - plain.num_params() == block + 2 * 32 * 32 + 3 * 32
    assert config.num_active_params() == plain.num_params()
    assert config.param_counts()["mtp"] == block - 2 * 32 + 2 * 32 * 32


@pytest.mark.parametrize(("kind", "projection"), [("sequential", 2 * 64 * 32), ("parallel", 0)])
def test_training_flops_count_every_depth(kind, projection):
    config, plain = make_config(kind), ModelConfig.model_validate(VALUES)
    one_layer = ModelConfig.model_validate(VALUES | {"num_layers": 1})
    depth = one_layer.flops_per_token(20, training=False) + projection
    extra = config.flops_per_token(20, training=True) - plain.flops_per_token(20, training=True)
    assert extra == 3 * 2 * depth
    assert config.flops_per_token(20, training=False) == plain.flops_per_token(20, training=False)


def test_blocks_are_like_the_last_layer():
    config = make_config(
        "sequential",
        layer_kinds={"wide": {"mlp": {"d_ff": 96}}, "thin": {"position": {"kind": "none"}}},
        layer_pattern=["wide", "thin"],
    )
    assert config.weight_shapes()["mtp.0.block.mlp.up.weight"] == (96, 32)
    assert Decoder(config).mtp[0].block.mlp.up.weight.shape == (96, 32)


def test_fresh_heads_are_as_unsure_as_the_vocabulary_is_large():
    model = Decoder(make_config("sequential", vocab_size=1000))
    tokens = torch.randint(1000, (8, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        out = model.train_hidden(tokens)
        for depth, hidden in enumerate(out.mtp_hidden, start=1):
            logits = (hidden @ model.head_weight_VC.T)[:, : 31 - depth]
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, depth + 1 :].flatten())
            assert float(loss) == pytest.approx(math.log(1000), abs=0.15)


@pytest.mark.parametrize(
    ("mtp", "message"),
    [
        ({"kind": "sequential", "depth": 0}, "greater than 0"),
        ({"kind": "sequential", "depth": 10**9}, "less than or equal to 32"),
        ({"kind": "parallel", "loss_weight": -1}, "greater than or equal to 0"),
        ({"kind": "serial"}, "sequential"),
    ],
)
def test_impossible_settings_are_refused(mtp, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.model_validate(VALUES | {"mtp": mtp})
