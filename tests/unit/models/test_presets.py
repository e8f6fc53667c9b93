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
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
}


@pytest.mark.parametrize(("preset", "num_params"), (OWN | PUBLISHED).items())
def test_preset_has_the_published_parameter_count(preset, num_params):
    config = ModelConfig.preset(preset)
    assert (config.num_params(), config.num_active_params()) == (num_params, num_params)


def test_every_preset_is_counted():
    assert set(PRESET_NAMES) == set(OWN | PUBLISHED)


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_preset_shapes_add_up_to_its_count(preset):
    config = ModelConfig.preset(preset)
    assert sum(map(math.prod, config.weight_shapes().values())) == config.num_params()


def test_the_largest_models_are_built_on_the_meta_device_in_seconds():
    start_s = time.process_time()
    with torch.device("meta"):
        model = Decoder(ModelConfig.preset("llama3.1-405b"))
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED["llama3.1-405b"]
    assert time.process_time() - start_s < 5


def test_demo_preset_is_small_enough_to_learn_in_minutes():
    assert 4e6 < ModelConfig.preset("tiny").num_params() < 6e6
