"""A dense model becomes a mixture of experts that starts where the dense one is.

    mixture = upcycle(model, num_experts=8, top_k=2, generator=generator)

Every expert starts as a copy of the dense MLP, and the router at random (Komatsuzaki et al. 2022,
"Sparse Upcycling", arXiv 2212.05055). The weights of a token's experts sum to 1, so what comes out
is the dense MLP's output, whichever experts are chosen: the first forward pass is equal up to
rounding.

Fine-grained, with `granularity` G: each copy is cut into G experts that hold a G-th of the hidden
units. The G shards of one copy share their row of the router at the start, so their scores are
equal and the top_k G experts of a token are the shards of the best top_k copies, each hidden unit
top_k times (virtual groups: He et al. 2024, "Upcycling Large Language Models into Mixture of
Experts", arXiv 2410.07524, section 3.3). Weights that sum to 1 then give a G-th of the output, so
`router.scale` is G. Where copies tie exactly, as for an input of zeros, the choice among them is
arbitrary and need not be whole.

Shapes: E experts in all, G shards of a copy, F hidden units of an expert, C channels.
"""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from lmworks.base.errors import ConfigError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.state import build_decoder
from lmworks.models.tensor_file import Header
from lmworks.nn.config import MLPConfig


def upcycle(
    model: Decoder,
    *,
    num_experts: int,
    top_k: int,
    generator: torch.Generator,
    granularity: int = 1,
    every: int = 1,
) -> Decoder:
    """The mixture of experts made of a dense `model`, in evaluation mode, in the same dtype.

    Args:
        num_experts: copies of each MLP.
        top_k: copies that a token uses.
        generator: draws the routers.
        granularity: experts that each copy is cut into.
        every: 1 makes every layer a mixture, 2 every other one, the last of each `every` layers.

    Raises:
        ConfigError: the model has experts already, or the sizes do not fit.
    """
    config = upcycled_config(
        model.config, num_experts=num_experts, top_k=top_k, granularity=granularity, every=every
    )
    source = _Upcycled(model, config, granularity=granularity, generator=generator)
    return build_decoder(config, source)


def upcycled_config(
    dense: ModelConfig, *, num_experts: int, top_k: int, granularity: int = 1, every: int = 1
) -> ModelConfig:
    """The config of what `upcycle` makes of a model of config `dense`."""
    mlp = dense.mlp
    if not isinstance(mlp, MLPConfig):
        raise ConfigError(f"mlp.kind={mlp.kind}: only a dense model can be upcycled")
    if any(kind.mlp for kind in dense.layer_kinds.values()):
        raise ConfigError("layer_kinds: the MLPs of the layers differ; upcycling needs one kind")
    if granularity < 1 or mlp.d_ff % granularity:
        raise ConfigError(
            f"granularity={granularity} does not divide mlp.d_ff={mlp.d_ff} into whole experts"
        )
    if every < 1 or every > dense.num_layers:
        raise ConfigError(f"every={every} is not between 1 and num_layers={dense.num_layers}")
    experts = {
        "kind": "moe",
        "activation": mlp.activation,
        "d_ff": mlp.d_ff // granularity,
        "num_experts": num_experts * granularity,
        "router": {
            "kind": "topk",
            "top_k": top_k * granularity,
            "normalize": True,
            "scale": float(granularity),
        },
    }
    values = dense.model_dump()
    if every == 1:
        values["mlp"] = experts
    elif dense.layer_kinds:
        raise ConfigError(f"every={every} needs a model whose layers are alike; use every=1")
    else:
        values["layer_kinds"] = {"dense": {}, "experts": {"mlp": experts}}
        values["layer_pattern"] = (f"dense*{every - 1}", "experts")
    return _validated(values)


def _validated(values: Mapping[str, Any]) -> ModelConfig:
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as err:
        raise ConfigError(str(err.errors()[0]["msg"]).removeprefix("Value error, ")) from None


class _Upcycled:
    """The weights of the mixture as a `WeightSource`, made one by one of the dense ones."""

    where = "upcycled model"

    def __init__(
        self,
        model: Decoder,
        config: ModelConfig,
        *,
        granularity: int,
        generator: torch.Generator,
    ) -> None:
        dtype = model.embed.weight.dtype
        self._dense = {name: weight.detach() for name, weight in model.state_dict().items()}
        self._granularity = granularity
        self._generator = generator
        self._std = config.init.std
        self.headers = {
            name: Header(shape, dtype) for name, shape in config.weight_shapes().items()
        }

    def fill(self, name: str, out: Tensor) -> None:
        """See `WeightSource`."""
        layer, _, part = name.rpartition(".experts.")
        if name in self._dense:
            out.copy_(self._dense[name])
        elif layer:
            shards = self._shards(self._dense[f"{layer}.{part}.weight"], part)
            out.view(-1, *shards.shape).copy_(shards)
        else:
            assert name.endswith(".router.weight"), f"{name} is no part of a mixture"
            num_copies = len(out) // self._granularity
            rows = torch.empty(num_copies, out.shape[1])
            rows.normal_(0.0, self._std, generator=self._generator)
            out.copy_(rows.repeat_interleave(self._granularity, dim=0))

    def _shards(self, weight: Tensor, part: str) -> Tensor:
        """G F C of gate or up, which are (G F) C; G C F of down, which is C (G F)."""
        if part == "down":
            return weight.reshape(len(weight), self._granularity, -1).transpose(0, 1)
        return weight.reshape(self._granularity, -1, weight.shape[1])
