"""Questions are scored as by lm-evaluation-harness, on a real model.

Needs the package lm_eval with its Hugging Face backend (lm_eval, accelerate); skipped without.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmworks.eval.choice import ChoiceScorer, encode_pair
from lmworks.eval.start import start_of_text
from lmworks.eval.task import answers, summary
from lmworks.eval.task_file import read_task
from lmworks.models.pretrained import Run, open_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # the harness and what it imports warn of much
]

NUM_QUESTIONS = 50
# fp32 logits of the two models are within 2e-4, and torch's fp32 log-softmax, which the harness
# takes, is 1e-5 off: a token's log-likelihood may differ by 4e-4 at most, and typically by 2e-5.
TOLERANCE_PER_TOKEN = 4e-4
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Austria": "Vienna",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Sweden": "Stockholm",
    "Côte d'Ivoire": "Yamoussoukro",
    "Greece": "Athens",
    "Peru": "Lima",
}


def questions(rng: random.Random) -> list[dict[str, Any]]:
    """Capitals after two examples, sums, and continuations of different length."""
    rows: list[dict[str, Any]] = []
    for i in range(NUM_QUESTIONS):
        country, *others = rng.sample(sorted(CAPITALS), 5)
        if i % 3 == 0:
            shots = "".join(f"Q: Capital of {c}?\nA: {CAPITALS[c]}\n\n" for c in others[:2])
            context = f"{shots}Q: Capital of {country}?\nA:"
            choices = [CAPITALS[c] for c in (country, *others)]
        elif i % 3 == 1:
            a, b = rng.randrange(20), rng.randrange(20)
            context = f"{a} plus {b} equals"
            choices = [str(a + b), str(a + b + 10), str(a * b + 100)]
        else:
            context = f"My friend from {country} said:"
            choices = ["yes", "“Größe”, naïve café", "I would rather go home today", "x9 q#"]
        right = choices[0]
        rng.shuffle(choices)
        rows.append({"context": context, "choices": choices, "label": choices.index(right)})
    return rows


@pytest.fixture(scope="module")
def run(smollm2_file: Path) -> Run:
    pytest.importorskip("lm_eval.models.huggingface")
    return open_run(smollm2_file)


@pytest.fixture(scope="module")
def harness(run: Run, transformers_of_gguf: Callable[[Path], Any]) -> Any:
    """The harness's model: transformers' weights, and tokenizers' tokenizer, from the file."""
    gguf, tokenizers = pytest.importorskip("gguf"), pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    from lm_eval.models.huggingface import HFLM

    fields = gguf.GGUFReader(run.path).fields
    vocabulary = {t: i for i, t in enumerate(fields["tokenizer.ggml.tokens"].contents())}
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    steps = tokenizers.pre_tokenizers
    backend.pre_tokenizer = steps.Sequence(
        [steps.Digits(individual_digits=True), steps.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    fast.pad_token = fast.eos_token
    peer = transformers_of_gguf(run.path)
    peer.generation_config.eos_token_id = fast.eos_token_id
    return HFLM(pretrained=peer, tokenizer=fast, batch_size=4, device="cpu")


def harness_results(harness: Any, file: Path, config: dict[str, Any]) -> dict[str, Any]:
    from lm_eval import simple_evaluate
    from lm_eval.api.task import ConfigurableTask

    task = ConfigurableTask(
        config={
            "task": "synthetic",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(file)}},
            "test_split": "test",
            "num_fewshot": 0,
            **config,
        }
    )
    return simple_evaluate(model=harness, tasks=[task], log_samples=True, bootstrap_iters=0)


def test_multiple_choice_equals_the_harness(run: Run, harness: Any, tmp_path: Path) -> None:
    file = tmp_path / "choices.jsonl"
    rows = questions(random.Random(0))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = [{"metric": name} for name in ("acc", "acc_norm", "acc_bytes")]
    theirs = harness_results(
        harness,
        file,
        {
            "output_type": "multiple_choice",
            "doc_to_text": "{{context}}",
            "doc_to_choice": "choices",
            "doc_to_target": "label",
            "metric_list": metrics,
        },
    )
    ours = list(answers(run, read_task(file)))
    samples = sorted(theirs["samples"]["synthetic"], key=lambda sample: sample["doc_id"])
    for outcome, sample in zip(ours, samples, strict=True):
        wanted = [float(response[0]) for response in sample["filtered_resps"]]
        for score, want, size in zip(
            outcome.details["loglikelihoods"], wanted, outcome.details["num_tokens"], strict=True
        ):
            assert score == pytest.approx(want, abs=TOLERANCE_PER_TOKEN * size)
    figures, wanted_figures = summary(ours), theirs["results"]["synthetic"]
    for name in ("acc", "acc_bytes"):
        assert figures[name].value == wanted_figures[f"{name},none"]
    assert 0 < figures["acc"].value < 1


def test_written_answers_equal_the_harness(run: Run, harness: Any, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    rows = [
        {
            "prompt": f"Q: What is the capital of Kenya?\nA: Nairobi\nQ: Of {country}?\nA:",
            "answer": city,
        }
        for country, city in CAPITALS.items()
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    theirs = harness_results(
        harness,
        file,
        {
            "output_type": "generate_until",
            "doc_to_text": "{{prompt}}",
            "doc_to_target": " {{answer}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "do_sample": False},
            "metric_list": [{"metric": "exact_match"}],
        },
    )
    common = {"stop": ["\n"], "max_new_tokens": 12, "normalize": []}
    file.write_text(
        json.dumps({"defaults": common})
        + "\n"
        + "".join(json.dumps(row | {"answer": f" {row['answer']}"}) + "\n" for row in rows)
    )
    ours = list(answers(run, read_task(file)))
    samples = sorted(theirs["samples"]["synthetic"], key=lambda sample: sample["doc_id"])
    assert [outcome.details["text"] for outcome in ours] == [
        sample["filtered_resps"][0] for sample in samples
    ]
    want = theirs["results"]["synthetic"]["exact_match,none"]
    assert summary(ours)["exact_match"].value == pytest.approx(want)


@pytest.mark.parametrize(
    ("context", "choice"), [("", "The sea"), ("Two blanks  ", "here"), ("Line\n", "break")]
)
def test_borders_are_drawn_as_in_the_harness(
    run: Run, harness: Any, context: str, choice: str
) -> None:
    from lm_eval.api.instance import Instance

    request = Instance("loglikelihood", doc={}, arguments=(context, choice), idx=0)
    [(want, _)] = harness.loglikelihood([request], disable_tqdm=True)
    start = start_of_text(run.tokenizer, run.special_ids)
    pair = encode_pair(run.tokenizer, start, context, [choice])
    [score] = ChoiceScorer(run.model).score(pair)
    assert score == pytest.approx(want, abs=TOLERANCE_PER_TOKEN * len(pair.choices_ids[0]))
