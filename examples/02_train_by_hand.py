"""The training loop without the trainer: a model, batches, a loss, an optimizer.

python examples/02_train_by_hand.py [NUM_STEPS]
"""

import sys
import tempfile
from pathlib import Path

import torch

from lmworks.data.loader import Loader
from lmworks.data.pack import pack
from lmworks.data.shard import open_shards
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.ops.linear_cross_entropy import linear_cross_entropy
from lmworks.tokenizer import train_bpe
from lmworks.train.optim import AdamW
from lmworks.train.optim.config import AdamWConfig

TEXT = Path(__file__).parent / "text" / "persuasion.txt"


def main(num_steps: int) -> None:
    """Train a small model on one novel and print the loss."""
    tokenizer = train_bpe([TEXT], vocab_size=1000)
    with tempfile.TemporaryDirectory() as folder:
        shards_folder = Path(folder) / "shards"
        pack([TEXT], shards_folder, tokenizer)
        shards = open_shards(shards_folder, tokenizer_fingerprint=tokenizer.fingerprint)
        loader = Loader(shards, batch_size=8, context_length=64, seed=0)
        config = ModelConfig.model_validate(
            {
                "vocab_size": tokenizer.vocab_size,
                "max_seq_len": 64,
                "d_model": 128,
                "num_layers": 2,
                "attention": {"num_heads": 4},
            }
        )
        model = Decoder(config)
        optimizer = AdamW(model.named_parameters(), AdamWConfig())
        print(f"{model.num_params():,} parameters")
        for step in range(num_steps):
            batch = loader.next_batch()
            hidden_BTC = model.hidden(torch.from_numpy(batch.inputs_BT))
            # Head and loss in one operator: the logits of all tokens are never held.
            terms = linear_cross_entropy(
                hidden_BTC.flatten(0, 1),
                model.head_weight_VC,
                torch.from_numpy(batch.targets_BT).flatten(),
            )
            terms.loss_sum.backward()
            optimizer.step(lr=3e-3, grad_scale=1 / int(terms.num_tokens))
            optimizer.zero_grad()
            if step % 10 == 0 or step == num_steps - 1:
                print(f"step {step}  loss {terms.loss_sum.item() / int(terms.num_tokens):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
