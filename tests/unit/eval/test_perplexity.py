"""Scores equal a token-by-token computation; windows cover each token exactly once."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmworks.base.errors import ConfigError, DataError
from lmworks.data.shard import ShardWriter, open_shards
from lmworks.eval.perplexity import Document, evaluate_shards, evaluate_text, score, windows
from lmworks.eval.start import Start, start_of_text
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.tokenizer import Template
from lmworks.tokenizer.byte import ByteTokenizer

TOKENIZER = ByteTokenizer()
EOT = 256
CONTEXT = 8


def make_model(**options: Any) -> Decoder:
    config = {
        "vocab_size": TOKENIZER.vocab_size,
        "max_seq_len": CONTEXT,
        "d_model": 16,
        "num_layers": 2,
        "attention": {"num_heads": 2},
        "mlp": {},
        "init": {"std": 0.3},
    }
    return Decoder(ModelConfig.model_validate({**config, **options})).eval()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only wait for their threads, above all beside other tests."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def model() -> Decoder:
    return make_model()


def brute_force(model: Decoder, ids: list[int], *, context: int, stride: int) -> float:
    """-ln p of each token on its own, from exactly the tokens that its window lets it see."""
    sequence = [EOT, *ids]
    nats = 0.0
    for t, token in enumerate(ids):
        begin = 0
        if t >= context:
            end = min(context + ((t - context) // stride + 1) * stride, len(ids))
            begin = end - context
        with torch.inference_mode():
            logits = model(torch.tensor([sequence[begin : t + 1]]))[0, -1].double()
        nats -= float(logits.log_softmax(-1)[token])
    return nats


@given(st.integers(1, 60), st.integers(1, 20), st.data())
def test_each_token_is_scored_exactly_once(n: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    found = list(windows(n, context_length=context, stride=stride))
    scored = [t for w in found for t in range(w.first, w.end)]
    assert scored == list(range(n))
    assert all(w.end - w.begin == min(context, n) for w in found)
    assert all(w.first - w.begin >= context - stride for w in found[1:])


@pytest.mark.parametrize("stride", [1, 3, CONTEXT])
@pytest.mark.parametrize("length", [1, 2, CONTEXT - 1, CONTEXT, CONTEXT + 1, 29])
def test_the_score_equals_token_by_token_scoring(model: Decoder, length: int, stride: int) -> None:
    text = "It is a truth universally acknowledged"[:length]
    report = evaluate_text(model, TOKENIZER, text, stride=stride, batch_size=3)
    want = brute_force(model, list(text.encode()), context=CONTEXT, stride=stride)
    assert report.nats == pytest.approx(want, rel=1e-5)
    assert (report.num_tokens, report.num_bytes) == (length, length)


def test_a_shorter_context_than_the_models_is_respected(model: Decoder) -> None:
    ids = list(b"acknowledged")
    report = evaluate_text(model, TOKENIZER, "acknowledged", stride=2, context_length=4)
    assert report.nats == pytest.approx(brute_force(model, ids, context=4, stride=2), rel=1e-5)


def test_soft_capped_logits_are_scored_as_such() -> None:
    capped = make_model(logit_softcap=2.0)
    report = evaluate_text(capped, TOKENIZER, "truth", stride=CONTEXT)
    want = brute_force(capped, list(b"truth"), context=CONTEXT, stride=CONTEXT)
    assert report.nats == pytest.approx(want, rel=1e-5)


def test_the_figures_follow_from_nats_tokens_and_bytes(model: Decoder) -> None:
    report = evaluate_text(model, TOKENIZER, "añ€", stride=CONTEXT)
    assert report.num_bytes == 6
    assert report.loss == report.nats / 6
    assert report.perplexity == pytest.approx(math.exp(report.loss))
    assert report.bits_per_byte == pytest.approx(report.nats / math.log(2) / 6)


def test_a_uniform_model_needs_eight_bits_per_byte() -> None:
    model = make_model(vocab_size=257)
    torch.nn.init.zeros_(model.head.weight)
    report = evaluate_text(model, TOKENIZER, "x" * 20, stride=4)
    assert report.bits_per_byte == pytest.approx(math.log2(257))
    assert report.perplexity == pytest.approx(257)


def test_batch_size_does_not_change_the_score(model: Decoder) -> None:
    scores = [
        evaluate_text(model, TOKENIZER, "x y z " * 9, stride=3, batch_size=b).nats
        for b in (1, 4, 50)
    ]
    assert scores == pytest.approx([scores[0]] * 3, rel=1e-6)


def test_without_end_of_text_the_first_token_is_not_scored(model: Decoder) -> None:
    report = evaluate_text(model, ByteTokenizer(()), "abc", stride=CONTEXT)
    assert (report.num_tokens, report.num_bytes) == (2, 2)


@pytest.mark.parametrize(("tokenizer", "text"), [(TOKENIZER, ""), (ByteTokenizer(()), "a")])
def test_a_text_with_nothing_to_score_is_refused(
    model: Decoder, tokenizer: ByteTokenizer, text: str
) -> None:
    with pytest.raises(DataError, match="no token to score"):
        evaluate_text(model, tokenizer, text, stride=1)


BOS = 3


def brute_force_after_bos(model: Decoder, ids: list[int], *, context: int, stride: int) -> float:
    """As `brute_force`, where each window begins with BOS and holds one token of the text less."""
    nats, room = 0.0, context - 1
    for t, token in enumerate(ids):
        begin = 0
        if t >= room:
            begin = min(room + ((t - room) // stride + 1) * stride, len(ids)) - room
        seen = [BOS, *ids[max(begin - 1, 0) : t]]
        with torch.inference_mode():
            nats -= float(model(torch.tensor([seen]))[0, -1].double().log_softmax(-1)[token])
    return nats


@pytest.mark.parametrize("stride", [2, CONTEXT - 1])
@pytest.mark.parametrize("length", [1, CONTEXT - 1, CONTEXT, 29])
def test_every_window_begins_with_what_the_tokenizer_puts_before_texts(
    model: Decoder, length: int, stride: int
) -> None:
    tokenizer = ByteTokenizer()
    tokenizer.template = Template.around(bos_id=BOS, eos_id=None)
    text = "It is a truth universally acknowledged"[:length]
    report = evaluate_text(model, tokenizer, text, stride=stride, batch_size=3)
    want = brute_force_after_bos(model, list(text.encode()), context=CONTEXT, stride=stride)
    assert report.nats == pytest.approx(want, rel=1e-5)
    assert report.num_tokens == length
    with pytest.raises(ConfigError, match=r"stride=8: must be 1 to 7.*begin every window"):
        evaluate_text(model, tokenizer, text, stride=CONTEXT)


def test_a_text_begins_after_bos_or_end_of_text_whichever_the_model_has() -> None:
    assert start_of_text(TOKENIZER, {"bos": 7, "eos": 8}) == Start((7,))
    assert start_of_text(TOKENIZER, {"eos": 8}) == Start((EOT,))
    assert start_of_text(ByteTokenizer(()), {"eos": 8}) == Start((8,))
    assert start_of_text(ByteTokenizer(())) == Start()
    tokenizer = ByteTokenizer()
    tokenizer.template = Template.around(bos_id=BOS, eos_id=9)
    assert start_of_text(tokenizer, {"bos": 7}) == Start((BOS,), is_repeated=True)


def test_logits_in_parts_sum_to_the_same(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate_text(model, TOKENIZER, "x y z " * 9).nats
    monkeypatch.setattr("lmworks.train.evaluate._MAX_LOGITS_BYTES", 0)
    monkeypatch.setattr("lmworks.train.evaluate._MIN_PART_TOKENS", 3)
    assert evaluate_text(model, TOKENIZER, "x y z " * 9).nats == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0}, "stride=0: must be 1 to 8 .context_length=8"),
        ({"stride": 9}, "stride=9"),
        ({"stride": 1, "context_length": 9}, "context_length=9: must be 1 to .*max_seq_len=8"),
    ],
)
def test_impossible_windows_are_refused(
    model: Decoder, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate_text(model, TOKENIZER, "abc", **options)


def test_special_tokens_in_a_text_are_plain_text(model: Decoder) -> None:
    text = "<|endoftext|>"
    assert evaluate_text(model, TOKENIZER, text, stride=1).num_tokens == len(text)


def test_dropout_is_off_and_the_mode_is_restored() -> None:
    model = make_model(dropout=0.5).train()
    document = Document((EOT,), 3, lambda a, b: np.arange(3)[a:b])
    scores = {score(model, [document], stride=1) for _ in range(2)}
    assert len(scores) == 1
    assert model.training


DOCUMENTS = ["first document", "2nd", "the third of them"]


@pytest.fixture
def shard_folder(tmp_path: Path) -> Path:
    with ShardWriter(tmp_path, vocab_size=257, eot_id=EOT) as writer:
        for text in DOCUMENTS:
            ids = np.array([*text.encode(), EOT])
            writer.append(ids, np.array([len(ids)]), text_bytes=len(text))
        writer.finish(
            tokenizer_kind="byte", tokenizer_fingerprint=TOKENIZER.fingerprint, sources=()
        )
    return tmp_path


def test_shards_are_scored_as_one_stream(model: Decoder, shard_folder: Path) -> None:
    ids = [i for text in DOCUMENTS for i in (*text.encode(), EOT)]
    report = evaluate_shards(model, open_shards(shard_folder), stride=5)
    want = brute_force(model, ids, context=CONTEXT, stride=5)
    assert report.nats == pytest.approx(want, rel=1e-5)
    assert (report.num_tokens, report.num_bytes) == (len(ids), sum(map(len, DOCUMENTS)))


def test_separate_documents_do_not_see_each_other(model: Decoder, shard_folder: Path) -> None:
    report = evaluate_shards(model, open_shards(shard_folder), stride=5, separate_documents=True)
    want = sum(
        brute_force(model, [*text.encode(), EOT], context=CONTEXT, stride=5) for text in DOCUMENTS
    )
    assert report.nats == pytest.approx(want, rel=1e-5)
