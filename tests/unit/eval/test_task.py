"""Outcomes and figures of questions, normalization of answers."""

import math
from collections.abc import Callable

import pytest
import torch

from lmworks.base.errors import ConfigError, DataError
from lmworks.eval.exact_match import matches, normalized
from lmworks.eval.task import Figure, Outcome, answers, chance, summary
from lmworks.eval.task_file import ChoiceItem, GenerationItem, Item
from lmworks.models.pretrained import Run
from lmworks.serve.generate import generate
from lmworks.serve.sampling import SamplingConfig
from lmworks.tokenizer.chat_template import ChatTemplate

MakeRun = Callable[..., Run]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<bot>"


def ask(run: Run, item: Item, **options: bool) -> Outcome:
    [outcome] = answers(run, {7: item}, **options)
    return outcome


def plain_score(run: Run, context: str, continuation: str) -> float:
    ids = list((context + continuation).encode())
    with torch.inference_mode():
        logprobs = run.model(torch.tensor([ids]))[0].double().log_softmax(-1)
    n = len(context.encode())
    return sum(logprobs[t - 1, ids[t]].item() for t in range(n, len(ids)))


def test_the_likeliest_choice_is_the_answer_raw_per_byte_and_per_token(make_run: MakeRun) -> None:
    run = make_run()
    choices = ["b", "é", "a long one", "another"]
    item = ChoiceItem(id="q", examples="E. ", context="Q:", choices=choices, label=0)
    outcome = ask(run, item)
    scores = [plain_score(run, "E. Q:", " " + choice) for choice in choices]
    assert outcome.details["loglikelihoods"] == pytest.approx(scores, abs=1e-4)
    # The delimiter's byte counts as a token here, and never as part of the choice's length.
    assert outcome.details["num_bytes"] == [1, 2, 10, 7]
    assert outcome.details["num_tokens"] == [2, 3, 11, 8]
    predicted = outcome.details["predicted"]
    for name, sizes in (
        ("acc", [1] * 4),
        ("acc_bytes", [1, 2, 10, 7]),
        ("acc_tokens", [2, 3, 11, 8]),
    ):
        ratios = [score / size for score, size in zip(scores, sizes, strict=True)]
        assert predicted[name] == ratios.index(max(ratios))
        assert outcome.is_correct[name] == (predicted[name] == 0)
    assert (outcome.line, outcome.id, outcome.kind, outcome.is_cut) == (7, "q", "choice", False)
    assert len(set(predicted.values())) > 1, "a question on which the figures differ"


def test_a_context_that_is_too_long_is_cut_and_counted(make_run: MakeRun) -> None:
    run = make_run(bos_id=3, context=16)
    item = ChoiceItem(context="0123456789abcdefghij", choices=["x", "yy"], label=0)
    outcome = ask(run, item)
    assert outcome.is_cut
    # " yy" has three tokens, the last of which is not read: 16 - 2 ids, the first of them BOS.
    ids = [3, *b"789abcdefghij"]
    with torch.inference_mode():
        logprobs = run.model(torch.tensor([[*ids, *b" x"]]))[0].double().log_softmax(-1)
    want = logprobs[13, ord(" ")].item() + logprobs[14, ord("x")].item()
    assert outcome.details["loglikelihoods"][0] == pytest.approx(want, abs=1e-4)


def test_a_choice_longer_than_the_model_is_refused_by_its_line(make_run: MakeRun) -> None:
    item = ChoiceItem(context="c", choices=["x", "y" * 30], label=0)
    with pytest.raises(DataError, match=r"line 7: a choice has 31 tokens; .* 16"):
        ask(make_run(context=16), item)


