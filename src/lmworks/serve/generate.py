"""Text from a model: the prompt in one pass, then one token at a time from cached keys and values.

    generate(model, tokenizer, "Once upon", SamplingConfig(temperature=0.7)).text
    for piece in stream(model, tokenizer, "Once upon"):
        print(piece, end="", flush=True)

Choosing the token is in `sampling`, stop strings in `stop`. Many requests at once are not this
module's business: it decodes one prompt, into one or several samples.

Legend: B samples, T tokens, V vocabulary, C d_model.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from lmworks.base.errors import ConfigError
from lmworks.models.decoder import Decoder
from lmworks.nn.attention.cache import KVCache
from lmworks.serve.sampling import Sampler, SamplingConfig
from lmworks.serve.stop import StopMatcher
from lmworks.tokenizer.base import Tokenizer

FinishReason = Literal["eot", "stop", "length", "context", "interrupted"]


@dataclass(frozen=True)
class Generation:
    """What a prompt was continued with."""

    text: str
    """The continuation, without the prompt and without the stop string."""
    token_ids: list[int]
    """All tokens chosen, an end-of-text token excepted (so it may reach into a stop string)."""
    finish_reason: FinishReason
    """eot: the model ended the text; stop: a stop string; length: `max_new_tokens` reached;
    context: `max_seq_len` reached; interrupted: the reader left before the end."""
    prompt_tokens: int
    """Tokens the model read before the first new one."""
    logprobs: list[float]
    """Natural log-probability of each of `token_ids`; empty unless `SamplingConfig.logprobs`."""
    prefill_s: float
    """Seconds until the first token."""
    decode_s: float
    """Seconds for the other tokens, in the model and the sampler only."""

    @property
    def tokens_per_s(self) -> float:
        """Decoding speed of this sample."""
        if len(self.token_ids) > 1 and self.decode_s > 0:
            return (len(self.token_ids) - 1) / self.decode_s
        return len(self.token_ids) / self.prefill_s if self.prefill_s > 0 else 0.0


def generate(
    model: Decoder,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    config: SamplingConfig | None = None,
    *,
    truncate_prompt: bool = False,
) -> Generation:
    """Continue `prompt`; the arguments are those of `generate_samples`."""
    return generate_samples(
        model, tokenizer, prompt, config, num_samples=1, truncate_prompt=truncate_prompt
    )[0]


def generate_samples(
    model: Decoder,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    config: SamplingConfig | None = None,
    *,
    num_samples: int,
    truncate_prompt: bool = False,
) -> list[Generation]:
    """Continue one prompt `num_samples` times, decoded together.

    Sample b draws with seed `config.seed + b`; up to rounding it is what that seed gives alone.

    Args:
        prompt: text, in which special tokens count as such, or token ids. Empty: the model starts
            a text of its own from the end-of-text token.
        truncate_prompt: drop the beginning of a prompt that is longer than the context, keeping
            room for the new tokens but at least half the context.

    Raises:
        ConfigError: the prompt does not fit, or the tokenizer is not the model's.
    """
    if num_samples < 1:
        raise ConfigError(f"num_samples={num_samples}: must be at least 1")
    config = config or SamplingConfig()
    prompt_ids = _prompt_ids(model, tokenizer, prompt, config, truncate_prompt=truncate_prompt)
    decoding = _Decoding(model, tokenizer, prompt_ids, config, num_samples=num_samples)
    samples = [_Sample(tokenizer, config, decoding.max_tokens) for _ in range(num_samples)]
    texts = [""] * num_samples
    with _eval_mode(model):
        while any(sample.finish_reason is None for sample in samples):
            for b, (token, logprob) in enumerate(decoding.step()):
                texts[b] += samples[b].feed(token, logprob)
    return [sample.generation(text, decoding) for sample, text in zip(samples, texts, strict=True)]


def stream(
    model: Decoder,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    config: SamplingConfig | None = None,
    *,
    truncate_prompt: bool = False,
) -> "TextStream":
    """Like `generate`, but an iterator over the text as it comes into being.

    Pieces never hold half a character or any part of a stop string. While the iterator is between
    two pieces the model is in eval mode.
    """
    config = config or SamplingConfig()
    prompt_ids = _prompt_ids(model, tokenizer, prompt, config, truncate_prompt=truncate_prompt)
    return TextStream(model, tokenizer, prompt_ids, config)


class TextStream(Iterator[str]):
    """Iterator over pieces of text; `generation` tells the outcome, also when left early."""

    def __init__(
        self, model: Decoder, tokenizer: Tokenizer, prompt_ids: list[int], config: SamplingConfig
    ) -> None:
        self._decoding = _Decoding(model, tokenizer, prompt_ids, config, num_samples=1)
        self._sample = _Sample(tokenizer, config, self._decoding.max_tokens)
        self._text = ""
        self._pieces = self._run(model)

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def generation(self) -> Generation:
        """Everything generated so far."""
        return self._sample.generation(self._text, self._decoding)

    def _run(self, model: Decoder) -> Iterator[str]:
        with _eval_mode(model):
            while self._sample.finish_reason is None:
                [(token, logprob)] = self._decoding.step()
                piece = self._sample.feed(token, logprob)
                if piece:
                    self._text += piece
                    yield piece


class _Decoding:
    """The model's side: each `step` gives the next token of every sample."""

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        prompt_ids: list[int],
        config: SamplingConfig,
        *,
        num_samples: int,
    ) -> None:
        # The last token that fits is chosen from the last position and never fed back.
        self.max_tokens = min(config.max_new_tokens, model.config.max_seq_len + 1 - len(prompt_ids))
        self.num_prompt_tokens = len(prompt_ids)
        self.prefill_s = 0.0
        self.decode_s = 0.0
        self._model = model
        self._config = config
        # A model may have more rows than its tokenizer has tokens (padded for speed).
        self._vocab_size = tokenizer.vocab_size
        self._sampler = Sampler(
            config, prompt_ids, vocab_size=self._vocab_size, num_sequences=num_samples
        )
        self._num_samples = num_samples
        self._cache = model.new_cache(1, max_seq_len=len(prompt_ids) + self.max_tokens - 1)
        self._next_BT = torch.tensor([prompt_ids], device=model.head_weight_VC.device)

    def step(self) -> list[tuple[int, float]]:
        """(token id, log-probability) per sample; 0.0 for the latter unless asked for."""
        start = time.perf_counter()
        is_prefill = self._cache.length == 0
        result = self._step()
        elapsed_s = time.perf_counter() - start
        if is_prefill:
            self.prefill_s += elapsed_s
        else:
            self.decode_s += elapsed_s
        return result

    @torch.inference_mode()
    def _step(self) -> list[tuple[int, float]]:
        is_prefill = self._cache.length == 0
        logits_BV = next_logits(self._model, self._next_BT, self._cache)[:, : self._vocab_size]
        if is_prefill and self._num_samples > 1:
            # The samples share the prompt: it is computed once.
            logits_BV = logits_BV.expand(self._num_samples, -1)
            self._cache = self._cache.repeated(self._num_samples)
        tokens_B = self._sampler.choose(logits_BV)
        self._next_BT = tokens_B[:, None]
        logprobs = [0.0] * len(tokens_B)
        if self._config.logprobs:
            logprobs_BV = logits_BV.float().log_softmax(-1)
            logprobs = logprobs_BV.gather(1, self._next_BT)[:, 0].tolist()
        return list(zip(tokens_B.tolist(), logprobs, strict=True))


