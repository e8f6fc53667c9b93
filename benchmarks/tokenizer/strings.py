"""Random strings on which encoders disagree if they ever do; the same ones for the same seed.

Each distribution aims at something: code points of every kind, scripts side by side, the characters
that patterns treat specially, plain ASCII, marks and joiners, and real text cut and spliced. All
are of code points that Unicode 14 assigns (see texts.assigned_code_points).
"""

import random
from collections.abc import Callable, Sequence
from functools import cache

from texts import assigned_code_points

BATCH_STRINGS = 10_000
MAX_CHARS = 200

_EDGES = (
    " \t\n\r\x0b\x0c\x85\xa0\u2028\u3000''''\u2019sdmtlvreSTLVRE0123456789/_-.,!a\u00e9Zz\u4e00"
)
_BLOCKS = (
    (0x41, 0x7B), (0xC0, 0x250), (0x370, 0x400), (0x400, 0x500), (0x5D0, 0x5EB), (0x620, 0x650),
    (0x900, 0x970), (0xE00, 0xE4F), (0x10A0, 0x1100), (0x3041, 0x30FF), (0x4E00, 0x9FA6),
    (0xAC00, 0xD7A4), (0x1F300, 0x1F650), (0x1E900, 0x1E944), (0x20000, 0x2A6D7),
)  # fmt: skip
_MARKS = ("\u200d", "\ufe0f", "\u0301", "\u0308", "\u0e33", "\u093f", "\u064b", "\U0001f3fd")
_SEPARATORS = (" ", "  ", "\n", "\n\n", ", ", ". ", "'s ", "-", "\t", "", "1", "\u3002", " 42 ")

Sampler = Callable[[random.Random, Sequence[str]], str]


@cache
def _assigned() -> list[int]:
    return assigned_code_points(0x110000)


@cache
def _scripts() -> list[list[str]]:
    assigned = set(_assigned())
    return [[chr(c) for c in range(*block) if c in assigned] for block in _BLOCKS]


def _length(rng: random.Random) -> int:
    """0 to MAX_CHARS, short ones more often."""
    return int(MAX_CHARS * rng.random() ** 2.5)


def _uniform(rng: random.Random, sample: Sequence[str]) -> str:
    return "".join(map(chr, rng.choices(_assigned(), k=_length(rng))))


def _mixed_scripts(rng: random.Random, sample: Sequence[str]) -> str:
    text, wanted = "", _length(rng)
    while len(text) < wanted:
        text += "".join(rng.choices(rng.choice(_scripts()), k=rng.randint(1, 8)))
        text += rng.choice(_SEPARATORS)
    return text


def _edges(rng: random.Random, sample: Sequence[str]) -> str:
    # A few of them per string, so that runs and repeats are common.
    return "".join(rng.choices(rng.sample(_EDGES, rng.randint(2, 12)), k=_length(rng)))


def _ascii(rng: random.Random, sample: Sequence[str]) -> str:
    return "".join(map(chr, rng.choices(range(128), k=_length(rng))))


def _marks(rng: random.Random, sample: Sequence[str]) -> str:
    text, wanted = "", _length(rng)
    while len(text) < wanted:
        text += rng.choice(rng.choice(_scripts())) + rng.choice(("", "", " ", *_MARKS))
    return text


def _splices(rng: random.Random, sample: Sequence[str]) -> str:
    text, wanted = "", _length(rng)
    while len(text) < wanted:
        doc = rng.choice(sample)
        start = rng.randrange(len(doc))
        text += doc[start : start + rng.randint(1, 20)]
    return text


DISTRIBUTIONS: dict[str, Sampler] = {
    "all code points": _uniform,
    "mixed scripts": _mixed_scripts,
    "white space, apostrophes, digits": _edges,
    "ASCII": _ascii,
    "marks and joiners": _marks,
    "spliced text": _splices,
}


def random_strings(distribution: str, seed: int, sample: Sequence[str]) -> list[str]:
    """One batch of a distribution; `sample` holds the documents to splice."""
    rng = random.Random(f"{distribution} {seed}")
    make = DISTRIBUTIONS[distribution]
    return [make(rng, sample) for _ in range(BATCH_STRINGS)]
