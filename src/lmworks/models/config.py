"""The architecture of a decoder language model as data, with its counts. No torch.

A `ModelConfig` says what is computed, never how: precision, compilation, dropout-free inference,
sharding and placement are applied from outside. Everything that follows from the architecture is
computed here, so that planning and training agree: weight shapes, parameters, FLOPs, cache bytes.

FLOPs: a multiply-add is 2, only matrix multiplications count (they are over 95 % at any useful
size), and training costs 3 times the forward pass, because the backward pass makes two products
for each one of the forward (Kaplan et al. 2020, arXiv 2001.08361, section 2.1).
"""

import math
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from lmworks.base.config import Config
from lmworks.models.presets import preset_values
from lmworks.nn.config import (
    AttentionConfig,
    MLPConfig,
    NonNegativeFloat,
    NormConfig,
    PositionConfig,
    RopeConfig,
    default_d_ff,
)

TRAINING_FLOPS_FACTOR = 3
MAX_SEQ_LEN = 2**24
"""Longest context that a config may name: position tables are built in full, so a forged config
must not ask for all memory."""
_COUNT = TypeAdapter(PositiveInt)


class InitConfig(Config):
    """How weights start: N(0, std), residual outputs smaller (Radford et al. 2019, section 2.3)."""

    std: PositiveFloat = 0.02
    """Standard deviation of every matrix and embedding; norm weights start at 1, biases at 0."""
    scale_residual: bool = True
    """Multiply the std of attention.o and mlp.down by 1 / sqrt(2 num_layers), so that the residual
    stream keeps its variance whatever the depth."""


