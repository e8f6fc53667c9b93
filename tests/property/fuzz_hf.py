"""Mutated model folders: each gives a model, or an error of ours, within bounded memory.

    python tests/property/fuzz_hf.py FOLDER NUM_CASES [SEED]

makes small models in FOLDER, then mutates their configs, headers, indexes and tokenizer settings.
Address space is limited to what the process has after a first load and SLACK_BYTES: an allocation
that a file of some kB cannot justify fails. Prints how cases ended; any other exception, with its
case, ends the program.
"""

import json
import random
import resource
import shutil
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from lmworks.base.errors import CheckpointError, DataError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.hf import save_hf
from lmworks.models.hf_text import save_hf_text
from lmworks.models.pretrained import load_pretrained, open_run, save_pretrained
from lmworks.tokenizer import ByteTokenizer, train_bpe_from_iterator

SLACK_BYTES = 300 << 20
BASE: dict[str, Any] = {
    "vocab_size": 300,
    "max_seq_len": 64,
    "d_model": 16,
    "num_layers": 2,
    "attention": {"num_heads": 2},
    "mlp": {"d_ff": 32},
}
GPT2 = {
    "norm": {"kind": "layernorm"},
    "use_bias": True,
    "mlp": {"activation": "gelu_tanh", "d_ff": 64},
    "position": {"kind": "learned"},
    "tie_embeddings": True,
}
MOE = {"mlp": {"kind": "moe", "d_ff": 8, "num_experts": 4, "router": {"kind": "topk", "top_k": 2}}}
MLA = {
    "kind": "mla",
    "num_heads": 2,
    "q_rank": 8,
    "kv_rank": 8,
    "nope_dim": 4,
    "rope_dim": 4,
    "v_dim": 4,
}
SIGMOID = {"score": "sigmoid", "selection_bias": True, "group_score": "top2_sum", "top_k": 2}
GEMMA = {
    "norm": {"kind": "rmsnorm", "unit_offset": True},
    "norm_position": "double",
    "embedding_scale": 4.0,
    "tie_embeddings": True,
    "mlp": {"activation": "geglu_tanh", "d_ff": 32},
    "layer_kinds": {"window": {"attention": {"mask": {"kind": "window", "size": 8}}}, "full": {}},
    "layer_pattern": ["window", "full"],
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": GPT2,
    "mixtral": MOE,
    "gemma2": GEMMA,
    "deepseek": {
        "attention": MLA,
        "position": {"kind": "rope", "pairing": "interleaved"},
        "norm": {"kind": "rmsnorm", "eps": 1e-6},
        "mlp": MOE["mlp"] | {"router": {"kind": "topk", **SIGMOID}, "num_shared_experts": 1},
    },
}
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 255, 2**31 - 1, 2**31, 2**40, 2**63, 10**30, -(2**63),
    0.0, -0.0, 0.5, 1e-300, 1e300, -1.5, "", "x", "16", "silu", "default", "yarn", "llama3", "F32",
    "full_attention", "../x", "/dev/zero", "\ud800", "é" * 1000, [], {}, [1], [[]], ["x"] * 3,
    [0, 0], [2**40, 2**40], {"a": 1}, {"rope_type": "yarn", "factor": 4.0}, [None] * 5,
    {"kind": "moe"}, {"kind": "window", "size": 10**9}, ["full*9999"], {"type": "linear"},
]  # fmt: skip
FORWARD_TOKENS = torch.tensor([[1, 2, 3, 4, 5]])


def make_models(folder: Path) -> list[Path]:
    """Folders of ours and of Hugging Face's, one of them in shards."""
    made = []
    bpe = train_bpe_from_iterator(["hello world"] * 9, vocab_size=270, pattern="gpt2")
    for name, values in MODELS.items():
        model = Decoder(ModelConfig.model_validate(BASE | values))
        save_hf(folder / name, model, max_shard_bytes=9000 if name == "llama" else 10**9)
        save_hf_text(folder / name, bpe, max_seq_len=64, chat_template="{{ messages }}")
        save_pretrained(folder / f"own-{name}", model)
        ByteTokenizer().save(folder / f"own-{name}" / "tokenizer.json")
        made += [folder / name, folder / f"own-{name}"]
    return made


