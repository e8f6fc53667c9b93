"""Loss on held-out tokens, in nats per token and in bits per byte of text.

Bits per byte divide the same sum by the bytes that the predicted tokens stand for, so that models
with different tokenizers can be compared (Gao et al. 2020, "The Pile", arXiv 2101.00027, section
3.1). A special token stands for no text: its nats count, its name's bytes do not.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch

from lmworks.data.loader import Batch, Loader
from lmworks.data.shard import ShardSet
from lmworks.models.decoder import Decoder
from lmworks.ops.linear_cross_entropy import linear_cross_entropy
from lmworks.tokenizer import Tokenizer


@dataclass(frozen=True)
class EvalReport:
    """Loss of a model on some tokens."""

    loss: float
    """Nats per target token."""
    bits_per_byte: float
    num_tokens: int
    num_bytes: int


def token_byte_counts(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Bytes of text that each token id stands for; 0 for special tokens."""
    special = set(tokenizer.special_tokens.values())
    counts = [
        0 if token in special else len(tokenizer.token_bytes(token))
        for token in range(tokenizer.vocab_size)
    ]
    return np.array(counts, dtype=np.int64)


def evaluate(
    model: Decoder,
    shards: ShardSet,
    *,
    batch_size: int,
    context_length: int,
    token_bytes: npt.NDArray[np.int64],
    max_batches: int = 0,
    separate_documents: bool = False,
) -> EvalReport:
    """Loss over one pass through `shards`, or its first `max_batches` batches if not 0."""
    loader = Loader(
        shards,
        batch_size=batch_size,
        context_length=context_length,
        order="sequential",
        separate_documents=separate_documents,
    )
    batches = islice(loader.one_pass(), max_batches or None)
    return evaluate_batches(model, batches, token_bytes=token_bytes)


@torch.no_grad()
def evaluate_batches(
    model: Decoder, batches: Iterator[Batch], *, token_bytes: npt.NDArray[np.int64]
) -> EvalReport:
    """Loss of `model` over `batches`, without dropout; the model is left in evaluation mode."""
    model.eval()
    loss_sum, num_tokens, num_bytes = 0.0, 0, 0
    for batch in batches:
        documents = batch.document_ids_BT
        hidden_BTC = model.hidden(
            torch.from_numpy(batch.inputs_BT),
            document_ids_BT=None if documents is None else torch.from_numpy(documents),
        )
        terms = linear_cross_entropy(
            hidden_BTC.flatten(0, 1),
            model.head_weight_VC,
            torch.from_numpy(batch.targets_BT).flatten(),
            logit_softcap=model.config.logit_softcap,
        )
        targets = batch.targets_BT[batch.targets_BT >= 0]
        loss_sum += terms.loss_sum.item()
        num_tokens += len(targets)
        num_bytes += int(token_bytes[targets].sum())
    return EvalReport(
        loss=loss_sum / max(1, num_tokens),
        bits_per_byte=loss_sum / math.log(2) / max(1, num_bytes),
        num_tokens=num_tokens,
        num_bytes=num_bytes,
    )
