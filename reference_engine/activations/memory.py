"""Where checkpoints may lie: on the device or on the host, each alone or side by side in a chunk."""

import mmap
from collections.abc import Callable
from typing import Protocol

import torch

ALIGNMENT_BYTES = 256
"""Places in a chunk begin at multiples of it: enough for any element, vector load and NCCL."""

Allocate = Callable[[int, torch.device], torch.Tensor]
"""Memory of so many bytes for the checkpoints of a device, as uint8."""


def device_memory(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Memory of the device itself."""
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


def host_memory(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Memory of the host: pinned for a GPU.

    Where the device is the CPU it comes from the system, past torch's allocator, which stands for the device.
    """
    if device.type != "cpu":
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    return torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.uint8)


class Place(Protocol):
    """Memory for one checkpoint.  Whoever drops the object gives the place back."""

    @property
    def memory(self) -> torch.Tensor:
        """At least as many bytes as were asked for, as uint8."""


class Places(Protocol):
    """Gives places."""

    def take(self, size_bytes: int, device: torch.device) -> Place:
        """A place for ``size_bytes``; its content is arbitrary."""


class SeparatePlaces:
    """Each checkpoint has memory of its own, from its forward to its backward."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate

    def take(self, size_bytes: int, device: torch.device) -> Place:
        """See :class:`Places`."""
        return _Separate(self._allocate(size_bytes, device))


class _Separate:
    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory


class ChunkedPlaces:
    """MD: all checkpoints of a forward lie side by side in one chunk, which stays for the next forward.

    The chunk is allocated when the first checkpoint comes, which tells its size.  Smaller ones fit too.  For
    a larger one, or a further forward before the backward, another chunk is allocated: nothing is lost.
    """

    def __init__(self, allocate: Allocate, places: int) -> None:
        """``places`` is the number of checkpoints in a forward."""
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
                return _Slot(chunk)
        place_bytes = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._chunks.append(_Chunk(self._allocate(place_bytes * self._places, device), self._places, device))
        return _Slot(self._chunks[-1])


class _Chunk:
    """Places of equal size; ``free`` are those that no checkpoint is in, the next one last."""

    def __init__(self, memory: torch.Tensor, places: int, device: torch.device) -> None:
        self.memory = memory
        self.device = device
        self.place_bytes = memory.numel() // places
        self.free = list(reversed(range(places)))

    def serves(self, size_bytes: int, device: torch.device) -> bool:
        return size_bytes <= self.place_bytes and device == self.device


class _Slot:
    """One place of a chunk; free again when autograd drops the checkpoint, with or without a backward."""

    def __init__(self, chunk: _Chunk) -> None:
        self._chunk = chunk
        self._index = chunk.free.pop()
        begin = self._index * chunk.place_bytes
        self.memory = chunk.memory[begin : begin + chunk.place_bytes]

    def __del__(self) -> None:
        self._chunk.free.append(self._index)
