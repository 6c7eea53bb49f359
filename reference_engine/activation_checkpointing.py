"""Run blocks with activation checkpointing: keep only their input, and recompute them in the backward.

With tensor parallelism a block moves 12 b s h elements per step: two all-reduces of b s h in each of forward,
recomputation and backward, where an all-reduce counts twice (arXiv 1910.02054, section 8).  Pa adds one
all-gather of b s h.  To match these numbers the recomputation runs to the end of the block.  torch's default
(early stop) ends it at the last tensor that the backward needs, which skips the block's last all-reduce: 2 of
the 12.

The random state is restored for the recomputation only on request; the model has no dropout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from zprof.reference_engine.activation_stores import (
    ChunkedBuffers,
    CopyStore,
    DeviceTransfer,
    HostTransfer,
    PartitionedStore,
    ReferenceStore,
    SeparateBuffers,
    Store,
    StoredActivation,
    allocate_device_memory,
    allocate_host_memory,
)
from zprof.reference_engine.comm.collective import Comm


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationConfig:
    """Activation options of ZeRO-R (arXiv 1910.02054, section 6); they can be combined.

    Raises:
        ValueError: an option needs ``checkpoint``; the message names it.
    """

    checkpoint: bool = False
    """Keep only a block's input, and recompute the block in the backward."""
    partition: bool = False
    """Pa: partition each checkpoint over the N model-parallel ranks; an all-gather restores it."""
    host: bool = False
    """Pa+cpu: offload checkpoints to host memory.  Without ``partition`` each rank offloads them in full."""
    contiguous: bool = False
    """MD: copy checkpoints into one preallocated chunk."""

    def __post_init__(self) -> None:
        for name in ("partition", "host", "contiguous"):
            if getattr(self, name) and not self.checkpoint:
                raise ValueError(f"{name} needs activation checkpointing; set checkpoint to True")

    def check_model_parallel(self, ranks: int) -> None:
        """Check that there are enough model-parallel ranks.

        Raises:
            ValueError: there are too few; the message is one line.
        """
        if self.partition and ranks < 2:
            raise ValueError(
                f"partition splits checkpoints over the model-parallel ranks, but mp is {ranks}; "
                "set mp to 2 or more, or turn partition off"
            )


class BlockRunner(Protocol):
    """Calls a model's blocks."""

    def __call__(self, unit: str, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return ``block(x)``; ``unit`` is the block's name."""


def call_block(unit: str, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return ``block(x)`` without checkpointing."""
    output: torch.Tensor = block(x)
    return output


def make_block_runner(config: ActivationConfig, *, blocks: int, mp: Comm | None = None) -> BlockRunner:
    """Return the configured runner for a model with ``blocks`` blocks.

    Raises:
        ValueError: ``partition`` is set without model parallelism.
    """
    config.check_model_parallel(1 if mp is None else mp.world_size)
    if not config.checkpoint:
        return call_block
    return CheckpointedBlocks(_make_store(config, blocks, mp))


def _make_store(config: ActivationConfig, blocks: int, mp: Comm | None) -> Store:
    if not (config.partition or config.host or config.contiguous):
        return ReferenceStore()
    allocate = allocate_host_memory if config.host else allocate_device_memory
    allocator = ChunkedBuffers(allocate, blocks) if config.contiguous else SeparateBuffers(allocate)
    copies = CopyStore(allocator, HostTransfer() if config.host else DeviceTransfer())
    return PartitionedStore(copies, mp) if config.partition and mp is not None else copies


class CheckpointedBlocks:
    """Runs blocks and stores only their inputs; stores nothing under ``torch.no_grad()``."""

    def __init__(self, store: Store, *, preserve_rng_state: bool = False) -> None:
        """Set ``preserve_rng_state`` if a block draws random numbers."""
        self._store = store
        self._preserve_rng_state = preserve_rng_state

    def __call__(self, unit: str, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Call the block; autograd saves only what the store keeps of its input."""
        with saved_tensors_hooks(self._make_saver(unit), _load_checkpoint), set_checkpoint_early_stop(False):
            output: torch.Tensor = checkpoint(
                block, x, use_reentrant=False, preserve_rng_state=self._preserve_rng_state
            )
        return output

    def _make_saver(self, unit: str) -> Callable[[torch.Tensor], StoredActivation]:
        # torch's own hooks intercept and drop what the block saves.  These hooks see only the input and, in
        # some versions of torch, an empty tensor that carries it.
        return lambda tensor: (self._store if tensor.numel() else ReferenceStore()).put(tensor, unit)


def _load_checkpoint(stored: StoredActivation) -> torch.Tensor:
    return stored.get()
