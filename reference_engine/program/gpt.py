"""Define a language model with the shape of GPT-2, optionally split for tensor parallelism.

A block's four matrices are split by columns and rows in turn, with entire heads and MLP features per rank:
two all_reduces in the forward, two in the backward.  Norms and position embeddings are replicated.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from zprof.reference_engine.activation_checkpointing import BlockRunner, call_block
from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.tensor_parallel import (
    ColumnParallelLinear,
    GatheredColumns,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelLoss,
)

_INIT_STD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """Sizes of the model.

    Raises:
        ValueError: a size is not positive, or ``hidden`` is not divisible by ``heads``.
    """

    layers: int = 4
    hidden: int = 256
    heads: int = 4
    vocabulary: int = 512
    context: int = 64
    tied: bool = False
    """The output head shares the token embedding's weights."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "vocabulary", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.hidden % self.heads:
            raise ValueError(f"hidden is {self.hidden}; it must be a multiple of heads, {self.heads}")

    def check_model_parallel(self, ranks: int) -> None:
        """Check that the model can be split over this number of ranks.

        Raises:
            ValueError: it cannot; the one-line message has the size and the number of ranks.
        """
        for name in ("heads", "vocabulary"):
            size = getattr(self, name)
            if size % ranks:
                raise ValueError(
                    f"{name} is {size}; it must be a multiple of the {ranks} model-parallel ranks"
                )


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_width = config.hidden // config.heads
        self.query_key_value = nn.Linear(config.hidden, 3 * config.hidden)
        self.projection = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, time, hidden] to the same shape."""
        split = self.query_key_value(x).unflatten(-1, (3, -1, self.head_width))  # -1: heads of this rank
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Pre-norm transformer block: attention and a two-layer MLP, each with a residual connection."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.perceptron_norm = nn.LayerNorm(config.hidden)
        self.expand = nn.Linear(config.hidden, 4 * config.hidden)
        self.projection = nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, time, hidden] to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        x = x + self.projection(F.gelu(self.expand(self.perceptron_norm(x)), approximate="tanh"))
        return x


class GPT(nn.Module):
    """Map tokens to logits or, with targets, to the mean loss."""

    def __init__(
        self, config: GPTConfig, mp: Comm | None = None, run_block: BlockRunner = call_block
    ) -> None:
        """Build the model, split over the ranks of ``mp`` if given.

        ``run_block`` calls the blocks, for example with activation checkpointing.

        Raises:
            ValueError: the model cannot be split over the ranks of ``mp``.
        """
        super().__init__()
        self.config = config
        self.run_block = run_block
        self.token_embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.position_embedding = nn.Embedding(config.context, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.all_logits: nn.Module = nn.Identity()
        self.loss: nn.Module = nn.CrossEntropyLoss()
        self.apply(_init_weights)
        # As in GPT-2: 2 x layers residual branches are summed, so each is scaled down by sqrt(2 x layers).
        std = _INIT_STD / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if name.endswith("projection.weight"):
                nn.init.normal_(parameter, std=std)
        if config.tied:
            self.head.weight = self.token_embedding.weight
        if mp is not None:
            # The model was built unsplit, so that its weights do not depend on the number of ranks.
            self.config.check_model_parallel(mp.world_size)
            for index, block in enumerate(self.blocks):
                split_block(block, mp, f"blocks.{index}")
            split_vocabulary(self, mp, tied=self.config.tied)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Map [batch, time] tokens to [batch, time, vocabulary] logits, or with targets to the mean loss."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for index, block in enumerate(self.blocks):
            x = self.run_block(f"blocks.{index}", block, x)
        logits: torch.Tensor = self.head(self.final_norm(x))
        if targets is None:
            return self.all_logits(logits)
        return self.loss(logits.flatten(0, 1).float(), targets.flatten())


def _init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_INIT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def split_block(block: Any, mp: Comm, name: str) -> None:
    """Split attention by heads and the MLP by its features."""
    attention = block.attention
    unit = f"{name}.attention"
    attention.query_key_value = ColumnParallelLinear(attention.query_key_value, mp, unit, parts=3)
    attention.projection = RowParallelLinear(attention.projection, mp, unit)
    unit = f"{name}.perceptron"
    block.expand = ColumnParallelLinear(block.expand, mp, unit)
    block.projection = RowParallelLinear(block.projection, mp, unit)


def split_vocabulary(model: Any, mp: Comm, *, tied: bool) -> None:
    """Split the token embedding and the head by vocabulary."""
    model.token_embedding = VocabParallelEmbedding(model.token_embedding, mp, "token_embedding")
    model.head = ColumnParallelLinear(model.head, mp, "head")
    if tied:
        model.head.weight = model.token_embedding.weight
    model.all_logits = GatheredColumns(mp, "logits")
    model.loss = VocabParallelLoss(mp, "loss")
