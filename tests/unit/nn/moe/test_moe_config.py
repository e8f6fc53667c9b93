"""The mixture of experts as data: defaults, refusals, counts that equal published ones."""

import math

import pytest
from pydantic import ValidationError

from lmworks.base.config import load
from lmworks.base.errors import ConfigError
from lmworks.models.config import ModelConfig
from lmworks.nn.config import MLPConfig, MoEConfig

SMALL = {
    "vocab_size": 50,
    "max_seq_len": 16,
    "d_model": 8,
    "num_layers": 2,
    "attention": {"num_heads": 2},
}


def moe(**values):
    return MoEConfig.model_validate({"d_ff": 16, "num_experts": 8, **values})


def model(mlp, **values):
    return ModelConfig.model_validate(SMALL | {"mlp": mlp} | values)


def test_mlp_without_kind_is_dense():
    assert model({"activation": "relu"}).mlp == MLPConfig(activation="relu", d_ff=32)
    assert model({}).mlp == MLPConfig(d_ff=64)


def test_experts_need_a_width():
    with pytest.raises(ValidationError, match="d_ff"):
        model({"kind": "moe", "num_experts": 4})


def test_switch_loss_is_on_where_nothing_else_balances():
    assert moe().balance.switch_weight == 0.01
    assert moe(router={"kind": "noisy_topk"}).balance.switch_weight == 0.01
    assert moe(balance={"z_weight": 0.001}).balance.switch_weight == 0.01
    assert moe(balance={"switch_weight": 0.0}).balance.switch_weight == 0.0
    assert moe(balance={"sequence_weight": 1e-4}).balance.switch_weight == 0.0
    bias = moe(router={"selection_bias": True}, balance={"bias_rate": 0.001})
    assert bias.balance.switch_weight == 0.0


@pytest.mark.parametrize("kind", ["expert_choice", "hash", "sinkhorn", "auction"])
def test_routers_that_balance_themselves_have_no_balance_loss(kind):
    assert moe(router={"kind": kind}).balance.switch_weight == 0.0
    with pytest.raises(ValidationError, match=f"router.kind={kind}, which is balanced"):
        moe(router={"kind": kind}, balance={"switch_weight": 0.01})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"router": {"top_k": 9}}, "router.top_k=9 is more than num_experts=8"),
        (
            {"router": {"kind": "noisy_topk", "top_k": 9}},
            "router.top_k=9 is more than num_experts=8",
        ),
        ({"router": {"num_groups": 3}}, "not a multiple of router.num_groups=3"),
        (
            {"router": {"num_groups": 2, "top_groups": 3}},
            "top_groups=3 is more than router.num_groups=2",
        ),
        ({"router": {"top_k": 5, "num_groups": 4, "top_groups": 2}}, "groups have 4"),
        (
            {"router": {"num_groups": 8, "top_groups": 4, "group_score": "top2_sum"}},
            "have one expert each; use max",
        ),
        (
            {"router": {"kind": "expert_choice", "mean_experts": 9}},
            "mean_experts=9 is more than num",
        ),
        ({"router": {"kind": "expert_choice"}, "capacity_factor": 1.0}, "takes its share"),
        ({"router": {"kind": "hash"}, "balance": {"z_weight": 0.1}}, "router.kind=hash has none"),
        ({"balance": {"bias_rate": 0.001}}, "set router.kind=topk and router.selection_bias=true"),
        ({"balance": {"device_weight": 0.1}}, "balance.num_devices=1"),
        ({"balance": {"device_weight": 0.1, "num_devices": 3}}, "multiple of balance.num_devices"),
    ],
)
def test_what_cannot_work_is_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        moe(**values)


def test_layers_with_different_numbers_of_experts_are_refused():
    with pytest.raises(ValidationError, match=r"num_experts is \[4, 8\]"):
        model(
            {"kind": "moe", "d_ff": 4, "num_experts": 8},
            layer_kinds={"few": {"mlp": {"num_experts": 4}}, "many": {}},
            layer_pattern=["few", "many"],
        )


