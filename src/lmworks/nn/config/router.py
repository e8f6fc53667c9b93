"""What chooses the experts of a token, as data. See `nn.moe` for what each kind computes."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from lmworks.base.config import Config
from lmworks.nn.config.shapes import Shapes

Score = Literal["softmax", "sigmoid"]


class _Router(Config):
    """What the kinds have in common."""

    @property
    def experts_per_token(self) -> int | float:
        """Experts that an average token uses."""
        return 1

    @property
    def has_logits(self) -> bool:
        """Whether a matrix scores every expert for every token."""
        return True

    @property
    def is_trained_to_balance(self) -> bool:
        """Whether loads depend on the scores alone, so that a loss can and must even them out."""
        return False

    @property
    def sees_later_tokens(self) -> bool:
        """Whether the choice for a token depends on later ones also when the model answers."""
        return False

    def check(self, num_experts: int) -> None:
        """Raise ValueError if the router cannot choose from `num_experts`."""

    def weight_shapes(self, d_model: int, num_experts: int) -> Shapes:
        """Of the router's own weights."""
        return {"weight": (num_experts, d_model)} if self.has_logits else {}

    def flops_per_token(self, d_model: int, num_experts: int) -> int:
        """Forward matmul FLOPs."""
        return 2 * d_model * num_experts if self.has_logits else 0


class TopKRouterConfig(_Router):
    """Each token takes the experts with the highest scores."""

    kind: Literal["topk"] = "topk"
    top_k: PositiveInt = 2
    """Experts per token."""
    score: Score = "softmax"
    """softmax over all experts, or a sigmoid of each (DeepSeek-V3)."""
    normalize: bool = True
    """Divide the weights of the chosen experts by their sum (Mixtral, DeepSeek-V3)."""
    scale: PositiveFloat = 1.0
    """Factor of the weights, after that."""
    selection_bias: bool = False
    """Choose by score + bias, weigh by the score alone. The bias is moved by
    `balance.bias_rate`, not by gradients (Wang et al. 2024, 2408.15664)."""
    num_groups: PositiveInt = 1
    """Equal groups of experts, for example one per device."""
    top_groups: PositiveInt = 1
    """Groups that a token may choose from (DeepSeek-V2, 2405.04434, section 2.2.2)."""
    group_score: Literal["max", "top2_sum"] = "max"
    """How groups are ranked: by their best expert (V2) or the sum of their two best (V3)."""

    @property
    def experts_per_token(self) -> int | float:
        """See `_Router`."""
        return self.top_k

    @property
    def is_trained_to_balance(self) -> bool:
        """See `_Router`."""
        return True

    def check(self, num_experts: int) -> None:
        """See `_Router`."""
        _check_top_k(self.top_k, num_experts)
        if num_experts % self.num_groups:
            raise ValueError(
                f"num_experts={num_experts} is not a multiple of "
                f"router.num_groups={self.num_groups}"
            )
        if self.top_groups > self.num_groups:
            raise ValueError(
                f"router.top_groups={self.top_groups} is more than "
                f"router.num_groups={self.num_groups}"
            )
        group_size = num_experts // self.num_groups
        if self.top_k > self.top_groups * group_size:
            raise ValueError(
                f"router.top_k={self.top_k} experts, but router.top_groups={self.top_groups} "
                f"groups have {self.top_groups * group_size}"
            )
        if self.group_score == "top2_sum" and self.num_groups > 1 and group_size < 2:
            raise ValueError(
                f"router.group_score=top2_sum, but router.num_groups={self.num_groups} groups of "
                f"num_experts={num_experts} have one expert each; use max"
            )

    def weight_shapes(self, d_model: int, num_experts: int) -> Shapes:
        """See `_Router`."""
        shapes: Shapes = {"weight": (num_experts, d_model)}
        return shapes | {"bias": (num_experts,)} if self.selection_bias else shapes


class NoisyTopKRouterConfig(_Router):
    """Top-k of logits with learned noise in training (Shazeer et al. 2017, 1701.06538, eq. 3-5)."""

    kind: Literal["noisy_topk"] = "noisy_topk"
    top_k: PositiveInt = 2
    """Experts per token."""

    @property
    def experts_per_token(self) -> int | float:
        """See `_Router`."""
        return self.top_k

    @property
    def is_trained_to_balance(self) -> bool:
        """See `_Router`."""
        return True

    def check(self, num_experts: int) -> None:
        """See `_Router`."""
        _check_top_k(self.top_k, num_experts)

    def weight_shapes(self, d_model: int, num_experts: int) -> Shapes:
        """See `_Router`."""
        return {"weight": (num_experts, d_model), "noise_weight": (num_experts, d_model)}

    def flops_per_token(self, d_model: int, num_experts: int) -> int:
        """See `_Router`."""
        return 4 * d_model * num_experts


class ExpertChoiceRouterConfig(_Router):
    """Each expert takes the tokens with the highest scores (Zhou et al. 2022, 2202.09368).

    Perfectly balanced, but whether a token is taken depends on the others, later ones too.
    """

    kind: Literal["expert_choice"] = "expert_choice"
    mean_experts: PositiveFloat = 2.0
    """Experts per token on average: each expert takes num_tokens * mean_experts / num_experts."""

    @property
    def experts_per_token(self) -> int | float:
        """See `_Router`."""
        return self.mean_experts

    @property
    def sees_later_tokens(self) -> bool:
        """See `_Router`."""
        return True

    def check(self, num_experts: int) -> None:
        """See `_Router`."""
        if self.mean_experts > num_experts:
            raise ValueError(
                f"router.mean_experts={self.mean_experts:g} is more than num_experts={num_experts}"
            )


class HashRouterConfig(_Router):
    """The expert is a fixed hash of the token id (Roller et al. 2021, 2106.04426)."""

    kind: Literal["hash"] = "hash"

    @property
    def has_logits(self) -> bool:
        """See `_Router`."""
        return False


class SinkhornRouterConfig(_Router):
    """One expert per token; in training the best after scores were evened out (S-BASE, Clark et
    al. 2022, 2202.01169, appendix B.2.1); afterwards simply the best."""

    kind: Literal["sinkhorn"] = "sinkhorn"
    score: Score = "softmax"
    """What the expert's output is multiplied by."""
    iterations: PositiveInt = 16
    """Alternating normalisations of rows and columns."""


class AuctionRouterConfig(_Router):
    """One expert per token; in training the assignment with the highest total score among those
    where all experts get their even share (BASE, Lewis et al. 2021, 2103.16716); afterwards simply
    the best expert."""

    kind: Literal["auction"] = "auction"
    score: Score = "sigmoid"
    """What the expert's output is multiplied by."""
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """How far the mean logit of the chosen experts may be below the optimum, as a share of the
    range of all logits."""


RouterConfig = Annotated[
    TopKRouterConfig
    | NoisyTopKRouterConfig
    | ExpertChoiceRouterConfig
    | HashRouterConfig
    | SinkhornRouterConfig
    | AuctionRouterConfig,
    Field(discriminator="kind"),
]
"""Any router, chosen by `kind`."""


def _check_top_k(top_k: int, num_experts: int) -> None:
    if top_k > num_experts:
        raise ValueError(f"router.top_k={top_k} is more than num_experts={num_experts}")
