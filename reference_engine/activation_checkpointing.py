"""Run blocks with activation checkpointing: keep only their input, and recompute them in the backward.

With tensor parallelism a block moves 12 b s h elements per step: two all-reduces of b s h in each of forward,
recomputation and backward, where an all-reduce counts twice (arXiv 1910.02054, section 8).  Pa adds one
all-gather of b s h.  To match these numbers the recomputation runs to the end of the block.  torch's default
(early stop) ends it at the last tensor that the backward needs, which skips the block's last all-reduce: 2 of
the 12.

The random state is restored for the recomputation only on request; the model has no dropout.

Checkpoints are stored by reference, copied, or partitioned over the model-parallel ranks.

    reference     the tensor itself, without a copy
    copy          copied into a buffer on the device or on the host (Pa+cpu), allocated separately or from
                  a chunk (MD)
    partitioned   1/N of the elements, padded to equal parts and copied; an all-gather restores the tensor
                  (Pa)
"""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from zprof.reference_engine.comm.collective import Comm

ALIGNMENT_BYTES = 256
"""Alignment of the slots of a chunk: enough for any dtype, vector loads and NCCL."""
Allocate = Callable[[int, torch.device], torch.Tensor]
"""Allocates ``size_bytes`` for a device's checkpoints and returns them as a uint8 tensor."""


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


class StoredActivation(Protocol):
    """A checkpoint in a store; its memory is freed when the object is deleted."""

    def get(self) -> torch.Tensor:
        """Return the checkpoint, bitwise unchanged; may be called again."""


class Store(Protocol):
    """Stores checkpoints between a block's forward and backward."""

    def put(self, checkpoint: torch.Tensor, unit: str) -> StoredActivation:
        """Store the checkpoint of the block named ``unit``."""


