"""Hugging Face folders that are not what they say; keys of configs, none of which is ignored."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from lmworks.base.errors import CheckpointError, ConfigError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.families import FAMILIES
from lmworks.models.families.fields import CHANGES_NOTHING
from lmworks.models.hf import load_hf, save_hf

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "max_seq_len": 32,
    "d_model": 16,
    "num_layers": 2,
    "attention": {"num_heads": 2},
    "mlp": {"d_ff": 32},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_hf(tmp_path / "model", Decoder(ModelConfig.model_validate(SMALL)))
    return tmp_path / "model"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_hf(tmp_path / "model", Decoder(ModelConfig.model_validate(SMALL)), max_shard_bytes=5000)
    return tmp_path / "model"


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


# ---- keys of the config ----


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "16"),
        ("hidden_size", 16.0),
        ("hidden_size", True),
        ("hidden_size", -16),
        ("hidden_size", 0),
        ("hidden_size", None),
        ("hidden_size", 10**30),
        ("vocab_size", [64]),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 2**31),
        ("num_attention_heads", 7),
        ("num_key_value_heads", 3),
        ("rms_norm_eps", "small"),
        ("rms_norm_eps", -1),
        ("rms_norm_eps", 1e400),
        ("rms_norm_eps", 10**400),
        ("rope_theta", 0),
        ("rope_theta", {"a": 1}),
        ("rope_scaling", "linear"),
        ("rope_scaling", {"type": "linear"}),
        ("rope_scaling", {"type": "linear", "factor": -2}),
        ("rope_scaling", {"type": "longrope", "factor": 2}),
        ("rope_scaling", {"type": "dynamic", "factor": 2}),
        ("rope_scaling", {"type": "linear", "factor": 2, "other": 1}),
        ("rope_scaling", {"type": "yarn", "factor": 2, "beta_fast": 0.5}),
        ("rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.5}),
        ("partial_rotary_factor", 0.5),
        ("hidden_act", "tanh"),
        ("hidden_act", 3),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("attention_bias", "yes"),
        ("tie_word_embeddings", 1),
        ("max_position_embeddings", 2**30),
        ("quantization_config", {"quant_method": "fp8"}),
        ("model_type", "mamba"),
        ("model_type", None),
        ("model_type", ["llama"]),
    ],
)
def test_values_that_are_not_right_are_refused(folder, key, value):
    change(folder / "config.json", **{key: value})
    with pytest.raises(CheckpointError, match=r"config\.json|tensors"):
        load_hf(folder)


def test_unknown_keys_are_told_and_empty_ones_are_not(folder):
    change(folder / "config.json", new_kind_of_attention=2, other_thing=None, third=False)
    with pytest.warns(UserWarning, match="new_kind_of_attention=2") as told:
        load_hf(folder)
    assert "other_thing" not in str(told[0].message)


def test_known_keys_that_change_nothing_are_not_told(folder):
    change(folder / "config.json", **dict.fromkeys(CHANGES_NOTHING - {"model_type"}, "x"))
    change(folder / "config.json", initializer_range=0.1)
    load_hf(folder)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_key_of_the_peers_config_is_mapped_refused_or_known(model_type):
    """Whatever transformers' config class has, changed: it must be read, or be on the list."""
    transformers = pytest.importorskip("transformers")
    values = transformers.AutoConfig.for_model(model_type).to_dict()
    family = FAMILIES[model_type]
    unread = set(values) - CHANGES_NOTHING

    class Noting(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            unread.discard(key)
            return super().get(key, default)

    values["num_experts_per_tok"] = 2  # DeepSeek V2's class has no value
    fields = family.fields(values, where="config.json")
    unread.discard("is_encoder_decoder")  # by fields
    fields._values = Noting(fields._values)
    family.read(fields, ())
    # Read by code that this config does not come to: windows that are off.
    assert unread <= {"_sliding_window_pattern", "sliding_window", "layer_types"}, unread


def test_a_config_that_no_family_has_is_refused_with_the_nearest(tmp_path):
    config = ModelConfig.model_validate(SMALL | {"embedding_scale": 3.0})
    with pytest.raises(ConfigError, match=r"the nearest, llama, has no embedding_scale=3\.0"):
        save_hf(tmp_path, Decoder(config))


# ---- files ----


@pytest.mark.parametrize(
    "name",
    [
        "../model/model-00001-of-00004.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "..",
        ".",
        "",
        "x\0.safetensors",
        "model.bin",
        3,
        None,
        ["a.safetensors"],
    ],
)
def test_an_index_cannot_point_elsewhere(sharded, name):
    file = sharded / "model.safetensors.index.json"
    value = json.loads(file.read_text())
    value["weight_map"]["lm_head.weight"] = name
    file.write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match=r"is not the name of a \.safetensors file"):
        load_hf(sharded)


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"weight_map": 3}', '{"weight_map": {}}', "[" * 100_000, '{"a":1,"a":1}', "\xff"],
)
def test_broken_indexes_are_refused(sharded, text):
    (sharded / "model.safetensors.index.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"index\.json"):
        load_hf(sharded)


def test_too_many_shards_are_refused(sharded):
    names = {f"w{i}": f"{i}.safetensors" for i in range(1000)}
    file = sharded / "model.safetensors.index.json"
    file.write_text(json.dumps({"weight_map": names}))
    with pytest.raises(CheckpointError, match="more than 500 files"):
        load_hf(sharded)


def test_a_missing_shard_is_named(sharded):
    next(sharded.glob("model-00002-*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-\d+\.safetensors: missing"):
        load_hf(sharded)


def test_a_tensor_that_is_in_another_shard_is_named(sharded):
    file = sharded / "model.safetensors.index.json"
    value = json.loads(file.read_text())
    names = sorted(set(value["weight_map"].values()))
    value["weight_map"] = dict.fromkeys(value["weight_map"], names[0])
    file.write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match="is not in model-00001"):
        load_hf(sharded)


def test_a_loop_of_links_is_no_file(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="missing"):
        load_hf(folder)


def test_pickled_weights_are_named_as_such(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pickled weights .* are not read"):
        load_hf(folder)


@pytest.mark.parametrize("change_of", ["missing", "unexpected", "shape", "integer"])
def test_tensors_of_another_model_are_refused_by_their_names(folder, change_of):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    if change_of == "missing":
        del tensors[name]
    elif change_of == "unexpected":
        tensors[name.replace("1", "2")] = tensors[name].clone()
    elif change_of == "shape":
        tensors[name] = tensors[name].T.contiguous()
    else:
        tensors[name] = tensors[name].to(torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.[12]\.mlp\.up"):
        load_hf(folder)


def test_left_over_rotations_and_copies_of_the_head_are_not_read(tmp_path):
    from safetensors.torch import load_file, save_file

    save_hf(tmp_path, Decoder(ModelConfig.model_validate(SMALL | {"tie_embeddings": True})))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_hf(tmp_path)


def test_checkpoints_of_the_bare_model_have_no_prefix(folder):
    from safetensors.torch import load_file, save_file

    wanted = load_hf(folder).state_dict()
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {k.removeprefix("model."): v for k, v in tensors.items()}, folder / "model.safetensors"
    )
    for name, tensor in load_hf(folder).state_dict().items():
        assert torch.equal(tensor, wanted[name])


def test_a_forged_number_of_experts_takes_no_memory(folder):
    values = {"model_type": "mixtral", "num_local_experts": 10**9, "num_experts_per_tok": 2}
    change(folder / "config.json", **values)
    with pytest.raises(CheckpointError, match="tensors cannot be a model of 1000000000 experts"):
        load_hf(folder)


def test_a_rewritten_folder_holds_no_old_weights(sharded):
    save_hf(sharded, load_hf(sharded))
    assert not (sharded / "model.safetensors.index.json").exists()
    load_hf(sharded)
