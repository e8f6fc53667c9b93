"""Real models answer and continue as transformers has them do, and end where they should."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lmworks.models.pretrained import Run, open_run
from lmworks.serve.chat import Chat, ModelFormat
from lmworks.serve.generate import generate
from lmworks.serve.sampling import SamplingConfig

pytestmark = pytest.mark.slow
GREEDY = SamplingConfig(temperature=0, max_new_tokens=48)
MESSAGES = ("What is the capital of France?", "And of Italy? Answer with one word.")


def peer_ids(peer: Any, ids: list[int], run: Run) -> list[int]:
    """Greedy tokens of transformers, without the one that ends them."""
    output = peer.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=GREEDY.max_new_tokens,
        eos_token_id=list(run.stop_ids),
        pad_token_id=0,
    )
    new: list[int] = output[0, len(ids) :].tolist()
    return new[:-1] if new[-1] in run.stop_ids else new


@pytest.mark.parametrize("system", ["", "You answer in rhymes."])
def test_a_talk_with_smollm2_goes_as_in_transformers(
    smollm2_file: Path, transformers_of_gguf: Callable[[Path], Any], system: str
) -> None:
    """The template is rendered by transformers, from the messages of the talk so far."""
    templates = pytest.importorskip("transformers.utils.chat_template_utils")
    run, peer = open_run(smollm2_file), transformers_of_gguf(smollm2_file)
    assert run.chat_template is not None
    config = GREEDY.model_copy(update={"stop_ids": run.stop_ids})
    chat = Chat(run.model, run.tokenizer, config, ModelFormat(run.chat_template, system=system))
    messages = [{"role": "system", "content": system}] if system else []
    for message in MESSAGES:
        answer = "".join(chat.say(message))
        messages.append({"role": "user", "content": message})
        [prompt], _ = templates.render_jinja_template(
            [messages], chat_template=run.chat_template.source, add_generation_prompt=True
        )
        ids = run.tokenizer.encode(prompt, allowed_special="all")
        assert chat.last is not None
        assert chat.last.token_ids == peer_ids(peer, ids, run)
        assert chat.last.prompt_tokens == len(ids)
        messages.append({"role": "assistant", "content": answer})
        if not system:
            assert answer in ("The capital of France is Paris.", "The capital of Italy is Rome.")
            assert chat.last.finish_reason == "eot"


def test_gemma_3_is_given_the_token_that_begins_its_texts(
    gemma3_file: Path, transformers_of_gguf: Callable[[Path], Any]
) -> None:
    run, peer = open_run(gemma3_file), transformers_of_gguf(gemma3_file)
    prompt = "The three largest cities of France are"
    result = generate(run.model, run.tokenizer, prompt, GREEDY)
    ids = [run.special_ids["bos"], *run.tokenizer.encode(prompt)]
    assert result.prompt_tokens == len(ids)
    assert result.token_ids == peer_ids(peer, ids, run)
    assert result.text.startswith(" Paris, Lyon and Marseille.")
    without = generate(run.model, run.tokenizer, ids[1:], GREEDY)
    assert without.text != result.text, "the token matters"
