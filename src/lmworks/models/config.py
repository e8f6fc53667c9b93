"""The architecture of a decoder language model as data, with its counts. No torch.

A `ModelConfig` says what is computed, never how: precision, compilation, dropout-free inference,
sharding and placement are applied from outside. Everything that follows from the architecture is
computed here, so that planning and training agree: weight shapes, parameters, FLOPs, cache bytes.

FLOPs: a multiply-add is 2, only matrix multiplications count (they are over 95 % at any useful
size), and training costs 3 times the forward pass, because the backward pass makes two products
for each one of the forward (Kaplan et al. 2020, arXiv 2001.08361, section 2.1).
"""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from lmworks.base.config import Config, suggest
from lmworks.models.layer_kinds import LayerConfig, LayerKind, expand_pattern
from lmworks.models.presets import PRESET_NAMES, preset_values
from lmworks.nn.config import (
    SELECTION_BIAS,
    AnyAttentionConfig,
    FeedForwardConfig,
    MLPConfig,
    MTPConfig,
    NoMTP,
    NonNegativeFloat,
    NormConfig,
    PositionConfig,
    RopeConfig,
    Shapes,
    T5Config,
    cache_slots,
    default_d_ff,
    prefixed,
)

__all__ = ["MAX_SEQ_LEN", "InitConfig", "LayerConfig", "LayerKind", "ModelConfig", "NormPosition"]

TRAINING_FLOPS_FACTOR = 3
MAX_SEQ_LEN = 2**24
"""Longest context that a config may name, so that a forged one does not ask for all memory."""
_COUNT = TypeAdapter(PositiveInt)
_RESIDUAL_OUTPUTS = (
    "attention.o.weight",
    "mlp.down.weight",
    "mlp.experts.down",
    "mlp.shared.down.weight",
)
_DEEPNORM_SCALED = ("attention.v.weight", "attention.o.weight")
_EMBEDDED_POSITIONS = ("learned", "sinusoidal")
NormPosition = Literal["pre", "post", "double", "reordered", "deepnorm"]


class InitConfig(Config):
    """How weights start: N(0, std), residual outputs smaller (Radford et al. 2019, section 2.3)."""

    std: PositiveFloat = 0.02
    """Standard deviation of every matrix and embedding; norms multiply by 1, biases are 0."""
    scale_residual: bool = True
    """Start what writes into the residual stream smaller in deeper models, so that the stream
    keeps its variance; see `ModelConfig.start_std`."""


