"""Models written as GGUF are read back bit for bit; what GGUF or we cannot say is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lmworks.base.errors import CheckpointError, DataError
from lmworks.models import gguf
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.gguf.choose import architecture_of
from lmworks.models.gguf.container import open_gguf
from lmworks.models.gguf.layout import TENSOR_TYPES
from lmworks.models.gguf.write import OutTensor, write_gguf
from lmworks.tokenizer.byte import ByteTokenizer
from lmworks.tokenizer.gguf_metadata import Value

from .small_models import CONFIGS, LLAMA3, model_of, vocabulary

TOKENS = torch.tensor([[5, 9, 200, 3, 17, 17, 42, 299, 0, 1, 2, 3, 4]])


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_written_is_read_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    path = tmp_path / "model.gguf"
    gguf.save(path, model, vocabulary(), tensor_type="f32")
    with open_gguf(path) as file:
        assert file.pairs["general.architecture"] == CONFIGS[name][0]
    loaded = gguf.load_model(path)
    # Norms of one plus an offset lose the offset's last digits.
    tolerance = 1e-7 if model.config.norm.unit_offset else 0.0
    for (key, ours), (other, theirs) in zip(
        model.state_dict().items(), loaded.state_dict().items(), strict=True
    ):
        assert key == other
        if name == "llama interleaved" and key.endswith(("q.weight", "k.weight")):
            continue  # comes back in halves; the logits below are the same
        torch.testing.assert_close(theirs, ours, rtol=0, atol=tolerance)
    with torch.no_grad():
        torch.testing.assert_close(loaded(TOKENS), model(TOKENS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek v3", "gpt2"])
def test_what_is_written_again_is_the_same_file(name: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    gguf.save(first, model_of(name), vocabulary(), tensor_type="q8_0")
    loaded = gguf.load(first)
    gguf.save(second, loaded.model, loaded.tokenizer, tensor_type="q8_0",
              special_ids=loaded.special_ids)  # fmt: skip
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("tensor_type", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"])
def test_matrices_have_the_type_asked_for_and_the_rest_what_llama_cpp_keeps(
    tensor_type: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    gguf.save(path, model_of("deepseek v3"), vocabulary(), tensor_type=tensor_type)
    with open_gguf(path) as file:
        kinds = {name: info.kind.name for name, info in file.tensors.items()}
    wanted = tensor_type.upper()
    assert kinds["blk.1.attn_q_b.weight"] == kinds["blk.1.ffn_down_exps.weight"] == wanted
    assert kinds["blk.1.attn_v_b.weight"] == wanted
    for name in ("blk.0.attn_norm", "blk.1.attn_kv_a_norm", "output_norm", "blk.1.ffn_gate_inp"):
        assert kinds[f"{name}.weight"] == "F32"
    assert kinds["blk.1.exp_probs_b.bias"] == "F32"
    assert kinds["output.weight"] == ("Q8_0" if wanted.startswith("Q4") else wanted)


def test_rows_that_are_no_whole_blocks_are_f16(tmp_path: Path) -> None:
    values = CONFIGS["llama"][1] | {"mlp": {"d_ff": 100}}
    gguf.save(
        tmp_path / "model.gguf",
        Decoder(ModelConfig.model_validate(values)),
        vocabulary(),
        tensor_type="q4_0",
    )
    with open_gguf(tmp_path / "model.gguf") as file:
        assert file.tensors["blk.0.ffn_down.weight"].kind.name == "F16"
        assert file.tensors["blk.0.ffn_up.weight"].kind.name == "Q4_0"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_loaded_in_any_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    """Converted from fp32, the offsets of Gemma's norms after the one is taken off."""
    path = tmp_path / "model.gguf"
    model = model_of("gemma3")
    gguf.save(path, model, vocabulary(), tensor_type="f32")
    loaded = gguf.load_model(path, dtype=dtype).state_dict()
    # fp32 is off by 1e-7 through the one; that may turn a rounding.
    step = torch.finfo(dtype).eps
    for key, weight in model.state_dict().items():
        assert loaded[key].dtype == dtype
        torch.testing.assert_close(loaded[key].float(), weight, rtol=step, atol=2e-7)