class _Sample:
    """The text's side of one sample: tokens in, text out, and why it ended."""

    def __init__(self, tokenizer: Tokenizer, config: SamplingConfig, max_tokens: int) -> None:
        self.finish_reason: FinishReason | None = None
        self._end_ids = {tokenizer.eot_id, *config.stop_ids}
        self._config = config
        self._max_tokens = max_tokens
        self._decoder = tokenizer.stream_decoder()
        self._matcher = StopMatcher(config.stop)
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []

    def feed(self, token: int, logprob: float) -> str:
        """The text that `token` makes certain; nothing once the sample has ended."""
        if self.finish_reason is not None:
            return ""
        if token in self._end_ids:
            self.finish_reason = "eot"
            return self._rest()
        self._token_ids.append(token)
        if self._config.logprobs:
            self._logprobs.append(logprob)
        piece = self._matcher.feed(self._decoder.feed(token))
        if self._matcher.stopped:
            self.finish_reason = "stop"
        elif len(self._token_ids) == self._max_tokens:
            is_limit = self._max_tokens == self._config.max_new_tokens
            piece += self._rest()
            if self.finish_reason is None:
                self.finish_reason = "length" if is_limit else "context"
        return piece

    def _rest(self) -> str:
        """What the decoder and the matcher still hold; half a character becomes U+FFFD."""
        rest = self._matcher.feed(self._decoder.finish())
        if self._matcher.stopped:
            self.finish_reason = "stop"
        return rest + self._matcher.finish()

    def generation(self, text: str, decoding: _Decoding) -> Generation:
        return Generation(
            text=text,
            token_ids=list(self._token_ids),
            finish_reason=self.finish_reason or "interrupted",
            prompt_tokens=decoding.num_prompt_tokens,
            logprobs=list(self._logprobs),
            prefill_s=decoding.prefill_s,
            decode_s=decoding.decode_s,
        )


