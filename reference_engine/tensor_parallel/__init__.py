"""One model over several ranks: each layer's matrices are split, its activations are not (Megatron-LM)."""

from zprof.reference_engine.tensor_parallel.layers import (
    ColumnParallelLinear,
    GatheredColumns,
    RowParallelLinear,
)
from zprof.reference_engine.tensor_parallel.vocabulary import VocabParallelEmbedding, VocabParallelLoss

__all__ = [
    "ColumnParallelLinear",
    "GatheredColumns",
    "RowParallelLinear",
    "VocabParallelEmbedding",
    "VocabParallelLoss",
]
