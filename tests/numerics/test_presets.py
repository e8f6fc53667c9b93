"""Written as a config.json of its family, a preset is a model of the same size to transformers.

So the values of a preset mean the same on both sides: heads, experts, biases, norms, tied heads.
Nothing is allocated.
"""

import pytest
import torch

from lmworks.models.config import ModelConfig
from lmworks.models.families import family_for
from lmworks.models.presets import PRESET_NAMES

transformers = pytest.importorskip("transformers")

QUICK = {
    "gpt2-xl", "llama3.2-1b", "smollm2-135m", "mistral-7b", "mixtral-8x7b", "qwen2.5-7b",
    "qwen3-0.6b", "qwen3-30b-a3b", "gemma2-27b", "gemma3-4b", "olmo2-1b", "deepseek-v2-lite",
    "deepseek-v3",
}  # fmt: skip
FAMILIES = {
    "gpt2": "gpt2", "llama": "llama", "llama2": "llama", "llama3": "llama", "llama3.1": "llama",
    "llama3.2": "llama", "smollm2": "llama", "mixtral": "mixtral", "qwen2": "qwen2",
    "qwen2.5": "qwen2", "gemma2": "gemma2", "gemma3": "gemma3_text", "olmo2": "olmo2",
}  # fmt: skip


def cases() -> list:
    # DeepSeekMoE's own class was never part of transformers.
    names = [name for name in PRESET_NAMES if name != "deepseek-moe-16b"]
    slow = [pytest.mark.slow]
    return [pytest.param(name, marks=[] if name in QUICK else slow) for name in names]


@pytest.mark.parametrize("preset", cases())
def test_preset_has_the_size_of_the_peers_model(preset):
    config = ModelConfig.preset(preset)
    family, values = family_for(config)
    theirs = transformers.AutoConfig.for_model(family.model_type, **values)
    with torch.device("meta"):
        peer = transformers.AutoModelForCausalLM.from_config(theirs)
    # Tied weights are one parameter there, too.
    assert sum(weight.numel() for weight in peer.parameters()) == config.num_params()
    assert peer.config.max_position_embeddings == config.max_seq_len


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_preset_is_of_the_family_that_it_was_published_in(preset):
    expected = FAMILIES.get(preset.partition("-")[0])
    if expected is not None:
        assert family_for(ModelConfig.preset(preset))[0].model_type == expected
