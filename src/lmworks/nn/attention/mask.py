"""Which keys a query may see. Shapes: B batch, T queries, S keys (cached ones first)."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def causal_mask(num_queries: int, num_keys: int, device: torch.device) -> Bool[Tensor, "T S"]:
    """True where key s is not after query t; the last query is at the last key."""
    ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return ones.tril(num_keys - num_queries)


def document_mask(document_ids_BT: Int[Tensor, "B T"]) -> Bool[Tensor, "B 1 T T"]:
    """Causal, and only inside one's own document: packed documents do not see each other."""
    same_BTT = document_ids_BT[:, :, None] == document_ids_BT[:, None, :]
    num_tokens = document_ids_BT.shape[1]
    return (same_BTT & causal_mask(num_tokens, num_tokens, document_ids_BT.device)).unsqueeze(1)