def mutate(folder: Path, draw: random.Random) -> str:
    """Change one file of the folder; says what was done."""
    names = [p.name for p in folder.iterdir() if p.suffix in (".json", ".safetensors")]
    weights = [name for name in names if name.endswith(".safetensors")]
    name = draw.choice([*names, "config.json", "config.json", *weights[:2]])
    file = folder / name
    data = file.read_bytes()
    if draw.random() < 0.35:
        file.write_bytes(mutated_bytes(data, draw))
        return f"bytes of {name}"
    if name.endswith(".safetensors"):
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        what = mutate_json(header, draw)
        text = json.dumps(header).encode("utf-8", "surrogatepass")
        file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    else:
        value = json.loads(data)
        what = mutate_json(value, draw)
        file.write_bytes(json.dumps(value).encode("utf-8", "surrogatepass"))
    return f"{what} of {name}"


def mutated_bytes(data: bytes, draw: random.Random) -> bytes:
    """Flipped, cut, doubled or overwritten; the first bytes of a file more often than the rest."""
    changed = bytearray(data)
    place = draw.randrange(min(len(data), draw.choice([8, 16, 200, 5000, len(data)])))
    kind = draw.randrange(6)
    if kind == 0:
        changed[place] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del changed[place:]
    elif kind == 2:
        changed[place:place] = changed[place : place + draw.randrange(1, 40)]
    elif kind == 3:
        changed[place : place + 8] = draw.randbytes(8)
    elif kind == 4:
        del changed[place : place + draw.randrange(1, 9)]
    else:
        changed[place:place] = draw.choice([b"9" * 50, b"[" * 50_000, b'"', b"-", b"e999", b"\0"])
    return bytes(changed)


def mutate_json(value: Any, draw: random.Random) -> str:
    """Change one or two places inside a JSON value."""
    done = []
    for _ in range(draw.choice([1, 1, 2])):
        node, path = value, ""
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw.choice(keys)
            path += f".{key}"
            if isinstance(node[key], dict | list) and node[key] and draw.random() < 0.8:
                node = node[key]
                continue
            change_item(node, key, draw)
            break
        done.append(path)
    return ", ".join(done)


def change_item(node: Any, key: Any, draw: random.Random) -> None:
    """Replace, remove, rename or nudge one item."""
    kind = draw.randrange(5)
    old = node[key]
    if kind == 0 and isinstance(old, int):
        node[key] = draw.choice([old + 1, old - 1, old * 2, old // 2, -old, old + 2**32])
    elif kind == 1:
        del node[key]
    elif kind == 2 and isinstance(node, dict):
        node[draw.choice([f"{key}x", str(key)[:-1], "weight", "rope_scaling"])] = node.pop(key)
    elif kind == 3 and isinstance(node, dict):
        node[key] = node[draw.choice(list(node))]
    else:
        node[key] = draw.choice(VALUES)


def outcome(folder: Path) -> str:
    """How loading ends; anything but a model or an error of ours is raised."""
    try:
        model = load_pretrained(folder)
    except (CheckpointError, DataError) as err:
        return type(err).__name__
    if model.config.vocab_size > 5 and model.config.max_seq_len >= FORWARD_TOKENS.numel():
        dtypes = {weight.dtype for weight in model.parameters()}
        if len(dtypes) == 1:
            with torch.no_grad():
                model(FORWARD_TOKENS)
    try:
        open_run(folder)
    except (CheckpointError, DataError) as err:
        return f"model, {type(err).__name__}"
    return "model and tokenizer"


def main(folder: Path, num_cases: int, seed: int) -> None:
    """Run the cases."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sources = make_models(folder / "sources")
    for source in sources:
        assert outcome(source) == "model and tokenizer", source
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    outcomes: Counter[str] = Counter()
    for case in range(num_cases):
        draw = random.Random(seed * 1_000_003 + case)
        target = folder / "case"
        shutil.copytree(draw.choice(sources), target)
        what = mutate(target, draw)
        try:
            outcomes[outcome(target)] += 1
        except BaseException:
            print(f"case {case} of seed {seed}: {what}", file=sys.stderr)
            raise
        shutil.rmtree(target)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
