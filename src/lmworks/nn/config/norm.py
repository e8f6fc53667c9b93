"""Normalisation as data."""

from typing import Literal

from pydantic import PositiveFloat, model_validator

from lmworks.base.config import Config
from lmworks.nn.config.shapes import Shapes

NormKind = Literal["rmsnorm", "layernorm"]


class NormConfig(Config):
    """Normalisation of the residual stream."""

    kind: NormKind = "rmsnorm"
    """rmsnorm (Zhang & Sennrich 2019) or layernorm (Ba et al. 2016)."""
    eps: PositiveFloat = 1e-5
    """Added to the mean square (or variance) under the root."""
    unit_offset: bool = False
    """RMSNorm multiplies by 1 + weight and the weight starts at 0, as in Gemma's checkpoints."""

    @model_validator(mode="after")
    def _offset_is_rms_norms(self) -> "NormConfig":
        if self.unit_offset and self.kind != "rmsnorm":
            raise ValueError(f"unit_offset is for kind=rmsnorm; kind={self.kind} has none")
        return self

    def weight_shapes(self, name: str, dim: int, *, use_bias: bool) -> Shapes:
        """Of a norm over `dim` channels; RMSNorm has no bias whatever `use_bias` says."""
        has_bias = self.kind == "layernorm" and use_bias
        return {
            f"{name}.{part}": (dim,) for part in (["weight", "bias"] if has_bias else ["weight"])
        }
