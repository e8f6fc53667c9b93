"""A decoder language model, as its equations read.

    x_0     = embed(tokens) (+ position)
    x_(l+1) = x_l + attention(norm(x_l)), then + mlp(norm(.))       (pre-norm, serial)
    logits  = head(norm(x_L))

Norm position, serial or parallel blocks, attention, MLP and positions follow `ModelConfig`. Nothing
here knows of devices, precision, sharding or compilation: those are applied to a built model.
Shapes: B batch, T tokens, C residual channels (d_model), V vocabulary.
"""

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lmworks.base.errors import ConfigError
from lmworks.models.config import LayerConfig, ModelConfig
from lmworks.nn.attention.build import make_attention
from lmworks.nn.attention.cache import KVCache
from lmworks.nn.attention.mask import KeySpan, bias_of_keys, layer_mask, packed_layer_mask
from lmworks.nn.config import AlibiConfig, MaskConfig, RopeConfig
from lmworks.nn.linear import Embedding, Linear
from lmworks.nn.mlp import make_mlp
from lmworks.nn.moe.balance import Routing
from lmworks.nn.moe.layer import MoE
from lmworks.nn.mtp import ParallelModule, SequentialModule
from lmworks.nn.norm import make_norm
from lmworks.nn.position import (
    AlibiBias,
    LearnedPositions,
    Rope,
    Rotation,
    SinusoidalPositions,
    T5Bias,
    packed_positions,
)
from lmworks.ops.attention import Mask

K = TypeVar("K", bound=Hashable)


