"""Counts follow the published numbers and the real model; wrong shapes get an answer that helps."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.base.config import load, to_yaml
from lmworks.base.errors import ConfigError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.nn.config import Activation, default_d_ff


def test_flops_of_gpt2_small_by_hand():
    config = ModelConfig.preset("gpt2-small")
    # Per token and layer: 12 x 768^2 weights, scores and values over 1024 keys; then the head.
    weights = 12 * 12 * 768**2
    scores = 12 * 2 * 1024 * 768
    head = 50257 * 768
    assert config.flops_per_token(1024, training=False) == 2 * (weights + scores + head)
    assert config.flops_per_token(1024, training=True) == 6 * (weights + scores + head)


def test_flops_of_llama_7b_by_hand():
    config = ModelConfig.preset("llama-7b")
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    scores = 32 * 2 * 2048 * 4096
    assert config.flops_per_token(2048, training=True) == 6 * (weights + scores)


def test_training_flops_are_palms_formula():
    """6 N + 12 L H Q T, with N all weights that multiply (PaLM, appendix B)."""
    config = ModelConfig.preset("seed-17m")
    counts = config.param_counts()
    n = counts["attention"] + counts["mlp"] + counts["head"]
    assert config.flops_per_token(256, training=True) == 6 * n + 12 * 4 * 16 * 32 * 256


def test_causal_flops_count_the_keys_each_query_sees():
    config = ModelConfig.preset("tiny")
    length = 10
    visible_keys = sum(range(1, length + 1)) / length
    per_key = 4 * 2 * 2 * 256
    full = config.flops_parts(length)["attention scores and values"]
    causal = config.flops_parts(length, causal=True)["attention scores and values"]
    assert (full, causal) == (per_key * length, per_key * visible_keys)


def test_grouped_queries_shrink_the_cache_only_by_their_heads():
    config = ModelConfig.preset("smollm2-135m")
    assert config.kv_cache_bytes_per_token() == 2 * 30 * 3 * 64 * 2
    assert config.kv_cache_bytes_per_token(4) == 2 * 30 * 3 * 64 * 4


def test_the_cache_that_is_planned_is_the_real_one():
    kinds = {"local": {"attention": {"mask": {"kind": "window", "size": 8}}}, "global": {}}
    config = ModelConfig.model_validate(
        ModelConfig.preset_values("tiny")
        | {"num_layers": 3, "layer_kinds": kinds, "layer_pattern": [*kinds]}
    )
    cache = Decoder(config).new_cache(2)
    assert cache.size_bytes == 2 * config.kv_cache_bytes(256, 4)
    assert cache.size_bytes < 2 * 256 * config.kv_cache_bytes_per_token(4)


@st.composite
def config_values(draw) -> dict:
    num_kv_heads = draw(st.sampled_from([1, 2, 3]))
    num_heads = num_kv_heads * draw(st.integers(1, 3))
    choices = {
        "vocab_size": st.integers(1, 50),
        "max_seq_len": st.integers(1, 20),
        "d_model": st.sampled_from([2, 6, 16]),
        "num_layers": st.integers(1, 3),
        "norm": st.fixed_dictionaries({"kind": st.sampled_from(["rmsnorm", "layernorm"])}),
        "norm_position": st.sampled_from(["pre", "post", "double", "reordered", "deepnorm"]),
        "use_bias": st.booleans(),
        "block": st.sampled_from(["serial", "parallel"]),
        "mlp": st.fixed_dictionaries(
            {
                "activation": st.sampled_from(["relu", "gelu", "relu2", "swiglu", "bilinear"]),
                "d_ff": st.integers(1, 30),
            }
        ),
        "attention": st.fixed_dictionaries(
            {
                "num_heads": st.just(num_heads),
                "num_kv_heads": st.just(num_kv_heads),
                "head_dim": st.sampled_from([2, 4, 10]),
                "qk_norm": st.booleans(),
                "qk_norm_scope": st.sampled_from(["head", "full"]),
                "qkv_bias": st.booleans(),
            }
        ),
        "position": st.fixed_dictionaries(
            {"kind": st.sampled_from(["rope", "learned", "sinusoidal", "alibi", "t5", "none"])}
        ),
        "tie_embeddings": st.booleans(),
    }
    return draw(st.fixed_dictionaries(choices))


@given(config_values())
@settings(max_examples=60)
def test_counts_and_shapes_are_those_of_the_real_model(values):
    config = ModelConfig.model_validate(values)
    with torch.device("meta"):
        model = Decoder(config)
    assert {k: tuple(v.shape) for k, v in model.state_dict().items()} == config.weight_shapes()
    assert sum(p.numel() for p in model.parameters()) == model.num_params() == config.num_params()


@given(config_values())
@settings(max_examples=30)
def test_config_survives_yaml(tmp_path_factory, values):
    config = ModelConfig.model_validate(values)
    file = tmp_path_factory.mktemp("config") / "config.yaml"
    file.write_text(to_yaml(config))
    assert load(ModelConfig, file).config == config


def test_sizes_that_are_left_out_follow_the_width():
    config = load(ModelConfig, None, ["preset=tiny", "d_model=384"]).config
    assert (config.attention.head_dim, config.attention.num_kv_heads) == (96, 4)
    assert config.mlp.d_ff == 1024


@pytest.mark.parametrize("activation", Activation.__args__)
def test_gated_mlp_costs_what_a_plain_one_does(activation):
    d_model = 768
    matrices = 3 if "glu" in activation or activation == "bilinear" else 2
    assert matrices * default_d_ff(d_model, activation) == 8 * d_model


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["d_model=255"], "d_model=255 is not a multiple of attention.num_heads=4; nearest: 256"),
        (["d_model=3"], "d_model=3 is not a multiple of attention.num_heads=4; nearest: 4"),
        (
            ["attention.num_heads=8", "attention.num_kv_heads=3"],
            "num_heads=8 is not a multiple of num_kv_heads=3; nearest num_kv_heads: 2",
        ),
        (["attention.num_kv_heads=8"], "num_heads=4 is not a multiple of num_kv_heads=8; nearest"),
        (["attention.head_dim=15"], "attention.head_dim=15 is odd.*nearest: 16"),
        (["position.rotary_fraction=0.3"], "of head_dim=64 are 19 elements.*nearest: 0.3125"),
        (["position.rotary_fraction=0.001"], "of head_dim=64 are 0 elements.*nearest: 0.03125"),
        (["position.kind=t5", "position.max_distance=16"], "max_distance=16 must be more than"),
        (
            ["d_model=255", "attention.head_dim=8", "position.kind=sinusoidal"],
            "d_model=255 is odd.*nearest: 256",
        ),
        (["mlp.activation=swigl"], "mlp.activation='swigl': input should be 'relu', 'gelu'"),
        (["mlp.activation=[]"], "mlp.activation"),
        (["d_model=-4"], "d_model=-4: input should be greater than 0"),
        (["d_model=many"], "d_model='many': input should be a valid integer"),
        (["dropout=1"], "dropout=1: input should be less than 1"),
        (["attention=4"], "attention=4"),
        (["num_layer=4"], "num_layer: no such key; did you mean 'num_layers'"),
        (["position.kind=alib"], "position.kind='alib'; allowed: 'rope', 'learned'"),
        (["position.kind=learned", "position.theta=1"], "position.theta: no such key"),
        (["norm.eps=0"], "norm.eps=0: input should be greater than 0"),
        (["logit_softcap=-1"], "logit_softcap=-1: input should be greater than or equal to 0"),
        (["preset=tiyn"], "model.preset='tiyn' is not known; did you mean 'tiny'"),
    ],
)
def test_impossible_shape_is_refused_with_what_would_be_right(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load(ModelConfig, None, ["preset=tiny", *overrides])


@pytest.mark.parametrize("d_model", ["'256'", "256.0"])
def test_sizes_follow_the_width_however_it_is_written(d_model):
    config = load(ModelConfig, None, ["preset=tiny", f"d_model={d_model}"]).config
    assert config == ModelConfig.preset("tiny")


def test_only_the_key_that_is_wrong_is_blamed():
    with pytest.raises(ConfigError) as caught:
        load(ModelConfig, None, ["preset=tiny", "d_model=many"])
    assert str(caught.value).count("\n") == 0


def test_config_is_frozen():
    config = ModelConfig.preset("tiny")
    with pytest.raises(ValueError, match="frozen"):
        config.d_model = 3


def test_config_needs_no_torch():
    code = (
        "import sys, lmworks.nn.config, lmworks.models.config, lmworks.models.presets;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


LOCAL_GLOBAL = {
    "vocab_size": 50, "max_seq_len": 20, "d_model": 16, "num_layers": 7,
    "attention": {"num_heads": 4},
    "layer_kinds": {
        "local": {"position": {"theta": 100.0}, "mlp": {"d_ff": 24}},
        "global": {"position": {"kind": "none"}},
    },
    "layer_pattern": ["local*2", "global"],
}  # fmt: skip


def test_a_pattern_repeats_over_the_depth():
    layers = list(ModelConfig.model_validate(LOCAL_GLOBAL).layers())
    kinds = [(layer.position.kind, layer.mlp.d_ff) for layer in layers]
    local, whole = ("rope", 24), ("none", default_d_ff(16, "swiglu"))
    assert kinds == [local, local, whole, local, local, whole, local]


def test_counts_of_a_pattern_are_those_of_the_real_model():
    config = ModelConfig.model_validate(LOCAL_GLOBAL)
    with torch.device("meta"):
        model = Decoder(config)
    assert {k: tuple(v.shape) for k, v in model.state_dict().items()} == config.weight_shapes()
    assert sum(p.numel() for p in model.parameters()) == config.num_params()
    assert sum(count for _, count in config.layer_counts()) == 7


def test_layers_of_a_pattern_turn_by_their_own_rotation():
    config = ModelConfig.model_validate(LOCAL_GLOBAL)
    model = Decoder(config).eval()
    assert [rope.frequencies[1] for rope in model.ropes] == [100.0 ** (-2 / 4)]
    tokens = torch.arange(12)[None]
    plain = Decoder(ModelConfig.model_validate(LOCAL_GLOBAL | {"layer_kinds": {
        "local": {"mlp": {"d_ff": 24}}, "global": {"position": {"kind": "none"}},
    }})).eval()  # fmt: skip
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(1))
    plain.load_state_dict(model.state_dict())
    assert (plain(tokens) - model(tokens)).abs().max() > 0.1


def test_layers_with_t5_bias_share_one_table_and_others_have_none():
    kinds = {"local": {"position": {"kind": "alibi"}}, "global": {"position": {"kind": "t5"}}}
    config = ModelConfig.model_validate(LOCAL_GLOBAL | {"layer_kinds": kinds})
    assert config.param_counts()["position"] == 32 * 4
    model = Decoder(config).eval()
    assert model.position_bias.weight.shape == (32, 4)
    assert (len(model.alibis), len(model.ropes)) == (1, 0)
    model(torch.arange(12)[None]).sum().backward()
    assert model.position_bias.weight.grad.any()


def test_an_override_changes_one_value_of_a_kind():
    key = "layer_kinds.local.mlp.d_ff=32"
    config = load(
        ModelConfig, None, [f"{k}={v!r}".replace("'", '"') for k, v in LOCAL_GLOBAL.items()] + [key]
    ).config
    assert config.layer_kinds["local"].mlp == {"d_ff": 32}
    assert config.layer_kinds["local"].position == {"theta": 100.0}
    assert config.layer_kinds["global"].position == {"kind": "none"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"layer_pattern": ["locl", "global"]},
            "'locl', which is not in layer_kinds; did you mean 'local'",
        ),
        ({"layer_pattern": ["local"]}, "layer_kinds.global is not in layer_pattern"),
        ({"layer_pattern": ["local*0", "global"]}, "neither a name nor name\\*count"),
        (
            {"layer_kinds": {"local": {"mlp": {"d_f": 3}}, "global": {}}},
            "layer_kinds.local.mlp.d_f: no such key; did you mean 'd_ff'",
        ),
        (
            {"layer_kinds": {"local": {"attention": {"mask": {"kind": "window"}}}, "global": {}}},
            "layer_kinds.local.attention.mask.size: must be set",
        ),
        (
            {"layer_kinds": {"local": {"position": {"kind": "rop"}}, "global": {}}},
            "layer_kinds.local.position.kind='rop'; allowed: 'rope', ",
        ),
        (
            {"layer_kinds": {"local": {"position": {"kind": "learned"}}, "global": {}}},
            "added to the embedding",
        ),
        (
            {"layer_kinds": {"local": {"attention": {"head_dim": 3}}, "global": {}}},
            "layer_kinds.local.attention.head_dim=3 is odd",
        ),
        (
            {
                "layer_kinds": {
                    "local": {"position": {"kind": "t5"}},
                    "global": {
                        "position": {"kind": "t5"},
                        "attention": {"num_heads": 2, "num_kv_heads": 2},
                    },
                }
            },
            "one table for all layers .* attention.num_heads, which is \\[2, 4\\]",
        ),
    ],
)
def test_a_wrong_pattern_gets_an_answer_that_helps(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.model_validate(LOCAL_GLOBAL | change)


def test_kinds_that_the_depth_does_not_reach_leave_nothing_behind():
    moe = {"kind": "moe", "d_ff": 4, "num_experts": 2, "router": {"kind": "expert_choice"}}
    kinds = {"local": {}, "global": {"position": {"kind": "t5"}, "mlp": moe}}
    config = ModelConfig.model_validate(LOCAL_GLOBAL | {"num_layers": 1, "layer_kinds": kinds})
    assert not config.sees_later_tokens
    assert not any(name.startswith("position_bias") for name in config.weight_shapes())


def test_a_million_layers_are_counted_at_once():
    config = ModelConfig.model_validate(LOCAL_GLOBAL | {"num_layers": 10**6})
    assert config.num_params() > 10**6
