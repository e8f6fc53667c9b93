"""Turns an out-of-memory failure into an error that says what takes the space and what to try."""

import contextlib
from collections.abc import Iterator

from lmworks.base import machine
from lmworks.base.errors import TrainingError
from lmworks.plan.memory import readable_bytes, training_bytes
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


@contextlib.contextmanager
def explain_out_of_memory(recipe: Recipe) -> Iterator[None]:
    """Within it, running out of memory raises TrainingError with the biggest holders of memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as err:
        if not is_out_of_memory(err):
            raise
        raise TrainingError(_message(recipe)) from err


def require_memory(recipe: Recipe) -> None:
    """Raise TrainingError if training needs more memory than this machine has in all.

    Linux hands out more than it has and kills the process later, without an error to explain.
    """
    needed = sum(memory_bytes(recipe).values())
    total, _ = machine.memory_bytes()
    if 0 < total < needed:  # 0: the system does not say
        have = f"{readable_bytes(needed)} needed, this machine has {readable_bytes(total)}"
        raise TrainingError(f"{have}: {_message(recipe)}")


def is_out_of_memory(err: BaseException) -> bool:
    """Whether an exception means that no memory could be had."""
    text = str(err).lower()
    return isinstance(err, MemoryError) or (
        isinstance(err, RuntimeError) and any(part in text for part in _OUT_OF_MEMORY_TEXTS)
    )


def memory_bytes(recipe: Recipe) -> dict[str, int]:
    """Bytes that training holds at its peak, by part."""
    train = recipe.train
    return training_bytes(
        recipe.model,
        precision="bf16" if train.precision == "bf16" else "fp32",
        optimizer=recipe.optim.kind,
        micro_batch_size=train.micro_batch_size,
        context_length=train.context_length,
        accumulates=train.micro_batch_size < train.batch_size,
        recomputes=train.activation_checkpointing == "full",
    )


def _message(recipe: Recipe) -> str:
    train = recipe.train
    ranked = sorted(memory_bytes(recipe).items(), key=lambda item: -item[1])
    holders = ", ".join(f"{name} {readable_bytes(size)}" for name, size in ranked if size)
    advice = []
    if train.micro_batch_size > 1:
        advice.append(f"train.micro_batch_size={train.micro_batch_size // 2} (same result)")
    if train.activation_checkpointing == "none":
        advice.append("train.activation_checkpointing=full (same result)")
    advice.append("a shorter train.context_length or a smaller model")
    return f"out of memory. Biggest tensors: {holders}. Try {', '.join(advice)}"
