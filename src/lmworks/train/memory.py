"""Turns an out-of-memory failure into an error that says what takes the space and what to try."""

import contextlib
from collections.abc import Iterator

from lmworks.base.errors import TrainingError
from lmworks.models.config import ModelConfig
from lmworks.train.recipe import Recipe

# What torch's CPU allocator and the C++ library below it say; both arrive as RuntimeError.
_OUT_OF_MEMORY_TEXTS = (
    "not enough memory",
    "defaultcpuallocator",
    "bad_alloc",
    "bad allocation",
    "cannot allocate memory",
    "failed to allocate",
)
_FP32_BYTES, _BF16_BYTES = 4, 2
_MOMENTS = {"adamw": 2, "muon": 2, "sgd": 1}
"""fp32 tensors per parameter that an optimizer keeps, at most."""


@contextlib.contextmanager
def explain_out_of_memory(recipe: Recipe) -> Iterator[None]:
    """Within it, running out of memory raises TrainingError with the biggest holders of memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as err:
        if not is_out_of_memory(err):
            raise
        raise TrainingError(_message(recipe)) from err


def is_out_of_memory(err: BaseException) -> bool:
    """Whether an exception means that no memory could be had."""
    text = str(err).lower()
    return isinstance(err, MemoryError) or (
        isinstance(err, RuntimeError) and any(part in text for part in _OUT_OF_MEMORY_TEXTS)
    )


def memory_bytes(recipe: Recipe) -> dict[str, int]:
    """Bytes that training holds at its peak, by part; activations are an estimate."""
    train, num_params = recipe.train, recipe.model.num_params()
    is_bf16 = train.precision == "bf16"
    element_bytes = _BF16_BYTES if is_bf16 else _FP32_BYTES
    accumulates = train.micro_batch_size < train.batch_size
    activations = activation_bytes(
        recipe.model,
        train.micro_batch_size * train.context_length,
        element_bytes,
        recompute=train.activation_checkpointing == "full",
    )
    state_tensors = _MOMENTS[recipe.optim.kind] + (1 if is_bf16 else 0)
    return {
        "parameters": num_params * element_bytes,
        "gradients": num_params * (_FP32_BYTES if accumulates else element_bytes),
        "optimizer state": num_params * _FP32_BYTES * state_tensors,
        f"activations of {train.micro_batch_size} x {train.context_length} tokens": activations,
    }


def activation_bytes(
    config: ModelConfig, num_tokens: int, element_bytes: int, *, recompute: bool
) -> int:
    """Estimate of what the backward pass needs kept from the forward pass.

    Per block and token: about 6 rows of d_model (norms, residuals, attention output), the queries,
    keys and values before and after rotation, and the inputs and output of the activation. With
    recomputation: one row per block, and one whole block.
    """
    attention, mlp = config.attention, config.mlp
    block = (
        6 * config.d_model
        + 2 * (attention.d_query + 2 * attention.d_kv)
        + (mlp.num_matrices + 1) * mlp.d_ff
    )
    layers = config.num_layers
    per_token = layers * config.d_model + block if recompute else layers * block
    return num_tokens * per_token * element_bytes


def readable_bytes(size_bytes: int) -> str:
    """Bytes in MiB or GiB."""
    if size_bytes >= 1 << 30:
        return f"{size_bytes / (1 << 30):.2f} GiB"
    return f"{size_bytes / (1 << 20):.1f} MiB"


def _message(recipe: Recipe) -> str:
    train = recipe.train
    ranked = sorted(memory_bytes(recipe).items(), key=lambda item: -item[1])
    holders = ", ".join(f"{name} about {readable_bytes(size)}" for name, size in ranked)
    advice = []
    if train.micro_batch_size > 1:
        advice.append(f"train.micro_batch_size={train.micro_batch_size // 2} (same result)")
    if train.activation_checkpointing == "none":
        advice.append("train.activation_checkpointing=full (same result)")
    advice.append("a shorter train.context_length or a smaller model")
    return f"out of memory. Biggest tensors: {holders}. Try {', '.join(advice)}"
