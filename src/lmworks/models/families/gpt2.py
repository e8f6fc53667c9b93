"""GPT-2: learned positions, LayerNorm, biases, q, k and v in one matrix stored the other way round.

Its linear layers are `Conv1D`: weights are (d_in, d_out), the transpose of ours.
"""

from collections.abc import Collection
from typing import Final

from lmworks.models.config import ModelConfig
from lmworks.models.families.common import read_init
from lmworks.models.families.family import Family, Values
from lmworks.models.families.fields import Fields
from lmworks.models.families.weights import Piece, columns, plain_pieces, rows, split_name

_ACTIVATIONS: Final = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
_NAMES: Final = {
    "embed": "transformer.wte",
    "position": "transformer.wpe",
    "layers.{layer}.attention_norm": "transformer.h.{layer}.ln_1",
    "layers.{layer}.attention.q": "transformer.h.{layer}.attn.c_attn",
    "layers.{layer}.attention.k": "transformer.h.{layer}.attn.c_attn",
    "layers.{layer}.attention.v": "transformer.h.{layer}.attn.c_attn",
    "layers.{layer}.attention.o": "transformer.h.{layer}.attn.c_proj",
    "layers.{layer}.mlp_norm": "transformer.h.{layer}.ln_2",
    "layers.{layer}.mlp.up": "transformer.h.{layer}.mlp.c_fc",
    "layers.{layer}.mlp.down": "transformer.h.{layer}.mlp.c_proj",
    "norm": "transformer.ln_f",
    "head": "lm_head",
}
_FUSED: Final = {"q": 0, "k": 1, "v": 2}


def _read(fields: Fields, there: Collection[str]) -> Values:
    fields.refuse_unless("scale_attn_weights", True)
    fields.refuse_unless("scale_attn_by_inverse_layer_idx", False)
    fields.refuse_unless("add_cross_attention", False)
    fields.raw("reorder_and_upcast_attn")  # the same product in another order
    d_model, activation = fields.count("n_embd"), fields.text("activation_function", "gelu_new")
    if activation not in _ACTIVATIONS:
        raise fields.error("activation_function", activation, f"one of {', '.join(_ACTIVATIONS)}")
    return {
        "vocab_size": fields.count("vocab_size"),
        "max_seq_len": fields.count("n_positions"),
        "d_model": d_model,
        "num_layers": fields.layers("n_layer"),
        "norm": {"kind": "layernorm", "eps": fields.number("layer_norm_epsilon", 1e-5)},
        "use_bias": True,
        "attention": {"num_heads": fields.count("n_head")},
        "mlp": {
            "activation": _ACTIVATIONS[activation],
            "d_ff": fields.count("n_inner", 4 * d_model),
        },
        "position": {"kind": "learned"},
        "tie_embeddings": fields.flag("tie_word_embeddings", True),
        **read_init(fields),
    }


def _write(config: ModelConfig) -> Values:
    activation = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    return {
        "vocab_size": config.vocab_size,
        "n_positions": config.max_seq_len,
        "n_embd": config.d_model,
        "n_layer": config.num_layers,
        "n_head": config.attention.num_heads,
        "n_inner": config.mlp.d_ff,
        "activation_function": activation.get(config.mlp.activation, config.mlp.activation),
        "layer_norm_epsilon": config.norm.eps,
        "initializer_range": config.init.std,
        "tie_word_embeddings": config.tie_embeddings,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
    }


def _pieces(config: ModelConfig, there: Collection[str]) -> dict[str, list[Piece]]:
    shapes = config.weight_shapes()
    pieces = plain_pieces(shapes, _NAMES)
    for name, [piece] in pieces.items():
        module, _, layer = split_name(name)
        is_matrix = layer is not None and len(shapes[name]) == 2
        last = module.rpartition(".")[2]
        if ".attention." in module and last in _FUSED:
            first = _FUSED[last] * config.d_model
            cut = columns if is_matrix else rows
            pieces[name] = [
                Piece(
                    piece.theirs, part=cut(first, first + config.d_model), is_transposed=is_matrix
                )
            ]
        elif is_matrix:
            pieces[name] = [piece._replace(is_transposed=True)]
    return pieces


def _is_left_over(name: str) -> bool:
    """The causal mask, which old checkpoints hold."""
    return name.endswith((".attn.bias", ".attn.masked_bias"))


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    _read,
    _write,
    _pieces,
    prefix="transformer.",
    is_left_over=_is_left_over,
)
