"""Reading a Hugging Face config.json: every key is mapped, refused, or known to change nothing.

    fields = Fields(values, where="model/config.json")
    d_model = fields.count("hidden_size")
    fields.refuse_unless("mlp_bias", False)        # not supported, so it must not be set
    fields.finish()                                # what nobody asked for is told

Values come from strangers: whatever they are, reading gives a checked number or CheckpointError.
As in transformers, a key that is null counts as left out.
"""

import math
import warnings
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from lmworks.base.errors import CheckpointError

T = TypeVar("T")
MAX_COUNT: Final = 2**31
_REQUIRED: Final = object()

CHANGES_NOTHING: Final = frozenset(
    {
        # Where it came from and how it is run.
        "_name_or_path", "architectures", "auto_map", "dtype", "model_type", "torch_dtype",
        "transformers_version", "transformers.js_config", "use_cache", "cache_implementation",
        "_attn_implementation", "_attn_implementation_autoset", "attn_implementation",
        "pretraining_tp", "ep_size", "unsloth_version", "unsloth_fixed", "hybrid_kvcache",
        # Token ids and generation: `generation_config.json` and the tokenizer have the say.
        "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id",
        "decoder_start_token_id", "task_specific_params", "tokenizer_class", "prefix",
        "max_window_layers", "max_length", "min_length", "do_sample", "early_stopping",
        "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p",
        "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
        "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
        "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id",
        # Other heads, other outputs, training.
        "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "return_dict",
        "return_dict_in_generate", "output_attentions", "output_hidden_states", "output_scores",
        "output_router_logits", "torchscript", "use_bfloat16", "tf_legacy_loss", "pruned_heads",
        "tie_encoder_decoder", "cross_attention_hidden_size", "chunk_size_feed_forward",
        "initializer_range", "attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
        "router_aux_loss_coef", "router_jitter_noise", "aux_loss_alpha", "seq_aux",
        "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
        "summary_first_dropout", "n_ctx", "gradient_checkpointing",
    }
)  # fmt: skip
"""Keys of configs of all families that the logits of a causal model do not depend on."""


class Fields:
    """The values of one config.json, and which of them have been looked at."""

    def __init__(
        self, values: Mapping[str, Any], *, where: str, max_layers: int = MAX_COUNT
    ) -> None:
        """`max_layers` is how many there can be at most, before anything is made per layer."""
        self.where = where
        self._max_layers = max_layers
        self._values = values
        self._seen: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the key is there and not null."""
        return self._values.get(name) is not None

    def raw(self, name: str, default: Any = None) -> Any:
        """The unchecked value; null counts as left out."""
        self._seen.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def count(self, name: str, default: Any = _REQUIRED) -> int:
        """A whole number from 1 on."""
        return self._checked(name, default, _is_count, "a whole number of at least 1")

    def layers(self, name: str) -> int:
        """The number of layers."""
        value = self.count(name)
        if value > self._max_layers:
            raise self.error(name, value, f"fewer than the {self._max_layers} tensors there")
        return value

    def cap(self, name: str) -> float:
        """A positive number, or null for 0: no bound."""
        value = self.number(name, 0.0)
        if value < 0:
            raise self.error(name, value, "above 0, or null")
        return value

    def size(self, name: str, default: Any = _REQUIRED) -> int:
        """A whole number from 0 on."""
        return self._checked(name, default, _is_size, "a whole number of at least 0")

    def number(self, name: str, default: Any = _REQUIRED) -> float:
        """A finite number."""
        return float(self._checked(name, default, _is_number, "a number"))

    def flag(self, name: str, default: Any = _REQUIRED) -> bool:
        """True or false."""
        return self._checked(name, default, lambda v: isinstance(v, bool), "true or false")

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """A string."""
        return self._checked(name, default, lambda v: isinstance(v, str), "a string")

    def section(self, name: str) -> "Fields":
        """An object below this one; empty if it is left out."""
        value = self.raw(name, {})
        if not isinstance(value, dict):
            raise self.error(name, value, "an object")
        return Fields(value, where=f"{self.where}: {name}")

    def texts(self, name: str, length: int, allowed: tuple[str, ...]) -> list[str] | None:
        """A list of `length` words, each an allowed one; None if it is left out."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length:
            raise self.error(name, value, f"a list of {length}")
        for item in value:
            if item not in allowed:
                raise self.error(name, item, f"of {', '.join(allowed)} only")
        return value

    def refuse_unless(self, name: str, *neutral: Any) -> None:
        """Raise CheckpointError if the key has a value that is not one of the `neutral` ones."""
        value = self.raw(name)
        if value is None:
            return
        if not any(type(value) is type(n) and value == n for n in neutral):
            wanted = " or ".join(map(repr, neutral)) or "left out"
            raise self.error(name, value, f"{wanted}: other values are not supported")

    def finish(self) -> None:
        """Tell of keys that nobody looked at: transformers may have learnt to mean something."""
        unknown = [
            name
            for name, value in self._values.items()
            if name not in self._seen and name not in CHANGES_NOTHING and value not in _NOTHING
        ]
        if unknown:
            shown = ", ".join(f"{name}={self._values[name]!r:.40}" for name in unknown[:5])
            more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
            warnings.warn(
                f"{self.where}: ignored, as nothing is known of them: {shown}{more}", stacklevel=2
            )

    def finish_strictly(self) -> None:
        """Raise CheckpointError if there is a key that nobody looked at."""
        for name, value in self._values.items():
            if name not in self._seen and value is not None:
                raise self.error(name, value, "left out: it is not known")

    def error(self, name: str, value: Any, wanted: str) -> CheckpointError:
        """An error that names the key, its value and what would be right."""
        return CheckpointError(f"{self.where}: {name}={value!r:.60} must be {wanted}")

    def _checked(self, name: str, default: Any, is_right: Any, wanted: str) -> Any:
        value = self.raw(name, None if default is _REQUIRED else default)
        if value is None:
            raise CheckpointError(f"{self.where}: {name} is missing; must be {wanted}")
        if not is_right(value):
            raise self.error(name, value, wanted)
        return value


_NOTHING: Final[tuple[Any, ...]] = (None, False, 0, "", [], {})


def _is_count(value: Any) -> bool:
    return _is_size(value) and value > 0


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
