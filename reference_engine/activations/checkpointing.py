"""Runs blocks so that only their input is kept until the backward, where they run again.

With tensor parallelism a block moves 12 b s h elements a step: two all_reduces of b s h in each of forward,
recomputation and backward, an all_reduce being 2 (arXiv 1910.02054, section 8).  Pa adds one all_gather of
b s h.  So the recomputation runs to its end: torch would stop it at the last tensor that the backward needs,
before the block's last all_reduce.  That would save 2 of the 12, but it would be another system than the one
that the paper describes.

The random state is not put back for the recomputation unless asked for; the model has no dropout.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from zprof.reference_engine.activations.config import ActivationConfig
from zprof.reference_engine.activations.memory import (
    ChunkedPlaces,
    Places,
    SeparatePlaces,
    device_memory,
    host_memory,
)
from zprof.reference_engine.activations.stores import CopyStore, Kept, PartitionedStore, Store, WholeStore
from zprof.reference_engine.activations.transfer import OnDevice, ToHost
from zprof.reference_engine.comm import Comm


class BlockRunner(Protocol):
    """Calls a model's blocks."""

    def __call__(self, unit: str, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """``block(x)``; ``unit`` is the block's name."""


def call_block(unit: str, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """``block(x)``; autograd keeps what it needs."""
    output: torch.Tensor = block(x)
    return output


def block_runner(config: ActivationConfig, *, blocks: int, mp: Comm | None = None) -> BlockRunner:
    """What the config asks for, for a model of so many blocks.

    Raises:
        ValueError: checkpoints are to be partitioned, but nothing is model-parallel.
    """
    config.check_model_parallel(1 if mp is None else mp.world_size)
    if not config.checkpoint:
        return call_block
    return CheckpointedBlocks(_store(config, blocks, mp))


def _store(config: ActivationConfig, blocks: int, mp: Comm | None) -> Store:
    if not (config.partition or config.host or config.contiguous):
        return WholeStore()
    allocate = host_memory if config.host else device_memory
    places: Places = ChunkedPlaces(allocate, blocks) if config.contiguous else SeparatePlaces(allocate)
    copies = CopyStore(places, ToHost() if config.host else OnDevice())
    return PartitionedStore(copies, mp) if config.partition and mp is not None else copies


class CheckpointedBlocks:
    """Keeps each block's input in a store, but nothing where no gradients are wanted (torch.no_grad)."""

    def __init__(self, store: Store, *, preserve_rng_state: bool = False) -> None:
        """``preserve_rng_state``: needed where a block draws random numbers."""
        self._store = store
        self._preserve_rng_state = preserve_rng_state

    def __call__(self, unit: str, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """See :class:`BlockRunner`."""
        with saved_tensors_hooks(self._keep(unit), _get), set_checkpoint_early_stop(False):
            output: torch.Tensor = checkpoint(
                block, x, use_reentrant=False, preserve_rng_state=self._preserve_rng_state
            )
        return output

    def _keep(self, unit: str) -> Callable[[torch.Tensor], Kept]:
        # What the block saves goes to torch's own hooks, which drop it: these here see the input alone, and
        # in some versions of torch an empty tensor that carries it.
        return lambda tensor: (self._store if tensor.numel() else WholeStore()).put(tensor, unit)


def _get(kept: Kept) -> torch.Tensor:
    return kept.get()