class ModelConfig(Config):
    """Architecture of a decoder LM. `preset: NAME` fills it from a known model."""

    vocab_size: PositiveInt
    """Rows of the embedding: token ids run from 0 to vocab_size - 1."""
    max_seq_len: Annotated[int, Field(gt=0, le=MAX_SEQ_LEN)]
    """Longest sequence, in tokens."""
    d_model: PositiveInt
    """Width of the residual stream."""
    num_layers: PositiveInt
    """Blocks."""
    norm: NormConfig = NormConfig()
    norm_position: Literal["pre", "post", "double"] = "pre"
    """pre: x + f(norm(x)); post: norm(x + f(x)); double: x + norm(f(norm(x)))."""
    use_bias: bool = False
    """Biases in all linear layers (the head excepted) and in LayerNorm."""
    block: Literal["serial", "parallel"] = "serial"
    """serial: attention, then MLP; parallel: both from one norm, summed (GPT-J, PaLM)."""
    mlp: MLPConfig
    attention: AttentionConfig
    position: PositionConfig = RopeConfig()
    tie_embeddings: bool = False
    """Use the embedding as the output head (Press & Wolf 2017)."""
    logit_softcap: NonNegativeFloat = 0.0
    """Bound output logits softly to (-c, c) by c * tanh(logit / c); 0 leaves them as they are."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of embedding, attention and residual-branch values zeroed in training."""
    init: InitConfig = InitConfig()

    @classmethod
    def preset_values(cls, name: str) -> dict[str, Any]:
        """Values of the preset `name`; raises ConfigError that lists the known names."""
        return preset_values(name)

    @classmethod
    def preset(cls, name: str) -> "ModelConfig":
        """The config of the preset `name`."""
        return cls.model_validate(preset_values(name))

    @model_validator(mode="before")
    @classmethod
    def _fill_sizes(cls, values: Any) -> Any:
        """Sizes that follow from d_model: head_dim = d_model / num_heads, d_ff by rule."""
        if not isinstance(values, dict):
            return values
        filled, d_model = dict(values), _as_count(values.get("d_model"))
        attention, mlp = values.get("attention", {}), values.get("mlp", {})
        if isinstance(attention, dict) and "head_dim" not in attention:
            head_dim = _head_dim(d_model, _as_count(attention.get("num_heads")))
            filled["attention"] = {**attention, "head_dim": head_dim}
        if isinstance(mlp, dict) and "d_ff" not in mlp:
            activation = str(mlp.get("activation", MLPConfig.model_fields["activation"].default))
            filled["mlp"] = {**mlp, "d_ff": default_d_ff(d_model or 1, activation)}
        return filled

    @model_validator(mode="after")
    def _positions_pair_up(self) -> "ModelConfig":
        """Rotations and sine-cosine pairs need an even size."""
        head_dim = self.attention.head_dim
        if self.position.kind == "rope" and head_dim % 2:
            raise ValueError(
                f"attention.head_dim={head_dim} is odd, but position.kind=rope turns pairs of "
                f"elements; nearest: {head_dim + 1}"
            )
        if self.position.kind == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} is odd, but position.kind=sinusoidal fills pairs of "
                f"elements; nearest: {self.d_model + 1}"
            )
        return self

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every weight by its name in a state dict or checkpoint, in model order."""
        shapes: dict[str, tuple[int, ...]] = {"embed.weight": (self.vocab_size, self.d_model)}
        if self.position.kind == "learned":
            shapes["position.weight"] = (self.max_seq_len, self.d_model)
        for layer in range(self.num_layers):
            shapes |= {f"layers.{layer}.{k}": v for k, v in self._block_shapes().items()}
        if self.has_final_norm:
            shapes |= self._norm_shapes("norm", self.d_model)
        if not self.tie_embeddings:
            shapes["head.weight"] = (self.vocab_size, self.d_model)
        return shapes

    @property
    def has_final_norm(self) -> bool:
        """Post-norm blocks end in a norm already (Vaswani et al. 2017); the others need one."""
        return self.norm_position != "post"

    def param_counts(self) -> dict[str, int]:
        """Parameters by part: embedding, position, attention, mlp, norms, head."""
        d, attention, layers = self.d_model, self.attention, self.num_layers
        biases = int(self.use_bias)
        attention_per_layer = 2 * d * (attention.d_query + attention.d_kv) + biases * (
            attention.d_query + 2 * attention.d_kv + d
        )
        num_inputs = self.mlp.num_matrices - 1
        mlp_per_layer = self.mlp.num_matrices * d * self.mlp.d_ff + biases * (
            num_inputs * self.mlp.d_ff + d
        )
        return {
            "embedding": self.vocab_size * d,
            "position": self.max_seq_len * d if self.position.kind == "learned" else 0,
            "attention": layers * attention_per_layer,
            "mlp": layers * mlp_per_layer,
            "norms": self._norm_params(),
            "head": 0 if self.tie_embeddings else self.vocab_size * d,
        }

    def num_params(self) -> int:
        """All parameters; a tied head counts once."""
        return sum(self.param_counts().values())

    def flops_parts(self, context_length: int, *, causal: bool = False) -> dict[str, int]:
        """Forward matmul FLOPs per token by part, for sequences of `context_length` tokens.

        `causal=False` counts every query against all `context_length` keys, as PaLM's MFU does
        (arXiv 2204.02311, appendix B); `causal=True` counts only the (T + 1) / 2 keys that an
        average query may see, which is what a kernel that skips masked blocks computes.
        """
        d, attention, layers = self.d_model, self.attention, self.num_layers
        twice_num_keys = context_length + 1 if causal else 2 * context_length
        return {
            "attention projections": layers * 2 * 2 * d * (attention.d_query + attention.d_kv),
            "attention scores and values": layers * 2 * twice_num_keys * attention.d_query,
            "mlp": layers * 2 * self.mlp.num_matrices * d * self.mlp.d_ff,
            "head": 2 * d * self.vocab_size,
        }

    def flops_per_token(self, context_length: int, *, training: bool, causal: bool = False) -> int:
        """Matmul FLOPs per token: forward, or 3 times that for training. See `flops_parts`."""
        forward = sum(self.flops_parts(context_length, causal=causal).values())
        return TRAINING_FLOPS_FACTOR * forward if training else forward

    def kv_cache_bytes_per_token(self, bytes_per_element: int = 2) -> int:
        """Keys and values of one token in all layers; 2 bytes per element is bf16."""
        return 2 * self.num_layers * self.attention.d_kv * bytes_per_element

    def _block_shapes(self) -> dict[str, tuple[int, ...]]:
        d, attention = self.d_model, self.attention
        shapes: dict[str, tuple[int, ...]] = {}
        norms = ["attention"] if self.block == "parallel" else ["attention", "mlp"]
        for name in norms:
            shapes |= self._norm_shapes(f"{name}_norm", d)
            if self.norm_position == "double":
                shapes |= self._norm_shapes(f"{name}_out_norm", d)
        shapes |= self._linear_shapes("attention.q", d, attention.d_query)
        shapes |= self._linear_shapes("attention.k", d, attention.d_kv)
        shapes |= self._linear_shapes("attention.v", d, attention.d_kv)
        shapes |= self._linear_shapes("attention.o", attention.d_query, d)
        if attention.qk_norm:
            shapes |= self._norm_shapes("attention.q_norm", attention.head_dim)
            shapes |= self._norm_shapes("attention.k_norm", attention.head_dim)
        for name in ["gate", "up"] if self.mlp.is_gated else ["up"]:
            shapes |= self._linear_shapes(f"mlp.{name}", d, self.mlp.d_ff)
        return shapes | self._linear_shapes("mlp.down", self.mlp.d_ff, d)

    def _linear_shapes(self, name: str, d_in: int, d_out: int) -> dict[str, tuple[int, ...]]:
        bias: dict[str, tuple[int, ...]] = {f"{name}.bias": (d_out,)} if self.use_bias else {}
        return {f"{name}.weight": (d_out, d_in)} | bias

    def _norm_shapes(self, name: str, dim: int) -> dict[str, tuple[int, ...]]:
        parts = ["weight", "bias"] if self._norm_has_bias else ["weight"]
        return {f"{name}.{part}": (dim,) for part in parts}

    @property
    def _norm_has_bias(self) -> bool:
        return self.norm.kind == "layernorm" and self.use_bias

    def _norm_params(self) -> int:
        """Per block one norm per sublayer (two if double) of d_model, and the query-key norms."""
        num_sublayers = 1 if self.block == "parallel" else 2
        num_norms = num_sublayers * (2 if self.norm_position == "double" else 1)
        qk_norm = 2 * self.attention.head_dim if self.attention.qk_norm else 0
        per_layer = num_norms * self.d_model + qk_norm
        final = self.d_model if self.has_final_norm else 0
        return (self.num_layers * per_layer + final) * (2 if self._norm_has_bias else 1)


def residual_std(init: InitConfig, num_layers: int) -> float:
    """Start std of the matrices that write into the residual stream (two per layer)."""
    return init.std / math.sqrt(2 * num_layers) if init.scale_residual else init.std


def _as_count(value: Any) -> int:
    """The positive int that pydantic will read from `value`, or 0 where it will refuse it."""
    try:
        return _COUNT.validate_python(value)
    except ValidationError:
        return 0


def _head_dim(d_model: int, num_heads: int) -> int:
    if not d_model or not num_heads:
        return 1  # either is missing or refused, and that is the error to show
    if d_model % num_heads:
        below = d_model // num_heads * num_heads
        nearest = max(num_heads, min(below, below + num_heads, key=lambda d: abs(d - d_model)))
        raise ValueError(
            f"d_model={d_model} is not a multiple of attention.num_heads={num_heads}; "
            f"nearest: {nearest} (or set attention.head_dim)"
        )
    return d_model // num_heads
