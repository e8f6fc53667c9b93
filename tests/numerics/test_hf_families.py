"""Every family of Hugging Face models: transformers' weights and logits here, and back again.

Small models with random weights are saved by transformers and loaded here. Weights are far from
their start (norms and biases are neither 1 nor 0), so that each of them matters.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.hf import load_hf, save_hf

transformers = pytest.importorskip("transformers")

BASE: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
MLA = BASE | {
    "num_key_value_heads": 6,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2",
        {
            "vocab_size": 99,
            "n_embd": 48,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 128,
            "resid_pdrop": 0.0,
        },
    ),
    "gpt2-gelu": (
        "GPT2",
        {
            "vocab_size": 99,
            "n_embd": 48,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 128,
            "n_inner": 100,
            "activation_function": "gelu",
            "tie_word_embeddings": False,
        },
    ),
    "llama": ("Llama", BASE),
    "llama-tied": ("Llama", BASE | {"tie_word_embeddings": True, "head_dim": 16}),
    "llama-biases": ("Llama", BASE | {"attention_bias": True, "mlp_bias": True}),
    "llama3": ("Llama", BASE | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}),
    "llama-linear": (
        "Llama",
        BASE | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    ),
    "llama-yarn": ("Llama", BASE | {"rope_parameters": YARN | {"rope_theta": 1e4}}),
    "mistral": ("Mistral", BASE | {"sliding_window": None}),
    "qwen2": ("Qwen2", BASE),
    "mistral-window": ("Mistral", BASE | {"sliding_window": 7}),
    "qwen2-windows": (
        "Qwen2",
        BASE | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3", BASE | {"head_dim": 16}),
    "olmo2": ("Olmo2", BASE),
    "gemma2": (
        "Gemma2",
        BASE | {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8},
    ),
    "gemma3": (
        "Gemma3",
        BASE
        | {
            "num_hidden_layers": 7,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "mixtral": ("Mixtral", BASE | {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral-window": ("Mixtral", BASE | {"num_local_experts": 3, "sliding_window": 7}),
    "qwen3-moe": (
        "Qwen3Moe",
        BASE
        | {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
    ),
    "qwen3-moe-dense": (
        "Qwen3Moe",
        BASE
        | {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "mlp_only_layers": [2],
        },
    ),
    "deepseek-v2": (
        "DeepseekV2",
        MLA
        | {
            "q_lora_rank": 20,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 1.5,
            "rope_parameters": YARN | {"rope_theta": 1e4, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "deepseek-v2-lite": ("DeepseekV2", MLA | {"q_lora_rank": None, "topk_method": "greedy"}),
    "deepseek-v3": ("DeepseekV3", MLA | {"q_lora_rank": 20, "n_shared_experts": 1}),
    "deepseek-v3-yarn": (
        "DeepseekV3",
        MLA
        | {
            "q_lora_rank": 20,
            "rope_parameters": YARN | {"rope_theta": 1e4, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "gemma3-short": ("Gemma3", BASE | {"head_dim": 16, "sliding_window": 8}),
}

TEXTS = [[1, 5, 9], [2] * 40, list(range(90)), [98, 0, 97, 1] * 8, [7]]


def make_peer(case: str) -> Any:
    name, values = CASES[case]
    text = "Text" if name == "Gemma3" else ""
    config = getattr(transformers, f"{name}{text}Config")(**values)
    config._attn_implementation = "eager"
    kind = {"GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM")
    torch.manual_seed(0)
    peer = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for name, weight in [*peer.named_parameters(), *peer.named_buffers()]:
            if "inv_freq" not in name and "embed_scale" not in name:
                weight.add_(0.1 * torch.randn_like(weight))
    return peer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """The peer of a case, and the folder that it was saved to; each made once."""
    made: dict[str, tuple[Any, Path]] = {}

    def save(case: str) -> tuple[Any, Path]:
        if case not in made:
            peer, folder = make_peer(case), tmp_path_factory.mktemp(case)
            peer.save_pretrained(folder)
            made[case] = peer, folder
        return made[case]

    return save


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_peers(saved, case):
    peer, folder = saved(case)
    model = load_hf(folder)
    for text in TEXTS:
        tokens_BT = torch.tensor([text])
        with torch.no_grad():
            ours, theirs = model(tokens_BT), peer(tokens_BT).logits
        # Sums of fp32 products in another order; logits are of size 1 to 10.
        assert (ours - theirs).abs().max() < 2e-4


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_equal_the_peers(saved, case):
    peer, folder = saved(case)
    model, prompt = load_hf(folder), [3, 1, 4, 1, 5]
    with torch.no_grad():
        peer.generation_config.eos_token_id = None
        theirs = peer.generate(
            torch.tensor([prompt]), max_new_tokens=64, do_sample=False, pad_token_id=0
        )[0]
    assert greedy(model, prompt, 64) == theirs.tolist()


def greedy(model: Decoder, prompt: list[int], num_tokens: int) -> list[int]:
    cache, tokens = model.new_cache(batch_size=1), list(prompt)
    new = tokens
    with torch.no_grad():
        for _ in range(num_tokens):
            logits_BTV = model(torch.tensor([new]), cache=cache)
            new = [int(logits_BTV[0, -1].argmax())]
            tokens += new
    return tokens


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("max_shard_bytes", [5_000_000_000, 40_000])
def test_weights_are_the_same_bits_after_a_round_trip(saved, tmp_path, case, max_shard_bytes):
    peer, folder = saved(case)
    save_hf(tmp_path, load_hf(folder), max_shard_bytes=max_shard_bytes)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    wanted, found = peer.state_dict(), again.state_dict()
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name
    tokens_BT = torch.tensor([TEXTS[2]])
    with torch.no_grad():
        assert torch.allclose(again(tokens_BT).logits, peer(tokens_BT).logits, atol=2e-4)


@pytest.mark.parametrize("case", CASES)
def test_our_model_is_the_same_after_a_round_trip(saved, tmp_path, case):
    model = load_hf(saved(case)[1])
    save_hf(tmp_path, model)
    again = load_hf(tmp_path)
    assert again.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.parametrize("case", CASES)
def test_both_ways_of_writing_a_config_read_as_the_same(saved, tmp_path, case):
    _, folder = saved(case)
    values = json.loads((folder / "config.json").read_text())
    if "rope_parameters" not in values:
        pytest.skip("no rotary positions")
    model = load_hf(folder)
    save_hf(tmp_path, model)
    old = json.loads((tmp_path / "config.json").read_text())
    assert "rope_theta" in old
    assert "rope_parameters" not in old
    assert load_hf(tmp_path).config.position == model.config.position


@pytest.mark.parametrize("preset", ["tiny", "gpt2-small", "smollm2-135m"])
def test_presets_can_be_written(tmp_path, preset):
    values = ModelConfig.preset_values(preset) | {"num_layers": 1, "vocab_size": 64}
    model = Decoder(ModelConfig.model_validate(values))
    save_hf(tmp_path, model)
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens_BT = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.allclose(peer(tokens_BT).logits, model.eval()(tokens_BT), atol=2e-4)


def with_mtp_module(folder: Path, to: Path) -> dict[str, torch.Tensor]:
    """A checkpoint of DeepSeek V3 with one more layer that predicts further, as the hub's has."""
    tensors = load_file(folder / "model.safetensors")
    last = {k: v for k, v in tensors.items() if k.startswith("model.layers.3.")}
    module = {k.replace("layers.3.", "layers.4."): v + 0.01 for k, v in last.items()}
    draw = torch.Generator().manual_seed(0)
    module["model.layers.4.eh_proj.weight"] = torch.randn(48, 96, generator=draw)
    for name in ("hnorm", "enorm", "shared_head.norm"):
        module[f"model.layers.4.{name}.weight"] = torch.randn(48, generator=draw)
    copies = {
        "model.layers.4.embed_tokens.weight": tensors["model.embed_tokens.weight"].clone(),
        "model.layers.4.shared_head.head.weight": tensors["lm_head.weight"].clone(),
    }
    to.mkdir()
    save_file(tensors | module | copies, to / "model.safetensors")
    (to / "config.json").write_text((folder / "config.json").read_text())
    return tensors | module


def test_modules_that_predict_further_are_read_and_written(saved, tmp_path):
    _, folder = saved("deepseek-v3")
    wanted = with_mtp_module(folder, tmp_path / "in")
    model = load_hf(tmp_path / "in")
    assert model.config.mtp.depth == 1
    # DeepSeek's projection reads [embedding; hidden], ours [hidden; embedding].
    theirs = wanted["model.layers.4.eh_proj.weight"]
    ours = model.state_dict()["mtp.0.proj.weight"]
    assert torch.equal(ours, torch.cat((theirs[:, 48:], theirs[:, :48]), dim=1))
    save_hf(tmp_path / "out", model)
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("case", ["mixtral", "qwen3-moe-dense", "deepseek-v2", "deepseek-v3"])
def test_experts_stacked_as_in_memory_are_read(saved, tmp_path, case):
    peer, folder = saved(case)
    save_file(dict(peer.state_dict()), tmp_path / "model.safetensors")
    assert any(name.endswith("experts.gate_up_proj") for name in peer.state_dict())
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    wanted = load_hf(folder).state_dict()
    for name, tensor in load_hf(tmp_path).state_dict().items():
        assert torch.equal(tensor, wanted[name]), name
