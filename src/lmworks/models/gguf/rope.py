"""Rotary positions in GGUF: pairs `rope.*`, and Llama 3's scaling, which is a tensor.

`rope_freqs.weight` divides the frequency of each pair of elements. Llama 3's formula makes such
factors; its parameters are not in the file and are found by trying those that models use.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

from lmworks.base.errors import CheckpointError
from lmworks.models.gguf.metadata import Metadata
from lmworks.nn.config import RopeConfig
from lmworks.nn.config.rope_scaling import (
    Llama3ScalingConfig,
    plain_frequencies,
    yarn_mscale,
)
from lmworks.tokenizer.gguf_metadata import Value

FACTORS: Final = "rope_freqs.weight"
_TRAINED_LENGTHS: Final = tuple(2**k for k in range(10, 21))
_LOW_AND_HIGH: Final = ((1.0, 4.0), (1.0, 2.0), (1.0, 8.0), (1.0, 32.0))
# Factors are fp32; those of llama.cpp's converter come from fp32 frequencies.
_TOLERANCE: Final = 1e-4


def read_rope(meta: Metadata, head_dim: int) -> dict[str, Any]:
    """Values of a RopeConfig."""
    values: dict[str, Any] = {"kind": "rope", "theta": meta.number("rope.freq_base", 10000.0)}
    rotary_dim = meta.whole("rope.dimension_count", head_dim, at_least=2)
    if rotary_dim != head_dim:
        values["rotary_fraction"] = rotary_dim / head_dim
    scaling = _scaling(meta)
    if FACTORS in meta.tensors:
        if scaling["kind"] != "none":
            raise CheckpointError(f"{FACTORS} together with rope.scaling is not supported")
        scaling = _llama3(meta.tensors[FACTORS].values, float(values["theta"]), rotary_dim)
    if scaling["kind"] != "none":
        values["scaling"] = scaling
    return values


def write_rope(rope: RopeConfig, head_dim: int) -> dict[str, Value]:
    """The pairs, without the architecture in front; Llama 3's scaling is `rope_factors` instead."""
    pairs: dict[str, Value] = {
        "rope.freq_base": float(rope.theta),
        "rope.dimension_count": rope.rotary_dim(head_dim),
    }
    scaling = rope.scaling
    if scaling.kind == "linear":
        pairs |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling.factor)}
    if scaling.kind == "yarn":
        pairs |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(scaling.factor),
            "rope.scaling.original_context_length": scaling.original_max_seq_len,
            "rope.scaling.attn_factor": scaling.rotation_scale / yarn_mscale(scaling.factor),
            "rope.scaling.yarn_beta_fast": float(scaling.beta_fast),
            "rope.scaling.yarn_beta_slow": float(scaling.beta_slow),
        }
    return pairs


def rope_factors(rope: RopeConfig, head_dim: int) -> list[float]:
    """By how much Llama 3's scaling divides each frequency; empty for other scalings."""
    if rope.scaling.kind != "llama3":
        return []
    plain = plain_frequencies(rope.theta, rope.rotary_dim(head_dim))
    return [p / s for p, s in zip(plain, rope.frequencies(head_dim), strict=True)]


def _scaling(meta: Metadata) -> dict[str, Any]:
    factor = meta.number("rope.scaling.factor", meta.number("rope.scale_linear", 0.0)) or 1.0
    kind = meta.text("rope.scaling.type", "linear")
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {"kind": "none"}
    if kind == "linear":
        return {"kind": "linear", "factor": factor}
    if kind != "yarn":
        raise CheckpointError(f"rope.scaling.type={kind!r:.60} is not supported; linear, yarn are")
    meta.expect("rope.scaling.yarn_ext_factor", 1.0)
    values = {
        "kind": "yarn",
        "factor": factor,
        "original_max_seq_len": meta.whole(
            "rope.scaling.original_context_length", meta.whole("context_length"), at_least=1
        ),
        "beta_fast": meta.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": meta.number("rope.scaling.yarn_beta_slow", 1.0),
    }
    # llama.cpp multiplies what the paper has by this; converters also write the paper's own.
    scale = meta.number("rope.scaling.attn_factor", 1.0)
    if scale != 1.0:
        values["attention_factor"] = scale * yarn_mscale(max(factor, 1.0))
    written = meta.number("rope.scaling.yarn_attn_factor", 1.0)
    if written != 1.0 and not math.isclose(written, yarn_mscale(max(factor, 1.0)), rel_tol=1e-5):
        raise CheckpointError(
            f"rope.scaling.yarn_attn_factor={written} is not supported; only YaRN's own "
            f"{yarn_mscale(max(factor, 1.0)):.6g} is"
        )
    return values


def _llama3(factors: tuple[float, ...], theta: float, rotary_dim: int) -> dict[str, Any]:
    """The parameters of Llama 3's scaling that give these factors."""
    if len(factors) != rotary_dim // 2 or not all(1 <= f < 1e6 for f in factors) or theta <= 1:
        raise CheckpointError(
            f"{FACTORS} must be {rotary_dim // 2} factors of at least 1 for rope.freq_base > 1"
        )
    for scaling in _candidates(max(factors)):
        rope = RopeConfig(theta=theta, scaling=scaling)
        made = rope_factors(rope, rotary_dim)
        if all(abs(m / f - 1) < _TOLERANCE for m, f in zip(made, factors, strict=True)):
            return scaling.model_dump()
    raise CheckpointError(f"{FACTORS} is not Llama 3's scaling, the only one that is supported")


def _candidates(factor: float) -> Iterator[Llama3ScalingConfig]:
    """Llama 3's own parameters first."""
    lengths = sorted(_TRAINED_LENGTHS, key=lambda length: length != 8192)
    for (low, high), length in itertools.product(_LOW_AND_HIGH, lengths):
        yield Llama3ScalingConfig(
            factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_seq_len=length
        )
