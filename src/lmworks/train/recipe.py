"""The recipe: one YAML file is one run. No torch.

    loaded = load_recipe("recipes/tiny_cpu.yaml", ["train.steps=500"])
    loaded.config.train.steps, loaded.sources["train.steps"]    # 500, "override"

Combinations that cannot work are refused here, before any file is read or written, with the
nearest value that would. What only the machine or the data can tell (`auto`, the size of a trained
vocabulary) is filled in by `prepare`, which saves the resolved recipe in the run folder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from lmworks.base.config import Config, Loaded, load
from lmworks.base.errors import ConfigError
from lmworks.data.loader import Order
from lmworks.models.config import ModelConfig
from lmworks.nn.config import NonNegativeFloat
from lmworks.train.optim.config import AdamWConfig, OptimConfig
from lmworks.train.schedule import CosineSchedule, ScheduleConfig

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""What every generator takes: torch's hold 64 bits with a sign."""
NUM_BYTES = 256
"""Every byte-level vocabulary starts with one token per byte."""


class BPETokenizer(Config):
    """Byte-level BPE trained on the run's own text."""

    kind: Literal["bpe"] = "bpe"
    vocab_size: PositiveInt = 4096
    """Tokens in all: bytes, merges and special tokens."""
    pattern: Literal["gpt2", "cl100k", "o200k", "llama3", "qwen2", "smollm"] = "gpt2"
    """How text is cut into pieces that merges never cross."""
    special_tokens: tuple[str, ...] = ("<|endoftext|>",)
    """Strings that are one token each; the end-of-text token must be among them."""

    @model_validator(mode="after")
    def _bytes_and_specials_fit(self) -> "BPETokenizer":
        smallest = NUM_BYTES + len(self.special_tokens)
        if self.vocab_size < smallest:
            raise ValueError(
                f"vocab_size={self.vocab_size} is too small for {NUM_BYTES} bytes and "
                f"{len(self.special_tokens)} special tokens; at least {smallest}"
            )
        return self


class CharTokenizer(Config):
    """One token per character that occurs in the run's text."""

    kind: Literal["char"] = "char"


class ByteTokenizer(Config):
    """One token per byte; nothing to train."""

    kind: Literal["byte"] = "byte"


class WordTokenizer(Config):
    """One token per frequent word of the run's text; the others are unknown."""

    kind: Literal["word"] = "word"
    vocab_size: PositiveInt = 10000
    """Most frequent words and special tokens together."""


class FileTokenizer(Config):
    """A tokenizer that exists already."""

    kind: Literal["file"] = "file"
    path: str
    """Our tokenizer.json, Hugging Face's tokenizer.json, or a run's."""


TokenizerConfig = Annotated[
    BPETokenizer | CharTokenizer | ByteTokenizer | WordTokenizer | FileTokenizer,
    Field(discriminator="kind"),
]