def test_older_deepseek_files_are_read(tmp_path: Path) -> None:
    """One tensor for keys and values, and the sizes of heads under the plain names."""
    model = model_of("deepseek v2 lite")
    path = tmp_path / "model.gguf"
    gguf.save(path, model, vocabulary(), tensor_type="f32")
    with open_gguf(path) as file:
        pairs = dict(file.pairs)
        kept = [
            OutTensor(name, info.shape, info.kind, lambda info=info: torch.from_numpy(
                file.map(info).view("<f4").reshape(info.shape).copy()))
            for name, info in file.tensors.items()
            if "attn_k_b" not in name and "attn_v_b" not in name
        ]  # fmt: skip
        for part in ("key", "value"):
            pairs[f"deepseek2.attention.{part}_length"] = pairs.pop(
                f"deepseek2.attention.{part}_length_mla"
            )
        for layer, block in enumerate(model.layers):
            up = block.attention.kv_up.weight.detach()
            kept.append(OutTensor(f"blk.{layer}.attn_kv_b.weight", tuple(up.shape),
                                  TENSOR_TYPES["F32"], lambda up=up: up))  # fmt: skip
        write_gguf(tmp_path / "old.gguf", pairs, kept)
    old = gguf.load_model(tmp_path / "old.gguf").state_dict()
    for key, weight in model.state_dict().items():
        torch.testing.assert_close(old[key], weight, rtol=0, atol=0)


# ---- what cannot be ----


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"norm_position": "post"}, "norm_position"),
        ({"block": "parallel"}, "has no|block would be 'serial'"),
        ({"residual_scale": 0.5}, "residual_scale would be 1.0, not 0.5"),
        ({"position": {"kind": "rope", "rotary_fraction": 0.5}}, "dimension_count=8"),
        ({"position": {"kind": "none"}}, "position.kind would be 'rope'"),
        ({"position": {"kind": "rope", "scaling": {"kind": "ntk", "factor": 2}}}, "scaling"),
        ({"mlp": {"d_ff": 96, "activation": "reglu"}}, "activation would be 'swiglu'"),
    ],
)
def test_models_that_llama_cpp_does_not_know_are_not_written(
    values: dict[str, Any], reason: str
) -> None:
    config = ModelConfig.model_validate(CONFIGS["llama"][1] | values)
    with pytest.raises(CheckpointError, match=reason):
        architecture_of(config)


def _changed(tmp_path: Path, name: str = "llama", **changes: Value | None) -> Path:
    """A good file with other pairs; None takes one away."""
    path = tmp_path / "model.gguf"
    gguf.save(path, model_of(name), vocabulary(), tensor_type="f32")
    with open_gguf(path) as file:
        changed = {key.replace("__", "."): value for key, value in changes.items()}
        pairs = {k: v for k, v in (file.pairs | changed).items() if v is not None}
        kept = [
            OutTensor(key, info.shape, info.kind, lambda info=info: torch.from_numpy(
                file.map(info).view("<f4").reshape(info.shape).copy()))
            for key, info in file.tensors.items()
        ]  # fmt: skip
        write_gguf(path, pairs, kept)
    return path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"general__architecture": "mamba"}, "general.architecture='mamba' is not supported"),
        ({"general__architecture": None}, "general.architecture is missing"),
        ({"llama__attention__clamp_kqv": 8.0}, "clamp_kqv=8.0 is not known here"),
        ({"llama__attention__causal": False}, "causal=False is not supported"),
        ({"llama__rope__scaling__type": "longrope"}, "longrope"),
        ({"llama__rope__dimension_count": 8}, "dimension_count=8"),
        ({"llama__block_count": 2}, "unexpected: blk.2"),
        ({"llama__block_count": 4}, "missing: layers.3"),
        ({"llama__block_count": 2**31 - 1}, "only 30 tensors"),
        ({"llama__context_length": 0}, "context_length=0"),
        ({"llama__context_length": 2**31 - 1}, "max_seq_len"),
        ({"llama__embedding_length": 65}, "mis-shaped|not a multiple"),
        ({"llama__attention__head_count": "4"}, "head_count='4' is not a whole number"),
        ({"llama__attention__head_count_kv": 3}, "num_kv_heads=3"),
        ({"llama__attention__head_count_kv": [2, 2, 1]}, "differs between layers"),
        ({"llama__attention__layer_norm_rms_epsilon": None}, "is missing"),
        ({"llama__attention__layer_norm_rms_epsilon": float("nan")}, "is not a number"),
        ({"llama__expert_count": 4, "llama__expert_used_count": 2}, "missing: layers.0.mlp"),
    ],
)
def test_files_that_say_something_else_are_refused(
    tmp_path: Path, changes: dict[str, Value | None], reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        gguf.load_model(_changed(tmp_path, **changes))


def test_factors_that_are_not_llama_3s_are_refused(tmp_path: Path) -> None:
    path = _changed(tmp_path, "llama 3", llama__rope__freq_base=10000.0)
    with pytest.raises(CheckpointError, match="not Llama 3's scaling"):
        gguf.load_model(path)


def test_llama_3s_scaling_is_found_from_its_factors(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    gguf.save(path, model_of("llama 3"), vocabulary(), tensor_type="f32")
    assert gguf.load_config(path).position.model_dump()["scaling"] == LLAMA3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e5])
