"""Run blocks so that only their input is kept until the backward recomputes them (activation checkpointing).

With tensor parallelism a block moves 12 b s h elements per step: two all-reduces of b s h in each of forward,
recomputation and backward, where an all-reduce counts 2 (arXiv 1910.02054, section 8).  Pa adds one
all-gather of b s h.  To match these numbers the recomputation runs to its end.  torch would stop it at the
last tensor that the backward needs, before the block's last all-reduce, which saves 2 of the 12 but is not
the system that the paper describes.

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
    ChunkedPlaces,
    CopyStore,
    DeviceTransfer,
    HostTransfer,
    PartitionedStore,
    Places,
    SeparatePlaces,
    Store,
    StoredCheckpoint,
    WholeStore,
    allocate_device_memory,
    allocate_host_memory,
)
from zprof.reference_engine.comm.collective import Comm


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationConfig:
    """ZeRO-R's switches for activations (arXiv 1910.02054, section 6); all may be combined.

    Raises:
        ValueError: a switch needs another one; the message names it.
    """

    checkpoint: bool = False
    """Keep only a block's input, and compute the block again in the backward."""
    partition: bool = False
    """Pa: of each checkpoint keep 1/N on each of N model-parallel ranks; an all_gather brings it back."""
    host: bool = False
    """Pa+cpu: keep checkpoints in host memory.  Without ``partition`` each rank keeps them whole there."""
    contiguous: bool = False
    """MD: copy checkpoints into one chunk of memory that was allocated once."""

    def __post_init__(self) -> None:
        for name in ("partition", "host", "contiguous"):
            if getattr(self, name) and not self.checkpoint:
                raise ValueError(f"{name} is about checkpoints, but checkpoint is False; set it to True")

    def check_model_parallel(self, ranks: int) -> None:
        """Check that there are enough model-parallel ranks.

        Raises:
            ValueError: the one-line message says what does not fit.
        """
        if self.partition and ranks < 2:
            raise ValueError(
                f"partition divides checkpoints among model-parallel ranks, but there is {ranks}; "
                "take mp 2 or more, or leave partition out"
            )


class BlockRunner(Protocol):
    """Calls a model's blocks."""

    def __call__(self, unit: str, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return ``block(x)``; ``unit`` is the block's name."""


def call_block(unit: str, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return ``block(x)``; autograd saves what it needs."""
    output: torch.Tensor = block(x)
    return output


def make_block_runner(config: ActivationConfig, *, blocks: int, mp: Comm | None = None) -> BlockRunner:
    """Return the runner that the config asks for, for a model with ``blocks`` blocks.

    Raises:
        ValueError: checkpoints are to be partitioned, but there is no model parallelism.
    """
    config.check_model_parallel(1 if mp is None else mp.world_size)
    if not config.checkpoint:
        return call_block
    return CheckpointedBlocks(_make_store(config, blocks, mp))


def _make_store(config: ActivationConfig, blocks: int, mp: Comm | None) -> Store:
    if not (config.partition or config.host or config.contiguous):
        return WholeStore()
    allocate = allocate_host_memory if config.host else allocate_device_memory
    places: Places = ChunkedPlaces(allocate, blocks) if config.contiguous else SeparatePlaces(allocate)
    copies = CopyStore(places, HostTransfer() if config.host else DeviceTransfer())
    return PartitionedStore(copies, mp) if config.partition and mp is not None else copies


class CheckpointedBlocks:
    """Keep each block's input in a store; keep nothing if no gradients are needed (torch.no_grad)."""

    def __init__(self, store: Store, *, preserve_rng_state: bool = False) -> None:
        """Set ``preserve_rng_state`` if a block draws random numbers."""
        self._store = store
        self._preserve_rng_state = preserve_rng_state

    def __call__(self, unit: str, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """See :class:`BlockRunner`."""
        with saved_tensors_hooks(self._keep(unit), _get_kept), set_checkpoint_early_stop(False):
            output: torch.Tensor = checkpoint(
                block, x, use_reentrant=False, preserve_rng_state=self._preserve_rng_state
            )
        return output

    def _keep(self, unit: str) -> Callable[[torch.Tensor], StoredCheckpoint]:
        # torch's own hooks take what the block saves, and drop it.  These hooks see only the input, and in
        # some versions of torch an empty tensor that carries it.
        return lambda tensor: (self._store if tensor.numel() else WholeStore()).put(tensor, unit)


def _get_kept(kept: StoredCheckpoint) -> torch.Tensor:
    return kept.get()
