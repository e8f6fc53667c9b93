"""Mixture of experts as data: many small MLPs, of which each token uses a few.

DeepSeekMoE (Dai et al. 2024, arXiv 2401.06066) has the layout: routed experts of width `d_ff`, and
shared ones that every token goes through. What chooses is in `nn.config.router`, what keeps the
experts evenly used in `BalanceConfig`.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from lmworks.base.config import Config
from lmworks.nn.config.mlp import GATED_ACTIVATIONS, Activation, MLPConfig
from lmworks.nn.config.number import NonNegativeFloat
from lmworks.nn.config.router import RouterConfig, TopKRouterConfig
from lmworks.nn.config.shapes import Shapes, prefixed

SELECTION_BIAS = "router.bias"
"""Name of the one weight of a layer that no gradient reaches: a buffer, not a parameter."""
_DEFAULT_SWITCH_WEIGHT = 0.01


class BalanceConfig(Config):
    """What keeps experts evenly used. Each loss is 1 (device, sequence and Switch) when all experts
    are used alike, is weighted here, and is added to the loss per token."""

    switch_weight: NonNegativeFloat
    """Switch loss E sum_i f_i P_i over all tokens of a micro-batch (Fedus et al. 2021, 2101.03961,
    eq. 4). Left out: 0.01 for routers it can move if no other method is set, else 0."""
    device_weight: NonNegativeFloat = 0.0
    """The same between groups of experts, one per device (DeepSeekMoE, 2401.06066, eq. 15)."""
    num_devices: PositiveInt = 1
    """Groups of the device loss."""
    sequence_weight: NonNegativeFloat = 0.0
    """The same within each sequence (DeepSeek-V3, 2412.19437, eq. 17); there 0.0001."""
    z_weight: NonNegativeFloat = 0.0
    """Router z-loss: mean squared logsumexp of the logits (ST-MoE, 2202.08906, eq. 5); there
    0.001."""
    bias_rate: NonNegativeFloat = 0.0
    """Step of the selection bias per optimizer step, up for experts with less than the mean load
    and down for the others (Wang et al. 2024, 2408.15664); there 0.001."""

    @property
    def has_balance_loss(self) -> bool:
        """Whether any loss pulls the loads together."""
        return bool(self.switch_weight or self.device_weight or self.sequence_weight)


class MoEConfig(Config):
    """Experts, of which each token uses those that the router chooses."""

    kind: Literal["moe"] = "moe"
    activation: Activation = "swiglu"
    """relu gelu gelu_tanh silu relu2, or gated: glu bilinear reglu geglu geglu_tanh swiglu."""
    d_ff: PositiveInt
    """Width of the hidden layer of one expert."""
    num_experts: PositiveInt
    """Experts that the router chooses from."""
    num_shared_experts: NonNegativeInt = 0
    """Experts that every token goes through: one MLP of num_shared_experts * d_ff."""
    router: RouterConfig = TopKRouterConfig()
    capacity_factor: NonNegativeFloat = 0.0
    """Most tokens of an expert in training, as a multiple of its even share, rounded up; the rest
    are dropped there (GShard, Lepikhin et al. 2020, 2006.16668). 0: none is dropped."""
    drop: Literal["score", "position"] = "score"
    """Whom a full expert drops: the tokens with the lowest weights, or the last ones in the batch
    (Switch)."""
    balance: BalanceConfig

    @model_validator(mode="before")
    @classmethod
    def _fill_balance(cls, values: Any) -> Any:
        """The Switch loss where nothing else is said: without any, experts starve."""
        if not isinstance(values, dict):
            return values
        balance, router = values.get("balance", {}), values.get("router", {})
        if not isinstance(balance, dict) or "switch_weight" in balance:
            return values
        kind = router.get("kind", "topk") if isinstance(router, dict) else router.kind
        others = ("device_weight", "sequence_weight", "bias_rate")
        is_free = kind in ("topk", "noisy_topk") and not any(balance.get(key) for key in others)
        weight = _DEFAULT_SWITCH_WEIGHT if is_free else 0.0
        return {**values, "balance": {"switch_weight": weight, **balance}}

    @model_validator(mode="before")
    @classmethod
    def _fill_router_kind(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("router"), dict):
            return values
        return {**values, "router": {"kind": "topk", **values["router"]}}

    @model_validator(mode="after")
    def _router_fits(self) -> "MoEConfig":
        self.router.check(self.num_experts)
        balance, kind = self.balance, self.router.kind
        if self.num_experts % balance.num_devices:
            raise ValueError(
                f"num_experts={self.num_experts} is not a multiple of "
                f"balance.num_devices={balance.num_devices}"
            )
        if balance.device_weight and balance.num_devices == 1:
            raise ValueError(
                f"balance.device_weight={balance.device_weight:g} compares devices, but "
                "balance.num_devices=1"
            )
        if balance.has_balance_loss and not self.router.is_trained_to_balance:
            raise ValueError(
                f"balance: a balance loss with router.kind={kind}, which is balanced by the way it "
                "assigns; set balance.switch_weight, device_weight and sequence_weight to 0"
            )
        if balance.z_weight and not self.router.has_logits:
            raise ValueError(f"balance.z_weight={balance.z_weight:g}: router.kind={kind} has none")
        if balance.bias_rate and not self.has_selection_bias:
            raise ValueError(
                f"balance.bias_rate={balance.bias_rate:g} moves the selection bias, which is off; "
                "set router.kind=topk and router.selection_bias=true"
            )
        if self.capacity_factor and kind == "expert_choice":
            raise ValueError(
                f"capacity_factor={self.capacity_factor:g} with router.kind=expert_choice, where "
                "every expert takes its share and no more; set router.mean_experts instead"
            )
        return self

    @property
    def is_gated(self) -> bool:
        """Whether there is a third matrix whose output multiplies the activation."""
        return self.activation in GATED_ACTIVATIONS

    @property
    def num_matrices(self) -> int:
        """Weight matrices of d_model x d_ff elements of each expert."""
        return 3 if self.is_gated else 2

    @property
    def has_selection_bias(self) -> bool:
        """Whether the router adds a bias to the scores that it chooses by."""
        return self.router.kind == "topk" and self.router.selection_bias

    @property
    def shared_mlp(self) -> MLPConfig | None:
        """The shared experts as one MLP, if there are any."""
        if not self.num_shared_experts:
            return None
        return MLPConfig(activation=self.activation, d_ff=self.num_shared_experts * self.d_ff)

    def capacity(self, num_tokens: int) -> int:
        """Most of `num_tokens` tokens that one expert takes in training, if there is a limit."""
        share = num_tokens * self.router.experts_per_token / self.num_experts
        return math.ceil(self.capacity_factor * share)

    def weight_shapes(self, d_model: int, *, use_bias: bool) -> Shapes:
        """Of the layer's own weights; experts and router have no biases, shared experts may."""
        shapes = prefixed("router", self.router.weight_shapes(d_model, self.num_experts))
        for name in ["gate", "up"] if self.is_gated else ["up"]:
            shapes[f"experts.{name}"] = (self.num_experts, self.d_ff, d_model)
        shapes["experts.down"] = (self.num_experts, d_model, self.d_ff)
        if self.shared_mlp is not None:
            shared = self.shared_mlp.weight_shapes(d_model, use_bias=use_bias)
            shapes |= prefixed("shared", shared)
        return shapes

    def num_active_params(self, d_model: int, *, use_bias: bool) -> int:
        """Parameters that one token uses: router, shared experts and the chosen ones."""
        router = self.router.weight_shapes(d_model, self.num_experts)
        active = sum(math.prod(shape) for name, shape in router.items() if name != "bias")
        active += round(self.router.experts_per_token * self.num_matrices * d_model * self.d_ff)
        if self.shared_mlp is not None:
            active += self.shared_mlp.num_active_params(d_model, use_bias=use_bias)
        return active

    def flops_per_token(self, d_model: int) -> int:
        """Forward matmul FLOPs; a multiply-add is 2."""
        experts = self.router.experts_per_token * 2 * self.num_matrices * d_model * self.d_ff
        router = self.router.flops_per_token(d_model, self.num_experts)
        shared = 0 if self.shared_mlp is None else self.shared_mlp.flops_per_token(d_model)
        return round(experts) + router + shared


FeedForwardConfig = Annotated[MLPConfig | MoEConfig, Field(discriminator="kind")]
"""The feed-forward half of a block, dense or a mixture of experts, chosen by `kind`."""
