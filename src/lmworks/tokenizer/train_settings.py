"""What a BPE training shall make: vocabulary, order of ids, ties, limits; and the vocabulary of it.

Everything that can be wrong is said before the corpus is read. The three modes:

  reference    of equally frequent pairs the lexicographically greatest pair of byte strings;
               ids: the 256 bytes, the merges, special tokens, protected tokens
  huggingface  ties and ids of Hugging Face's BpeTrainer: of equally frequent pairs the smallest
               ids; ids: special tokens, bytes in the order of their readable letters, merges
  tiktoken     ties of reference; bytes in the order of OpenAI's rank files; only what a rank file
               can express
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from lmworks import _text
from lmworks.base.errors import ConfigError, DataError
from lmworks.base.machine import num_usable_cores
from lmworks.base.sizes import parse_bytes
from lmworks.tokenizer.base import END_OF_TEXT, to_bytes
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.pretokenize import PATTERNS, check_pattern, split
from lmworks.tokenizer.readable import bytes_to_readable
from lmworks.tokenizer.special import SpecialTokens

Mode = Literal["reference", "huggingface", "tiktoken"]
Merges = list[tuple[bytes, bytes]]
Progress = Callable[[str, int, int], None]
"""progress(phase, done, total): phase "count" in bytes (total 0: unknown), "merge" in merges."""

MAX_THREADS = 1024  # each has a stack and counts of its own; far more exhaust the memory
DEFAULT_PATTERN = "gpt2"


class TrainOptions(TypedDict, total=False):
    """What to make of a corpus; all may be left out."""

    pattern: str | None
    """Name of a pre-tokenizer pattern (pretokenize.PATTERNS) or any regular expression of the
    `regex` package; default: gpt2, or that of the vocabulary to extend."""
    special_tokens: Sequence[str] | None
    """Of several that start at one place the longest counts; default: `<|endoftext|>`, or none
    besides those of the vocabulary to extend."""
    protected_tokens: Sequence[str]
    """Found in every text, allowed or not, and never cut or merged."""
    seed_tokens: Sequence[str | bytes]
    """In the vocabulary whatever the corpus holds, and the tokens they are made of."""
    mode: Mode
    """Order of ids and ties; see above."""
    initial_alphabet: bool
    """False, in mode "huggingface": bytes that the corpus lacks take no place among the
    `vocab_size` tokens; they follow behind, for our tokenizers encode any text."""
    min_frequency: int
    """Rarer pairs are not merged."""
    max_token_bytes: int | None
    """No merge makes a longer token."""
    extend: BPETokenizer | None
    """A vocabulary whose ids, merges and special tokens all stay as they are; new tokens get the
    ids after them."""
    max_memory: int | str | None
    """Of the counts, in bytes or as "2GB"; beyond it they are kept on the disk."""
    spill_dir: str | Path | None
    """Where to; default: the system's temporary folder."""
    num_threads: int | None
    """Default: the usable cores. The merges are the same for any number."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """TrainOptions with their defaults; raises ConfigError or DataError for what cannot be."""

    vocab_size: int
    """Of all tokens: bytes, merges, special and protected tokens, seeds."""
    pattern: str | None = None
    special_tokens: Sequence[str] | None = None
    protected_tokens: Sequence[str] = ()
    seed_tokens: Sequence[str | bytes] = ()
    mode: Mode = "reference"
    initial_alphabet: bool = True
    min_frequency: int = 1
    max_token_bytes: int | None = None
    extend: BPETokenizer | None = None
    max_memory: int | str | None = None
    spill_dir: str | Path | None = None
    num_threads: int | None = None
    known_pattern: str = field(init=False)
    new_specials: Sequence[str] = field(init=False)
    """The special tokens that the vocabulary to extend does not have."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            from lmworks.base.config import suggest

            raise ConfigError(f"mode={self.mode!r}{suggest(self.mode, get_args(Mode))}")
        object.__setattr__(self, "known_pattern", self._checked_pattern())
        object.__setattr__(self, "new_specials", self._checked_specials())
        self._check_extend()
        self._check_splitting_tokens()
        self._check_numbers()
        self._check_seeds()

    # ---- what follows from the fields ----

    @property
    def has_native_pattern(self) -> bool:
        """The native trainer cuts the pieces itself."""
        return self.known_pattern in PATTERNS

    @property
    def splitting_tokens(self) -> list[bytes]:
        """All that the text is split at; none of it is learnt."""
        old = self.extend
        kept = [] if old is None else [*old.special_tokens, *old.added_tokens]
        return [to_bytes(t) for t in [*kept, *self.new_specials, *self.protected_tokens]]

    @property
    def num_fixed_tokens(self) -> int:
        """Tokens that are there before any merge."""
        old = 256 if self.extend is None else self.extend.vocab_size
        return old + len(self.new_specials) + len(self.protected_tokens)

    @property
    def normalizes(self) -> bool:
        """The vocabulary to extend changes texts before it cuts them, so training does too."""
        old = self.extend
        return old is not None and (old.normalizer is not None or old.add_prefix_space)

    @property
    def can_cut_text(self) -> bool:
        """Text may be cut where no known pattern sees a difference, not at special tokens only."""
        old = self.extend
        is_safe = old is None or not (
            old.add_prefix_space or (old.normalizer and old.normalizer.to_json() != "NFC")
        )
        return self.has_native_pattern and is_safe

    def normalize(self, text: bytes) -> bytes:
        """The text between special tokens as the vocabulary to extend sees it."""
        old = self.extend
        if old is None or not text:
            return text
        if old.normalizer is not None:
            text = old.normalizer.apply_bytes(text)
        return b" " + text if old.add_prefix_space and not text.startswith(b" ") else text

    def new_trainer(self, spill_dir: Path | None) -> _text.BpeTrainer:
        """A native trainer that has counted nothing."""
        limit = 0 if self.max_memory is None else parse_bytes(self.max_memory, "max_memory")
        return _text.BpeTrainer(
            self.known_pattern if self.has_native_pattern else None,
            self.splitting_tokens,
            self.num_threads or num_usable_cores(),
            # Counts that pieces of another kind went into are refused.
            settings=json.dumps(self.counted()).encode(),
            max_memory_bytes=limit,
            spill_folder=b"" if spill_dir is None else os.fsencode(spill_dir),
        )

    def counted(self) -> dict[str, Any]:
        """What counts depend on besides the inputs."""
        old = self.extend
        normalizer = None if old is None else old.normalizer
        return {
            "pattern": self.known_pattern,
            "special and protected tokens": sorted(t.decode() for t in self.splitting_tokens),
            "normalizer": None if normalizer is None else normalizer.to_json(),
            "add_prefix_space": old is not None and old.add_prefix_space,
        }

    def train(self, trainer: _text.BpeTrainer, progress: Progress | None) -> BPETokenizer:
        """The vocabulary of what `trainer` has counted, which is used up."""
        has_alphabet = self.initial_alphabet or self.mode != "huggingface"
        try:
            merges = trainer.train(
                self.vocab_size - self.num_fixed_tokens,
                partial(progress, "merge") if progress else None,
                ties="huggingface" if self.mode == "huggingface" else "bytes",
                min_frequency=self.min_frequency,
                max_token_bytes=self.max_token_bytes,
                initial_merges=[] if self.extend is None else self.extend.merged_bytes,
                seeds=[to_bytes(seed) for seed in self.seed_tokens],
                reserved=self._reserved(),
                initial_alphabet=None if has_alphabet else b"",
            )
        except ValueError as err:
            raise ConfigError(f"vocab_size={self.vocab_size}: {err}") from None
        except OverflowError as err:
            raise DataError(f"the corpus is too large: {err}") from None
        if self.extend is not None:
            return self._extended(self.extend, merges)
        return self._new_tokenizer(merges, trainer.alphabet)

    # ---- checks ----

    def _checked_pattern(self) -> str:
        if self.extend is None:
            return check_pattern(self.pattern or DEFAULT_PATTERN)
        if self.pattern not in (None, self.extend.pattern):
            raise ConfigError(
                f"pattern={self.pattern!r}, but the vocabulary to extend cuts its pieces with "
                f"{self.extend.pattern!r}; leave the pattern out"
            )
        return self.extend.pattern

    def _checked_specials(self) -> Sequence[str]:
        if isinstance(self.special_tokens, str):
            raise ConfigError(
                f"special_tokens={self.special_tokens!r} is one text; pass a list of them"
            )
        if self.special_tokens is not None:
            return self.special_tokens
        return (END_OF_TEXT,) if self.extend is None else ()

    def _check_extend(self) -> None:
        old = self.extend
        if old is None:
            return
        if not isinstance(old, BPETokenizer):
            raise ConfigError(
                f"cannot extend a {old.kind} tokenizer; only a byte-level BPE vocabulary grows by "
                "merges"
            )
        if old.unknown is not None:
            raise ConfigError("cannot extend a vocabulary that lacks some of the 256 bytes")
        if old.piece_steps is not None:
            raise ConfigError(
                f"cannot extend a vocabulary whose text is cut by several steps, {old.piece_steps}"
            )
        if not self.initial_alphabet:
            raise ConfigError("initial_alphabet=False and extend: the vocabulary has its bytes")
        if self.mode == "tiktoken":
            from lmworks.tokenizer.formats import to_tiktoken

            to_tiktoken(old)

    def _check_splitting_tokens(self) -> None:
        specials = [to_bytes(token) for token in self.new_specials]
        if b"" in specials:
            raise ConfigError("a special token is empty; each needs at least one character")
        if len(set(specials)) != len(specials):
            raise ConfigError(
                f"special tokens repeat: {list(self.new_specials)}; each may occur once"
            )
        if "" in self.protected_tokens:
            raise ConfigError("a protected token is empty; each needs at least one character")
        # Refuses what the tokenizer would refuse, but now.
        SpecialTokens(dict.fromkeys([*self.new_specials, *self.protected_tokens], 0))
        everything = self.splitting_tokens
        if len(set(everything)) != len(everything):
            twice = next(t for t in everything if everything.count(t) > 1)
            raise ConfigError(
                f"{twice.decode('utf-8', 'replace')!r} is given twice among the special and "
                "protected tokens, those of the vocabulary to extend included; name it once"
            )
        if self.protected_tokens and self.mode == "tiktoken":
            raise ConfigError(
                "a tiktoken rank file cannot express protected tokens; make them special tokens, "
                "or use another mode"
            )

    def _check_numbers(self) -> None:
        # Without the initial alphabet, how many bytes are tokens is known after counting.
        smallest = self.num_fixed_tokens - (0 if self.initial_alphabet else 256)
        if self.vocab_size < smallest:
            num_others = len(self.new_specials) + len(self.protected_tokens)
            what = "256 bytes" if self.extend is None else f"the {self.extend.vocab_size:,} old ids"
            protected = " and protected" if self.protected_tokens else ""
            raise ConfigError(
                f"vocab_size={self.vocab_size} has no room for {what} and {num_others} "
                f"special{protected} tokens; use {smallest} or more"
            )
        if self.vocab_size >= _text.MAX_TOKENS:
            raise ConfigError(
                f"vocab_size={self.vocab_size}; fewer than {_text.MAX_TOKENS} are possible"
            )
        if self.num_threads is not None and not 1 <= self.num_threads <= MAX_THREADS:
            raise ConfigError(f"num_threads={self.num_threads}; use 1 to {MAX_THREADS}")
        if self.min_frequency < 1:
            raise ConfigError(f"min_frequency={self.min_frequency}; use 1 (all pairs) or more")
        if self.max_token_bytes is not None and self.max_token_bytes < 2:
            raise ConfigError(f"max_token_bytes={self.max_token_bytes}; a merge makes at least 2")
        if not self.initial_alphabet and self.mode != "huggingface":
            raise ConfigError(f"initial_alphabet=False is of mode 'huggingface', not {self.mode!r}")
        if self.max_memory is not None:
            parse_bytes(self.max_memory, "max_memory")

    def _check_seeds(self) -> None:
        seen: set[bytes] = set()
        for seed in map(to_bytes, self.seed_tokens):
            shown = repr(seed.decode("utf-8", "backslashreplace"))
            if not seed:
                raise ConfigError("a seed token is empty; each needs at least one character")
            if seed in seen:
                raise ConfigError(f"seed token {shown} is given twice; name it once")
            seen.add(seed)
            if self.max_token_bytes is not None and len(seed) > self.max_token_bytes:
                raise ConfigError(
                    f"seed token {shown} has {len(seed)} bytes, more than "
                    f"max_token_bytes={self.max_token_bytes}"
                )
            if any(token in seed for token in self.splitting_tokens):
                raise ConfigError(f"seed token {shown} holds a special or protected token")
            pieces = split_any(seed, self.known_pattern)
            if len(pieces) > 1:
                shown_pieces = ", ".join(repr(p.decode("utf-8", "replace")) for p in pieces[:4])
                raise ConfigError(
                    f"seed token {shown} is cut by the pattern into {shown_pieces}: no text would "
                    "ever give it; make it a protected token"
                )

    # ---- the vocabulary ----

    def _reserved(self) -> list[bytes]:
        """Tokens to be extended that no merge makes: none may begin to, or old texts change."""
        if self.extend is None:
            return []
        made = {left + right for left, right in self.extend.merged_bytes}
        return [t for t in self.extend.tokens if t is not None and len(t) > 1 and t not in made]

    def _new_tokenizer(self, merges: Merges, alphabet: bytes) -> BPETokenizer:
        specials_first = self.mode == "huggingface"
        if self.mode == "reference":
            alphabet = bytes(range(256))
        tokens: list[bytes | None] = [None] * (len(self.new_specials) if specials_first else 0)
        tokens += [bytes([b]) for b in alphabet]
        pairs = _add_merges(tokens, merges)
        specials = {
            name: i if specials_first else len(tokens) + i
            for i, name in enumerate(self.new_specials)
        }
        next_id = max(len(tokens), max(specials.values(), default=-1) + 1)
        protected = {name: next_id + i for i, name in enumerate(self.protected_tokens)}
        # Bytes that the corpus lacks have no id in Hugging Face's vocabulary, yet ours encodes all.
        missing = [bytes([b]) for b in range(256) if b not in alphabet]
        if missing:
            tokens += [None] * (next_id + len(protected) - len(tokens))
            tokens += missing
        return self._checked(
            BPETokenizer(
                tokens,
                pairs,
                pattern=self.known_pattern,
                special_tokens=specials,
                added_tokens=protected,
            )
        )

    def _extended(self, old: BPETokenizer, merges: Merges) -> BPETokenizer:
        tokens = [*old.tokens, *[None] * (old.vocab_size - len(old.tokens))]
        pairs = [*old.merges, *_add_merges(tokens, merges)]
        next_id = len(tokens)
        specials = {name: next_id + i for i, name in enumerate(self.new_specials)}
        next_id += len(specials)
        protected = {name: next_id + i for i, name in enumerate(self.protected_tokens)}
        # All else that the old vocabulary says about itself stays as it is.
        content = {
            **old.content(),
            "tokens": [None if t is None else bytes_to_readable(t) for t in tokens],
            "merges": [list(pair) for pair in pairs],
            "special_tokens": {**old.special_tokens, **specials},
            "added_tokens": {**old.added_tokens, **protected},
        }
        return self._checked(type(old).from_content(content))

    def _checked(self, tokenizer: BPETokenizer) -> BPETokenizer:
        if self.mode == "tiktoken":
            from lmworks.tokenizer.formats import to_tiktoken

            to_tiktoken(tokenizer)
        return tokenizer


def split_any(text: bytes, pattern: str) -> list[bytes]:
    """Pieces of the text by a known pattern or any regular expression."""
    return split(text, pattern)


def _add_merges(tokens: list[bytes | None], merges: Merges) -> list[tuple[int, int]]:
    """Append what the merges make to `tokens`; the merges as pairs of ids."""
    id_of = {token: i for i, token in enumerate(tokens) if token is not None}
    pairs = []
    for left, right in merges:
        pairs.append((id_of[left], id_of[right]))
        if left + right not in id_of:
            id_of[left + right] = len(tokens)
            tokens.append(left + right)
    return pairs
