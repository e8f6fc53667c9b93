"""Decoders with experts: built, decoded, trained; what the routers did comes out of training."""

import pytest
import torch

from lmworks.base.errors import ConfigError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.pretrained import load_pretrained, save_pretrained
from lmworks.nn.moe.layer import MoE

TOKENS = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(0))
ROUTERS = {
    "topk": {"top_k": 2},
    "v3": {
        "top_k": 2,
        "score": "sigmoid",
        "selection_bias": True,
        "num_groups": 4,
        "top_groups": 2,
        "group_score": "top2_sum",
    },
    "noisy_topk": {"kind": "noisy_topk"},
    "expert_choice": {"kind": "expert_choice"},
    "hash": {"kind": "hash"},
    "sinkhorn": {"kind": "sinkhorn"},
    "auction": {"kind": "auction"},
}


def make_config(router, **changes):
    mlp = {"kind": "moe", "d_ff": 16, "num_experts": 8, "num_shared_experts": 1}
    values = {
        "vocab_size": 50,
        "max_seq_len": 24,
        "d_model": 16,
        "num_layers": 3,
        "attention": {"num_heads": 2},
        "mlp": mlp | {"router": ROUTERS[router]} | changes.pop("mlp", {}),
        "layer_kinds": {"dense": {"mlp": {"kind": "dense", "d_ff": 32}}, "moe": {}},
        "layer_pattern": ["dense", "moe*2"],
    }
    return ModelConfig.model_validate(values | changes)


def make_model(router, **changes):
    return Decoder(make_config(router, **changes), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("router", ROUTERS)
def test_weights_are_those_the_config_tells(router):
    model = make_model(router)
    found = {name: tuple(w.shape) for name, w in model.state_dict().items()}
    assert found == model.config.weight_shapes()
    assert model.num_params() == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("router", [r for r in ROUTERS if r != "expert_choice"])
def test_decoding_token_by_token_equals_all_at_once(router):
    model = make_model(router, mlp={"capacity_factor": 0.5}).eval()
    with torch.no_grad():
        wanted = model(TOKENS)
        cache = model.new_cache(2)
        steps = [model(TOKENS[:, i : i + 1], cache=cache) for i in range(12)]
    torch.testing.assert_close(torch.cat(steps, dim=1), wanted, rtol=1e-4, atol=1e-4)


def test_expert_choice_refuses_to_decode():
    with pytest.raises(ConfigError, match=r"expert_choice .* cannot generate token by token"):
        make_model("expert_choice").new_cache(1)


@pytest.mark.parametrize("router", ROUTERS)
def test_a_saved_model_gives_the_same_logits(router, tmp_path):
    model = make_model(router).eval()
    if router == "v3":
        with torch.no_grad():
            for layer in model.modules():
                if isinstance(layer, MoE):
                    layer.router.bias.uniform_(generator=torch.Generator().manual_seed(3))
    save_pretrained(tmp_path, model)
    with torch.no_grad():
        torch.testing.assert_close(load_pretrained(tmp_path)(TOKENS), model(TOKENS), rtol=0, atol=0)


@pytest.mark.parametrize("router", ROUTERS)
def test_training_gives_every_weight_a_gradient(router):
    model = make_model(router)
    out = model.train_hidden(TOKENS)
    (out.hidden_BTC.square().sum() + out.routing.balance_loss.sum()).backward()
    missing = {name for name, p in model.named_parameters() if p.grad is None}
    assert missing == {"head.weight"}
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_training_tells_what_each_router_did():
    model = make_model("topk", mtp={"kind": "sequential", "depth": 2})
    routing = model.train_hidden(TOKENS).routing
    assert routing.tokens_per_expert.shape == (4, 8)  # two layers of three, two depths
    assert routing.tokens_per_expert.sum(dim=1).tolist() == [2 * 24] * 4
    assert routing.balance_loss.shape == routing.num_dropped.shape == (4,)


def test_without_experts_there_is_no_routing():
    model = make_model("topk", layer_pattern=["dense"], layer_kinds={"dense": {"mlp": {
        "kind": "dense", "d_ff": 32}}})  # fmt: skip
    assert model.train_hidden(TOKENS).routing is None


def test_hidden_states_are_the_same_with_and_without_statistics():
    model = make_model("topk").eval()
    with torch.no_grad():
        assert torch.equal(model.hidden(TOKENS), model.train_hidden(TOKENS).hidden_BTC)


def test_what_writes_into_the_residual_stream_starts_smaller():
    config = make_config("topk", d_model=64, init={"std": 0.1})
    model = Decoder(config)
    experts = model.layers[1].mlp.experts
    small = 0.1 / 6**0.5
    assert float(experts.down.detach().std()) == pytest.approx(small, rel=0.05)
    assert float(model.layers[1].mlp.shared.down.weight.detach().std()) == pytest.approx(
        small, rel=0.1
    )
    assert float(experts.up.detach().std()) == pytest.approx(0.1, rel=0.05)


def test_selection_bias_stays_exact_in_a_model_turned_to_bfloat16():
    model = make_model("v3")
    router = model.layers[1].mlp.router
    router.bias.fill_(1 + 2**-12)
    model.to(torch.bfloat16)
    assert router.weight.dtype == torch.bfloat16
    assert router.bias.dtype == torch.float32
    assert router.bias.tolist() == [1 + 2**-12] * 8
