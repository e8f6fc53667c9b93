"""Log-likelihoods with a shared cache equal those of every choice computed whole."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lmworks.base.errors import DataError
from lmworks.eval.choice import ChoiceScorer, Pair, encode_pair, fit, token_logprobs
from lmworks.eval.start import Start
from lmworks.models.decoder import Decoder
from lmworks.models.pretrained import Run
from lmworks.tokenizer import ByteTokenizer
from lmworks.tokenizer.train import train_bpe_from_iterator

MakeRun = Callable[..., Run]


def plain_score(model: Decoder, context_ids: list[int], choice_ids: list[int]) -> float:
    """One forward pass over everything, no cache."""
    with torch.inference_mode():
        logits = model(torch.tensor([context_ids + choice_ids]))[0].double().log_softmax(-1)
    first = len(context_ids) - 1
    return sum(logits[first + i, token].item() for i, token in enumerate(choice_ids))


CONTEXTS = [
    "few shots: x. and then",
    "few shots: x. and that",
    "few",
    "few shots: x. and then",
    "zz",
]
CHOICES = ["y", " longer one", "abc"]


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"logit_softcap": 3.0},
        {"attention": {"num_heads": 2, "mask": {"kind": "window", "size": 4}}},
        {
            "attention": {
                "kind": "mla",
                "num_heads": 2,
                "kv_rank": 4,
                "q_rank": 0,
                "nope_dim": 4,
                "rope_dim": 4,
                "v_dim": 4,
            }
        },
        {"position": {"kind": "learned"}},
    ],
)
def test_scores_equal_those_without_any_sharing(
    make_run: MakeRun, options: dict[str, Any], batch_size: int
) -> None:
    run = make_run(**options)
    scorer = ChoiceScorer(run.model, batch_size=batch_size)
    for context in CONTEXTS:
        pair = encode_pair(run.tokenizer, Start(), context, CHOICES)
        want = [plain_score(run.model, pair.context_ids, ids) for ids in pair.choices_ids]
        assert scorer.score(pair) == pytest.approx(want, abs=1e-4)


def test_what_a_context_shares_with_the_one_before_is_not_computed_again(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    seen: list[tuple[int, ...]] = []
    hidden = Decoder.hidden

    def counting(self: Decoder, tokens_BT: torch.Tensor, **options: Any) -> torch.Tensor:
        seen.append(tuple(tokens_BT.shape))
        return hidden(self, tokens_BT, **options)

    monkeypatch.setattr(Decoder, "hidden", counting)
    scorer = ChoiceScorer(run.model)
    for context in ("examples. one", "examples. two"):
        scorer.score(encode_pair(run.tokenizer, Start(), context, ["ab", "cde"]))
    assert seen == [(1, 13), (2, 2), (1, 3), (2, 2)]


def test_a_context_longer_than_the_cache_gets_a_new_one(make_run: MakeRun) -> None:
    run = make_run(context=600)
    scorer = ChoiceScorer(run.model)
    for length in (10, 400, 20):
        pair = Pair(list(range(1, 101)) * 6, [[5, 6], [7]])
        pair = pair._replace(context_ids=pair.context_ids[:length])
        want = [plain_score(run.model, pair.context_ids, ids) for ids in pair.choices_ids]
        assert scorer.score(pair) == pytest.approx(want, abs=1e-4)


def test_blanks_at_the_end_of_a_context_move_to_the_choice() -> None:
    tokenizer = train_bpe_from_iterator(["the cat sat on the mat "] * 50, 300, num_threads=1)
    pair = encode_pair(tokenizer, Start(), "the cat ", ["sat", "mat"])
    assert pair == encode_pair(tokenizer, Start(), "the cat", [" sat", " mat"])
    assert pair.choices_ids == [tokenizer.encode(" sat"), tokenizer.encode(" mat")]
    assert len(pair.choices_ids[0]) == 1


def test_a_context_that_the_tokenizer_begins_begins_so() -> None:
    tokenizer = ByteTokenizer()
    assert encode_pair(tokenizer, Start((3,), True), "a", ["b"]) == ([3, 97], [[98]])
    assert encode_pair(tokenizer, Start((3,)), "a", ["b"]) == ([97], [[98]])


def test_an_empty_context_is_what_begins_a_text() -> None:
    tokenizer = ByteTokenizer()
    assert encode_pair(tokenizer, Start((3,)), "", ["b"]) == ([3], [[98]])
    assert encode_pair(tokenizer, Start((3,)), " ", ["b"]) == ([3], [[32, 98]])
    with pytest.raises(DataError, match="no token to begin a text with"):
        encode_pair(tokenizer, Start(), "", ["b"])


def test_a_choice_that_merges_into_the_context_is_refused() -> None:
    tokenizer = train_bpe_from_iterator(["sat"] * 50, 260, num_threads=1)
    assert len(tokenizer.encode("sat")) == 1
    with pytest.raises(DataError, match="'at' has no token of its own"):
        encode_pair(tokenizer, Start(), "s", ["at"])


def test_special_tokens_in_questions_are_plain_text() -> None:
    tokenizer = ByteTokenizer()
    text = "<|endoftext|>"
    assert encode_pair(tokenizer, Start(), text, [text]).context_ids == list(text.encode())


def test_a_long_context_loses_its_beginning_but_not_what_begins_every_text() -> None:
    assert fit([1, 2, 3, 4, 5], num_kept=1, room=3) == [1, 4, 5]
    assert fit([1, 2, 3, 4, 5], num_kept=1, room=1) == [1]
    assert fit([1, 2, 3], num_kept=0, room=3) == [1, 2, 3]


def test_logits_in_parts_give_the_same(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_run().model
    hidden, targets = torch.randn(11, 16), torch.arange(11)
    whole = token_logprobs(model, hidden, targets)
    monkeypatch.setattr("lmworks.train.evaluate._MAX_LOGITS_BYTES", 0)
    monkeypatch.setattr("lmworks.train.evaluate._MIN_PART_TOKENS", 4)
    assert torch.allclose(token_logprobs(model, hidden, targets), whole, rtol=0, atol=1e-6)
