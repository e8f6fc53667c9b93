"""Loss, perplexity and bits per byte of a model on held-out text.

A text longer than the context is scored in windows that slide by `stride` tokens, and each token
counts exactly once: the first window scores all its tokens, every later one its last `stride`,
so these have between `context_length - stride` and `context_length - 1` tokens before them (plus
the token that every document begins with). Windows are always full once the text is long enough.
With `stride = context_length` these are the windows of lm-evaluation-harness
(`get_rolling_token_windows` with one token of context); a smaller stride costs
`context_length / stride` times as much and gives a lower, fairer loss. Where the tokenizer puts
tokens before every text, every window begins with them and holds so many fewer of the text.

What is summed, and the figures that follow from it, are in `train.evaluate`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lmworks.base.errors import ConfigError, DataError
from lmworks.data.loader import IGNORE_INDEX
from lmworks.data.shard import ShardSet
from lmworks.eval.start import start_of_text
from lmworks.models.decoder import Decoder
from lmworks.tokenizer.base import Tokenizer
from lmworks.train.evaluate import Report, loss_sum

Ids = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]
"""Called with (tokens scored, tokens in all)."""

# Tokens in one forward pass unless the caller says otherwise: enough to keep matrix products busy,
# while activations stay near 100 MB for d_model 1024.
_BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Window:
    """One forward pass: predict tokens `begin` to `end` of a document, score those from `first`."""

    begin: int
    first: int
    end: int


class Document(NamedTuple):
    """`num_tokens` ids that `read(start, stop)` gives, predicted from `prefix_ids` on."""

    prefix_ids: tuple[int, ...]
    num_tokens: int
    read: Callable[[int, int], Ids]
    repeats_prefix: bool = False
    """Every window begins with `prefix_ids`, not just the first."""

    @property
    def num_repeated(self) -> int:
        """Tokens of every window that are not of the text."""
        return len(self.prefix_ids) if self.repeats_prefix else 0


def evaluate_text(
    model: Decoder,
    tokenizer: Tokenizer,
    text: str,
    *,
    special_ids: Mapping[str, int] = MappingProxyType({}),
    stride: int | None = None,
    context_length: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Score `text` as one document; special tokens in it are plain text.

    What the first token is predicted from is in `eval.start`. Where there is nothing, neither that
    token nor its bytes are scored.

    Args:
        special_ids: of `Run`: where a model's files name its beginning-of-text token.
        stride: tokens that a window goes further; None: as many as fit, side by side.
        context_length: tokens in a window; None: as many as the model takes.
        batch_size: windows in one forward pass; None: some 8,000 tokens' worth.
        progress: called after every forward pass.

    Raises:
        ConfigError: as `score`.
        DataError: the text is empty, or a single token that cannot be scored.
    """
    num_bytes = len(text.encode("utf-8"))
    ids = tokenizer.encode_to_numpy(text, disallowed_special=()).astype(np.int64)
    start = start_of_text(tokenizer, special_ids)
    prefix_ids = start.ids
    if not prefix_ids and len(ids):
        prefix_ids = (int(ids[0]),)
        num_bytes -= len(tokenizer.token_bytes(prefix_ids[0]))
        ids = ids[1:]
    if not len(ids):
        raise DataError("the text holds no token to score; give a longer one")
    document = Document(
        prefix_ids, len(ids), lambda begin, end: ids[begin:end], repeats_prefix=start.is_repeated
    )
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
    stride: int | None = None,
    separate_documents: bool = False,
    context_length: int | None = None,
    batch_size: int | None = None,
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
        documents = [Document((eot_id,), shards.num_tokens, shards.read)]
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
    stride: int | None = None,
    context_length: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> tuple[float, int]:
    """(sum of -ln p in nats, number of tokens scored) over all `documents`; no dropout.

    Raises:
        ConfigError: the context is longer than the model's, the stride longer than the context, or
            the text has a token that the model does not know.
    """
    num_repeated = max((document.num_repeated for document in documents), default=0)
    context_length, stride = window_sizes(
        model, context_length=context_length, stride=stride, num_repeated=num_repeated
    )
    batch_size = batch_size or max(1, _BATCH_TOKENS // context_length)
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


def window_sizes(
    model: Decoder, *, context_length: int | None, stride: int | None, num_repeated: int
) -> tuple[int, int]:
    """(context length, stride) with what None stands for; ConfigError where they do not go."""
    max_seq_len = model.config.max_seq_len
    context_length = max_seq_len if context_length is None else context_length
    if not 1 + num_repeated <= context_length <= max_seq_len:
        raise ConfigError(
            f"context_length={context_length}: must be {1 + num_repeated} to the model's "
            f"max_seq_len={max_seq_len}"
        )
    room = context_length - num_repeated
    stride = room if stride is None else stride
    if not 1 <= stride <= room:
        why = f", less the {num_repeated} token(s) that begin every window" if num_repeated else ""
        raise ConfigError(
            f"stride={stride}: must be 1 to {room} (context_length={context_length}{why})"
        )
    return context_length, stride


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
        room = context_length - document.num_repeated
        for window in windows(document.num_tokens, context_length=room, stride=stride):
            targets = document.read(window.begin, window.end).astype(np.int64)
            head = list(document.prefix_ids)
            if window.begin:
                before = document.read(window.begin - 1, window.begin)
                head = [*head[: document.num_repeated], *before.tolist()]
            inputs = np.concatenate([head, targets[:-1]]).astype(np.int64)
            targets[: window.first - window.begin] = IGNORE_INDEX
            unpredicted = np.full(len(head) - 1, IGNORE_INDEX)
            yield inputs, np.concatenate([unpredicted, targets])


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

    return Document((prefix_id,), end - start, read)
