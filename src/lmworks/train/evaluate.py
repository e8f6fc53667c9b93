"""What a model's predictions of held-out tokens cost, and the evaluation between training steps.

    loss          = nats / tokens                 (natural logarithm)
    perplexity    = exp(loss)
    bits per byte = nats / ln 2 / bytes of text   (comparable between tokenizers; Gao et al. 2020,
                                                   "The Pile", arXiv 2101.00027, section 3.1)

A special token stands for no text: its nats count, its name's bytes do not. Sliding windows, which
`lmworks eval` offers, are in `eval.perplexity`; it shares the figures and the loss with this file.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int

from lmworks.base.errors import DataError
from lmworks.data.loader import IGNORE_INDEX, Batch, Loader
from lmworks.data.shard import ShardSet
from lmworks.models.decoder import Decoder
from lmworks.ops.linear_cross_entropy import linear_cross_entropy
from lmworks.tokenizer import Tokenizer

_MAX_LOGITS_BYTES = 256 << 20
_MIN_PART_TOKENS = 64


@dataclass(frozen=True)
class Report:
    """What a model's predictions of a text cost."""

    nats: float
    """Sum of -ln p(token) over all scored tokens."""
    num_tokens: int
    """Tokens scored."""
    num_bytes: int
    """Bytes of the text that these tokens stand for."""

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.num_tokens

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that exceeds a double."""
        return math.exp(self.loss) if self.loss < math.log(np.finfo(np.float64).max) else math.inf

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text; infinite for a text of special tokens only."""
        return self.nats / math.log(2) / self.num_bytes if self.num_bytes else math.inf


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
) -> Report:
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
) -> Report:
    """Loss of `model` over `batches`, without dropout; the model is left in evaluation mode.

    Raises:
        DataError: no batch has a token to score.
    """
    model.eval()
    nats, num_tokens, num_bytes = 0.0, 0, 0
    for batch in batches:
        nats += loss_sum(model, batch.inputs_BT, batch.targets_BT, batch.document_ids_BT)
        targets = batch.targets_BT[batch.targets_BT != IGNORE_INDEX]
        num_tokens += len(targets)
        num_bytes += int(token_bytes[targets].sum())
    if not num_tokens:
        raise DataError("the held-out data has no token to score")
    return Report(nats, num_tokens, num_bytes)


def loss_sum(
    model: Decoder,
    inputs_BT: Int[np.ndarray, "B T"],
    targets_BT: Int[np.ndarray, "B T"],
    document_ids_BT: Int[np.ndarray, "B T"] | None = None,
) -> float:
    """Sum of -ln p(target) in nats over the targets that are not IGNORE_INDEX."""
    device = model.head_weight_VC.device
    hidden_BTC = model.hidden(
        torch.from_numpy(inputs_BT).to(device),
        document_ids_BT=(
            None if document_ids_BT is None else torch.from_numpy(document_ids_BT).to(device)
        ),
    )
    targets_N = torch.from_numpy(targets_BT).to(device).flatten()
    is_scored_N = targets_N != IGNORE_INDEX
    # Where windows overlap most positions are context only: the head, the costly part, skips them.
    hidden_NC, targets_N = hidden_BTC.flatten(0, 1)[is_scored_N], targets_N[is_scored_N]
    nats = 0.0
    for part in rows_of_logits(len(targets_N), model.config.vocab_size):
        terms = linear_cross_entropy(
            hidden_NC[part],
            model.head_weight_VC,
            targets_N[part],
            logit_softcap=model.config.logit_softcap,
        )
        nats += terms.loss_sum.item()
    return nats


def rows_of_logits(num_tokens: int, vocab_size: int) -> Iterator[slice]:
    """Tokens in parts whose fp32 logits take a bounded amount of memory: not all kernels of the
    head see to that themselves."""
    size = max(_MIN_PART_TOKENS, _MAX_LOGITS_BYTES // (4 * vocab_size))
    for start in range(0, num_tokens, size):
        yield slice(start, start + size)
