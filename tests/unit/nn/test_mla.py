"""Latent attention: both forms are the formula and each other, and only latents are cached."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmworks.base.config import load
from lmworks.base.errors import ConfigError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.nn.attention.cache import KVCache
from lmworks.nn.attention.mask import layer_mask
from lmworks.nn.attention.mla import LatentAttention
from lmworks.nn.config import MLAConfig, NormConfig, RopeConfig
from lmworks.nn.position import Rope, Rotation, rotate

SIZES = {"num_heads": 3, "q_rank": 7, "kv_rank": 5, "nope_dim": 4, "rope_dim": 2, "v_dim": 3}


def make_layer(use_bias: bool = False, **changes) -> LatentAttention:
    config = MLAConfig(**(SIZES | changes))
    layer = LatentAttention(
        config, d_model=8, norm=NormConfig(), use_bias=use_bias, dropout=0.0, layer=0
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_(0, 0.5, generator=generator)
    return layer.double().eval()


def x_of(num_tokens: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(2, num_tokens, 8, dtype=torch.float64, generator=generator)


def rotation_of(start: int, end: int, dim: int = 2) -> Rotation:
    return Rope(RopeConfig(), head_dim=dim)(torch.arange(start, end))


def plain_attention(layer: LatentAttention, x: Tensor, rotation: Rotation) -> Tensor:
    """One head at a time, as the paper's equations 37 to 47 read."""
    q = layer.q_up(layer.q_norm(layer.q_down(x))) if layer.has_q_latent else layer.q(x)
    down = layer.kv_down(x)
    latent, k_rope = layer.kv_norm(down[..., : layer.kv_rank]), down[..., layer.kv_rank :]
    k_rope = rotate(k_rope.unsqueeze(1), rotation)[:, 0]
    kv = layer.kv_up(latent)
    outputs = []
    for h in range(layer.num_heads):
        q_head = q[..., h * 6 : (h + 1) * 6]
        q_rope = rotate(q_head[..., 4:].unsqueeze(1), rotation)[:, 0]
        kv_head = kv[..., h * 7 : (h + 1) * 7]
        scores = q_head[..., :4] @ kv_head[..., :4].transpose(1, 2)
        scores = (scores + q_rope @ k_rope.transpose(1, 2)) / 6**0.5
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        outputs.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ kv_head[..., 4:])
    return layer.o(torch.cat(outputs, dim=-1))


@pytest.mark.parametrize("q_rank", [0, 7])
@pytest.mark.parametrize("use_bias", [False, True])
def test_expanded_form_is_the_formula(q_rank, use_bias):
    layer, x = make_layer(use_bias, q_rank=q_rank), x_of(9)
    rotation = rotation_of(0, 9)
    torch.testing.assert_close(
        layer(x, rotation=rotation), plain_attention(layer, x, rotation), rtol=1e-12, atol=1e-12
    )


def decode(layer: LatentAttention, config: MLAConfig, x: Tensor, pieces: list[int]) -> Tensor:
    total = x.shape[1]
    cache = KVCache(
        [config.cache_shape], batch_size=2, max_seq_len=total, masks=[config.mask], dtype=x.dtype
    )
    outputs = []
    for piece in x.split(pieces, dim=1):
        num_tokens, start = piece.shape[1], cache.length
        cache.check_room(num_tokens)
        mask = layer_mask(config.mask, num_tokens, cache.span(0, num_tokens), x.device)
        rotation = rotation_of(start, start + num_tokens)
        outputs.append(layer(piece, rotation=rotation, mask=mask, cache=cache))
        cache.advance(num_tokens)
    return torch.cat(outputs, dim=1)


@settings(max_examples=50)
@given(
    pieces=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    q_rank=st.sampled_from([0, 7]),
    window=st.sampled_from([0, 1, 6]),
    num_sink_tokens=st.sampled_from([0, 2]),
)
def test_absorbed_form_is_the_expanded_one(pieces, q_rank, window, num_sink_tokens):
    mask = {"kind": "full"}
    if window:
        mask = {"kind": "window", "size": window, "num_sink_tokens": num_sink_tokens}
    config = MLAConfig(**(SIZES | {"q_rank": q_rank, "mask": mask}))
    layer, x = make_layer(q_rank=q_rank, mask=mask), x_of(sum(pieces))
    absorbed, expanded = make_layer(q_rank=q_rank), make_layer(q_rank=q_rank)
    absorbed.most_absorbed_tokens, expanded.most_absorbed_tokens = 2**62, 0
    with torch.no_grad():
        results = [decode(one, config, x, pieces) for one in (layer, absorbed, expanded)]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-10, atol=1e-10)


def test_absorbed_form_in_fp32_is_within_rounding():
    config = MLAConfig(**SIZES)
    exact, layer = make_layer(), make_layer().float()
    x = x_of(20)
    with torch.no_grad():
        expected = exact(x, rotation=rotation_of(0, 20))
        actual = decode(layer, config, x.float(), [5] + [1] * 15)
    # Products of up to 20 terms one after the other, each rounded by 6e-8 of the largest.
    bound = 4 * 20 * 6e-8 * float(expected.abs().max())
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=bound)


