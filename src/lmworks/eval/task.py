"""Runs the questions of a task file (`task_file`) on a model and sums up how many were right.

    items = read_task("capitals.jsonl")
    outcomes = [answer for answer in answers(open_run("runs/demo"), items)]
    summary(outcomes)["acc"]                 # Figure(value=0.41, stderr=0.049, num_items=100)

Figures of multiple choice differ in what the likeliest choice is: `acc` takes the log-likelihood as
it is, which favours short choices; `acc_bytes` that per byte of the choice, `acc_tokens` that per
token. lm-evaluation-harness names them acc, acc_bytes (acc_norm is per character) and has none per
token.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lmworks.base.errors import ConfigError, DataError
from lmworks.eval.choice import ChoiceScorer, Pair, encode_pair, fit
from lmworks.eval.exact_match import matches
from lmworks.eval.start import Start, start_of_text
from lmworks.eval.task_file import ChoiceItem, GenerationItem, Item
from lmworks.models.pretrained import Run
from lmworks.serve.generate import begin_ids, generate
from lmworks.serve.sampling import SamplingConfig
from lmworks.tokenizer.special import SpecialSet


@dataclass(frozen=True)
class Outcome:
    """What became of one question."""

    line: int
    """In the task file, counted from 1."""
    id: str | int | None
    """The name that the question has there."""
    kind: Literal["choice", "generation"]
    is_correct: Mapping[str, bool]
    """By figure: acc, acc_bytes, acc_tokens, or exact_match."""
    is_cut: bool
    """The beginning of the context was left out: it did not fit the model."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Log-likelihoods and sizes of the choices, or the text generated."""


@dataclass(frozen=True)
class Figure:
    """A share of right answers."""

    value: float
    num_items: int

    @property
    def stderr(self) -> float:
        """Standard error of the share, sqrt(p (1 - p) / n)."""
        return math.sqrt(self.value * (1 - self.value) / self.num_items)


def answers(
    run: Run, items: Mapping[int, Item], *, batch_size: int = 8, uses_chat: bool = False
) -> Iterator[Outcome]:
    """The outcome of each question in turn.

    Args:
        run: the model, its tokenizer and what else its files say.
        items: questions by line number, from `read_task`.
        batch_size: choices in one forward pass.
        uses_chat: contexts and prompts are messages of a user, written as the model's chat template
            does; a choice then follows without a delimiter.

    Raises:
        ConfigError: `uses_chat`, and the model has no template.
        DataError: a question cannot be put to this model; names its line.
    """
    if uses_chat and run.chat_template is None:
        raise ConfigError(f"{run.path}: has no chat template to write the questions in")
    run.model.eval()
    asking = _Asking(run, batch_size=batch_size, uses_chat=uses_chat)
    for line, item in items.items():
        try:
            if isinstance(item, ChoiceItem):
                yield asking.choose(line, item)
            else:
                yield asking.write(line, item)
        except DataError as err:
            raise DataError(f"line {line}: {err}") from None


