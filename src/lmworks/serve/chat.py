"""A conversation: turns become one prompt, the oldest go when it gets too long.

A model that was trained to chat brings a template that says how it wants messages written. One that
was only pretrained knows none, so a plain transcript is used, which any model of text can go on
with:

    User: What is the capital of France?
    Assistant: Paris.
    User: And of Spain?
    Assistant:

The answer ends where the model starts the next `User:` line. With the format RAW there are no
names: the model simply continues the text. What the user types is always plain text, never a
special token.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from lmworks.base.errors import ConfigError, DataError
from lmworks.models.decoder import Decoder
from lmworks.serve.generate import Generation, TextStream, begin_ids, stream
from lmworks.serve.sampling import SamplingConfig
from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.chat_template import ChatTemplate


@dataclass
class Turn:
    """What the user wrote and what the model made of it."""

    user: str
    answer: str = ""


@dataclass(frozen=True)
class PlainFormat:
    """Turns as plain text with something around them."""

    user: str
    """Before the user's text."""
    assistant: str
    """Between the user's text and the answer. Ends without a space: tokens begin with theirs."""
    turn_end: str
    """After the answer."""
    stop: tuple[str, ...]
    """Where an answer ends, beside the user's own stop strings."""

    def text(self, turns: list[Turn]) -> str:
        """The prompt that ends where the last turn's answer goes on."""
        return self.turn_end.join(
            f"{self.user}{turn.user}{self.assistant}{turn.answer}" for turn in turns
        )

    def ids(self, turns: list[Turn], tokenizer: Tokenizer) -> list[int]:
        """The prompt's tokens."""
        return [*begin_ids(tokenizer), *tokenizer.encode(self.text(turns), disallowed_special=())]


@dataclass(frozen=True)
class ModelFormat:
    """Turns as the model's own template writes them; its special tokens end the answer."""

    template: ChatTemplate
    system: str = ""
    """What the model is told before the first turn; empty: the template's own words or nothing."""
    stop: tuple[str, ...] = ()
    """Where an answer ends, beside the user's own stop strings."""
    turn_end: str = ""
    """After the answer: the template writes it."""

    def text(self, turns: list[Turn]) -> str:
        """The prompt that ends where the model has to answer the last turn."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for i, turn in enumerate(turns, start=1):
            messages.append({"role": "user", "content": turn.user})
            # Many templates refuse two messages of the user in a row.
            if turn.answer or i < len(turns):
                messages.append({"role": "assistant", "content": turn.answer})
        is_waiting = not turns or not turns[-1].answer
        return self.template.render(messages, add_generation_prompt=is_waiting)

    def ids(self, turns: list[Turn], tokenizer: Tokenizer) -> list[int]:
        """The prompt's tokens.

        Raises:
            ConfigError: the user or the system prompt writes one of the template's own tokens,
                which would end its turn. In an answer the model itself wrote it.
        """
        for text in [self.system, *(turn.user for turn in turns)]:
            _refuse_special(text, tokenizer)
        return tokenizer.encode(self.text(turns), allowed_special="all")


Format = PlainFormat | ModelFormat
TRANSCRIPT = PlainFormat(
    user="User: ", assistant="\nAssistant:", turn_end="\n", stop=("\nUser:", "\nAssistant:")
)
RAW = PlainFormat(user="", assistant="", turn_end="\n", stop=())


@dataclass
class Chat:
    """The state of one conversation."""

    model: Decoder
    tokenizer: Tokenizer
    config: SamplingConfig
    format: Format = TRANSCRIPT
    turns: list[Turn] = field(default_factory=list)
    num_dropped: int = 0
    """Turns dropped from the beginning by the last `say`."""
    _num_said: int = 0
    _answer: TextStream | None = None

    @property
    def last(self) -> Generation | None:
        """The last answer's tokens and timing; None before the first."""
        return self._answer.generation if self._answer is not None else None

    def say(self, text: str) -> Iterator[str]:
        """The answer to `text` in pieces; what was yielded becomes part of the history.

        An empty `text` with the format RAW goes on where the last answer stopped.

        Raises:
            ConfigError: `text` alone does not fit the context; the history is as before.
        """
        turns = list(self.turns)
        if text or not turns or self.format is not RAW:
            turns.append(Turn(text))
        # Each answer draws with a seed of its own, or the same question would get the same answer.
        seed = (self.config.seed + self._num_said) % 2**63
        stop = (*self.config.stop, *self.format.stop)
        config = self.config.model_copy(update={"stop": stop, "seed": seed})
        kept, prompt_ids = self._fit(turns)
        self._answer = stream(self.model, self.tokenizer, prompt_ids, config)
        self.num_dropped = len(turns) - len(kept)
        self.turns = kept
        self._num_said += 1
        return self._pieces(self._answer, kept[-1])

    def reset(self) -> None:
        """Forget all turns."""
        self.turns = []
        self._num_said = 0
        self._answer = None

    def transcript(self) -> str:
        """The conversation as text, as the model sees it."""
        return self.format.text(self.turns) + self.format.turn_end

    def messages(self) -> list[dict[str, str]]:
        """The conversation as role and content, in the form that chat programs exchange."""
        return [
            {"role": role, "content": content.strip() if self.format is not RAW else content}
            for turn in self.turns
            for role, content in (("user", turn.user), ("assistant", turn.answer))
        ]

    def _pieces(self, answer: TextStream, turn: Turn) -> Iterator[str]:
        for piece in answer:
            turn.answer += piece
            yield piece

    def _fit(self, turns: list[Turn]) -> tuple[list[Turn], list[int]]:
        """The newest turns that leave room for an answer, and their token ids."""
        context = self.model.config.max_seq_len
        # Room for the whole answer if it may be short, for a quarter of the context if not.
        limit = context - min(self.config.max_new_tokens, context // 4)
        for first in range(len(turns)):
            ids = self.format.ids(turns[first:], self.tokenizer)
            if len(ids) <= limit:
                return turns[first:], ids
        raise ConfigError(
            f"the message has {len(ids)} tokens; with room for an answer the model's context "
            f"(max_seq_len={context}) holds {limit}; shorten it by {len(ids) - limit}"
        )


def _refuse_special(text: str, tokenizer: Tokenizer) -> None:
    try:
        tokenizer.encode(text)
    except DataError as err:
        raise ConfigError(
            f"the message holds a token that only the template may write: {err}"
        ) from None
