"""Ways to break a GGUF file. On its own, because a process without pytest imports it."""

import random
import struct
from collections.abc import Callable, Iterator

_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 255, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40,
            2**61, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip


def _flip(data: bytearray, at: int, rng: random.Random) -> None:
    data[at] ^= 1 << rng.randrange(8)


def _byte(data: bytearray, at: int, rng: random.Random) -> None:
    data[at] = rng.randrange(256)


def _number(data: bytearray, at: int, rng: random.Random) -> None:
    size, code = rng.choice(((4, "<I"), (8, "<Q")))
    value = rng.choice(_NUMBERS) % 2 ** (8 * size)
    data[at : at + size] = struct.pack(code, value)


def _number_of_list(data: bytearray, at: int, rng: random.Random) -> None:
    """One of the counts in front."""
    del at
    data[(place := rng.choice((4, 8, 16))) : place + 8] = struct.pack("<Q", rng.choice(_NUMBERS))


def _cut(data: bytearray, at: int, rng: random.Random) -> None:
    del data[at:]


def _remove(data: bytearray, at: int, rng: random.Random) -> None:
    del data[at : at + rng.choice((1, 4, 8, 32))]


def _insert(data: bytearray, at: int, rng: random.Random) -> None:
    data[at:at] = rng.randbytes(rng.choice((1, 4, 8, 32)))


def _copy(data: bytearray, at: int, rng: random.Random) -> None:
    """Another part of the file: repeated names, keys and offsets."""
    size, source = rng.choice((4, 8, 24, 64)), rng.randrange(len(data))
    data[at : at + size] = data[source : source + size]


_MUTATIONS: tuple[Callable[[bytearray, int, random.Random], None], ...] = (
    _flip, _flip, _byte, _number, _number, _number_of_list, _cut, _remove, _insert, _copy,
)  # fmt: skip


def _interesting(data: bytes) -> list[int]:
    """Starts of keys, names and what follows them: where numbers are."""
    places: list[int] = []
    for word in (
        b"llama.",
        b"gemma3.",
        b"deepseek2.",
        b"tokenizer.",
        b"general.",
        b"blk.",
        b"token_embd",
    ):
        at = data.find(word)
        while at >= 0:
            places.append(at)
            at = data.find(word, at + 1)
    return places


def mutants(files: list[bytes], count: int, seed: int) -> Iterator[bytes]:
    """Files with one to three changes, half of them near a key or a tensor's name."""
    rng = random.Random(seed)
    places = [_interesting(data) for data in files]
    for _ in range(count):
        which = rng.randrange(len(files))
        data = bytearray(files[which])
        for _ in range(rng.choice((1, 1, 2, 3))):
            if not data:
                break
            if rng.random() < 0.6:
                at = rng.choice(places[which]) + rng.randrange(-16, 64)
            else:
                at = rng.randrange(len(data))
            rng.choice(_MUTATIONS)(data, max(0, min(at, len(data) - 1)), rng)
        yield bytes(data)
