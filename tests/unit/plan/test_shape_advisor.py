"""Each rule is silent inside its known-good range and says what is wrong outside of it."""

import pytest

from lmworks.models.config import ModelConfig
from lmworks.models.presets import PRESET_NAMES
from lmworks.plan import shape_advisor as rules
from lmworks.plan.shape_advisor import shape_advice


def advice(preset: str, context_length: int = 0, **changes) -> dict[str, str]:
    """What is found by setting."""
    config = ModelConfig.model_validate(ModelConfig.preset_values(preset) | changes)
    found = shape_advice(config, context_length=context_length or config.max_seq_len)
    return {item.setting: item.found for item in found}


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_published_shapes_are_known_to_be_good(preset):
    known = {
        # GPT-2's vocabulary is what BPE left; nanoGPT and others pad it to 50,304.
        "gpt2": {"vocab_size": "50,257"},
        # A vocabulary for 140 languages: 170 of its 268 M parameters.
        "gemma3-270m": {"vocab_size": "262,144"},
        "seed-17m": {"vocab_size": "10,000", "attention.head_dim": "32"},
        "tinystories": {"vocab_size": "10,000", "attention.head_dim": "48"},
    }
    assert advice(preset) == known.get(preset, known.get(preset.partition("-")[0], {}))


@pytest.mark.parametrize(
    ("d_model", "num_layers", "is_good"),
    [(768, 12, True), (4096, 16, True), (4112, 16, False), (768, 48, True), (752, 48, False)],
)
def test_aspect_ratio(d_model, num_layers, is_good):
    assert (rules.aspect_ratio(d_model, num_layers) is None) == is_good


def test_depth_is_measured_by_the_fit_for_the_width():
    # The paper's example: GPT-3 of width 12,288 should have 80 layers; 30,000 wide: 95.
    assert rules.depth_for_width(12288, 2 * 78) is None
    assert rules.depth_for_width(12288, 2 * 80) is not None
    assert rules.depth_for_width(30000, 2 * 94) is None
    assert rules.depth_for_width(30000, 2 * 96) is not None


@pytest.mark.parametrize(
    ("head_dim", "is_good"), [(32, False), (63, False), (64, True), (256, True), (257, False)]
)
def test_head_size(head_dim, is_good):
    assert (rules.head_size(head_dim) is None) == is_good


@pytest.mark.parametrize(
    ("heads", "is_good"), [((128, 8), True), ((32, 32), True), ((34, 2), False), ((32, 1), False)]
)
def test_kv_groups(heads, is_good):
    assert (rules.kv_groups(*heads) is None) == is_good


@pytest.mark.parametrize(
    ("d_ff", "is_good"), [(1535, False), (1536, True), (6144, True), (6145, False)]
)
def test_ffn_ratio(d_ff, is_good):
    assert (rules.ffn_ratio(d_ff, 768) is None) == is_good


def test_ffn_ratio_of_experts_counts_those_that_a_token_uses():
    moe = {"kind": "moe", "d_ff": 64, "num_experts": 64, "router": {"top_k": 3}}
    assert advice("tiny", mlp=moe)["mlp.d_ff / d_model"] == "0.75"
    assert "mlp.d_ff / d_model" not in advice("tiny", mlp=moe | {"num_shared_experts": 5})


@pytest.mark.parametrize(
    ("expert_d_ff", "is_good"), [(4097, False), (4096, True), (64, True), (63, False)]
)
def test_expert_granularity(expert_d_ff, is_good):
    assert (rules.expert_granularity(expert_d_ff, 1024) is None) == is_good


def test_vocabulary_is_padded_to_whole_tiles():
    assert rules.vocabulary_tiles(50257).good == "50,304"
    assert rules.vocabulary_tiles(50304) is None
    # Bytes and characters are few enough for a partial tile not to matter.
    assert rules.vocabulary_tiles(255) is None


@pytest.mark.parametrize(
    ("d_model", "body_params", "vocab_size"),
    # Table 1 of the paper, middle column of three.
    [(3200, 2.87e9, 43_000), (4096, 7e9, 67_000), (5120, 13e9, 91_000), (16384, 300e9, 364_000)],
)
def test_vocabulary_for_a_size_follows_the_fit(d_model, body_params, vocab_size):
    def is_good(factor: float) -> bool:
        return (
            rules.vocabulary_for_size(
                round(vocab_size * factor), d_model=d_model, body_params=body_params
            )
            is None
        )

    # The paper's three approaches differ by a tenth, and so does the one formula here.
    assert is_good(8 * 0.88)
    assert is_good(1.12 / 8)
    assert not is_good(8 * 1.12)
    assert not is_good(0.88 / 8)


def test_a_vocabulary_of_bytes_is_small_for_a_large_model():
    assert "vocab_size" in advice("llama3-8b", vocab_size=256)
    assert "vocab_size" not in advice("tiny", vocab_size=256)


@pytest.mark.parametrize(
    ("size", "good"), [(1000, "960 or 1,024"), (11008, None), (100, None), (130, "128 or 192")]
)
def test_tiles(size, good):
    found = rules.tiles("mlp.d_ff", size)
    assert (found and found.good) == good


def test_tiles_are_looked_at_in_every_matrix():
    odd = {"num_heads": 5, "num_kv_heads": 5, "head_dim": 72}
    found = advice("smollm2-135m", d_model=600, attention=odd, mlp={"d_ff": 1500})
    products = {"attention.num_heads x head_dim", "attention.num_kv_heads x head_dim"}
    assert set(found) == {"d_model", "mlp.d_ff"} | products


def test_stacked_windows_must_reach_the_start_of_the_context():
    assert rules.window_reach([4095] * 32, False, context_length=32768) is None
    assert rules.window_reach([100] * 4, False, context_length=401) is None
    assert rules.window_reach([100] * 4, False, context_length=402) is not None
    assert rules.window_reach([100] * 4, True, context_length=402) is None
    assert rules.window_reach([], True, context_length=402) is None


def test_a_window_as_long_as_the_context_hides_nothing():
    def mask(size: int) -> dict[str, str]:
        return advice("tiny", attention={"num_heads": 4, "mask": {"kind": "window", "size": size}})

    assert mask(256)["attention.mask"] == "reaches 256 tokens"
    assert "attention.mask" not in mask(255)


def test_what_several_kinds_of_layers_share_is_said_once():
    kinds = {"local": {"mlp": {"d_ff": 512}}, "global": {}}
    config = ModelConfig.model_validate(
        ModelConfig.preset_values("tiny")
        | {"attention": {"num_heads": 8}, "layer_kinds": kinds, "layer_pattern": [*kinds]}
    )
    assert [a.setting for a in shape_advice(config, context_length=64)] == ["attention.head_dim"]


def test_every_advice_names_reason_and_source():
    config = ModelConfig.model_validate(
        ModelConfig.preset_values("tiny")
        | {"d_model": 1100, "num_layers": 200, "vocab_size": 10**6 + 1, "mlp": {"d_ff": 1100}}
        | {"attention": {"num_heads": 50, "num_kv_heads": 1}}
    )
    found = shape_advice(config, context_length=256)
    assert len(found) >= 8
    for item in found:
        assert all((item.setting, item.found, item.good))
        assert len(item.reason) > 20
        assert "20" in item.source
