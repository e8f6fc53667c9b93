"""`lmworks eval` on a real model gives the figures that transformers gives."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from lmworks.eval.perplexity import evaluate_text
from lmworks.models.pretrained import open_run

EXAMPLE = Path(__file__).parents[2] / "examples/text/emma.txt"
TEXT_BYTES = int(os.environ.get("LMWORKS_EVAL_BYTES", "20000"))
CONTEXT = 1024


def read_text() -> str:
    """The beginning of the text that LMWORKS_EVAL_TEXT names, or of one of the examples."""
    with Path(os.environ.get("LMWORKS_EVAL_TEXT", EXAMPLE)).open("rb") as file:
        return file.read(TEXT_BYTES).decode("utf-8", "ignore")


def peer_nats(peer: Any, ids: list[int], *, context: int, stride: int) -> float:
    """Sliding windows with transformers alone: ids[0] is given, each later token counts once."""
    nats, scored = 0.0, 1
    while scored < len(ids):
        first_end = scored == 1
        end = min(scored + (context if first_end else stride), len(ids))
        begin = max(0, end - 1 - context)
        with torch.inference_mode():
            logits = peer(torch.tensor([ids[begin : end - 1]])).logits[0, scored - 1 - begin :]
            targets = torch.tensor(ids[scored:end])
            # In float32 torch's log_softmax is 1e-5 nats per token off at this vocabulary.
            nats += cross_entropy(logits.double(), targets, reduction="sum").item()
        scored = end
    return nats


@pytest.mark.slow
@pytest.mark.parametrize("stride", [CONTEXT, CONTEXT // 2])
def test_the_perplexity_of_smollm2_equals_transformers(
    smollm2_file: Path, transformers_of_gguf: Callable[[Path], Any], stride: int
) -> None:
    run, peer = open_run(smollm2_file), transformers_of_gguf(smollm2_file)
    text = read_text()[: TEXT_BYTES * stride // CONTEXT]  # overlapping windows take twice as long
    report = evaluate_text(
        run.model,
        run.tokenizer,
        text,
        special_ids=run.special_ids,
        context_length=CONTEXT,
        stride=stride,
    )
    # Token ids are compared with a peer's in test_gguf_models.py.
    ids = [run.special_ids["bos"], *run.tokenizer.encode(text, disallowed_special=())]
    nats = peer_nats(peer, ids, context=CONTEXT, stride=stride)
    assert report.num_tokens == len(ids) - 1
    peer_perplexity = math.exp(nats / report.num_tokens)
    print(f"{report.perplexity:.6f} {peer_perplexity:.6f} {report.bits_per_byte:.6f} bits per byte")
    # Logits of the two differ by up to 1e-4 with either sign, the mean over all tokens by the
    # square root of their number less.
    assert report.perplexity == pytest.approx(peer_perplexity, rel=3e-6)
