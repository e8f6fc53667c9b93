"""A model to a GGUF file that llama.cpp loads.

The architecture is the first that says all of the config (choose.py). Matrices are written in the
format asked for; what llama.cpp keeps in fp32 (norms, biases, the router, learned positions) stays
so, the output head of 4-bit files is Q8_0, and rows that are no whole number of blocks are F16, all
as in llama.cpp's own files (which have Q6_K heads where Q8_0 is the next best that we write).
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import torch

from lmworks.base.errors import DataError
from lmworks.models.decoder import Decoder
from lmworks.models.gguf.choose import (
    architecture_of,
    by_tensor,
    llama3_factors,
    made,
    shapes_in_file,
)
from lmworks.models.gguf.convert import WRITABLE_TYPES
from lmworks.models.gguf.layout import TENSOR_TYPES, TensorType
from lmworks.models.gguf.names import places
from lmworks.models.gguf.rope import FACTORS
from lmworks.models.gguf.sizes import Pairs
from lmworks.models.gguf.write import OutTensor, write_gguf
from lmworks.tokenizer import Tokenizer
from lmworks.tokenizer import gguf as vocabulary_of
from lmworks.tokenizer.sentencepiece_vocabulary import PieceType

# llama.cpp's numbers for "mostly of this type" (llama.h, llama_ftype).
_FILE_TYPES: Final = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32}
_QUANTIZATION_VERSION: Final = 2
_FOUR_BITS: Final = ("Q4_0", "Q4_1")
_UNUSED_SCORE: Final = -10000.0
_ALWAYS_F32: Final = ("ffn_gate_inp", "position_embd", "rope_freqs", "_norm")


def save(
    path: str | Path,
    model: Decoder,
    tokenizer: Tokenizer,
    *,
    tensor_type: str = "F16",
    chat_template: str | None = None,
    special_ids: Mapping[str, int] | None = None,
    name: str = "",
) -> None:
    """Write model, vocabulary and chat template into one GGUF file, atomically.

    Args:
        path: of the file; a file of that name is replaced when the new one is complete.
        model: its weights may have any float dtype and device.
        tokenizer: of at most the model's vocabulary; missing tokens are filled up as unused.
        tensor_type: F32, F16, BF16, Q8_0, Q4_0 or Q4_1, in any case.
        chat_template: Jinja text that turns messages into a prompt.
        special_ids: ids by their part, "eos", "bos", "eot", ...
        name: of the model, for people; left out if empty.

    Raises:
        CheckpointError: no architecture of llama.cpp computes what this model computes.
        DataError: the vocabulary or the format has no GGUF form.
        StorageError: the disk is full or read-only.
    """
    kind = _tensor_type(tensor_type)
    architecture, pairs = architecture_of(model.config)
    head: Pairs = {"general.architecture": architecture, "general.type": "model"}
    if name:
        head["general.name"] = name
    head |= {
        "general.file_type": _FILE_TYPES[kind.name],
        "general.quantization_version": _QUANTIZATION_VERSION,
    }
    vocabulary = _vocabulary(tokenizer, model.config.vocab_size, special_ids, chat_template)
    write_gguf(path, head | pairs | vocabulary, _tensors(model, architecture, kind))


# ---- tensors ----


def _tensors(model: Decoder, architecture: str, kind: TensorType) -> list[OutTensor]:
    weights = model.state_dict()
    config = model.config
    is_tied = config.tie_embeddings
    found = places(config, architecture)
    shapes = shapes_in_file(config, found)
    out = []
    for name, members in by_tensor(found).items():
        own_kind = _kind_of(name, shapes[name], kind, is_tied=is_tied)
        make = partial(made, name, members, weights.__getitem__)
        out.append(OutTensor(name, shapes[name], own_kind, make))
    factors = torch.tensor(llama3_factors(config))
    if len(factors):
        out.append(OutTensor(FACTORS, (len(factors),), TENSOR_TYPES["F32"], lambda: factors))
    return out


def _kind_of(name: str, shape: tuple[int, ...], wanted: TensorType, *, is_tied: bool) -> TensorType:
    if len(shape) == 1 or any(part in name for part in _ALWAYS_F32):
        return TENSOR_TYPES["F32"]
    is_head = name == "output.weight" or (is_tied and name == "token_embd.weight")
    kind = TENSOR_TYPES["Q8_0"] if is_head and wanted.name in _FOUR_BITS else wanted
    return TENSOR_TYPES["F16"] if shape[-1] % kind.num_elements else kind


def _tensor_type(name: str) -> TensorType:
    if name.upper() not in WRITABLE_TYPES:
        raise DataError(
            f"tensor_type={name!r:.60} cannot be written; one of {', '.join(WRITABLE_TYPES)} can"
        )
    return TENSOR_TYPES[name.upper()]


# ---- vocabulary ----


def _vocabulary(
    tokenizer: Tokenizer,
    vocab_size: int,
    special_ids: Mapping[str, int] | None,
    chat_template: str | None,
) -> Pairs:
    """The vocabulary's pairs, with as many tokens as the embedding has rows."""
    if tokenizer.vocab_size > vocab_size:
        raise DataError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model vocab_size={vocab_size}"
        )
    end = tokenizer.eot_id
    if special_ids is None and end is not None:
        special_ids = {"bos": end, "eos": end}  # as GPT-2: one token ends texts and begins them
    pairs: Pairs = vocabulary_of.to_pairs(
        tokenizer, special_ids=special_ids, chat_template=chat_template
    )
    tokens = pairs["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list), "a vocabulary is a list"
    missing = range(len(tokens), vocab_size)
    fills: Pairs = {
        "tokenizer.ggml.tokens": [f"[PAD{i}]" for i in missing],
        "tokenizer.ggml.token_type": [int(PieceType.UNUSED)] * len(missing),
        "tokenizer.ggml.scores": [_UNUSED_SCORE] * len(missing),
    }
    for key, fill in fills.items():
        if key in pairs:
            pairs[key] = [*pairs[key], *fill]  # type: ignore[misc]
    return pairs