def summary(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """The figures by name, each over the questions that it goes for."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.is_correct)
    return {
        name: _figure(o.is_correct[name] for o in outcomes if name in o.is_correct)
        for name in names
    }


def chance(items: Iterable[Item]) -> float | None:
    """The accuracy of guessing among the choices; None without any."""
    sizes = [len(item.choices) for item in items if isinstance(item, ChoiceItem)]
    return sum(1 / size for size in sizes) / len(sizes) if sizes else None


class _Asking:
    """Questions of both kinds, put to one model."""

    def __init__(self, run: Run, *, batch_size: int, uses_chat: bool) -> None:
        self._run = run
        self._start = start_of_text(run.tokenizer, run.special_ids)
        self._scorer = ChoiceScorer(run.model, batch_size=batch_size)
        self._uses_chat = uses_chat
        self._max_seq_len = run.model.config.max_seq_len

    def choose(self, line: int, item: ChoiceItem) -> Outcome:
        """The likeliest choice."""
        pair, is_cut = self._fitted(self._encoded(item))
        scores = self._scorer.score(pair)
        num_bytes = [len(choice.encode()) for choice in item.choices]
        num_tokens = [len(ids) for ids in pair.choices_ids]
        predicted = {
            "acc": _best(scores, [1] * len(scores)),
            "acc_bytes": _best(scores, num_bytes),
            "acc_tokens": _best(scores, num_tokens),
        }
        return Outcome(
            line,
            item.id,
            "choice",
            {name: choice == item.label for name, choice in predicted.items()},
            is_cut,
            {
                "label": item.label,
                "predicted": predicted,
                "loglikelihoods": scores,
                "num_bytes": num_bytes,
                "num_tokens": num_tokens,
            },
        )

    def write(self, line: int, item: GenerationItem) -> Outcome:
        """The likeliest text, token by token."""
        prompt = item.examples + item.prompt
        begin = [] if self._uses_chat else begin_ids(self._run.tokenizer)
        ids = begin + self._run.tokenizer.encode(
            self._prompt(prompt), allowed_special=self._special, disallowed_special=()
        )
        room = self._max_seq_len + 1 - min(item.max_new_tokens, self._max_seq_len // 2)
        fitted = fit(ids, num_kept=len(begin), room=room)
        config = SamplingConfig(
            temperature=0,
            stop=tuple(item.stop),
            stop_ids=self._run.stop_ids,
            max_new_tokens=item.max_new_tokens,
        )
        result = generate(self._run.model, self._run.tokenizer, fitted, config)
        is_right = matches(result.text, item.answer, item.normalize)
        return Outcome(
            line,
            item.id,
            "generation",
            {"exact_match": is_right},
            len(fitted) < len(ids),
            {
                "answer": item.answer,
                "text": result.text,
                "num_tokens": len(result.token_ids),
                "finish_reason": result.finish_reason,
            },
        )

    def _encoded(self, item: ChoiceItem) -> Pair:
        start, delimiter = self._start, item.delimiter
        if self._uses_chat:  # the template writes both
            start, delimiter = Start(), ""
        return encode_pair(
            self._run.tokenizer,
            start,
            self._prompt(item.prompt),
            [delimiter + choice for choice in item.choices],
            allowed_special=self._special,
        )

    def _fitted(self, pair: Pair) -> tuple[Pair, bool]:
        """The pair with the beginning of the context left out if it is too long."""
        longest = max(map(len, pair.choices_ids))
        num_kept = len(self._start.ids) if self._start.is_repeated and not self._uses_chat else 0
        # The last token of a choice is predicted and never read.
        room = self._max_seq_len - (longest - 1)
        if room <= num_kept:
            raise DataError(
                f"a choice has {longest} tokens; the model's context (max_seq_len) holds "
                f"{self._max_seq_len}"
            )
        context_ids = fit(pair.context_ids, num_kept=num_kept, room=room)
        return pair._replace(context_ids=context_ids), len(context_ids) < len(pair.context_ids)

    @property
    def _special(self) -> SpecialSet:
        return "all" if self._uses_chat else ()

    def _prompt(self, text: str) -> str:
        if not self._uses_chat:
            return text
        assert self._run.chat_template is not None, "checked before"
        self._run.tokenizer.encode(text)  # refuses the template's own tokens in a message
        message = {"role": "user", "content": text}
        return self._run.chat_template.render([message], add_generation_prompt=True)


def _best(scores: Sequence[float], sizes: Sequence[int]) -> int:
    """The place of the highest score per size, the first of several."""
    ratios = [score / size for score, size in zip(scores, sizes, strict=True)]
    return ratios.index(max(ratios))


def _figure(is_correct: Iterable[bool]) -> Figure:
    values = list(is_correct)
    return Figure(sum(values) / len(values), len(values))
