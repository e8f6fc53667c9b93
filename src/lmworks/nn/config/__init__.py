"""What each layer needs to know to be built: plain data, no torch.

Every class here is a section of `lmworks.models.config.ModelConfig`, and computes what follows from
it: weight shapes, FLOPs, cache size. Sizes that follow from the model's width (`head_dim`, `d_ff`)
may be left out there; here they are always numbers.
"""

from lmworks.nn.config.attention import AttentionConfig
from lmworks.nn.config.mask import (
    BlockMaskConfig,
    FullMaskConfig,
    MaskConfig,
    StridedMaskConfig,
    WindowMaskConfig,
    cache_slots,
    tokens_after_rolling,
)
from lmworks.nn.config.mla import AnyAttentionConfig, MLAConfig
from lmworks.nn.config.mlp import (
    GATED_ACTIVATIONS,
    Activation,
    GatedActivation,
    MLPConfig,
    PlainActivation,
    default_d_ff,
)
from lmworks.nn.config.moe import (
    SELECTION_BIAS,
    BalanceConfig,
    FeedForwardConfig,
    MoEConfig,
)
from lmworks.nn.config.mtp import MTPConfig, NoMTP, ParallelMTP, SequentialMTP
from lmworks.nn.config.norm import NormConfig, NormKind
from lmworks.nn.config.number import NonNegativeFloat
from lmworks.nn.config.position import (
    AlibiConfig,
    LearnedConfig,
    NoPositionConfig,
    PositionConfig,
    RopeConfig,
    SinusoidalConfig,
    T5Config,
)
from lmworks.nn.config.rope_scaling import (
    LinearScalingConfig,
    Llama3ScalingConfig,
    NoScalingConfig,
    NtkScalingConfig,
    RopeScalingConfig,
    YarnScalingConfig,
    yarn_mscale,
)
from lmworks.nn.config.router import (
    AuctionRouterConfig,
    ExpertChoiceRouterConfig,
    HashRouterConfig,
    NoisyTopKRouterConfig,
    RouterConfig,
    SinkhornRouterConfig,
    TopKRouterConfig,
)
from lmworks.nn.config.shapes import Shapes, linear_shapes, prefixed

__all__ = [
    "GATED_ACTIVATIONS",
    "SELECTION_BIAS",
    "Activation",
    "AlibiConfig",
    "AnyAttentionConfig",
    "AttentionConfig",
    "AuctionRouterConfig",
    "BalanceConfig",
    "BlockMaskConfig",
    "ExpertChoiceRouterConfig",
    "FeedForwardConfig",
    "FullMaskConfig",
    "GatedActivation",
    "HashRouterConfig",
    "LearnedConfig",
    "LinearScalingConfig",
    "Llama3ScalingConfig",
    "MLAConfig",
    "MLPConfig",
    "MTPConfig",
    "MaskConfig",
    "MoEConfig",
    "NoMTP",
    "NoPositionConfig",
    "NoScalingConfig",
    "NoisyTopKRouterConfig",
    "NonNegativeFloat",
    "NormConfig",
    "NormKind",
    "NtkScalingConfig",
    "ParallelMTP",
    "PlainActivation",
    "PositionConfig",
    "RopeConfig",
    "RopeScalingConfig",
    "RouterConfig",
    "SequentialMTP",
    "Shapes",
    "SinkhornRouterConfig",
    "SinusoidalConfig",
    "StridedMaskConfig",
    "T5Config",
    "TopKRouterConfig",
    "WindowMaskConfig",
    "YarnScalingConfig",
    "cache_slots",
    "default_d_ff",
    "linear_shapes",
    "prefixed",
    "tokens_after_rolling",
    "yarn_mscale",
]
