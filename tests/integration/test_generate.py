"""Decoding with a real (tiny, random) model: cache, limits, streaming, determinism, peers."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lmworks.base.errors import ConfigError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.serve.generate import Generation, generate, generate_samples, next_logits, stream
from lmworks.serve.sampling import SamplingConfig
from lmworks.tokenizer.byte import ByteTokenizer

TOKENIZER = ByteTokenizer()
CONTEXT = 48

POSITIONS = ("rope", "learned", "sinusoidal", "none")
HEADS = {"mha": 4, "gqa": 2, "mqa": 1}


def make_model(*, position: str = "rope", num_kv_heads: int = 2, **options: Any) -> Decoder:
    config = ModelConfig.model_validate(
        {
            "vocab_size": TOKENIZER.vocab_size,
            "max_seq_len": CONTEXT,
            "d_model": 32,
            "num_layers": 2,
            "attention": {"num_heads": 4, "num_kv_heads": num_kv_heads},
            "mlp": {},
            "position": {"kind": position},
            # Weights far from zero, so that tokens differ and errors show.
            "init": {"std": 0.2},
            **options,
        }
    )
    return Decoder(config).eval()


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


def script(text: str, *, prompt_length: int) -> Decoder:
    """A real decoder whose greedy continuation of any prompt of this length is `text`.

    Tokens are embedded as zeros, layers add nothing, and each position is its own unit vector, so
    that column t of the head alone says what follows position t.
    """
    model = make_model(position="learned", d_model=CONTEXT)
    ids = [0] * (prompt_length - 1) + TOKENIZER.encode(text, allowed_special="all")
    ids = (ids + [ord("?")] * CONTEXT)[:CONTEXT]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.startswith("embed") or name.endswith(("attention.o.weight", "down.weight")):
                weight.zero_()
        model.position.weight.copy_(torch.eye(CONTEXT))
        model.head.weight.zero_()
        model.head.weight[ids, torch.arange(CONTEXT)] = 100.0
    return model


def scripted(text: str, prompt: str = "go", **options: Any) -> Generation:
    config = SamplingConfig(**{"temperature": 0, "max_new_tokens": 40, **options})
    return generate(script(text, prompt_length=len(prompt)), TOKENIZER, prompt, config)


# ---- the cache ----


@pytest.mark.parametrize(("position", "heads"), [*itertools.product(POSITIONS, HEADS)], ids=str)
def test_cached_logits_equal_uncached_ones(position: str, heads: str) -> None:
    model = make_model(position=position, num_kv_heads=HEADS[heads])
    tokens = torch.randint(0, 256, (2, 30), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        full = model(tokens)
        cache = model.new_cache(2)
        got = [next_logits(model, tokens[:, :7], cache)]
        got += [next_logits(model, tokens[:, t : t + 1], cache) for t in range(7, 30)]
    torch.testing.assert_close(torch.stack(got, 1), full[:, 6:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"norm_position": "double", "block": "serial"},
        {"block": "parallel", "tie_embeddings": True},
        {"logit_softcap": 5.0},
        {"norm": {"kind": "layernorm"}, "use_bias": True},
    ],
    ids=str,
)
def test_greedy_text_is_that_of_recomputing_everything(options: dict[str, Any]) -> None:
    model = make_model(**options)
    prompt = list(b"some prompt")
    got = generate(model, TOKENIZER, prompt, SamplingConfig(temperature=0, max_new_tokens=20))
    ids = list(prompt)
    with torch.inference_mode():
        while len(ids) < len(prompt) + 20:
            token = int(model(torch.tensor([ids]))[0, -1].argmax())
            if token == TOKENIZER.eot_id:
                break
            ids.append(token)
    assert got.token_ids == ids[len(prompt) :]


# ---- where it ends ----


def test_the_token_limit_ends_it(model: Decoder) -> None:
    got = generate(model, TOKENIZER, "abc", SamplingConfig(seed=1, max_new_tokens=5))
    assert (got.finish_reason, len(got.token_ids), got.prompt_tokens) == ("length", 5, 3)


def test_the_context_ends_it_after_the_last_token_that_fits() -> None:
    got = scripted("x" * 100, prompt="p" * 40)
    assert got.finish_reason == "context"
    assert len(got.token_ids) == CONTEXT + 1 - 40


def test_a_prompt_that_fills_the_context_still_gets_one_token() -> None:
    got = scripted("x", prompt="p" * CONTEXT)
    assert (got.text, got.finish_reason) == ("x", "context")


def test_end_of_text_ends_it_and_is_not_part_of_the_text() -> None:
    got = scripted("bye<|endoftext|>never")
    assert (got.text, got.finish_reason) == ("bye", "eot")
    assert got.token_ids == list(b"bye")


@pytest.mark.parametrize("stop", ["END", "D", "o END of"])
def test_a_stop_string_ends_it_and_is_not_part_of_the_text(stop: str) -> None:
    text = "hello END of it"
    got = scripted(text, stop=(stop,))
    assert (got.text, got.finish_reason) == (text[: text.index(stop)], "stop")


def test_no_token_is_computed_after_the_end() -> None:
    model = script("one STOP two", prompt_length=2)
    config = SamplingConfig(temperature=0, stop=("STOP",))
    calls: list[int] = []
    model.embed.register_forward_hook(lambda *_: calls.append(1))
    generate(model, TOKENIZER, "go", config)
    assert len(calls) == len("one STOP")


def test_text_held_back_for_a_stop_string_comes_at_the_end() -> None:
    got = scripted("a EN<|endoftext|>", stop=("END",))
    assert (got.text, got.finish_reason) == ("a EN", "eot")


# ---- streaming ----


def test_pieces_add_up_to_the_generation(model: Decoder) -> None:
    config = SamplingConfig(seed=4, max_new_tokens=30)
    pieces = stream(model, TOKENIZER, "abc", config)
    text = "".join(pieces)
    assert text == generate(model, TOKENIZER, "abc", config).text
    assert pieces.generation.text == text


def test_pieces_hold_whole_characters_only() -> None:
    model = script("aé€😀z<|endoftext|>", prompt_length=2)
    assert list(stream(model, TOKENIZER, "go", SamplingConfig(temperature=0))) == list("aé€😀z")


def test_a_character_cut_by_the_limit_is_marked() -> None:
    assert scripted("a€", max_new_tokens=3).text == "a\ufffd"


def test_a_stream_left_early_tells_what_it_has() -> None:
    pieces = stream(script("abcdef", prompt_length=2), TOKENIZER, "go", SamplingConfig())
    assert next(pieces) == "a"
    assert pieces.generation.finish_reason == "interrupted"
    assert pieces.generation.text == "a"


# ---- seeds and samples ----


def test_the_same_seed_gives_the_same_text_and_another_seed_another(model: Decoder) -> None:
    texts = [
        generate(model, TOKENIZER, "x", SamplingConfig(seed=seed, temperature=2.0)).token_ids
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_samples_are_those_of_their_own_seeds(model: Decoder) -> None:
    config = SamplingConfig(seed=10, max_new_tokens=12)
    together = generate_samples(model, TOKENIZER, "x", config, num_samples=3)
    for b, sample in enumerate(together):
        alone = generate(model, TOKENIZER, "x", config.model_copy(update={"seed": 10 + b}))
        assert sample.token_ids == alone.token_ids


def test_logprobs_are_those_of_the_unmodified_model(model: Decoder) -> None:
    config = SamplingConfig(top_k=3, repetition_penalty=1.5, max_new_tokens=6, logprobs=True)
    got = generate(model, TOKENIZER, "xyz", config)
    ids = torch.tensor([list(b"xyz") + got.token_ids])
    with torch.inference_mode():
        want = model(ids)[0, 2:-1].log_softmax(-1).gather(1, ids[0, 3:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(got.logprobs), want, atol=1e-4, rtol=1e-4)


def test_a_training_model_generates_without_dropout_and_trains_on() -> None:
    model = make_model(dropout=0.5)
    config = SamplingConfig(temperature=0, max_new_tokens=10)
    want = generate(model, TOKENIZER, "abc", config).token_ids
    model.train()
    assert generate(model, TOKENIZER, "abc", config).token_ids == want
    assert model.training


def test_a_model_with_more_rows_than_tokens_never_chooses_a_row_without_token() -> None:
    model = make_model(vocab_size=320)
    got = generate(model, TOKENIZER, "x", SamplingConfig(temperature=100.0, max_new_tokens=40))
    assert max(got.token_ids) < TOKENIZER.vocab_size


# ---- prompts ----


def test_an_empty_prompt_starts_from_end_of_text(model: Decoder) -> None:
    config = SamplingConfig(temperature=0, max_new_tokens=5)
    want = generate(model, TOKENIZER, [TOKENIZER.special_tokens["<|endoftext|>"]], config)
    assert generate(model, TOKENIZER, "", config).token_ids == want.token_ids


def test_an_empty_prompt_without_end_of_text_is_refused(model: Decoder) -> None:
    with pytest.raises(ConfigError, match="the prompt is empty"):
        generate(model, ByteTokenizer(()), "")


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(model: Decoder) -> None:
    with pytest.raises(ConfigError, match=r"50 tokens .* 48; shorten it by 2.*truncate_prompt"):
        generate(model, TOKENIZER, "p" * 50)


@pytest.mark.parametrize(("max_new_tokens", "kept"), [(10, 39), (100, 24), (1, 48)])
def test_a_truncated_prompt_keeps_its_end(model: Decoder, max_new_tokens: int, kept: int) -> None:
    prompt = [i % 256 for i in range(60)]
    config = SamplingConfig(temperature=0, max_new_tokens=max_new_tokens)
    got = generate(model, TOKENIZER, prompt, config, truncate_prompt=True)
    assert got.prompt_tokens == kept
    assert got.token_ids == generate(model, TOKENIZER, prompt[-kept:], config).token_ids


def test_a_prompt_that_fits_is_not_truncated(model: Decoder) -> None:
    config = SamplingConfig(max_new_tokens=100)
    got = generate(model, TOKENIZER, "p" * CONTEXT, config, truncate_prompt=True)
    assert got.prompt_tokens == CONTEXT


def test_prompt_tokens_outside_the_vocabulary_are_refused(model: Decoder) -> None:
    with pytest.raises(ConfigError, match=r"prompt token 900 is not one of .* 0\.\.256"):
        generate(model, TOKENIZER, [1, 900])


def test_a_tokenizer_larger_than_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="257 tokens, the model only 100"):
        generate(make_model(vocab_size=100), TOKENIZER, "x")


# ---- the peer ----


def test_greedy_tokens_equal_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    ours = make_model(norm={"eps": 1e-5})
    config = ours.config
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.mlp.d_ff,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.attention.num_heads,
            num_key_value_heads=config.attention.num_kv_heads,
            max_position_embeddings=config.max_seq_len,
            rms_norm_eps=config.norm.eps,
            rope_theta=10000.0,
            tie_word_embeddings=False,
        )
    ).eval()
    theirs.load_state_dict({_llama_name(k): v for k, v in ours.state_dict().items()})
    prompt = list(b"The quick brown fox")
    want = theirs.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=25,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=TOKENIZER.eot_id,
    )[0, len(prompt) :].tolist()
    got = generate(ours, TOKENIZER, prompt, SamplingConfig(temperature=0, max_new_tokens=25))
    assert got.token_ids == [token for token in want if token != TOKENIZER.eot_id]


def _llama_name(name: str) -> str:
    """Our state-dict name -> that of Hugging Face's Llama."""
    if name == "head.weight":
        return "lm_head.weight"
    for ours, theirs in [
        ("embed.", "embed_tokens."),
        ("attention_norm", "input_layernorm"),
        ("mlp_norm", "post_attention_layernorm"),
        ("attention.", "self_attn."),
        *[(f"self_attn.{x}.", f"self_attn.{x}_proj.") for x in "qkvo"],
        *[(f"mlp.{x}.", f"mlp.{x}_proj.") for x in ("gate", "up", "down")],
    ]:
        name = name.replace(ours, theirs)
    return f"model.{name}"
