"""From one form of a model on disk to another: ours, Hugging Face's, GGUF.

    convert("SmolLM2-135M-Instruct", "smollm2.gguf", to="gguf", tensor_type="q8_0")

Tokenizer, chat template and the tokens that end an answer come along.
"""

from pathlib import Path
from typing import Final, Literal

import torch

from lmworks.base.errors import ConfigError
from lmworks.base.storage import atomic_dir
from lmworks.models import gguf
from lmworks.models.hf import DEFAULT_SHARD_BYTES, save_hf
from lmworks.models.hf_text import save_hf_text
from lmworks.models.pretrained import GGUF_SUFFIX, Run, open_run, save_pretrained

Form = Literal["lmworks", "hf", "gguf"]
DTYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""What weights may be written in everywhere."""
QUANTIZED: Final = ("q8_0", "q4_0", "q4_1")
"""What GGUF files may hold beside."""
_GGUF_TYPES: Final = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: Form,
    tensor_type: str = "",
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> Run:
    """Write the model in `source` as `target`, which must not exist; gives what was read.

    Args:
        source: a run, checkpoint, model folder or .gguf file.
        target: a folder, or a file where `to` is "gguf".
        to: form of the target.
        tensor_type: one of DTYPES or, for GGUF, of QUANTIZED; empty keeps what the source has.
        max_shard_bytes: most bytes of one file of weights, for "hf".

    Raises:
        CheckpointError: the source is not right, or no architecture of llama.cpp fits.
        ConfigError: no family of Hugging Face's fits, or the arguments contradict each other.
        StorageError: the disk is full or read-only; there is no target then.
    """
    target = Path(target)
    known = (*DTYPES, *(QUANTIZED if to == "gguf" else ()))
    if tensor_type and tensor_type not in known:
        raise ConfigError(
            f"dtype {tensor_type!r} cannot be written as {to}; use {', '.join(known)}"
        )
    if to == "gguf" and target.suffix != GGUF_SUFFIX:
        raise ConfigError(f"{target}: a GGUF file must be named so: {target.name}{GGUF_SUFFIX}")
    if target.exists():
        raise ConfigError(f"{target}: exists already; give another name")
    run = open_run(source, dtype=DTYPES.get(tensor_type))
    if to == "gguf":
        _write_gguf(run, target, tensor_type)
        return run
    with atomic_dir(target) as folder:
        _write_text(run, folder, to)
        if to == "hf":
            save_hf(folder, run.model, max_shard_bytes=max_shard_bytes)
        else:
            save_pretrained(folder, run.model)
    return run


def _write_text(run: Run, folder: Path, form: Literal["hf", "lmworks"]) -> None:
    save_hf_text(
        folder,
        run.tokenizer,
        chat_template=None if run.chat_template is None else run.chat_template.source,
        special_ids=run.special_ids,
        stop_ids=run.stop_ids,
        max_seq_len=run.model.config.max_seq_len,
        format=form,
    )


def _write_gguf(run: Run, target: Path, tensor_type: str) -> None:
    ids = dict(run.special_ids)
    if "eos" not in ids and run.tokenizer.eot_id is not None:
        ids["eos"] = run.tokenizer.eot_id
    kind = tensor_type if tensor_type in QUANTIZED else ""
    gguf.save(
        target,
        run.model,
        run.tokenizer,
        tensor_type=kind or _GGUF_TYPES.get(run.model.embed.weight.dtype, "F32"),
        chat_template=None if run.chat_template is None else run.chat_template.source,
        special_ids=ids,
    )