def call_block(unit: str, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return ``block(x)`` without checkpointing."""
    return block(x)


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
        # torch's own hooks intercept and drop what the block saves.  These hooks see only the input and, in
        # some versions of torch, an empty tensor that carries it.
        with (
            saved_tensors_hooks(
                lambda tensor: (self._store if tensor.numel() else ReferenceStore()).put(tensor, unit),
                _load_checkpoint,
            ),
            set_checkpoint_early_stop(False),
        ):
            output: torch.Tensor = checkpoint(
                block, x, use_reentrant=False, preserve_rng_state=self._preserve_rng_state
            )
        return output


def _load_checkpoint(stored: StoredActivation) -> torch.Tensor:
    return stored.get()


class DeviceTransfer:
    """Copies within device memory, and reads the buffer in place."""

    def store(self, source: torch.Tensor, buffer: torch.Tensor) -> None:
        """Copy ``source`` into ``buffer``, which has the same shape; ``source`` may be freed right after."""
        buffer.copy_(source)

    def load(self, buffer: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return the contents on ``device``, ready for use on the current stream."""
        return buffer


class HostTransfer(DeviceTransfer):
    """Copies to host memory on a separate stream, overlapped with the block's forward.

    The copy back runs on the current stream, because its result is needed right away.
    """

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._in_flight_source: torch.Tensor | None = None
        self._copy_done: torch.cuda.Event | None = None

    def store(self, source: torch.Tensor, buffer: torch.Tensor) -> None:
        """Copy ``source`` on the separate stream, which keeps it alive until it is copied."""
        if source.device.type == "cpu":
            buffer.copy_(source)
            return
        current = torch.cuda.current_stream(source.device)
        self._wait_for_last(current)
        if self._stream is None:
            self._stream = torch.cuda.Stream(source.device)  # type: ignore[no-untyped-call]
        # Wait for the producer of the source and for the last reader of the buffer.
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            buffer.copy_(source, non_blocking=True)
        self._in_flight_source, self._copy_done = source, self._stream.record_event()

    def load(self, buffer: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a copy on ``device``."""
        if device.type != "cpu":
            self._wait_for_last(torch.cuda.current_stream(device))
        loaded = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
        return loaded.copy_(buffer, non_blocking=True)

    def _wait_for_last(self, current: torch.cuda.Stream) -> None:
        # Keep a reference to the source until the current stream waits for its copy: only then may its memory
        # be reused.  So at most one checkpoint is in flight, and record_stream(), which delays reuse
        # unpredictably, is not needed.
        if self._copy_done is not None:
            current.wait_event(self._copy_done)
        self._in_flight_source = None


def allocate_device_memory(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Allocate device memory."""
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


def allocate_host_memory(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Allocate host memory, pinned if the device is a GPU.

    If the device is the CPU, the memory comes from the system instead of torch's allocator, which accounts
    for device memory.
    """
    if device.type != "cpu":
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    return torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.uint8)


class SeparateBuffers:
    """Allocates each checkpoint separately; the memory is freed after the block's backward."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate

    def allocate(self, size_bytes: int, device: torch.device) -> "CheckpointBuffer":
        """Return an uninitialized buffer of at least ``size_bytes``, freed when the object is deleted."""
        return CheckpointBuffer(self._allocate(size_bytes, device))


class CheckpointBuffer:
    """Memory for one checkpoint, as a uint8 tensor."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory


class ChunkedBuffers(SeparateBuffers):
    """Allocates all checkpoints of one forward from one chunk (MD), which the next forward reuses.

    The first checkpoint determines the slot size.  A larger checkpoint, or another forward before the
    backward, allocates another chunk.
    """

    def __init__(self, allocate: Allocate, slots: int) -> None:
        """Expect ``slots`` checkpoints per forward."""
        super().__init__(allocate)
        self._slots = slots
        self._chunks: list[_Chunk] = []

    @property
    def chunk_bytes(self) -> int:
        """Total size of the chunks, in use or kept for the next forward."""
        return sum(chunk.memory.numel() for chunk in self._chunks)

    def allocate(self, size_bytes: int, device: torch.device) -> CheckpointBuffer:
        """Return an unused slot of a chunk, or of a new one if there is none."""
        self._chunks = [chunk for chunk in self._chunks if chunk.fits(size_bytes, device)]
        for chunk in self._chunks:
            if chunk.free:
                return _ChunkSlot(chunk)
        slot_bytes = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._chunks.append(_Chunk(self._allocate(slot_bytes * self._slots, device), self._slots, device))
        return _ChunkSlot(self._chunks[-1])


class _Chunk:
    """Slots of equal size; ``free`` is a stack of the indices of unused slots."""

    def __init__(self, memory: torch.Tensor, slots: int, device: torch.device) -> None:
        self.memory = memory
        self.device = device
        self.slot_bytes = memory.numel() // slots
        self.free = list(reversed(range(slots)))

    def fits(self, size_bytes: int, device: torch.device) -> bool:
        return size_bytes <= self.slot_bytes and device == self.device


class _ChunkSlot(CheckpointBuffer):
    """One slot of a chunk, freed when autograd drops the checkpoint, with or without a backward."""

    def __init__(self, chunk: _Chunk) -> None:
        self._chunk = chunk
        self._index = chunk.free.pop()
        start = self._index * chunk.slot_bytes
        super().__init__(chunk.memory[start : start + chunk.slot_bytes])

    def __del__(self) -> None:
        self._chunk.free.append(self._index)


class ReferenceStore:
    """Keeps a reference to the tensor itself."""

    def put(self, checkpoint: torch.Tensor, unit: str) -> StoredActivation:
        """Keep the tensor."""
        return _CheckpointReference(checkpoint.detach(), unit)


class _CheckpointReference:
    def __init__(self, checkpoint: torch.Tensor, unit: str) -> None:
        self._checkpoint, self._unit = checkpoint, unit
        self._version = checkpoint._version

    def get(self) -> torch.Tensor:
        if self._checkpoint._version != self._version:
            raise RuntimeError(f"the input of {self._unit} was modified in place after its forward")
        return self._checkpoint


class CopyStore:
    """Copies each checkpoint into a buffer."""

    def __init__(self, allocator: SeparateBuffers, transfer: DeviceTransfer) -> None:
        self._allocator = allocator
        self._transfer = transfer

    def put(self, checkpoint: torch.Tensor, unit: str) -> StoredActivation:
        """Copy the tensor."""
        source = checkpoint.detach().contiguous()
        buffer = self._allocator.allocate(source.nbytes, source.device)
        stored = _CheckpointCopy(buffer, source, self._transfer)
        self._transfer.store(source, stored.content)
        return stored


class _CheckpointCopy:
    def __init__(self, buffer: CheckpointBuffer, source: torch.Tensor, transfer: DeviceTransfer) -> None:
        self._buffer = buffer
        self._transfer = transfer
        self._device = source.device
        self.content = buffer.memory[: source.nbytes].view(source.dtype).view(source.shape)

    def get(self) -> torch.Tensor:
        return self._transfer.load(self.content, self._device)


class PartitionedStore:
    """Stores 1/N of a checkpoint that is replicated on all N model-parallel ranks (Pa)."""

    def __init__(self, parts: CopyStore, mp: Comm) -> None:
        """Store parts in ``parts``, which copies them so that no reference to the full tensor remains."""
        self._parts = parts
        self._mp = mp

    def put(self, checkpoint: torch.Tensor, unit: str) -> StoredActivation:
        """Store this rank's part of the tensor."""
        flat = checkpoint.detach().reshape(-1)
        part_elements = -(-flat.numel() // self._mp.world_size)
        part = flat[self._mp.rank * part_elements : (self._mp.rank + 1) * part_elements]
        padded = F.pad(part, (0, part_elements - part.numel())) if part.numel() < part_elements else part
        return _PartitionedCheckpoint(self._parts.put(padded, unit), checkpoint.shape, self._mp, unit)


class _PartitionedCheckpoint:
    def __init__(self, part: StoredActivation, shape: torch.Size, mp: Comm, unit: str) -> None:
        self._part, self._shape, self._mp, self._unit = part, shape, mp, unit

    def get(self) -> torch.Tensor:
        part = self._part.get()
        padded = part.new_empty(part.numel() * self._mp.world_size)
        self._mp.all_gather(padded, part, self._unit).wait()
        return padded[: self._shape.numel()].view(self._shape)