class _eval_mode:
    """Dropout off inside the block; the model's mode is restored after it."""

    def __init__(self, model: Decoder) -> None:
        self._model = model
        self._was_training = model.training

    def __enter__(self) -> None:
        if self._was_training:
            self._model.eval()

    def __exit__(self, *_: object) -> None:
        if self._was_training:
            self._model.train()


def next_logits(
    model: Decoder, tokens_BT: Int[Tensor, "B T"], cache: KVCache
) -> Float[Tensor, "B V"]:
    """Logits after the last of `tokens_BT`, which continue `cache`; the head runs on it only."""
    hidden_BC = model.hidden(tokens_BT, cache=cache)[:, -1]
    logits_BV = F.linear(hidden_BC, model.head_weight_VC)
    if cap := model.config.logit_softcap:
        logits_BV = cap * torch.tanh(logits_BV / cap)
    return logits_BV


def _prompt_ids(
    model: Decoder,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    config: SamplingConfig,
    *,
    truncate_prompt: bool,
) -> list[int]:
    """Token ids that the model starts from, checked against its vocabulary and context."""
    vocab_size, context = model.config.vocab_size, model.config.max_seq_len
    if tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model only {vocab_size}: "
            "it is not the tokenizer that the model was trained with"
        )
    if isinstance(prompt, str):
        ids = [*begin_ids(tokenizer), *tokenizer.encode(prompt, allowed_special="all")]
    else:
        ids = list(prompt)
    wrong = [i for i in ids if not 0 <= i < tokenizer.vocab_size]
    if wrong:
        raise ConfigError(
            f"prompt token {wrong[0]} is not one of the tokenizer's 0..{tokenizer.vocab_size - 1}"
        )
    if not ids:
        if tokenizer.eot_id is None:
            raise ConfigError(
                "the prompt is empty and the tokenizer has no <|endoftext|> to start from; "
                "give a prompt of at least one token"
            )
        return [tokenizer.eot_id]
    if len(ids) > context and truncate_prompt:
        return ids[-max(context // 2, context + 1 - config.max_new_tokens) :]
    if len(ids) > context:
        raise ConfigError(
            f"the prompt has {len(ids)} tokens and the model's context (max_seq_len) holds "
            f"{context}; shorten it by {len(ids) - context}, or keep only its end with "
            "--truncate-prompt (truncate_prompt=True)"
        )
    return ids


def begin_ids(tokenizer: Tokenizer) -> list[int]:
    """The tokens that the tokenizer's template puts before a text: often BOS, or none."""
    items = tokenizer.template.single if tokenizer.template is not None else ()
    sources = [item.source for item in items]
    before = sources[: sources.index("A")] if "A" in sources else []
    return [source for source in before if isinstance(source, int)]
