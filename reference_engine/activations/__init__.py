"""Activation checkpoints: what is kept of a block between its forward and its backward, and where."""

from zprof.reference_engine.activations.checkpointing import (
    BlockRunner,
    CheckpointedBlocks,
    block_runner,
    call_block,
)
from zprof.reference_engine.activations.config import ActivationConfig

__all__ = ["ActivationConfig", "BlockRunner", "CheckpointedBlocks", "block_runner", "call_block"]
