"""Settings of the optimizers (no torch here: recipes are read without it)."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from lmworks.base.config import Config

Beta = Annotated[float, Field(ge=0, lt=1)]


class AdamWConfig(Config):
    """AdamW (arXiv:1711.05101); defaults as in GPT-3 and Llama pretraining."""

    kind: Literal["adamw"] = "adamw"
    lr_peak: PositiveFloat = 1e-3
    """Highest learning rate; the schedule scales it."""
    beta1: Beta = 0.9
    """Decay of the mean of gradients."""
    beta2: Beta = 0.95
    """Decay of the mean of squared gradients."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the mean square."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled decay; each step shrinks weights by lr * weight_decay."""
    decay: Literal["matrices", "all", "none"] = "matrices"
    """What decays. matrices: tensors of two or more dims, embeddings included (as nanoGPT)."""


class SGDConfig(Config):
    """SGD with momentum, as torch.optim.SGD."""

    kind: Literal["sgd"] = "sgd"
    lr_peak: PositiveFloat = 0.1
    """Highest learning rate; the schedule scales it."""
    momentum: Beta = 0.9
    """Share of the previous update that is kept; 0 needs no state."""
    nesterov: bool = False
    """Look ahead along the momentum."""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 term added to the gradient."""
    decay: Literal["matrices", "all", "none"] = "matrices"
    """What decays. matrices: tensors of two or more dims, embeddings included (as nanoGPT)."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> "SGDConfig":
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov=true looks ahead along the momentum, but momentum=0.0")
        return self


class MuonConfig(Config):
    """Muon for hidden matrices, AdamW for everything else.

    Sources: Jordan et al. 2024 (kellerjordan.github.io/posts/muon); update scaled to the RMS of
    AdamW, 0.2 * sqrt(max(rows, columns)), as in Moonlight (arXiv:2502.16982).
    """

    kind: Literal["muon"] = "muon"
    lr_peak: PositiveFloat = 2e-3
    """Highest learning rate of the hidden matrices; the schedule scales it."""
    momentum: Beta = 0.95
    """Decay of the mean of gradients."""
    nesterov: bool = True
    """Look ahead along the momentum."""
    ns_steps: PositiveInt = 5
    """Newton-Schulz iterations of the orthogonalisation."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled decay of the hidden matrices and of what AdamW decays."""
    adamw_names: tuple[str, ...] = ("embed", "position", "head")
    """Matrices with one of these words in their dotted name go to AdamW."""
    adamw_lr_ratio: PositiveFloat = 1.0
    """Learning rate of the AdamW part, as a multiple of Muon's."""
    adamw_beta1: Beta = 0.9
    """beta1 of the AdamW part."""
    adamw_beta2: Beta = 0.95
    """beta2 of the AdamW part."""
    adamw_eps: PositiveFloat = 1e-8
    """eps of the AdamW part."""
    decay: Literal["matrices", "all", "none"] = "matrices"
    """What decays. matrices: tensors of two or more dims, embeddings included (as nanoGPT)."""


OptimConfig = Annotated[AdamWConfig | SGDConfig | MuonConfig, Field(discriminator="kind")]
"""Any optimizer, chosen by `kind`."""
