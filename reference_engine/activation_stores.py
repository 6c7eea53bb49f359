"""Store activation checkpoints: whole, copied, or partitioned over the model-parallel ranks (Pa, Pa+cpu, MD).

whole                       the tensor itself is kept, without a copy
copied                      into a place: on the device or on the host, separate or in a chunk
partitioned over (copied)   1/N of it, padded to equal parts; an all-gather restores the whole
"""

import mmap
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F

from zprof.reference_engine.comm.collective import Comm


class Transfer(Protocol):
    """Copies between a tensor on the device and a place."""

    def store(self, source: torch.Tensor, place: torch.Tensor) -> None:
        """Copy ``source`` into ``place``, of the same shape; ``source`` may be freed right after."""

    def load(self, place: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return the content on the device, ready for the current stream."""


class DeviceTransfer:
    """Use places in device memory directly."""

    def store(self, source: torch.Tensor, place: torch.Tensor) -> None:
        """See :class:`Transfer`."""
        place.copy_(source)

    def load(self, place: torch.Tensor, device: torch.device) -> torch.Tensor:
        """See :class:`Transfer`."""
        return place


class HostTransfer:
    """Copy to host memory on a separate stream, in parallel with the block's forward.

    The current stream waits for the copy back, since the data is needed right away.
    """

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._leaving: torch.Tensor | None = None
        self._left: torch.cuda.Event | None = None

    def store(self, source: torch.Tensor, place: torch.Tensor) -> None:
        """See :class:`Transfer`."""
        if source.device.type == "cpu":
            place.copy_(source)
            return
        current = torch.cuda.current_stream(source.device)
        self._wait_for_last(current)
        if self._stream is None:
            self._stream = torch.cuda.Stream(source.device)  # type: ignore[no-untyped-call]
        # After all work queued on the current stream: what made the source, and what last read the place.
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            place.copy_(source, non_blocking=True)
        self._leaving, self._left = source, self._stream.record_event()

    def load(self, place: torch.Tensor, device: torch.device) -> torch.Tensor:
        """See :class:`Transfer`."""
        if device.type != "cpu":
            self._wait_for_last(torch.cuda.current_stream(device))
        loaded = torch.empty(place.shape, dtype=place.dtype, device=device)
        return loaded.copy_(place, non_blocking=True)

    def _wait_for_last(self, current: torch.cuda.Stream) -> None:
        # The source is held until the current stream waits for its copy: only then may its memory be reused.
        # So at most one checkpoint is in flight, and record_stream(), which delays reuse unpredictably, is
        # not needed.
        if self._left is not None:
            current.wait_event(self._left)
        self._leaving = None


ALIGNMENT_BYTES = 256
"""Places in a chunk begin at multiples of it: enough for any element, vector load and NCCL."""

Allocate = Callable[[int, torch.device], torch.Tensor]
"""Memory of so many bytes for the checkpoints of a device, as uint8."""


def allocate_device_memory(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Allocate memory of the device itself."""
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


def allocate_host_memory(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Allocate memory of the host, pinned for a GPU.

    If the device is the CPU, the memory comes from the system instead of torch's allocator, which stands for
    the device.
    """
    if device.type != "cpu":
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    return torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.uint8)


class Place(Protocol):
    """Memory for one checkpoint, returned when the object is dropped."""

    @property
    def memory(self) -> torch.Tensor:
        """At least the requested number of bytes, as uint8."""


class Places(Protocol):
    """Allocator of places."""

    def take(self, size_bytes: int, device: torch.device) -> Place:
        """Return a place for ``size_bytes`` with arbitrary content."""


class SeparatePlaces:
    """Give each checkpoint its own memory, from its forward to its backward."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate

    def take(self, size_bytes: int, device: torch.device) -> Place:
        """See :class:`Places`."""
        return _SeparatePlace(self._allocate(size_bytes, device))


class _SeparatePlace:
    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory


class ChunkedPlaces:
    """Place all checkpoints of a forward in one chunk (MD), which is kept for the next forward.

    The first checkpoint determines the size of the chunk.  Smaller ones fit too.  A larger one, or another
    forward before the backward, allocates another chunk.
    """

    def __init__(self, allocate: Allocate, places: int) -> None:
        """Expect ``places`` checkpoints per forward."""
        self._allocate = allocate
        self._places = places
        self._chunks: list[_Chunk] = []

    @property
    def chunk_bytes(self) -> int:
        """Bytes of all chunks that are in use or kept for the next forward."""
        return sum(chunk.memory.numel() for chunk in self._chunks)

    def take(self, size_bytes: int, device: torch.device) -> Place:
        """See :class:`Places`."""
        self._chunks = [chunk for chunk in self._chunks if chunk.serves(size_bytes, device)]
        for chunk in self._chunks:
            if chunk.free:
                return _ChunkPlace(chunk)
        place_bytes = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._chunks.append(_Chunk(self._allocate(place_bytes * self._places, device), self._places, device))
        return _ChunkPlace(self._chunks[-1])


class _Chunk:
    """Places of equal size; ``free`` lists the unused ones, the next one last."""

    def __init__(self, memory: torch.Tensor, places: int, device: torch.device) -> None:
        self.memory = memory
        self.device = device
        self.place_bytes = memory.numel() // places
        self.free = list(reversed(range(places)))

    def serves(self, size_bytes: int, device: torch.device) -> bool:
        return size_bytes <= self.place_bytes and device == self.device


class _ChunkPlace:
    """One place of a chunk, freed when autograd drops the checkpoint, with or without a backward."""

    def __init__(self, chunk: _Chunk) -> None:
        self._chunk = chunk
        self._index = chunk.free.pop()
        begin = self._index * chunk.place_bytes
        self.memory = chunk.memory[begin : begin + chunk.place_bytes]

    def __del__(self) -> None:
        self._chunk.free.append(self._index)


class StoredCheckpoint(Protocol):
    """A checkpoint in a store; its memory is returned when the object is dropped."""

    def get(self) -> torch.Tensor:
        """Return the checkpoint, bitwise unchanged; may be called again."""


class Store(Protocol):
    """Keeps checkpoints."""

    def put(self, checkpoint: torch.Tensor, unit: str) -> StoredCheckpoint:
        """Keep the checkpoint of the block ``unit``."""


class WholeStore:
    """Keep the tensor itself."""

    def put(self, checkpoint: torch.Tensor, unit: str) -> StoredCheckpoint:
        """See :class:`Store`."""
        return _WholeCheckpoint(checkpoint.detach(), unit)


class _WholeCheckpoint:
    def __init__(self, checkpoint: torch.Tensor, unit: str) -> None:
        self._checkpoint, self._unit = checkpoint, unit
        self._version = checkpoint._version

    def get(self) -> torch.Tensor:
        if self._checkpoint._version != self._version:
            raise RuntimeError(f"the input of {self._unit} was changed in place after its forward")
        return self._checkpoint


class CopyStore:
    """Keep a copy."""

    def __init__(self, places: Places, transfer: Transfer) -> None:
        self._places = places
        self._transfer = transfer

    def put(self, checkpoint: torch.Tensor, unit: str) -> StoredCheckpoint:
        """See :class:`Store`."""
        source = checkpoint.detach().contiguous()
        place = self._places.take(source.nbytes, source.device)
        copied = _CopiedCheckpoint(place, source, self._transfer)
        self._transfer.store(source, copied.content)
        return copied


class _CopiedCheckpoint:
    def __init__(self, place: Place, source: torch.Tensor, transfer: Transfer) -> None:
        self._place = place
        self._transfer = transfer
        self._device = source.device
        self.content = place.memory[: source.nbytes].view(source.dtype).view(source.shape)

    def get(self) -> torch.Tensor:
        return self._transfer.load(self.content, self._device)


class PartitionedStore:
    """Keep only this rank's part of a checkpoint that all model-parallel ranks have (Pa)."""

    def __init__(self, parts: CopyStore, mp: Comm) -> None:
        """Keep the parts in ``parts``, which copies them so that nothing holds the whole tensor."""
        self._parts = parts
        self._mp = mp

    def put(self, checkpoint: torch.Tensor, unit: str) -> StoredCheckpoint:
        """See :class:`Store`."""
        flat = checkpoint.detach().reshape(-1)
        share = -(-flat.numel() // self._mp.world_size)
        part = flat[self._mp.rank * share : (self._mp.rank + 1) * share]
        padded = F.pad(part, (0, share - part.numel())) if part.numel() < share else part
        return _PartitionedCheckpoint(self._parts.put(padded, unit), checkpoint.shape, self._mp, unit)


class _PartitionedCheckpoint:
    def __init__(self, part: StoredCheckpoint, shape: torch.Size, mp: Comm, unit: str) -> None:
        self._part, self._shape, self._mp, self._unit = part, shape, mp, unit

    def get(self) -> torch.Tensor:
        part = self._part.get()
        padded = part.new_empty(part.numel() * self._mp.world_size)
        self._mp.all_gather(padded, part, self._unit).wait()
        return padded[: self._shape.numel()].view(self._shape)