class TextData(Config):
    """Text files; tokenized into the run folder."""

    kind: Literal["text"] = "text"
    files: tuple[str, ...] = ()
    """Files and directories (txt, jsonl, jsonl.gz, jsonl.zst), seen from the working directory."""
    val_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Share of the documents held out for evaluation."""


class ShardData(Config):
    """Shards that `lmworks data pack` wrote; `tokenizer.kind=file` must name their tokenizer."""

    kind: Literal["shards"] = "shards"
    train: str
    """Folder of the training shards."""
    val: str
    """Folder of the evaluation shards."""


DataConfig = Annotated[TextData | ShardData, Field(discriminator="kind")]


class BatchOrder(Config):
    """How batches are drawn from the shards."""

    order: Order = "shuffled"
    """shuffled: every window once per epoch, in an order drawn from train.seed; random: windows
    anywhere, with replacement; sequential: as the text stands."""
    separate_documents: bool = False
    """Tokens attend only to their own document."""


class TrainConfig(Config):
    """The training loop itself."""

    steps: NonNegativeInt = 0
    """Optimizer steps; 0 takes them from max_tokens."""
    max_tokens: NonNegativeInt = 0
    """Tokens to train on, rounded up to whole steps; 0 when steps are given."""
    batch_size: PositiveInt = 16
    """Sequences per step."""
    micro_batch_size: PositiveInt
    """Sequences per forward and backward pass, left out: batch_size. Smaller needs less memory and
    gives the same gradient."""
    context_length: PositiveInt = 256
    """Tokens per training sequence."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16: weights and activations in bfloat16, fp32 master weights; auto measures what pays."""
    compile: Literal["auto", "off", "on"] = "auto"
    """Run the blocks through torch.compile. auto: start at once, compile in another process if
    enough of the run is left, change over when that is done; on: compile before the first step."""
    activation_checkpointing: Literal["none", "full"] = "none"
    """full: keep one tensor per block and compute the rest again in the backward pass."""
    clip_norm: NonNegativeFloat = 1.0
    """Largest norm of all gradients together; 0 clips nothing."""
    z_loss_weight: NonNegativeFloat = 0.0
    """Weight of logsumexp(logits)^2, which keeps logits small; 1e-4 is usual."""
    init_from: str = ""
    """Run, checkpoint or model folder whose weights the run starts from; `model: {preset: FOLDER}`
    takes over its architecture. Empty: fresh weights."""
    seed: Seed = 0
    """Of the initial weights, the order of the data and dropout."""
    deterministic: bool = False
    """Refuse operations that may differ between two runs on one machine; compile=auto means off
    then."""

    @field_validator("precision", mode="before")
    @classmethod
    def _no_fp16(cls, value: Any) -> Any:
        if value in ("fp16", "float16", "half"):
            raise ValueError(
                f"train.precision={value}: CPUs have no fast fp16, and it needs loss scaling; "
                "use bf16, or auto"
            )
        return value

    @field_validator("compile", mode="before")
    @classmethod
    def _compile_is_a_word(cls, value: Any) -> Any:
        return _on_or_off(value)

    @model_validator(mode="before")
    @classmethod
    def _one_micro_batch(cls, values: Any) -> Any:
        if isinstance(values, dict) and "micro_batch_size" not in values:
            default = cls.model_fields["batch_size"].default
            return {**values, "micro_batch_size": values.get("batch_size", default)}
        return values

    @model_validator(mode="after")
    def _whole_micro_batches(self) -> "TrainConfig":
        if self.batch_size % self.micro_batch_size:
            divisors = [n for n in range(1, self.batch_size + 1) if self.batch_size % n == 0]
            nearest = min(divisors, key=lambda n: abs(n - self.micro_batch_size))
            raise ValueError(
                f"batch_size={self.batch_size} is not a multiple of "
                f"micro_batch_size={self.micro_batch_size}; nearest micro_batch_size: {nearest}"
            )
        if bool(self.steps) == bool(self.max_tokens):
            what = "both are given" if self.steps else "neither is given"
            raise ValueError(f"set one of train.steps and train.max_tokens; {what}")
        return self

    @property
    def tokens_per_step(self) -> int:
        """Input tokens of one optimizer step."""
        return self.batch_size * self.context_length

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.steps or -(-self.max_tokens // self.tokens_per_step)


class EvalConfig(Config):
    """Loss on the held-out tokens."""

    every: PositiveInt = 200
    """Steps between evaluations; there is one after the last step too."""
    max_batches: NonNegativeInt = 0
    """Micro-batches per evaluation, always the first ones; 0 takes all."""


class SampleConfig(Config):
    """Text that the model writes while it trains."""

    every: PositiveInt = 500
    """Steps between samples; there is one after the last step too."""
    prompts: tuple[str, ...] = ("The ",)
    """What to continue; an empty list writes no samples."""
    max_new_tokens: PositiveInt = 64
    """Length of a sample."""
    temperature: NonNegativeFloat = 0.8
    """0 always takes the likeliest token."""
    seed: Seed = 0
    """Of the draws; the same for every sample, so that texts can be compared."""


class CheckpointConfig(Config):
    """When to save, and what to keep."""

    every: PositiveInt = 200
    """Steps between checkpoints; there is one after the last step too."""
    keep_last: PositiveInt = 2
    """Newest checkpoints to keep."""
    keep_best: bool = True
    """Keep the checkpoint with the lowest evaluation loss as well."""


class LogConfig(Config):
    """Where numbers go, beside metrics.jsonl."""

    routing_every: PositiveInt = 20
    """Steps between tables of the loads of all experts, where the model has experts."""
    tensorboard: bool = False
    """Write TensorBoard events into the run folder."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Log to Weights & Biases."""

    @field_validator("wandb", mode="before")
    @classmethod
    def _wandb_is_a_word(cls, value: Any) -> Any:
        return _on_or_off(value)


class Recipe(Config):
    """One run."""

    name: Annotated[str, Field(pattern=r"^\w[\w.-]*$")] = "run"
    """Letters, digits, `_`, `.`, `-`. The run folder is runs/NAME unless --run says otherwise."""
    model: ModelConfig
    """Architecture. Left out, vocab_size comes from the tokenizer and max_seq_len from train; the
    vocab_size of a preset counts only beside `tokenizer.kind=file`."""
    tokenizer: TokenizerConfig = BPETokenizer()
    data: DataConfig = TextData()
    loader: BatchOrder = BatchOrder()
    optim: OptimConfig = AdamWConfig()
    schedule: ScheduleConfig = CosineSchedule()
    train: TrainConfig
    eval: EvalConfig = EvalConfig()
    sample: SampleConfig = SampleConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_model_sizes(cls, values: Any) -> Any:
        """Sizes of the model that other sections imply."""
        if not isinstance(values, dict) or not isinstance(values.get("model"), dict):
            return values
        model, train = dict(values["model"]), values.get("train", {})
        model.setdefault("vocab_size", _vocab_size_guess(values.get("tokenizer")))
        if isinstance(train, dict) and "context_length" in train:
            model.setdefault("max_seq_len", train["context_length"])
        return {**values, "model": model}

    @model_validator(mode="after")
    def _sections_agree(self) -> "Recipe":
        if self.train.context_length > self.model.max_seq_len:
            raise ValueError(
                f"train.context_length={self.train.context_length} is longer than "
                f"model.max_seq_len={self.model.max_seq_len}; make that "
                f"{self.train.context_length}, or the context at most {self.model.max_seq_len}"
            )
        if self.model.mtp.depth >= self.train.context_length:
            raise ValueError(
                f"model.mtp.depth={self.model.mtp.depth} looks past the end of every sequence of "
                f"train.context_length={self.train.context_length}; at most "
                f"{self.train.context_length - 1}"
            )
        if self.model.sees_later_tokens and self.sample.prompts:
            raise ValueError(
                "router.kind=expert_choice looks at later tokens, so the model cannot write text "
                "token by token; set sample.prompts=[]"
            )
        if isinstance(self.data, ShardData) and not isinstance(self.tokenizer, FileTokenizer):
            raise ValueError(
                f"data.kind=shards needs the tokenizer that made the shards: tokenizer.kind=file "
                f"tokenizer.path=FILE, not tokenizer.kind={self.tokenizer.kind}"
            )
        if self.checkpoint.keep_best and self.checkpoint.every % self.eval.every:
            nearest = max(1, round(self.checkpoint.every / self.eval.every)) * self.eval.every
            raise ValueError(
                f"checkpoint.keep_best needs an evaluation at every checkpoint: checkpoint.every="
                f"{self.checkpoint.every} is not a multiple of eval.every={self.eval.every}; "
                f"nearest: {nearest}"
            )
        # The schedule has its own checks; any step brings them up.
        self.schedule.lr_at(0, self.train.total_steps)
        return self


def load_recipe(file: str | Path | None, overrides: Sequence[str] = ()) -> Loaded[Recipe]:
    """Resolve a recipe from its defaults, a YAML file and dotted overrides, and cross-check it.

    A preset's vocab_size is that of the tokenizer it was published with: where the run makes a
    tokenizer of its own, it counts as not set.
    """
    loaded = load(Recipe, file, overrides)
    recipe, sources = loaded.config, loaded.sources
    is_preset = sources["model.vocab_size"].startswith("preset ")
    if is_preset and not isinstance(recipe.tokenizer, FileTokenizer):
        size = _vocab_size_guess(recipe.tokenizer.model_dump())
        model = recipe.model.model_copy(update={"vocab_size": size})
        recipe = recipe.model_copy(update={"model": model})
        return Loaded(recipe, {**sources, "model.vocab_size": "default"})
    if isinstance(recipe.tokenizer, BPETokenizer):
        check_vocab_size(recipe.model.vocab_size, recipe.tokenizer.vocab_size)
    return loaded


def check_vocab_size(model_size: int, tokenizer_size: int) -> None:
    """Raise ConfigError unless model and tokenizer agree on the number of token ids."""
    if model_size != tokenizer_size:
        raise ConfigError(
            f"model.vocab_size={model_size}, but the tokenizer has {tokenizer_size} tokens; set "
            f"model.vocab_size={tokenizer_size}"
        )


def _on_or_off(value: Any) -> Any:
    """YAML reads a bare `on` or `off` as a truth value; here they are words."""
    return ("on" if value else "off") if isinstance(value, bool) else value


def _vocab_size_guess(tokenizer: Any) -> int:
    """Vocabulary before the tokenizer exists; `prepare` puts the real size in its place."""
    if isinstance(tokenizer, dict):
        size = tokenizer.get("vocab_size")
        if isinstance(size, int) and size > 0:
            return size
    return NUM_BYTES