def test_biases_with_experts_are_refused():
    with pytest.raises(ValidationError, match="experts have no biases"):
        model({"kind": "moe", "d_ff": 4, "num_experts": 8}, use_bias=True)


def test_dense_layers_stand_beside_experts():
    config = model(
        {"kind": "moe", "d_ff": 4, "num_experts": 8},
        layer_kinds={"dense": {"mlp": {"kind": "dense", "d_ff": 32}}, "moe": {}},
        layer_pattern=["dense", "moe"],
    )
    assert [layer.mlp.kind for layer in config.layers()] == ["dense", "moe"]


def test_recipes_reach_every_section(tmp_path):
    file = tmp_path / "model.yaml"
    file.write_text(
        "{vocab_size: 50, max_seq_len: 16, d_model: 8, num_layers: 2, attention: {num_heads: 2},"
        " mlp: {kind: moe, d_ff: 4, num_experts: 8, router: {top_k: 3}}}"
    )
    config = load(ModelConfig, file, ["mlp.router.score=sigmoid", "mlp.balance.z_weight=0.1"])
    assert config.config.mlp == moe(
        d_ff=4, router={"top_k": 3, "score": "sigmoid"}, balance={"z_weight": 0.1}
    )
    assert ModelConfig.model_validate(config.config.model_dump(mode="json")) == config.config
    with pytest.raises(ConfigError, match=r"mlp.router.topk: no such key; did you mean 'top_k'"):
        load(ModelConfig, file, ["mlp.router.topk=3"])


def test_mixtral_has_its_published_size():
    """46.7 B parameters, 12.9 B of them active (Jiang et al. 2024, arXiv 2401.04088)."""
    config = ModelConfig.model_validate(
        {
            "vocab_size": 32000,
            "max_seq_len": 32768,
            "d_model": 4096,
            "num_layers": 32,
            "attention": {"num_heads": 32, "num_kv_heads": 8},
            "mlp": {"kind": "moe", "d_ff": 14336, "num_experts": 8},
        }
    )
    assert config.num_params() == 46_702_792_704
    assert config.num_active_params() == 12_879_925_248


def test_deepseekmoe_16b_has_its_published_size():
    """16.4 B parameters, 2.8 B active (Dai et al. 2024, arXiv 2401.06066, table 3)."""
    config = ModelConfig.model_validate(
        {
            "vocab_size": 102400,
            "max_seq_len": 4096,
            "d_model": 2048,
            "num_layers": 28,
            "attention": {"num_heads": 16},
            "mlp": {
                "kind": "moe",
                "d_ff": 1408,
                "num_experts": 64,
                "num_shared_experts": 2,
                "router": {"top_k": 6, "normalize": False},
            },
            "layer_kinds": {"dense": {"mlp": {"kind": "dense", "d_ff": 10944}}, "moe": {}},
            "layer_pattern": ["dense", "moe*27"],
        }
    )
    assert config.num_params() == 16_375_728_128
    assert config.num_active_params() == pytest.approx(2.83e9, rel=0.002)


def test_selection_bias_is_a_weight_but_no_parameter():
    config = model({"kind": "moe", "d_ff": 4, "num_experts": 8, "router": {"selection_bias": True}})
    shapes = config.weight_shapes()
    assert shapes["layers.0.mlp.router.bias"] == (8,)
    elements = sum(math.prod(shape) for shape in shapes.values())
    assert config.num_params() == elements - 2 * 8
    assert config.num_active_params() == config.num_params() - 2 * 6 * 3 * 8 * 4


def test_flops_are_those_of_router_chosen_and_shared_experts():
    config = moe(num_shared_experts=2, router={"top_k": 3})
    assert config.flops_per_token(10) == 2 * 8 * 10 + (3 + 2) * 2 * 3 * 10 * 16
    assert moe(router={"kind": "hash"}).flops_per_token(10) == 2 * 3 * 10 * 16
    half = moe(router={"kind": "expert_choice", "mean_experts": 0.5}, activation="relu")
    assert half.flops_per_token(10) == 2 * 8 * 10 + 2 * 10 * 16