def test_written_answers_are_greedy_and_end_at_stop_strings(make_run: MakeRun) -> None:
    run = make_run(bos_id=3)
    config = SamplingConfig(temperature=0, max_new_tokens=12)
    text = generate(run.model, run.tokenizer, "E. Q:", config).text
    stop = text[4]
    answer = text[: text.index(stop)]
    item = GenerationItem(
        examples="E. ",
        prompt="Q:",
        answer=["no", answer],
        stop=[stop],
        max_new_tokens=12,
        normalize=[],
    )
    outcome = ask(run, item)
    assert outcome.details["text"] == answer
    assert outcome.details["finish_reason"] == "stop"
    assert outcome.is_correct == {"exact_match": True}
    wrong = item.model_copy(update={"answer": [answer + "?"]})
    assert ask(run, wrong).is_correct == {"exact_match": False}


def test_a_prompt_that_is_too_long_keeps_its_end_and_what_begins_every_text(
    make_run: MakeRun,
) -> None:
    run = make_run(bos_id=3, context=16)
    outcome = ask(run, GenerationItem(prompt="0123456789abcdefghij", answer="x", max_new_tokens=4))
    ids = [3, *b"89abcdefghij"]
    config = SamplingConfig(temperature=0, max_new_tokens=4)
    assert outcome.is_cut
    assert outcome.details["text"] == generate(run.model, run.tokenizer, ids, config).text


def test_the_models_stop_tokens_end_an_answer(make_run: MakeRun) -> None:
    run = make_run()
    item = GenerationItem(prompt="Q:", answer="x", max_new_tokens=9)
    first = ask(run, item).details["text"].encode()[0]
    outcome = ask(run._replace(stop_ids=(first,)), item)
    assert outcome.details["text"] == ""
    assert outcome.details["finish_reason"] == "eot"


def test_with_the_chat_template_a_question_is_a_message(make_run: MakeRun) -> None:
    run = make_run()._replace(chat_template=ChatTemplate(TEMPLATE))
    item = ChoiceItem(examples="E ", context="Q", choices=["b", "cd"], label=0)
    outcome = ask(run, item, uses_chat=True)
    want = [plain_score(run, "<user>E Q<bot>", choice) for choice in ("b", "cd")]
    assert outcome.details["loglikelihoods"] == pytest.approx(want, abs=1e-4)
    with pytest.raises(DataError, match=r"line 7: .*<\|endoftext\|>"):
        ask(run, item.model_copy(update={"context": "<|endoftext|>"}), uses_chat=True)
    with pytest.raises(ConfigError, match="no chat template"):
        ask(make_run(), item, uses_chat=True)


def test_figures_are_means_over_the_questions_they_go_for() -> None:
    def outcome(**is_correct: bool) -> Outcome:
        return Outcome(1, None, "choice", is_correct, is_cut=False)

    figures = summary([outcome(acc=True), outcome(acc=False), outcome(exact_match=True)] * 2)
    assert figures == {"acc": Figure(0.5, 4), "exact_match": Figure(1.0, 2)}
    assert figures["acc"].stderr == math.sqrt(0.5 * 0.5 / 4)
    assert figures["exact_match"].stderr == 0


def test_guessing_is_right_as_often_as_there_are_choices() -> None:
    two = ChoiceItem(context="", choices=["a", "b"], label=0)
    four = ChoiceItem(context="", choices=["a", "b", "c", "d"], label=0)
    assert chance([two, four]) == 0.375
    assert chance([GenerationItem(prompt="p", answer="x")]) is None


@pytest.mark.parametrize(
    ("steps", "want"),
    [
        ([], " The  Answer: 4,000 «an» apple!\n"),
        (["whitespace"], "The Answer: 4,000 «an» apple!"),
        (["case"], " the  answer: 4,000 «an» apple!\n"),
        (["punctuation"], " The  Answer 4000 an apple\n"),
        (["articles", "whitespace"], "Answer: 4,000 « » apple!"),
        (["whitespace", "articles", "punctuation", "case"], "answer 4000 apple"),
    ],
)
def test_each_normalization_drops_what_it_names(steps: list, want: str) -> None:
    assert normalized(" The  Answer: 4,000 «an» apple!\n", steps) == want


def test_any_of_the_answers_is_right() -> None:
    assert matches(" Five.", ["5", "five"], ["case", "punctuation", "whitespace"])
    assert not matches("fives", ["5", "five"], ["case"])