@pytest.mark.parametrize("tensor_type", ["f16", "q8_0"])
def test_weights_beyond_the_format_are_refused(
    tmp_path: Path, value: float, tensor_type: str
) -> None:
    model = model_of("llama")
    with torch.no_grad():
        model.layers[1].mlp.up.weight[3, 5] = value
    path = tmp_path / "model.gguf"
    path.write_bytes(b"as it was")
    with pytest.raises(CheckpointError, match=r"blk\.1\.ffn_up\.weight: .* cannot be written"):
        gguf.save(path, model, vocabulary(), tensor_type=tensor_type)
    assert path.read_bytes() == b"as it was"
    assert list(tmp_path.iterdir()) == [path]


def test_types_and_vocabularies_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model = model_of("llama")
    with pytest.raises(DataError, match="tensor_type='q5_0' cannot be written"):
        gguf.save(tmp_path / "a.gguf", model, vocabulary(), tensor_type="q5_0")
    with pytest.raises(DataError, match="no GGUF form"):
        gguf.save(tmp_path / "a.gguf", model, ByteTokenizer())
    small = CONFIGS["llama"][1] | {"vocab_size": 280}
    with pytest.raises(DataError, match="vocab_size=280"):
        gguf.save(tmp_path / "a.gguf", Decoder(ModelConfig.model_validate(small)), vocabulary())
    assert not list(tmp_path.iterdir())


def test_tokenizer_template_and_special_ids_come_along(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tokenizer = vocabulary()
    gguf.save(path, model_of("llama"), tokenizer, chat_template="{{ messages }}")
    loaded = gguf.load(path)
    text = "the cat <|endoftext|> sat"
    ids = loaded.tokenizer.encode(text, allowed_special="all")
    assert list(ids) == list(tokenizer.encode(text, allowed_special="all"))
    assert loaded.chat_template == "{{ messages }}"
    assert loaded.special_ids["eos"] == tokenizer.eot_id


_MEASURE = """
import sys, torch
from pathlib import Path
from lmworks.models import gguf

def status(key):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(key))
    return int(line.split()[1]) * 1024

torch.set_num_threads(1)
gguf.load_model(sys.argv[1])  # code that is imported on first use is not the model's size
before = status("VmRSS")
model = gguf.load_model(sys.argv[2], dtype=getattr(torch, sys.argv[3]))
size = sum(p.nbytes for p in model.parameters())
print((status("VmHWM") - before) / size, size)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_peaks_at_1_15_times_the_final_size(tmp_path: Path, dtype: str) -> None:
    # Half of it in one tensor: a copy of that one, or its mapped pages, would show.
    large = {"vocab_size": 150_000, "d_model": 512, "num_layers": 20, "tie_embeddings": True}
    config = ModelConfig.model_validate(CONFIGS["llama"][1] | large)
    gguf.save(tmp_path / "small.gguf", model_of("llama"), vocabulary())
    gguf.save(tmp_path / "large.gguf", Decoder(config), vocabulary(), tensor_type="q8_0")
    run = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(tmp_path / "small.gguf"),
         str(tmp_path / "large.gguf"), dtype],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    ratio, size = map(float, run.stdout.split())
    assert size > 150e6
    assert ratio < 1.15
