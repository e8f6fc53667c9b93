"""Loss, perplexity and bits per byte of a model on held-out text.

A text longer than the context is scored in windows that slide by `stride` tokens, and each token
counts exactly once: the first window scores all its tokens, every later one its last `stride`,
so these have between `context_length - stride` and `context_length - 1` tokens before them (plus
the end-of-text token that every document begins with). Windows are always full once the text is
long enough. With `stride = context_length` these are the windows of lm-evaluation-harness
(`get_rolling_token_windows` with one token of context); a smaller stride costs
`context_length / stride` times as much and gives a lower, fairer loss.

What is summed, and the figures that follow from it, are in `train.evaluate`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lmworks.base.errors import ConfigError, DataError
from lmworks.data.loader import IGNORE_INDEX
from lmworks.data.shard import ShardSet
from lmworks.models.decoder import Decoder
from lmworks.tokenizer.base import Tokenizer
from lmworks.train.evaluate import Report, loss_sum

Ids = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]
"""Called with (tokens scored, tokens in all)."""


@dataclass(frozen=True)
class Window:
    """One forward pass: predict tokens `begin` to `end` of a document, score those from `first`."""

    begin: int
    first: int
    end: int


class Document(NamedTuple):
    """`num_tokens` ids that `read(start, stop)` gives, predicted from `prefix_id` on."""

    prefix_id: int
    num_tokens: int
    read: Callable[[int, int], Ids]


def evaluate_text(
    model: Decoder,
    tokenizer: Tokenizer,
    text: str,
    *,
    stride: int,
    context_length: int | None = None,
    batch_size: int = 8,
    progress: Progress | None = None,
) -> Report:
    """Score `text` as one document; special tokens in it are plain text.

    A tokenizer without end-of-text token leaves nothing to predict the first token from: neither
    that token nor its bytes are scored.

    Raises:
        DataError: the text is empty, or a single token that cannot be scored.
    """
    num_bytes = len(text.encode("utf-8"))
    ids = tokenizer.encode_to_numpy(text, disallowed_special=()).astype(np.int64)
    prefix_id = tokenizer.eot_id
    if prefix_id is None and len(ids):
        prefix_id = int(ids[0])
        num_bytes -= len(tokenizer.token_bytes(prefix_id))
        ids = ids[1:]
    if prefix_id is None or not len(ids):
        raise DataError("the text holds no token to score; give a longer one")
    document = Document(prefix_id, len(ids), lambda begin, end: ids[begin:end])
    nats, num_tokens = score(
        model,
        [document],
        context_length=context_length,
        stride=stride,
        batch_size=batch_size,
        progress=progress,
    )
    return Report(nats, num_tokens, num_bytes)


def evaluate_shards(
    model: Decoder,
    shards: ShardSet,
    *,
    stride: int,
    separate_documents: bool = False,
    context_length: int | None = None,
    batch_size: int = 8,
    progress: Progress | None = None,
) -> Report:
    """Score all tokens of `shards`, end-of-text tokens included.

    Args:
        separate_documents: predict each document without sight of the one before it, as a model
            trained that way expects.
    """
    eot_id = shards.manifest.eot_id
    if separate_documents:
        starts = [*shards.document_starts().tolist(), shards.num_tokens]
        documents = [_part(shards, eot_id, begin, end) for begin, end in pairwise(starts)]
    else:
        documents = [Document(eot_id, shards.num_tokens, shards.read)]
    nats, num_tokens = score(
        model,
        documents,
        context_length=context_length,
        stride=stride,
        batch_size=batch_size,
        progress=progress,
    )
    return Report(nats, num_tokens, shards.manifest.text_bytes)


@torch.inference_mode()
def score(
    model: Decoder,
    documents: Sequence[Document],
    *,
    stride: int,
    context_length: int | None = None,
    batch_size: int = 8,
    progress: Progress | None = None,
) -> tuple[float, int]:
    """(sum of -ln p in nats, number of tokens scored) over all `documents`; no dropout.

    Raises:
        ConfigError: the context is longer than the model's, or the stride longer than the context.
    """
    max_seq_len = model.config.max_seq_len
    context_length = max_seq_len if context_length is None else context_length
    if not 1 <= context_length <= max_seq_len:
        raise ConfigError(
            f"context_length={context_length}: must be 1 to the model's max_seq_len={max_seq_len}"
        )
    if not 1 <= stride <= context_length:
        raise ConfigError(f"stride={stride}: must be 1 to context_length={context_length}")
    was_training = model.training
    model.eval()
    nats, num_scored = 0.0, 0
    num_total = sum(document.num_tokens for document in documents)
    rows = _rows(documents, context_length, stride)
    while batch := list(islice(rows, batch_size)):
        inputs_BT, targets_BT = _pad(batch)
        nats += loss_sum(model, inputs_BT, targets_BT)
        num_scored += int((targets_BT != IGNORE_INDEX).sum())
        if progress is not None:
            progress(num_scored, num_total)
    model.train(was_training)
    return nats, num_scored


def windows(num_tokens: int, *, context_length: int, stride: int) -> Iterator[Window]:
    """Windows over `num_tokens` targets; see the top of this file."""
    end = min(context_length, num_tokens)
    yield Window(0, 0, end)
    while end < num_tokens:
        first = end
        end = min(first + stride, num_tokens)
        yield Window(end - context_length, first, end)


def _rows(
    documents: Sequence[Document], context_length: int, stride: int
) -> Iterator[tuple[Ids, Ids]]:
    """(inputs, targets) of every window, targets that are not scored marked as ignored."""
    for document in documents:
        for window in windows(document.num_tokens, context_length=context_length, stride=stride):
            targets = document.read(window.begin, window.end).astype(np.int64)
            before = document.read(window.begin - 1, window.begin) if window.begin else None
            head = [document.prefix_id] if before is None else before
            inputs = np.concatenate([head, targets[:-1]]).astype(np.int64)
            targets[: window.first - window.begin] = IGNORE_INDEX
            yield inputs, targets


def _pad(rows: list[tuple[Ids, Ids]]) -> tuple[Ids, Ids]:
    """Rows of one length: what is added comes last, where no scored token can see it."""
    length = max(len(inputs) for inputs, _ in rows)
    inputs_BT = np.zeros((len(rows), length), np.int64)
    targets_BT = np.full((len(rows), length), IGNORE_INDEX, np.int64)
    for b, (inputs, targets) in enumerate(rows):
        inputs_BT[b, : len(inputs)] = inputs
        targets_BT[b, : len(targets)] = targets
    return inputs_BT, targets_BT


def _part(shards: ShardSet, prefix_id: int, start: int, end: int) -> Document:
    def read(begin: int, stop: int) -> Ids:
        return shards.read(start + begin, start + stop)

    return Document(prefix_id, end - start, read)
