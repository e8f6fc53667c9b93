"""Batches of token windows: shuffled without replacement, at random, or in order; exact resume.

    loader = Loader(open_shards("tokens/train"), batch_size=16, context_length=256, seed=0)
    batch = loader.next_batch()              # inputs_BT, targets_BT (-100 = no target)
    state = loader.state_dict()              # a few integers and strings, ready for JSON

The stream. All N tokens stand in a circle; every document ends with the end-of-text token, so the
circle closes at a document's end and "the token before" always exists. A window that starts at s
has the T targets s .. s+T-1 and as inputs the tokens just before each of them: the first token of a
document is predicted from the end-of-text token before it, as in generation from an empty prompt.

Orders (windows of T = context_length targets):
  shuffled    Epoch e walks W = N // T windows that tile the circle from an offset in [0, N) drawn
              for e, so every token is a target once per epoch, but for the N % T that this offset
              leaves out, and window borders differ between epochs. Their order is a permutation of
              [0, W) computed for one index at a time (`permute`): no list, no state, O(1) seek.
  random      Every window starts anywhere, drawn by a counter-based generator; no epochs.
  sequential  For evaluation: every token is a target exactly once per pass; the end of the last
              batch is padded (targets -100), then the pass starts again. See `one_pass`.

State. The only thing that moves is `position`, the number of windows taken so far: window number n
depends on the seed and on n alone. So resuming costs nothing, the batch size may change on resume
(the stream of windows stays the same), and with several ranks `batch_size` is that of all ranks
together, each taking its slice of the same batch: the stream does not depend on the world size.

Documents. With `separate_documents` a batch carries `document_ids_BT`, counting up along a row from
0; attention must stay within equal ids. As an input, an end-of-text token belongs to the document
that it opens: so packed training equals training on each document alone behind one end-of-text
token, and no target is lost at a border.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from jaxtyping import Int

from lmworks.base.errors import CheckpointError, ConfigError, DataError
from lmworks.data.shard import ShardSet

IGNORE_INDEX = -100

Order = Literal["shuffled", "random", "sequential"]

_STATE_VERSION = 1
_ROUNDS = 4
_U64 = np.uint64

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's windows; B = batch_size / world_size rows of T = context_length."""

    inputs_BT: Int[np.ndarray, "batch tokens"]
    targets_BT: Int[np.ndarray, "batch tokens"]
    """The token after each input; -100 where the row is padding (order sequential only)."""
    document_ids_BT: Int[np.ndarray, "batch tokens"] | None
    """int32, counts up from 0 along each row; None without separate_documents."""


