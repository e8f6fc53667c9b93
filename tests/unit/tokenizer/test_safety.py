"""One tokenizer in many threads and processes, for a long time."""

import multiprocessing
import operator
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from lmworks.base.errors import ConfigError
from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.compare import KINDS, train_kind
from lmworks.tokenizer.template import Template

TEXT = "the fox doesn't sleep 123 中文。\n" * 20
MEGABYTE = 1 << 20


def random_text(rng: np.random.Generator, num_bytes: int) -> str:
    """Words of random letters, nearly all different; one in five is longer than 15 letters."""
    letters = rng.integers(97, 123, num_bytes, dtype=np.uint8)
    ends = np.cumsum(np.where(rng.random(num_bytes // 4) < 0.2, rng.integers(16, 60), 9))
    letters[ends[ends < num_bytes]] = 32
    return letters.tobytes().decode()


@pytest.mark.parametrize("kind", KINDS)
def test_a_spawned_process_gets_the_same_tokenizer(kind: str) -> None:
    tokenizer = train_kind(kind, [TEXT], vocab_size=300, pattern="gpt2")
    tokenizer.template = Template.around(bos_id=tokenizer.eot_id)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(operator.methodcaller("prepare", TEXT), (tokenizer,))
    assert there.flat_ids.tolist() == tokenizer.prepare(TEXT).flat_ids.tolist()
    assert there.flat_ids[0] == tokenizer.eot_id


def encode_until(stop: threading.Event, tokenizer: Tokenizer, text: str) -> None:
    while not stop.is_set():
        tokenizer.encode_batch_to_numpy([text] * 4, num_threads=2)


@pytest.fixture
def busy(gpt2: BPETokenizer) -> Iterator[None]:
    """Meanwhile another thread encodes with the same tokenizer."""
    stop = threading.Event()
    text = random_text(np.random.default_rng(0), MEGABYTE // 4)
    thread = threading.Thread(target=encode_until, args=(stop, gpt2, text))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("busy")
def test_a_process_forked_while_a_thread_encodes_can_encode(gpt2: BPETokenizer) -> None:
    wanted = gpt2.encode(TEXT)
    for _ in range(20):
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # a deadlock ends here
            found = gpt2.encode_batch([TEXT] * 2, num_threads=2)
            os._exit(0 if found == [wanted] * 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_encode_what_the_parent_would(gpt2: BPETokenizer) -> None:
    texts = [TEXT[i : i + 200] for i in range(200)]
    gpt2.encode_batch(texts, num_threads=2)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(gpt2.encode, texts) == gpt2.encode_batch(texts, num_threads=1)


def test_threads_share_one_tokenizer(gpt2: BPETokenizer) -> None:
    rng = np.random.default_rng(1)
    texts = [TEXT + random_text(rng, 20_000) for _ in range(24)]
    fresh: BPETokenizer = pickle.loads(pickle.dumps(gpt2))
    wanted = [fresh.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            assert list(pool.map(gpt2.encode, texts)) == wanted


def test_other_threads_run_while_one_encodes(gpt2: BPETokenizer) -> None:
    text = random_text(np.random.default_rng(2), 4 * MEGABYTE)
    done = threading.Event()

    def encode() -> None:
        gpt2.encode_to_numpy(text)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    num_steps = 0
    while not done.is_set():
        num_steps += 1
    thread.join()
    # One native call from begin to end: holding the lock it would let nothing else run.
    assert num_steps > 1000


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_stays_flat_over_endless_new_words(gpt2: BPETokenizer) -> None:
    tokenizer: BPETokenizer = pickle.loads(pickle.dumps(gpt2))
    rng = np.random.default_rng(3)

    def encode(num_megabytes: int) -> int:
        for _ in range(num_megabytes):
            tokenizer.encode_to_numpy(random_text(rng, MEGABYTE))
        return resident_bytes()

    # Full, and emptied several times, after the first million of different words. Without a limit
    # the two millions that follow would take about 100 MB.
    tokenizer.max_cache_slots = 1 << 16
    full = encode(10)
    assert encode(20) - full < 16 * MEGABYTE


def test_the_cache_can_be_small_and_emptied_and_changes_no_ids(gpt2: BPETokenizer) -> None:
    tokenizer: BPETokenizer = pickle.loads(pickle.dumps(gpt2))
    texts = [TEXT + random_text(np.random.default_rng(i), 100_000) for i in range(3)]
    wanted = tokenizer.encode_batch(texts, num_threads=1)
    for max_cache_slots in (1, 64, 5_000):
        tokenizer.max_cache_slots = max_cache_slots
        for num_threads in (1, 3):
            assert tokenizer.encode_batch(texts * 2, num_threads=num_threads) == wanted * 2
        tokenizer.clear_cache()
        assert [tokenizer.encode(text) for text in texts] == wanted
        assert pickle.loads(pickle.dumps(tokenizer)).max_cache_slots == max_cache_slots
    with pytest.raises(ConfigError, match="max_cache_slots=0 must be 1 or more"):
        tokenizer.max_cache_slots = 0
