"""Exchanges the layers of a whole GPT for one rank's part of them.

A block's four matrices go by columns and rows in turn, with whole heads and whole features of the perceptron
on a rank: two all_reduces in the forward, two in the backward.  Norms and positions stay whole.
"""

from typing import Any

from zprof.reference_engine.comm import Comm
from zprof.reference_engine.tensor_parallel import (
    ColumnParallelLinear,
    GatheredColumns,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelLoss,
)


def split_block(block: Any, mp: Comm, name: str) -> None:
    """Split attention by heads and the perceptron by its features."""
    attention = block.attention
    unit = f"{name}.attention"
    attention.query_key_value = ColumnParallelLinear(attention.query_key_value, mp, unit, parts=3)
    attention.projection = RowParallelLinear(attention.projection, mp, unit)
    unit = f"{name}.perceptron"
    block.expand = ColumnParallelLinear(block.expand, mp, unit)
    block.projection = RowParallelLinear(block.projection, mp, unit)


def split_vocabulary(model: Any, mp: Comm, *, tied: bool) -> None:
    """Split the token embedding and the head by words."""
    model.token_embedding = VocabParallelEmbedding(model.token_embedding, mp, "token_embedding")
    model.head = ColumnParallelLinear(model.head, mp, "head")
    if tied:
        model.head.weight = model.token_embedding.weight
    model.all_logits = GatheredColumns(mp, "logits")
    model.loss = VocabParallelLoss(mp, "loss")
