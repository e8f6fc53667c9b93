"""Multiple choice: how likely a model finds each continuation of a context.

Encoding follows lm-evaluation-harness (`TemplateLM._encode_pair`): blanks at the end of the context
move to the continuation, both are encoded as one text, and the continuation's tokens are those
after as many as the context has alone.

The context is computed once: its keys and values are cached, and copied for the choices. What it
has in common with the context before (few-shot examples) is not computed again either.
Shapes: B choices, T tokens of a choice, N tokens of all choices, C d_model, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor
from torch.nn import functional as F

from lmworks.base.errors import ConfigError, DataError
from lmworks.eval.start import Start
from lmworks.models.decoder import Decoder
from lmworks.nn.attention.cache import KVCache
from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.special import SpecialSet
from lmworks.train.evaluate import rows_of_logits

# Room is allocated in steps, so that a few more tokens do not throw the cache away.
_ROOM_STEP = 256
# A log-softmax in float64 holds three times the bytes of its float32 logits.
_FLOAT64_ROWS = 3


class Pair(NamedTuple):
    """A context and the continuations that are compared."""

    context_ids: list[int]
    """At least one."""
    choices_ids: list[list[int]]
    """At least one each."""


def encode_pair(
    tokenizer: Tokenizer,
    start: Start,
    context: str,
    continuations: Sequence[str],
    *,
    allowed_special: SpecialSet = (),
) -> Pair:
    """Token ids of a context and of each continuation, as the top of this file says.

    Raises:
        DataError: a continuation has no token of its own, or the context is empty and the model
            has no token to begin with.
    """

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, allowed_special=allowed_special, disallowed_special=())

    own = context.rstrip()
    blanks = context[len(own) :]
    before = list(start.ids) if start.is_repeated or not own else []
    context_ids = encode(own)
    choices_ids = [encode(own + blanks + text)[len(context_ids) :] for text in continuations]
    for text, ids in zip(continuations, choices_ids, strict=True):
        if not ids:
            raise DataError(
                f"after this context {text!r:.40} has no token of its own: all of it merges into "
                "the context's last; begin the choice with a blank"
            )
    if not before and not context_ids:
        raise DataError(
            "the context is empty and the model has no token to begin a text with; give a context"
        )
    return Pair(before + context_ids, choices_ids)


def fit(ids: list[int], *, num_kept: int, room: int) -> list[int]:
    """The last `room` ids, the first `num_kept` of all among them; all where they fit."""
    if len(ids) <= room:
        return ids
    return ids[:num_kept] + ids[len(ids) - (room - num_kept) :]


class ChoiceScorer:
    """Log-likelihoods of choices, one context after the other."""

    def __init__(self, model: Decoder, *, batch_size: int = 8) -> None:
        """`batch_size`: choices in one forward pass, each with a copy of the context's cache."""
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}: must be at least 1")
        self._model = model
        self._batch_size = batch_size
        self._cache: KVCache | None = None
        self._held: list[int] = []

    @torch.inference_mode()
    def score(self, pair: Pair) -> list[float]:
        """ln p of each choice after the context, in nats.

        The model has to be in evaluation mode.

        Raises:
            ConfigError: context and choice are longer than the model's.
        """
        longest = max(map(len, pair.choices_ids))
        cache, last_1C = self._read(pair.context_ids, room=len(pair.context_ids) + longest - 1)
        scores: list[float] = []
        for first in range(0, len(pair.choices_ids), self._batch_size):
            scores += self._score(
                cache, last_1C, pair.choices_ids[first : first + self._batch_size]
            )
        return scores

    def _read(self, ids: list[int], *, room: int) -> tuple[KVCache, Float[Tensor, "1 C"]]:
        """The cache after `ids`, and what the head reads after the last of them."""
        cache = self._cache
        if cache is None or cache.max_seq_len < room or not self._go_back(cache, ids):
            size = min(-(-room // _ROOM_STEP) * _ROOM_STEP, self._model.config.max_seq_len)
            cache = self._model.new_cache(1, max_seq_len=max(size, room))
            self._held = []
        self._cache = cache
        new_1T = self._tensor([ids[cache.length :]])
        self._held = ids
        return cache, self._model.hidden(new_1T, cache=cache)[:, -1]

    def _go_back(self, cache: KVCache, ids: list[int]) -> bool:
        """Whether the cache could forget all but the beginning that `ids` share with it."""
        num_shared = 0
        for held, wanted in zip(self._held, ids[:-1], strict=False):
            if held != wanted:
                break
            num_shared += 1
        try:
            cache.truncate(num_shared)
        except ConfigError:  # a window has moved on
            return False
        return True

    def _score(
        self, cache: KVCache, last_1C: Float[Tensor, "1 C"], choices_ids: list[list[int]]
    ) -> list[float]:
        num_choices, longest = len(choices_ids), max(map(len, choices_ids))
        # What is added comes last, where no real token can see it.
        ids_BT = self._tensor([ids + [0] * (longest - len(ids)) for ids in choices_ids])
        hidden_BTC = last_1C.expand(num_choices, -1)[:, None]
        if longest > 1:
            further_BTC = self._model.hidden(ids_BT[:, :-1], cache=cache.repeated(num_choices))
            hidden_BTC = torch.cat((hidden_BTC, further_BTC), dim=1)
        lengths = [len(ids) for ids in choices_ids]
        is_real_BT = torch.arange(longest, device=ids_BT.device) < self._tensor(lengths)[:, None]
        logprobs_N = token_logprobs(self._model, hidden_BTC[is_real_BT], ids_BT[is_real_BT])
        return [part.sum().item() for part in torch.split(logprobs_N, lengths)]

    def _tensor(self, values: list[list[int]] | list[int]) -> Tensor:
        return torch.tensor(values, device=self._model.head_weight_VC.device)


def token_logprobs(
    model: Decoder, hidden_NC: Float[Tensor, "N C"], targets_N: Int[Tensor, " N"]
) -> Float64[Tensor, " N"]:
    """ln p of each target where the head reads `hidden_NC`; logits are held in parts.

    In float64: over 50,000 float32 logits torch's log-softmax is off by 1e-5 nats.
    """
    parts = []
    for part in rows_of_logits(len(targets_N), _FLOAT64_ROWS * model.config.vocab_size):
        logits_NV = F.linear(hidden_NC[part], model.head_weight_VC).double()
        if cap := model.config.logit_softcap:
            logits_NV = cap * torch.tanh(logits_NV / cap)
        target_N = logits_NV.gather(1, targets_N[part, None])[:, 0]
        parts.append(target_N - logits_NV.logsumexp(1))
    return torch.cat(parts)