def test_decoding_takes_the_absorbed_form(monkeypatch):
    layer, forms = make_layer(), []
    for form in ("_absorbed_qkv", "_expanded_qkv"):
        function = getattr(layer, form)
        monkeypatch.setattr(
            layer, form, lambda *a, form=form, f=function: (forms.append(form), f(*a))[1]
        )
    decode(layer, MLAConfig(**SIZES), x_of(60), [9, 1, 1, 49])
    # kv_rank (nope_dim + v_dim) / (2 kv_rank - nope_dim - v_dim) = 5 * 7 / 3 = 11 tokens at most.
    assert forms == ["_expanded_qkv", "_absorbed_qkv", "_absorbed_qkv", "_expanded_qkv"]


def test_gradients_are_those_of_finite_differences():
    layer, rotation = make_layer(), rotation_of(0, 4)
    names, weights = zip(*layer.named_parameters(), strict=True)

    def outcome(x: Tensor, *values: Tensor) -> Tensor:
        arguments = dict(zip(names, values, strict=True))
        return torch.func.functional_call(layer, arguments, (x,), {"rotation": rotation})

    x = x_of(4)[:1].requires_grad_()
    # Norms take their statistics in fp32, whose rounding finite differences see.
    assert torch.autograd.gradcheck(
        outcome, (x, *weights), eps=1e-2, atol=2e-3, rtol=2e-2, fast_mode=True
    )


def test_deepseek_v2_caches_what_the_paper_says():
    config = MLAConfig(
        num_heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128
    )
    heads, latent, rope = config.cache_shape
    # Table 1: (d_c + d_h^R) l elements per token, 9/2 d_h l.
    assert heads * (latent + rope) == 576 == 128 * 9 // 2
    assert config.most_absorbed_tokens == 512 * 256 // (1024 - 256)


def test_flops_by_hand():
    config, d = MLAConfig(**SIZES), 8
    down = d * 7 + 7 * 18 + d * (5 + 2)
    up = 5 * 3 * (4 + 3)
    assert config.projection_flops_per_token(d) == 2 * (down + up + 9 * d)
    assert config.score_flops_per_token(10, causal=False) == 2 * 10 * 3 * (6 + 3)
    absorbed = config.score_flops_per_token(10, causal=False, is_absorbed=True)
    assert absorbed == 2 * 10 * 3 * (5 + 2 + 5)
    assert config.score_flops_per_token(9, causal=True) == 2 * 5 * 3 * 9


MODEL = {
    "vocab_size": 50,
    "max_seq_len": 40,
    "d_model": 16,
    "num_layers": 2,
    "mlp": {"d_ff": 24},
    "attention": {"kind": "mla", **SIZES},
    "init": {"std": 0.2},
}


@pytest.mark.parametrize("q_rank", [0, 7])
@pytest.mark.parametrize("use_bias", [False, True])
def test_shapes_are_those_of_the_real_model(q_rank, use_bias):
    attention = MODEL["attention"] | {"q_rank": q_rank}
    config = ModelConfig.model_validate(MODEL | {"attention": attention, "use_bias": use_bias})
    with torch.device("meta"):
        model = Decoder(config)
    assert {k: tuple(v.shape) for k, v in model.state_dict().items()} == config.weight_shapes()


@pytest.mark.parametrize("position", ["rope", "alibi", "none"])
def test_cached_logits_equal_uncached(position):
    model = Decoder(ModelConfig.model_validate(MODEL | {"position": {"kind": position}})).eval()
    tokens = torch.randint(50, (2, 30), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache(2)
    assert cache.size_bytes == 2 * 2 * 40 * (5 + 2) * 4
    with torch.no_grad():
        pieces = [model(piece, cache=cache) for piece in tokens.split([9, 1, 1, 19], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), model(tokens), atol=1e-4, rtol=0)


def test_layers_of_both_kinds_stand_in_one_model():
    kinds = {"latent": {"attention": {"kind": "mla", **SIZES}}, "plain": {}}
    config = ModelConfig.model_validate(
        MODEL
        | {
            "attention": {"num_heads": 4},
            "layer_kinds": kinds,
            "layer_pattern": ["latent", "plain"],
        }
    )
    assert [layer.attention.kind for layer in config.layers()] == ["mla", "gqa"]
    model = Decoder(config).eval()
    tokens = torch.randint(50, (1, 20), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache(1)
    with torch.no_grad():
        pieces = [model(piece, cache=cache) for piece in tokens.split([9, 1, 10], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), model(tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_rank": 0}, "attention.kv_rank.*greater than 0"),
        ({"q_rank": -1}, "attention.q_rank.*greater than or equal to 0"),
        ({"rope_dim": 3}, "attention.rope_dim=3 is odd.*nearest: 4"),
        ({"head_dim": 3}, "attention.head_dim: no such key"),
    ],
)
def test_wrong_sizes_are_named(tmp_path, changes, message):
    import yaml

    file = tmp_path / "model.yaml"
    file.write_text(yaml.safe_dump(MODEL | {"attention": MODEL["attention"] | changes}))
    with pytest.raises(ConfigError, match=message):
        load(ModelConfig, file)


def test_a_missing_size_is_named():
    with pytest.raises(ConfigError, match=r"attention\.kv_rank: must be set"):
        load(ModelConfig, None, ["preset=tiny", "attention={kind: mla, num_heads: 4}"])
