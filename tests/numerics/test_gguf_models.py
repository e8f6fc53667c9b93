"""Real models from GGUF files: logits, greedy text and token ids equal those of others."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lmworks.models import gguf
from lmworks.tokenizer import gguf as vocabulary_of
from lmworks.tokenizer import gguf_metadata
from lmworks.tokenizer.sentencepiece import SentencePieceTokenizer

pytestmark = pytest.mark.slow

TEXTS = (
    "The capital of France is Paris, and 2+2=4.\n def f(x):",
    "Once upon a time there was a little girl who lived in a village near the forest.",
    "import numpy as np\n\ndef softmax(x):\n    e = np.exp(x - x.max())\n",
    "Größe 中文 🙂 naïve café — «добрый день»",
    "The quick brown fox jumps over the lazy dog. " * 12,
)
NUM_GREEDY = 64
# Two fp32 programs that sum in another order; each is 1e-4 from the same model in fp64.
TOLERANCE = 2e-4
EXAMPLE = Path(__file__).parents[2] / "examples/text/emma.txt"
_CHUNK = 100_000


@pytest.fixture(scope="module", params=["smollm2_file", "gemma3_file"])
def file(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def greedy(model: Any, ids: list[int]) -> list[int]:
    cache = model.new_cache(batch_size=1)
    new, fed = [], ids
    for _ in range(NUM_GREEDY):
        logits = model(torch.tensor([fed]), cache=cache)
        new.append(int(logits[0, -1].argmax()))
        fed = new[-1:]
    return new


def test_logits_and_greedy_text_equal_transformers(
    file: Path, transformers_of_gguf: Callable[[Path], Any]
) -> None:
    ours, peer = gguf.load(file), transformers_of_gguf(file)
    bos = [ours.special_ids["bos"]]
    with torch.inference_mode():
        for text in TEXTS:
            ids = bos + list(map(int, ours.tokenizer.encode(text)))
            tokens = torch.tensor([ids])
            difference = (ours.model(tokens) - peer(tokens).logits).abs().max()
            assert difference < TOLERANCE, text
        ids = bos + list(map(int, ours.tokenizer.encode(TEXTS[1])))
        wanted = peer.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids)),
            max_new_tokens=NUM_GREEDY,
            min_new_tokens=NUM_GREEDY,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert greedy(ours.model, ids) == wanted[0, len(ids) :].tolist()


def test_windows_equal_transformers_beyond_their_size(
    gemma3_file: Path, transformers_of_gguf: Callable[[Path], Any]
) -> None:
    """700 tokens are more than Gemma 3's window of 512.

    In fp64 what is left is transformers' angles, in fp32: off by 700 * 2^-24 rad = 4e-5 at the end,
    which moves logits of 40 by 4e-4. A window one token narrower moves them by 0.8.
    """
    ours, peer = gguf.load(gemma3_file), transformers_of_gguf(gemma3_file)
    ids = ours.tokenizer.encode(TEXTS[0] * 40)[:700]
    assert len(ids) == 700
    tokens = torch.tensor([list(map(int, ids))])
    with torch.inference_mode():
        found = ours.model.double()(tokens)[0, -100:]
        wanted = peer.double()(tokens).logits[0, -100:]
    assert (found - wanted).abs().max() < 2e-3


# ---- token ids ----


def peer_encode(file: Path) -> Callable[[str], list[int]]:
    """A peer's encoder of plain text, with the file's own vocabulary."""
    tokenizer = vocabulary_of.load(file)
    if isinstance(tokenizer, SentencePieceTokenizer):
        return _sentencepiece(tokenizer)
    return _tokenizers(gguf_metadata.read(file))


def _tokenizers(pairs: dict[str, Any]) -> Callable[[str], list[int]]:
    """With the steps of SmolLM2's tokenizer.json (transformers leaves the first out for GGUF)."""
    tokenizers = pytest.importorskip("tokenizers")
    assert pairs["tokenizer.ggml.pre"] == "smollm"
    vocabulary = {text: i for i, text in enumerate(pairs["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in pairs["tokenizer.ggml.merges"]]
    peer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    steps = tokenizers.pre_tokenizers
    peer.pre_tokenizer = steps.Sequence(
        [steps.Digits(individual_digits=True), steps.ByteLevel(add_prefix_space=False)]
    )
    return lambda text: list(peer.encode(text, add_special_tokens=False).ids)


def _sentencepiece(tokenizer: SentencePieceTokenizer) -> Callable[[str], list[int]]:
    sentencepiece = pytest.importorskip("sentencepiece")
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    vocabulary = tokenizer.vocabulary
    assert vocabulary.scores is not None
    for piece, kind, score in zip(
        vocabulary.pieces, vocabulary.types, vocabulary.scores, strict=True
    ):
        proto.pieces.add(piece=piece, score=score, type=int(kind))
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    trainer.model_type, trainer.byte_fallback = trainer.BPE, True
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = 3, 2, 1, 0
    normalizer.name, normalizer.add_dummy_prefix = "identity", False
    normalizer.remove_extra_whitespaces = False
    peer = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    return lambda text: list(peer.encode(text))


def texts() -> Iterator[str]:
    """The text that LMWORKS_TOKENIZER_TEXT names, or an example, in pieces."""
    path = Path(os.environ.get("LMWORKS_TOKENIZER_TEXT", EXAMPLE))
    with path.open(encoding="utf-8", newline="") as text:
        while chunk := text.read(_CHUNK):
            yield chunk


def hostile_strings(count: int) -> Iterator[str]:
    """Any characters, few characters, runs, and the spellings of special tokens and pieces."""
    rng = random.Random(0)
    names = ["<s>", "</s>", "<bos>", "<|im_start|>", "<0x0A>", "<unk>", "▁", "▁▁", "[PAD1]", "Ġ"]
    runs = [" ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "1", "a", "é", "e\u0301", "👩‍👩‍👧", "\x00"]
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 12)):
            kind = rng.randrange(5)
            if kind == 0:
                parts.append(rng.choice(names))
            elif kind == 1:
                parts.append(rng.choice(runs) * rng.choice((1, 2, 3, 7, 16, 31, 33, 70)))
            elif kind == 2:
                parts.append("".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(20))))
            else:
                top = rng.choice((0x300, 0x3000, 0x11000, 0x110000))
                points = [rng.randrange(top) for _ in range(rng.randrange(8))]
                parts.append("".join(chr(p) for p in points if not 0xD800 <= p < 0xE000))
        yield "".join(parts)


def test_token_ids_equal_a_peers_and_decode_exactly(file: Path) -> None:
    tokenizer, encode = vocabulary_of.load(file), peer_encode(file)
    spelled = _speller(tokenizer)
    for text in [*hostile_strings(2000), *texts()]:
        ids = [int(i) for i in tokenizer.encode(text, allowed_special=(), disallowed_special=())]
        assert ids == encode(text), repr(text[:200])
        assert spelled(tokenizer.decode(ids)) == spelled(text)


def _speller(tokenizer: Any) -> Callable[[str], str]:
    """What tokens can say of a text: SentencePiece writes a "▁" of the text as it writes spaces;
    bytes that SmolLM2's vocabulary has no token for (some control characters) are left out."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return lambda text: text.replace("▁", " ")
    single = {token[0] for token in tokenizer.tokens if token is not None and len(token) == 1}
    missing = bytes(byte for byte in range(256) if byte not in single)
    return lambda text: text.encode().translate(None, missing).decode("utf-8", "replace")