class Block(nn.Module):
    """Attention and MLP around the residual stream."""

    def __init__(self, config: ModelConfig, own: LayerConfig, layer: int) -> None:
        """Block number `layer` of a model, with what is its `own`."""
        super().__init__()
        d_model, use_bias = config.d_model, config.use_bias
        self.norms_the_sum = config.norms_the_sum
        self.skip_scale = config.skip_scale
        self.residual_scale = config.residual_scale
        self.is_parallel = config.block == "parallel"
        self.attention = make_attention(
            own.attention,
            d_model=d_model,
            norm=config.norm,
            use_bias=use_bias,
            dropout=config.dropout,
            layer=layer,
        )
        self.mlp: nn.Module
        if own.mlp.kind == "moe":
            self.mlp = MoE(own.mlp, d_model=d_model, use_bias=use_bias, layer=layer)
        else:
            self.mlp = make_mlp(own.mlp, d_model=d_model, use_bias=use_bias)
        self.dropout = nn.Dropout(config.dropout)
        self.attention_norm = _in_norm(config)
        self.attention_out_norm = _out_norm(config)
        if not self.is_parallel:
            self.mlp_norm = _in_norm(config)
            self.mlp_out_norm = _out_norm(config)

    def forward(
        self,
        x_BTC: Float[Tensor, "B T C"],
        *,
        rotation: Rotation | None = None,
        mask: Mask = None,
        bias: Float[Tensor, "... T S"] | None = None,
        cache: KVCache | None = None,
        token_ids_BT: Int[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T C"], Routing | None]:
        """One layer of the model, and what its router did if it has one."""
        h_BTC = self._read(x_BTC, self.attention_norm)
        attended_BTC = self.attention(h_BTC, rotation=rotation, mask=mask, bias=bias, cache=cache)
        if self.is_parallel:
            y_BTC, routing = self._feed_forward(h_BTC, token_ids_BT)
            y_BTC = attended_BTC + y_BTC
            return self._add(x_BTC, y_BTC, self.attention_norm, self.attention_out_norm), routing
        x_BTC = self._add(x_BTC, attended_BTC, self.attention_norm, self.attention_out_norm)
        h_BTC = self._read(x_BTC, self.mlp_norm)
        y_BTC, routing = self._feed_forward(h_BTC, token_ids_BT)
        return self._add(x_BTC, y_BTC, self.mlp_norm, self.mlp_out_norm), routing

    def _feed_forward(
        self, h_BTC: Tensor, token_ids_BT: Tensor | None
    ) -> tuple[Tensor, Routing | None]:
        if isinstance(self.mlp, MoE):
            return self.mlp(h_BTC, token_ids_BT)
        return self.mlp(h_BTC), None

    def _read(self, x_BTC: Tensor, norm: nn.Module) -> Tensor:
        """What attention or MLP sees of the residual stream."""
        return x_BTC if self.norms_the_sum else norm(x_BTC)

    def _add(
        self, x_BTC: Tensor, branch_BTC: Tensor, norm: nn.Module, out_norm: nn.Module
    ) -> Tensor:
        """Add to the residual stream; a norm that the config has not is the identity."""
        branch_BTC = scaled(self.dropout(out_norm(branch_BTC)), self.residual_scale)
        if self.norms_the_sum:
            return norm(scaled(x_BTC, self.skip_scale) + branch_BTC)
        return x_BTC + branch_BTC


class TrainOutput(NamedTuple):
    """What the training loss is computed from."""

    hidden_BTC: Float[Tensor, "B T C"]
    """Read by the head to predict the next token."""
    mtp_hidden: tuple[Float[Tensor, "B T C"], ...] = ()
    """Read by the head to predict the token after the next one, and so on: one per depth."""
    routing: Routing | None = None
    """What the routers did, stacked from the first layer that has one to the last depth of
    multi-token prediction; None without experts."""


class Decoder(nn.Module):
    """Tokens in, logits of the next token out, after every position."""

    def __init__(self, config: ModelConfig, *, generator: torch.Generator | None = None) -> None:
        """Build with fresh weights from `generator` (default: a new one with seed 0)."""
        super().__init__()
        self.config = config
        d_model, max_seq_len = config.d_model, config.max_seq_len
        self.embed = Embedding(config.vocab_size, d_model)
        self.position: LearnedPositions | SinusoidalPositions | None = None
        if config.position.kind == "learned":
            self.position = LearnedPositions(max_seq_len=max_seq_len, d_model=d_model)
        elif config.position.kind == "sinusoidal":
            self.position = SinusoidalPositions(d_model=d_model)
        self.position_bias: T5Bias | None = None
        for t5, num_heads in config.t5_tables():
            self.position_bias = T5Bias(t5, num_heads=num_heads)
        layers = list(config.layers())
        ropes, self._rope_of_layer = _numbered(map(_rope_key, layers))
        alibis, self._alibi_of_layer = _numbered(map(_alibi_key, layers))
        self._masks: list[MaskConfig] = list(dict.fromkeys(own.attention.mask for own in layers))
        self._mask_of_layer = [self._masks.index(own.attention.mask) for own in layers]
        self._has_t5 = [own.position.kind == "t5" for own in layers]
        self.ropes = nn.ModuleList(Rope(rope, head_dim=dim) for rope, dim in ropes)
        self.alibis = nn.ModuleList(AlibiBias(alibi, num_heads=n) for alibi, n in alibis)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Block(config, own, i) for i, own in enumerate(layers))
        self.norm = _norm(config) if config.has_final_norm else nn.Identity()
        if not config.tie_embeddings:
            self.head = Linear(d_model, config.vocab_size, bias=False)
        self.mtp = nn.ModuleList(_mtp_module(config, depth) for depth in range(config.mtp.depth))
        self.reset_parameters(generator or torch.Generator().manual_seed(0))

    def forward(
        self,
        tokens_BT: Int[Tensor, "B T"],
        *,
        cache: KVCache | None = None,
        document_ids_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits after each token. See `hidden` for the arguments."""
        hidden_BTC = self.hidden(tokens_BT, cache=cache, document_ids_BT=document_ids_BT)
        logits_BTV = F.linear(hidden_BTC, self.head_weight_VC)
        if cap := self.config.logit_softcap:
            logits_BTV = cap * torch.tanh(logits_BTV / cap)
        return logits_BTV

    def hidden(
        self,
        tokens_BT: Int[Tensor, "B T"],
        *,
        cache: KVCache | None = None,
        document_ids_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T C"]:
        """The last layer's output after the final norm, before the head.

        With a `cache` the tokens continue the cached ones and are added to it. With
        `document_ids_BT` tokens see only their own document and positions restart in each.
        """
        return self.norm(self._run_layers(tokens_BT, cache, document_ids_BT).x_BTC)

    def _run_layers(
        self, tokens_BT: Tensor, cache: KVCache | None, document_ids_BT: Tensor | None
    ) -> "_LayersRun":
        positions = self._positions(tokens_BT, cache, document_ids_BT)
        x_BTC = scaled(self.embed(tokens_BT), self.config.embedding_scale)
        if self.position is not None:
            x_BTC = self.position.add_to(x_BTC, positions)
        signals = self._position_signals(positions, cache)
        views = self._views(positions, cache, document_ids_BT)
        x_BTC = self.dropout(x_BTC)
        routings: list[Routing] = []
        for layer, (rotation, bias), number in zip(
            self.layers, signals, self._mask_of_layer, strict=True
        ):
            keys, mask = views[number]
            inputs = {
                "rotation": rotation,
                "mask": mask,
                "bias": bias_of_keys(bias, keys),
                "token_ids_BT": tokens_BT,
            }
            trunk_BTC = x_BTC
            x_BTC, routing = layer(x_BTC, **inputs, cache=cache)
            if routing is not None:
                routings.append(routing)
        if cache is not None:
            cache.advance(tokens_BT.shape[1])
        return _LayersRun(x_BTC, trunk_BTC, inputs, routings)

    def train_hidden(
        self, tokens_BT: Int[Tensor, "B T"], *, document_ids_BT: Int[Tensor, "B T"] | None = None
    ) -> TrainOutput:
        """`hidden`, with all else that only training looks at.

        Multi-token prediction reads tokens further on; where a row or a document ends before them
        its output there means nothing and must not be trained.
        """
        run = self._run_layers(tokens_BT, None, document_ids_BT)
        hidden_BTC = self.norm(run.x_BTC)
        deeper, mtp_hidden = hidden_BTC, []
        for depth, module in enumerate(self.mtp, start=1):
            following_BT = F.pad(tokens_BT, (0, depth))[:, depth:]
            deeper = self._deeper(module, deeper, following_BT, run)
            mtp_hidden.append(deeper)
        routing = Routing.stack(run.routings) if run.routings else None
        return TrainOutput(hidden_BTC, tuple(mtp_hidden), routing)

    @torch.no_grad()
    def draft(self, tokens_BT: Int[Tensor, "B T"]) -> Int[Tensor, "B T D"]:
        """The likeliest next D = 1 + `config.mtp.depth` tokens after each position.

        `[..., 0]` is the model's own choice and `[..., k]` that of depth k, which has read the
        tokens up to k places on: those of `tokens_BT`, and the drafts themselves after its end.
        So the last row is what speculative decoding verifies (Leviathan et al. 2023, 2211.17192),
        and the others say how often it would be right.
        """
        run = self._run_layers(tokens_BT, None, None)
        deeper_BTC = self.norm(run.x_BTC)
        drafts = [self._likeliest(deeper_BTC)]
        for depth, module in enumerate(self.mtp, start=1):
            after_end = [draft_BT[:, -1:] for draft_BT in drafts]
            following_BT = torch.cat((tokens_BT, *after_end), dim=1)[:, depth:]
            deeper_BTC = self._deeper(module, deeper_BTC, following_BT, run)
            drafts.append(self._likeliest(deeper_BTC))
        return torch.stack(drafts, dim=-1)

    def _deeper(
        self,
        module: nn.Module,
        hidden_BTC: Tensor,
        following_BT: Tensor,
        run: "_LayersRun",
    ) -> Tensor:
        """What the head reads one depth further than `hidden_BTC`, with the tokens there.

        What its router did joins that of the layers in `run`.
        """
        if self.config.mtp.kind == "parallel":
            x_BTC, routing = module(run.trunk_BTC, **run.last_inputs)
            deeper_BTC = self.norm(x_BTC)
        else:
            embedded_BTC = self.dropout(self.embed(following_BT))
            deeper_BTC, routing = module(hidden_BTC, embedded_BTC, **run.last_inputs)
        if routing is not None:
            run.routings.append(routing)
        return deeper_BTC

    def _likeliest(self, hidden_BTC: Tensor) -> Tensor:
        return F.linear(hidden_BTC, self.head_weight_VC).argmax(dim=-1)

    @property
    def head_weight_VC(self) -> Float[Tensor, "V C"]:
        """The output head: the embedding itself if tied."""
        return self.embed.weight if self.config.tie_embeddings else self.head.weight

    def new_cache(self, batch_size: int, *, max_seq_len: int | None = None) -> KVCache:
        """An empty key-value cache of the weights' dtype and device, `max_seq_len` tokens long.

        Raises:
            ConfigError: the model cannot go token by token.
        """
        if self.config.sees_later_tokens:
            raise ConfigError(
                "mlp.router.kind=expert_choice lets experts compare a token with later ones, so "
                "this model cannot generate token by token; train with router.kind=topk for that"
            )
        return KVCache(
            [layer.attention.cache_shape for layer in self.config.layers()],
            batch_size=batch_size,
            max_seq_len=self.config.max_seq_len if max_seq_len is None else max_seq_len,
            masks=[layer.attention.mask for layer in self.config.layers()],
            dtype=self.embed.weight.dtype,
            device=self.embed.weight.device,
        )

    def num_params(self) -> int:
        """All parameters; a tied head counts once."""
        return self.config.num_params()

    def flops_per_token(self, context_length: int, *, training: bool, causal: bool = False) -> int:
        """Matmul FLOPs per token; see `ModelConfig.flops_per_token`."""
        return self.config.flops_per_token(context_length, training=training, causal=causal)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw fresh weights, in fp32 and in model order, so they depend on the generator alone.

        GPT-2's scheme (Radford et al. 2019, section 2.3): matrices N(0, `ModelConfig.start_std`),
        norms multiply by 1, biases and sinks 0.
        """
        norm_start = 0.0 if self.config.norm.unit_offset else 1.0
        for name, weight in self.named_parameters():
            if name.endswith((".bias", ".sinks")):
                weight.zero_()
            elif weight.ndim == 1:
                weight.fill_(norm_start)
            elif not weight.is_meta:
                draw = torch.empty(weight.shape, device=generator.device)
                std = self.config.start_std(name)
                weight.copy_(draw.normal_(0.0, std, generator=generator))

    def _position_signals(
        self, positions: Tensor, cache: KVCache | None
    ) -> list[tuple[Rotation | None, Tensor | None]]:
        """What each layer is told of positions: a rotation, a bias (... H T S) or nothing."""
        keys = positions
        if cache is not None:
            keys = torch.arange(cache.length + len(positions), device=positions.device)
        rotations = [rope(positions) for rope in self.ropes]
        alibis = [alibi(positions, keys) for alibi in self.alibis]
        t5 = None if self.position_bias is None else self.position_bias(positions, keys)
        return [
            (
                None if rope is None else rotations[rope],
                t5 if has_t5 else None if alibi is None else alibis[alibi],
            )
            for rope, alibi, has_t5 in zip(
                self._rope_of_layer, self._alibi_of_layer, self._has_t5, strict=True
            )
        ]

    def _positions(
        self, tokens_BT: Tensor, cache: KVCache | None, document_ids_BT: Tensor | None
    ) -> Tensor:
        """Position of each token: T of them, or B T if documents restart them."""
        num_cached = 0 if cache is None else cache.length
        num_tokens = tokens_BT.shape[1]
        if num_cached + num_tokens > self.config.max_seq_len:
            raise ConfigError(
                f"{num_cached + num_tokens} tokens are longer than the model's context: "
                f"max_seq_len={self.config.max_seq_len}"
            )
        if cache is None:
            if document_ids_BT is not None:
                return packed_positions(document_ids_BT)
        elif document_ids_BT is not None:
            raise ValueError("document_ids_BT packs whole documents; decode them without cache")
        else:
            cache.check_room(num_tokens)
        return torch.arange(num_cached, num_cached + num_tokens, device=tokens_BT.device)

    def _views(
        self, positions: Tensor, cache: KVCache | None, document_ids_BT: Tensor | None
    ) -> list[tuple[KeySpan, Mask]]:
        """The keys that layers of each mask read, and the mask over them."""
        num_tokens = positions.shape[-1]
        views: list[tuple[KeySpan, Mask]] = []
        for number, config in enumerate(self._masks):
            layer = self._mask_of_layer.index(number)
            keys = KeySpan(0, 0, num_tokens) if cache is None else cache.span(layer, num_tokens)
            if document_ids_BT is not None:
                views.append((keys, packed_layer_mask(config, document_ids_BT, positions)))
            else:
                views.append((keys, layer_mask(config, num_tokens, keys, positions.device)))
        return views


class _LayersRun(NamedTuple):
    """What came out of the layers, and what multi-token prediction goes on from."""

    x_BTC: Tensor
    """Output of the last layer."""
    trunk_BTC: Tensor
    """What the last layer read."""
    last_inputs: dict[str, Any]
    """The other arguments of the last layer."""
    routings: list[Routing]
    """What each router did."""


def _rope_key(own: LayerConfig) -> tuple[RopeConfig, int] | None:
    return (own.position, own.attention.rotary_dim) if own.position.kind == "rope" else None


def _alibi_key(own: LayerConfig) -> tuple[AlibiConfig, int] | None:
    return (own.position, own.attention.num_heads) if own.position.kind == "alibi" else None


def _numbered(keys: Iterable[K | None]) -> tuple[list[K], list[int | None]]:
    """The keys without repetition, and the number of each of them there."""
    numbers: dict[K, int] = {}
    of_each = [None if k is None else numbers.setdefault(k, len(numbers)) for k in keys]
    return list(numbers), of_each


def scaled(x: Float[Tensor, "..."], factor: float) -> Float[Tensor, "..."]:
    """factor * x, without a pass over memory where the factor is 1."""
    return x if factor == 1.0 else factor * x


def _norm(config: ModelConfig) -> nn.Module:
    return make_norm(config.norm, config.d_model, use_bias=config.use_bias)


def _in_norm(config: ModelConfig) -> nn.Module:
    return _norm(config) if config.norms_input or config.norms_the_sum else nn.Identity()


def _out_norm(config: ModelConfig) -> nn.Module:
    return _norm(config) if config.norms_output else nn.Identity()


def _mtp_module(config: ModelConfig, depth: int) -> ParallelModule | SequentialModule:
    block = Block(config, config.last_layer, config.num_layers + depth)
    if config.mtp.kind == "parallel":
        return ParallelModule(block)
    return SequentialModule(
        block,
        d_model=config.d_model,
        norm=config.norm,
        has_final_norm=config.has_final_norm,
        use_bias=config.use_bias,
    )