class ModelConfig(Config):
    """Architecture of a decoder LM. `preset: NAME` fills it from a known model, `preset: FOLDER`
    from a run or another folder with a model."""

    vocab_size: PositiveInt
    """Rows of the embedding: token ids run from 0 to vocab_size - 1."""
    max_seq_len: Annotated[int, Field(gt=0, le=MAX_SEQ_LEN)]
    """Longest sequence, in tokens."""
    d_model: PositiveInt
    """Width of the residual stream."""
    num_layers: PositiveInt
    """Blocks."""
    norm: NormConfig = NormConfig()
    norm_position: NormPosition = "pre"
    """pre: x + f(norm(x)); post: norm(x + f(x)); double: x + norm(f(norm(x))); reordered:
    x + norm(f(x)) (OLMo 2); deepnorm: norm(a x + f(x)) (DeepNet)."""
    residual_scale: PositiveFloat = 1.0
    """Factor s of what each half of a block adds: x + s f(norm(x)) (Granite)."""
    embedding_scale: PositiveFloat = 1.0
    """Factor of the token embedding where it enters the first layer; Gemma: sqrt(d_model)."""
    use_bias: bool = False
    """Biases in all linear layers (the head excepted) and in LayerNorm."""
    block: Literal["serial", "parallel"] = "serial"
    """serial: attention, then MLP; parallel: both from one norm, summed (GPT-J, PaLM)."""
    mlp: FeedForwardConfig
    """kind dense (one MLP, the default) or moe (a mixture of experts)."""
    attention: AnyAttentionConfig
    position: PositionConfig = RopeConfig()
    layer_kinds: dict[str, LayerKind] = Field(default_factory=dict)
    """Kinds of layers by name, each told by what differs from `attention`, `mlp`, `position`."""
    layer_pattern: tuple[str, ...] = ()
    """Kinds from the first layer on, repeated over the depth: [local, local, local, global], or
    ["dense*3", "moe*58"]. Empty: all layers are alike."""
    mtp: MTPConfig = NoMTP()
    """Heads that predict further ahead than the next token: none, sequential or parallel."""
    tie_embeddings: bool = False
    """Use the embedding as the output head (Press & Wolf 2017)."""
    logit_softcap: NonNegativeFloat = 0.0
    """Bound output logits softly to (-c, c) by c * tanh(logit / c); 0 leaves them as they are."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of embedding, attention and residual-branch values zeroed in training."""
    init: InitConfig = InitConfig()

    @classmethod
    def preset_values(cls, name: str) -> dict[str, Any]:
        """Values of the preset `name`, or of the model in the folder `name` (a run, for example).

        Raises ConfigError that lists the known names, or CheckpointError for a folder without a
        model.
        """
        if name not in PRESET_NAMES and Path(name).is_dir():
            from lmworks.models.pretrained import checkpoint_folder, load_config

            return load_config(checkpoint_folder(name)).model_dump(mode="json")
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
        if isinstance(attention, dict):
            filled["attention"] = attention = {"kind": "gqa", **attention}
            if attention["kind"] == "gqa" and "head_dim" not in attention:
                attention["head_dim"] = _head_dim(d_model, _as_count(attention.get("num_heads")))
        if isinstance(mlp, dict):
            filled["mlp"] = mlp = {"kind": "dense", **mlp}
            if mlp["kind"] == "dense" and "d_ff" not in mlp:
                activation = mlp.get("activation", MLPConfig.model_fields["activation"].default)
                mlp["d_ff"] = default_d_ff(d_model or 1, str(activation))
        if isinstance(position := values.get("position"), dict):
            filled["position"] = {"kind": "rope", **position}
        return filled

    @model_validator(mode="after")
    def _layers_are_possible(self) -> "ModelConfig":
        """Every named kind exists and fits; rotations and sine-cosine pairs need an even size."""
        for name in self._period:
            if name and name not in self.layer_kinds:
                raise ValueError(
                    f"layer_pattern names {name!r}, which is not in layer_kinds"
                    f"{suggest(name, self.layer_kinds)}"
                )
        for name in sorted(self.layer_kinds):
            if name not in self._period:
                raise ValueError(f"layer_kinds.{name} is not in layer_pattern")
            kind = self.layer_kinds[name].position.get("kind", "none")
            if kind in _EMBEDDED_POSITIONS:
                raise ValueError(
                    f"layer_kinds.{name}.position.kind={kind} is added to the embedding, before "
                    "all layers; only the model's own position can be that"
                )
        for name, layer in self._layer_configs().items():
            where = f"layer_kinds.{name}." if name else ""
            head_dim = layer.attention.rotary_dim
            if layer.position.kind != "rope":
                continue
            rotary_dim = layer.position.rotary_dim(head_dim)
            if layer.position.rotary_fraction < 1 and (rotary_dim % 2 or not rotary_dim):
                raise ValueError(
                    f"{where}position.rotary_fraction={layer.position.rotary_fraction:g} of "
                    f"{_rotary_field(layer.attention)}={head_dim} are {rotary_dim} elements, "
                    "but rope turns pairs; "
                    f"nearest: {(rotary_dim + 1 + (not rotary_dim)) / head_dim:g}"
                )
            if rotary_dim % 2:
                raise ValueError(
                    f"{where}attention.{_rotary_field(layer.attention)}={head_dim} is odd, but "
                    "position.kind=rope turns "
                    f"pairs of elements; nearest: {head_dim + 1}"
                )
        if len(self.t5_tables()) > 1:
            heads = sorted(num_heads for _, num_heads in self.t5_tables())
            raise ValueError(
                "position.kind=t5 is one table for all layers that have it; they must be equal in "
                f"position.* and attention.num_heads, which is {heads}"
            )
        if self.position.kind == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} is odd, but position.kind=sinusoidal fills pairs of "
                f"elements; nearest: {self.d_model + 1}"
            )
        return self

    @model_validator(mode="after")
    def _experts_are_alike(self) -> "ModelConfig":
        """What routers did is one table of layers and experts; experts have no biases."""
        mixtures = [own.mlp for own in self._layer_configs().values() if own.mlp.kind == "moe"]
        if len({moe.num_experts for moe in mixtures}) > 1:
            raise ValueError(
                f"mlp.num_experts is {sorted({moe.num_experts for moe in mixtures})} in layers of "
                "different kinds; it must be the same in all that have experts"
            )
        if mixtures and self.use_bias:
            raise ValueError("use_bias=true with mlp.kind=moe: experts have no biases")
        return self

    @property
    def sees_later_tokens(self) -> bool:
        """Whether a layer lets a token depend on later ones, so that decoding is impossible."""
        return any(
            own.mlp.kind == "moe" and own.mlp.router.sees_later_tokens
            for own, _ in self.layer_counts()
        )

    def layers(self) -> Iterator[LayerConfig]:
        """The config of each layer, first to last."""
        kinds, period = self._layer_configs(), self._period
        for layer in range(self.num_layers):
            yield kinds[period[layer % len(period)]]

    def layer_counts(self) -> list[tuple[LayerConfig, int]]:
        """Each kind of layer and how many there are, without going through all of them."""
        period, kinds = self._period, self._layer_configs()
        counts: Counter[str] = Counter()
        rounds, rest = divmod(self.num_layers, len(period))
        for index, name in enumerate(period):
            counts[name] += rounds + (index < rest)
        return [(kinds[name], count) for name, count in counts.items() if count]

    def weight_shapes(self) -> Shapes:
        """Shape of every weight by its name in a state dict or checkpoint, in model order."""
        shapes = self._embedding_shapes()
        for index, layer in enumerate(self.layers()):
            shapes |= prefixed(f"layers.{index}", self._block_shapes(layer))
        return shapes | self._head_shapes() | self._mtp_shapes()

    def one_layer_of_each_kind(self) -> "ModelConfig":
        """The same model with each kind of layer once, for what depends on the kinds alone."""
        period = self._period
        kinds = dict.fromkeys(
            period[layer % len(period)] for layer in range(min(self.num_layers, len(period)))
        )
        return self.model_copy(
            update={
                "num_layers": len(kinds),
                "layer_pattern": tuple(kind for kind in kinds if kind),
            }
        )

    @property
    def last_layer(self) -> LayerConfig:
        """The config of the last layer, which is that of the blocks of multi-token prediction."""
        period = self._period
        return self._layer_configs()[period[(self.num_layers - 1) % len(period)]]

    @property
    def has_final_norm(self) -> bool:
        """Post-norm blocks end in a norm already (Vaswani et al. 2017); the others need one."""
        return not self.norms_the_sum

    @property
    def norms_input(self) -> bool:
        """Whether attention and MLP read the residual stream through a norm."""
        return self.norm_position in ("pre", "double")

    @property
    def norms_output(self) -> bool:
        """Whether what attention and MLP add to the residual stream goes through a norm."""
        return self.norm_position in ("double", "reordered")

    @property
    def norms_the_sum(self) -> bool:
        """Whether the norm is on the residual stream itself, after each addition."""
        return self.norm_position in ("post", "deepnorm")

    @property
    def skip_scale(self) -> float:
        """Factor a of the residual stream in a (x) + f(x): 1, or DeepNet's (2 L)^(1/4)
        (Wang et al. 2022, arXiv 2203.00555, table 2, decoder only)."""
        return (2 * self.num_layers) ** 0.25 if self.norm_position == "deepnorm" else 1.0

    def start_std(self, name: str) -> float:
        """Standard deviation with which the matrix or embedding `name` starts.

        `init.scale_residual` makes smaller what writes into the residual stream: attention.o and
        mlp.down by sqrt(2 num_layers) (Radford et al. 2019, section 2.3), or with deepnorm these,
        attention.v and the rest of the MLP by (8 num_layers)^(1/4) (DeepNet, table 2).
        """
        if not self.init.scale_residual:
            return self.init.std
        if self.norm_position == "deepnorm":
            is_mlp = ".mlp." in name and ".router." not in name
            is_scaled = is_mlp or name.endswith(_DEEPNORM_SCALED)
            return self.init.std * (8 * self.num_layers) ** -0.25 if is_scaled else self.init.std
        is_scaled = name.endswith(_RESIDUAL_OUTPUTS)
        return self.init.std / math.sqrt(2 * self.num_layers) if is_scaled else self.init.std

    def param_counts(self) -> dict[str, int]:
        """Parameters by part: embedding, position, attention, mlp, norms, head, mtp if any."""
        counts = dict.fromkeys(("embedding", "position", "attention", "mlp", "norms", "head"), 0)
        outside = self._embedding_shapes() | self._head_shapes() | self._mtp_shapes()
        if self.mtp.depth:
            counts["mtp"] = 0
        for shapes, times in [(outside, 1)] + [
            (self._block_shapes(kind), count) for kind, count in self.layer_counts()
        ]:
            for name, shape in shapes.items():
                if not name.endswith(SELECTION_BIAS):
                    counts[_part_of(name)] += times * math.prod(shape)
        return counts

    def num_params(self) -> int:
        """All parameters; a tied head counts once."""
        return sum(self.param_counts().values())

    def num_active_params(self) -> int:
        """Parameters that one token uses when the model answers: all but the experts that it is
        not sent to, and nothing that predicts further tokens."""
        idle = _num_params(self._mtp_shapes())
        for kind, count in self.layer_counts():
            shapes = kind.mlp.weight_shapes(self.d_model, use_bias=self.use_bias)
            active = kind.mlp.num_active_params(self.d_model, use_bias=self.use_bias)
            idle += count * (_num_params(shapes) - active)
        return self.num_params() - idle

    def flops_parts(
        self, context_length: int, *, training: bool = False, causal: bool = False
    ) -> dict[str, int]:
        """Forward matmul FLOPs per token by part, for sequences of `context_length` tokens.

        With `training` multi-token prediction is there, too, if the model has it.
        `causal=False` counts every query against all `context_length` keys, as PaLM's MFU does
        (arXiv 2204.02311, appendix B); `causal=True` counts only the (T + 1) / 2 keys that an
        average query may see, which is what a kernel that skips masked blocks computes.
        """
        parts: Counter[str] = Counter()
        for kind, count in self.layer_counts():
            for part, flops in self._block_flops(kind, context_length, causal=causal).items():
                parts[part] += count * flops
        parts["head"] = 2 * self.d_model * self.vocab_size
        if training and self.mtp.depth:
            block = self._block_flops(self.last_layer, context_length, causal=causal)
            projection = self.mtp.projection_flops_per_token(self.d_model)
            each = projection + sum(block.values()) + parts["head"]
            parts["multi-token prediction"] = self.mtp.depth * each
        return dict(parts)

    def flops_per_token(self, context_length: int, *, training: bool, causal: bool = False) -> int:
        """Matmul FLOPs per token: forward, or 3 times that for training. See `flops_parts`."""
        parts = self.flops_parts(context_length, training=training, causal=causal)
        forward = sum(parts.values())
        return TRAINING_FLOPS_FACTOR * forward if training else forward

    def kv_cache_bytes_per_token(self, bytes_per_element: int = 2) -> int:
        """Keys and values of one token in all layers; 2 bytes per element is bf16."""
        elements = 0
        for kind, count in self.layer_counts():
            heads, key_dim, value_dim = kind.attention.cache_shape
            elements += count * heads * (key_dim + value_dim)
        return elements * bytes_per_element

    def kv_cache_bytes(self, max_seq_len: int, bytes_per_element: int = 2) -> int:
        """The whole cache of one sequence of up to `max_seq_len` tokens: layers that see a bounded
        number of tokens hold no more than those and a few to spare."""
        elements = 0
        for kind, count in self.layer_counts():
            heads, key_dim, value_dim = kind.attention.cache_shape
            slots = cache_slots(kind.attention.mask, max_seq_len)
            elements += count * slots * heads * (key_dim + value_dim)
        return elements * bytes_per_element

    def t5_tables(self) -> set[tuple[T5Config, int]]:
        """T5's relative bias and its number of heads, where layers have it: one or none."""
        return {
            (layer.position, layer.attention.num_heads)
            for layer, _ in self.layer_counts()
            if layer.position.kind == "t5"
        }

    @property
    def _period(self) -> list[str]:
        """Names of the kinds of the first layers, before they repeat; "" is the plain one."""
        return expand_pattern(self.layer_pattern)

    def _layer_configs(self) -> dict[str, LayerConfig]:
        """By name of the kind, of all in the pattern, also where the depth ends before it."""
        plain = LayerConfig(self.attention, self.mlp, self.position)
        return {
            name: plain.with_kind(self.layer_kinds[name], name) if name else plain
            for name in self._period
        }

    def _block_flops(
        self, layer: LayerConfig, context_length: int, *, causal: bool
    ) -> dict[str, int]:
        """Forward FLOPs per token of one block."""
        attention, d = layer.attention, self.d_model
        return {
            "attention projections": attention.projection_flops_per_token(d),
            "attention scores and values": attention.score_flops_per_token(
                context_length, causal=causal
            ),
            "mlp": layer.mlp.flops_per_token(d),
        }

    def _embedding_shapes(self) -> Shapes:
        shapes: Shapes = {"embed.weight": (self.vocab_size, self.d_model)}
        if self.position.kind == "learned":
            shapes["position.weight"] = (self.max_seq_len, self.d_model)
        for t5, num_heads in self.t5_tables():
            shapes |= prefixed("position_bias", t5.weight_shapes(num_heads))
        return shapes

    def _block_shapes(self, layer: LayerConfig) -> Shapes:
        d = self.d_model
        shapes: Shapes = {}
        norms = ["attention"] if self.block == "parallel" else ["attention", "mlp"]
        for name in norms:
            if self.norm_position != "reordered":
                shapes |= self.norm.weight_shapes(f"{name}_norm", d, use_bias=self.use_bias)
            if self.norms_output:
                shapes |= self.norm.weight_shapes(f"{name}_out_norm", d, use_bias=self.use_bias)
        attention = layer.attention.weight_shapes(d, norm=self.norm, use_bias=self.use_bias)
        mlp = layer.mlp.weight_shapes(d, use_bias=self.use_bias)
        return shapes | prefixed("attention", attention) | prefixed("mlp", mlp)

    def _head_shapes(self) -> Shapes:
        shapes: Shapes = {}
        if self.has_final_norm:
            shapes |= self.norm.weight_shapes("norm", self.d_model, use_bias=self.use_bias)
        if not self.tie_embeddings:
            shapes["head.weight"] = (self.vocab_size, self.d_model)
        return shapes

    def _mtp_shapes(self) -> Shapes:
        return self.mtp.weight_shapes(
            self.d_model,
            self._block_shapes(self.last_layer),
            norm=self.norm,
            has_final_norm=self.has_final_norm,
            use_bias=self.use_bias,
        )


def _num_params(shapes: Shapes) -> int:
    """Elements that gradients reach."""
    return sum(math.prod(s) for name, s in shapes.items() if not name.endswith(SELECTION_BIAS))


def _part_of(name: str) -> str:
    """The part of the model that a weight belongs to."""
    if "norm" in name:
        return "norms"
    first = name.partition(".")[0]
    return {"embed": "embedding", "position_bias": "position"}.get(first, first)


def _as_count(value: Any) -> int:
    """The positive int that pydantic will read from `value`, or 0 where it will refuse it."""
    try:
        return _COUNT.validate_python(value)
    except ValidationError:
        return 0


def _rotary_field(attention: AnyAttentionConfig) -> str:
    """Name of the size that rotary positions go by."""
    return "rope_dim" if attention.kind == "mla" else "head_dim"


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