class Loader:
    """An endless stream of batches over `shards`; see the top of this file for the rules.

    Raises:
        ConfigError: an argument is out of range.
        DataError: `context_length` is longer than the data (orders shuffled and random).
    """

    def __init__(
        self,
        shards: ShardSet,
        *,
        batch_size: int,
        context_length: int,
        seed: int = 0,
        order: Order = "shuffled",
        separate_documents: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        _check_stream(batch_size, context_length, seed, order)
        _check_ranks(batch_size, rank, world_size)
        if order != "sequential" and context_length > shards.num_tokens:
            raise DataError(
                f"context_length={context_length} is longer than the {shards.num_tokens} tokens in"
                f" {shards.path}; at most {shards.num_tokens} is possible, or pack more text"
            )
        self.shards = shards
        self.batch_size = batch_size
        self.context_length = context_length
        self.seed = seed
        self.order = order
        self.separate_documents = separate_documents
        self.position = 0
        """Windows taken so far, by all ranks together."""
        rows = batch_size // world_size
        self._rows = np.arange(rank * rows, (rank + 1) * rows, dtype=np.int64)

    @property
    def num_windows(self) -> int:
        """Windows per epoch (shuffled) or pass (sequential); random counts as shuffled does."""
        whole, rest = divmod(self.shards.num_tokens, self.context_length)
        return whole + bool(rest) if self.order == "sequential" else whole

    @property
    def num_batches(self) -> int:
        """Batches per epoch, rounded down, or per pass, rounded up."""
        if self.order == "sequential":
            return -(-self.num_windows // self.batch_size)
        return self.num_windows // self.batch_size

    def next_batch(self) -> Batch:
        """The next batch; costs a few tens of microseconds plus the reading of the tokens.

        Raises:
            DataError: the shard holds ids that its manifest excludes: it was damaged.
        """
        numbers = self.position + self._rows
        starts, num_targets = self._windows(numbers)
        batch = self._read(starts, num_targets)
        self.position += self.batch_size
        if self.order == "sequential" and self.position >= self.num_windows:
            self.position = 0
        return batch

    def one_pass(self) -> Iterator[Batch]:
        """All batches of one sequential pass, from the start; the position ends where it began."""
        if self.order != "sequential":
            raise ConfigError(f"one_pass needs order='sequential', this loader has {self.order!r}")
        self.position = 0
        for _ in range(self.num_batches):
            yield self.next_batch()

    def state_dict(self) -> dict[str, int | str]:
        """Where the stream stands, and what it is a stream of; a few JSON values."""
        return {"version": _STATE_VERSION, "position": self.position, **self._identity()}

    def load_state_dict(self, state: dict[str, int | str]) -> None:
        """Go on where `state` was taken; the batch size and the ranks may differ.

        Raises:
            CheckpointError: the state is of other data or settings, which the message names.
        """
        expected: dict[str, int | str] = {"version": _STATE_VERSION, **self._identity()}
        if missing := sorted({*expected, "position"} - state.keys()):
            raise CheckpointError(f"the loader state lacks {', '.join(missing)}; it is damaged")
        position = state["position"]
        if not isinstance(position, int) or position < 0:
            raise CheckpointError(f"the loader state has position={position!r}; it is damaged")
        for key, now in expected.items():
            if state[key] != now:
                advice = (
                    "resume with the data it was trained on"
                    if key == "data"
                    else "resume with the same value, or start a new run"
                )
                raise CheckpointError(
                    f"the saved position belongs to another stream: {_NAMES.get(key, key)} was"
                    f" {state[key]!r}, is now {now!r}; {advice}"
                )
        self.position = position

    def _identity(self) -> dict[str, int | str]:
        return {
            "data": self.shards.fingerprint[:32],
            "num_tokens": self.shards.num_tokens,
            "context_length": self.context_length,
            "seed": self.seed,
            "order": self.order,
        }

    def _windows(self, numbers: Array) -> tuple[Array, list[int]]:
        """Where the windows with these numbers start, and how many targets each has."""
        length, num_tokens = self.context_length, self.shards.num_tokens
        full = [length] * len(numbers)
        if self.order == "sequential":
            starts = numbers * length
            targets = np.clip(num_tokens - starts, 0, length)
            return starts, targets.tolist()
        if self.order == "random":
            return _random_offsets(numbers, self.seed, num_tokens), full
        starts = np.empty_like(numbers)
        epochs = numbers // self.num_windows
        # A batch may end one epoch and begin the next (or, with little data, several).
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            here = epochs == epoch
            index = permute(numbers[here] % self.num_windows, self.num_windows, self.seed, epoch)
            offset = _keys(self.seed, epoch)[-1] % num_tokens
            starts[here] = (offset + index * length) % num_tokens
        return starts, full

    def _read(self, starts: Array, num_targets: list[int]) -> Batch:
        length, manifest = self.context_length, self.shards.manifest
        rows = np.full((len(starts), length + 1), manifest.eot_id, dtype=np.int64)
        for row, start, count in zip(rows, starts.tolist(), num_targets, strict=True):
            if count:
                self._read_circle(row[: count + 1], start - 1)
        largest = int(rows.max())
        if largest >= manifest.vocab_size:
            raise DataError(
                f"{self.shards.path}: token id {largest} is not below"
                f" vocab_size={manifest.vocab_size}: a shard was damaged after packing;"
                f" `lmworks data inspect {self.shards.path} --verify` finds which"
            )
        inputs = np.ascontiguousarray(rows[:, :-1])
        targets = np.ascontiguousarray(rows[:, 1:])
        for i, count in enumerate(num_targets):
            targets[i, count:] = IGNORE_INDEX
        documents = _document_ids(inputs, manifest.eot_id) if self.separate_documents else None
        return Batch(inputs, targets, documents)

    def _read_circle(self, out: Array, start: int) -> None:
        num_tokens = self.shards.num_tokens
        start %= num_tokens
        filled = 0
        while filled < len(out):
            count = min(len(out) - filled, num_tokens - start)
            self.shards.read_into(out[filled : filled + count], start)
            filled, start = filled + count, 0


def permute(index: Array, size: int, seed: int, epoch: int) -> Array:
    """Image of each `index` under the pseudo-random permutation of [0, size) of a seed and epoch.

    Multiply, add and xor-shift are each a bijection of the `bits`-bit integers, so a few rounds of
    them are; what lands at or above `size` is mapped again until it lands below (cycle walking:
    Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, section 3), which keeps
    it a bijection of [0, size). Under half of the integers are above: two walks on average at most.
    """
    bits = max(1, (size - 1).bit_length())
    mask = _U64((1 << bits) - 1)
    shift = _U64((bits + 1) // 2)
    keys = _keys(seed, epoch)
    multipliers = [_U64(key | 1) for key in keys[:_ROUNDS]]
    addends = [_U64(key) for key in keys[_ROUNDS : 2 * _ROUNDS]]
    value = index.astype(_U64)
    outside = np.ones(len(value), dtype=bool)
    while outside.any():
        mixed = value[outside]
        for multiplier, addend in zip(multipliers, addends, strict=True):
            mixed = (mixed * multiplier + addend) & mask
            mixed ^= mixed >> shift
        value[outside] = mixed
        outside = value >= _U64(size)
    return value.astype(np.int64)


@lru_cache(maxsize=16)
def _keys(seed: int, epoch: int) -> tuple[int, ...]:
    """Nine 64-bit numbers: multipliers, addends and the offset of an epoch."""
    text = f"lmworks.loader/{_STATE_VERSION}/{seed}/{epoch}".encode()
    digest = hashlib.shake_256(text).digest(8 * (2 * _ROUNDS + 1))
    return tuple(int.from_bytes(digest[i : i + 8], "little") for i in range(0, len(digest), 8))


def _random_offsets(numbers: Array, seed: int, num_tokens: int) -> Array:
    """SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) at these counters, modulo num_tokens."""
    increment = 0x9E3779B97F4A7C15
    value = numbers.astype(_U64) * _U64(increment) + _U64(_keys(seed, 0)[0])
    value = (value ^ (value >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> _U64(27))) * _U64(0x94D049BB133111EB)
    value ^= value >> _U64(31)
    return (value % _U64(num_tokens)).astype(np.int64)


def _document_ids(inputs_BT: Array, eot_id: int) -> Array:
    ids_BT = np.cumsum(inputs_BT == eot_id, axis=1, dtype=np.int32)
    return ids_BT - ids_BT[:, :1]


def _check_stream(batch_size: int, context_length: int, seed: int, order: str) -> None:
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("context_length", context_length, 1),
        ("seed", seed, 0),
    ):
        if value < least:
            raise ConfigError(f"{name}={value} must be at least {least}")
    if order not in get_args(Order):
        raise ConfigError(f"order={order!r}; allowed: {', '.join(get_args(Order))}")


def _check_ranks(batch_size: int, rank: int, world_size: int) -> None:
    if world_size < 1:
        raise ConfigError(f"world_size={world_size} must be at least 1")
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank={rank} must be at least 0 and below world_size={world_size}")
    if batch_size % world_size:
        nearest = -(-batch_size // world_size) * world_size
        raise ConfigError(
            f"batch_size={batch_size} is not a multiple of world_size={world_size};"
            f" nearest above: {nearest}"
        )


_NAMES = {"data": "the data set", "num_tokens": "the number of tokens"}
