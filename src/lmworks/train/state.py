"""What training changes: model, optimizer, data position, random state, counters.

A run is a pure function of its recipe, its shards and the weights that it starts from, if those are
not fresh: `TrainingState(recipe, shards)` is step 0, and `restore(snapshot())` is the same state
again, bit for bit, in any later process with the same number of threads. Nothing else in the loop
carries information from one step to the next.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lmworks.base.errors import CheckpointError
from lmworks.data.loader import Loader
from lmworks.data.shard import ShardSet
from lmworks.models.decoder import Decoder
from lmworks.train.checkpoint import (
    Best,
    Progress,
    Snapshot,
    check_architecture,
    copy_tensors,
)
from lmworks.train.optim import build_optimizer
from lmworks.train.recipe import Recipe
from lmworks.train.step import recompute_activations

# The optimizer's fp32 masters are the model's weights; a checkpoint holds them once.
_MASTER = "master."
_TORCH_RNG = "torch_cpu"


class TrainingState:
    """Everything that a checkpoint holds, live.

    Args:
        recipe: resolved; `train.precision` must be fp32 or bf16.
        shards: the training tokens.
        weights: to start from, by name; drawn from `train.seed` if left out.
    """

    def __init__(
        self, recipe: Recipe, shards: ShardSet, *, weights: Mapping[str, Tensor] | None = None
    ) -> None:
        torch.manual_seed(recipe.train.seed)
        self.recipe = recipe
        generator = torch.Generator().manual_seed(recipe.train.seed)
        self.model = Decoder(recipe.model, generator=generator)
        if weights is not None:
            copy_tensors(self.model.state_dict(), weights, where=recipe.train.init_from)
        self.loader = Loader(
            shards,
            batch_size=recipe.train.batch_size,
            context_length=recipe.train.context_length,
            seed=recipe.train.seed,
            order=recipe.loader.order,
            separate_documents=recipe.loader.separate_documents,
        )
        initial = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        # Weights that no gradient moves, such as the selection bias of a router.
        self._buffers = {
            name: weight for name, weight in self.model.state_dict().items() if name not in initial
        }
        if recipe.train.precision == "bf16":
            round_parameters(self.model, torch.bfloat16)
        self.optimizer = build_optimizer(recipe.optim, self.model.named_parameters())
        copy_tensors(self.optimizer.master_weights(), initial, where="initial weights")
        if recipe.train.activation_checkpointing == "full":
            recompute_activations(self.model)
        self.step = 0
        self.tokens = 0
        self.elapsed_s = 0.0
        self.best: Best | None = None

    def snapshot(self) -> Snapshot:
        """The state now; its tensors are not copied, so save them before the next step."""
        state = self.optimizer.state_tensors()
        return Snapshot(
            progress=Progress(
                step=self.step,
                tokens=self.tokens,
                elapsed_s=self.elapsed_s,
                loader=self.loader.state_dict(),
                num_threads=torch.get_num_threads(),
                best=self.best,
            ),
            model_config=self.recipe.model.model_dump(mode="json"),
            weights={**self.optimizer.master_weights(), **self._buffers},
            optimizer={k: v for k, v in state.items() if not k.startswith(_MASTER)},
            rng=self.random_state(),
        )

    def restore(self, snapshot: Snapshot, *, where: str) -> None:
        """Go to a saved state; `where` names its source in errors."""
        check_architecture(
            self.recipe.model.model_dump(mode="json"), snapshot.model_config, where=where
        )
        weights = {**self.optimizer.master_weights(), **self._buffers}
        copy_tensors(weights, snapshot.weights, where=where)
        masters = {
            name: snapshot.weights[name.removeprefix(_MASTER)]
            for name in self.optimizer.state_tensors()
            if name.startswith(_MASTER)
        }
        try:
            self.optimizer.load_state_tensors({**snapshot.optimizer, **masters})
        except CheckpointError as err:
            raise CheckpointError(f"{where}: {err}") from None
        progress = snapshot.progress
        self.loader.load_state_dict(progress.loader)
        torch.set_num_threads(progress.num_threads)
        self.set_random_state(snapshot.rng)
        self.step, self.tokens = progress.step, progress.tokens
        self.elapsed_s, self.best = progress.elapsed_s, progress.best

    def random_state(self) -> dict[str, Tensor]:
        """State of torch's generator, which dropout draws from."""
        return {_TORCH_RNG: torch.get_rng_state()}

    def set_random_state(self, rng: Any) -> None:
        """Set what `random_state` returned."""
        torch.set_rng_state(rng[_TORCH_RNG])


@torch.no_grad()
def round_parameters(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Round every parameter to `dtype`, in place; buffers (position tables) stay as they are."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
