"""Presets have the parameter counts of the published models, total and per token.

The numbers are sums over the parameters of transformers' models, built on the meta device from the
published config.json (a tied head counts once; per token: all but the experts not chosen). They
are those that the models' pages state.
"""

import math
import time

import pytest
import torch

from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.presets import PRESET_NAMES
from lmworks.nn.config import yarn_mscale

OWN = {
    "tiny": 4_262_144,
    # 2 x 10000 x 512 + 4 x (4 x 512^2 + 3 x 512 x 1344 + 2 x 512) + 512
    "seed-17m": 22_696_448,
    # 10512 x 768 + 4 x (12 x 768^2 + 13 x 768) + 2 x 768
    "tinystories": 36_426_240,
}
PUBLISHED = {
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-270m": 268_098_176,
    "gemma3-1b": 999_885_952,
    "gemma3-4b": 3_880_263_168,
    "gemma3-12b": 11_766_034_176,
    "gemma3-27b": 27_009_346_304,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
}
# Total, and used by one token.
SPARSE = {
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704),
    "qwen3-235b-a22b": (235_093_634_560, 22_190_763_520),
    # Not in transformers; per layer 4 x 2048^2 and 3 x 2048 x 10944 in the first, then per layer
    # 66 experts of 3 x 2048 x 1408 and 64 x 2048, of which 58 experts idle; 57 x 2048 of norms.
    "deepseek-moe-16b": (16_375_728_128, 2_828_650_496),
    "deepseek-v2-lite": (15_706_484_224, 2_661_150_208),
    "deepseek-v2": (235_741_434_880, 21_375_800_320),
    "deepseek-v3": (671_026_404_352, 37_552_282_624),
}


@pytest.mark.parametrize(("preset", "num_params"), (OWN | PUBLISHED).items())
def test_preset_has_the_published_parameter_count(preset, num_params):
    config = ModelConfig.preset(preset)
    assert (config.num_params(), config.num_active_params()) == (num_params, num_params)


@pytest.mark.parametrize(("preset", "counts"), SPARSE.items())
def test_sparse_preset_has_the_published_counts_total_and_per_token(preset, counts):
    config = ModelConfig.preset(preset)
    assert (config.num_params(), config.num_active_params()) == counts


def test_every_preset_is_counted():
    assert set(PRESET_NAMES) == set(OWN | PUBLISHED | SPARSE)


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_preset_shapes_add_up_to_its_count(preset):
    config = ModelConfig.preset(preset)
    shapes = config.weight_shapes().items()
    # The one thing in a checkpoint that is no parameter: what the balance moves, not a gradient.
    trained = [shape for name, shape in shapes if not name.endswith("mlp.router.bias")]
    assert sum(map(math.prod, trained)) == config.num_params()


@pytest.mark.parametrize("preset", ["llama3.1-405b", "deepseek-v3"])
def test_the_largest_models_are_built_on_the_meta_device_in_seconds(preset):
    config = ModelConfig.preset(preset)
    start_s = time.process_time()
    with torch.device("meta"):
        model = Decoder(config)
    assert sum(p.numel() for p in model.parameters()) == config.num_params()
    assert time.process_time() - start_s < 5


def test_gemma_3_windows_five_layers_of_six_and_turns_them_by_their_own_theta():
    layers = list(ModelConfig.preset("gemma3-4b").layers())
    kinds = [
        (own.attention.mask.kind, own.position.theta, own.position.scaling.kind) for own in layers
    ]
    local, whole = ("window", 1e4, "none"), ("full", 1e6, "linear")
    assert kinds == [whole if i % 6 == 5 else local for i in range(34)]


@pytest.mark.parametrize(
    ("preset", "mscale"),
    [("deepseek-v2-lite", 0.707), ("deepseek-v2", 0.707), ("deepseek-v3", 1.0)],
)
def test_deepseek_scales_its_scores_by_yarns_factor_squared(preset, mscale):
    config = ModelConfig.preset(preset)
    assert config.position.scaling.rotation_scale == 1.0
    assert config.attention.scale == pytest.approx(yarn_mscale(40.0, mscale) ** 2 / 192**0.5)


def test_demo_preset_is_small_enough_to_learn_in_minutes():
    assert 4e6 < ModelConfig.preset("tiny").num_params() < 6e6
