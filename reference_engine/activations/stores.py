"""What becomes of a checkpoint between the forward of its block and the recomputation.

whole                       the tensor itself is kept, nothing is copied
copied                      into a place: on the device or on the host, alone or in a chunk
partitioned over (copied)   1/N of it, padded to equal parts; an all_gather brings the whole back
"""

from typing import Protocol

import torch
import torch.nn.functional as F

from zprof.reference_engine.activations.memory import Place, Places
from zprof.reference_engine.activations.transfer import Transfer
from zprof.reference_engine.comm import Comm


class Kept(Protocol):
    """A checkpoint in a store.  Whoever drops the object gives its memory back."""

    def get(self) -> torch.Tensor:
        """The checkpoint, bit by bit as it was; may be asked for again."""


class Store(Protocol):
    """Keeps checkpoints."""

    def put(self, checkpoint: torch.Tensor, unit: str) -> Kept:
        """Keep the checkpoint of the block ``unit``."""


class WholeStore:
    """Keeps the tensor itself."""

    def put(self, checkpoint: torch.Tensor, unit: str) -> Kept:
        """See :class:`Store`."""
        return _Whole(checkpoint.detach(), unit)


class _Whole:
    def __init__(self, checkpoint: torch.Tensor, unit: str) -> None:
        self._checkpoint, self._unit = checkpoint, unit
        self._version = checkpoint._version

    def get(self) -> torch.Tensor:
        if self._checkpoint._version != self._version:
            raise RuntimeError(f"the input of {self._unit} was changed in place after its forward")
        return self._checkpoint


class CopyStore:
    """Keeps a copy."""

    def __init__(self, places: Places, transfer: Transfer) -> None:
        self._places = places
        self._transfer = transfer

    def put(self, checkpoint: torch.Tensor, unit: str) -> Kept:
        """See :class:`Store`."""
        source = checkpoint.detach().contiguous()
        place = self._places.take(source.nbytes, source.device)
        copied = _Copied(place, source, self._transfer)
        self._transfer.store(source, copied.content)
        return copied


class _Copied:
    def __init__(self, place: Place, source: torch.Tensor, transfer: Transfer) -> None:
        self._place = place
        self._transfer = transfer
        self._device = source.device
        self.content = place.memory[: source.nbytes].view(source.dtype).view(source.shape)

    def get(self) -> torch.Tensor:
        return self._transfer.load(self.content, self._device)


class PartitionedStore:
    """Pa: keeps this rank's part of the checkpoint, which all model-parallel ranks have whole."""

    def __init__(self, parts: CopyStore, mp: Comm) -> None:
        """``parts`` keeps the parts; it copies, so that nothing holds the whole."""
        self._parts = parts
        self._mp = mp

    def put(self, checkpoint: torch.Tensor, unit: str) -> Kept:
        """See :class:`Store`."""
        flat = checkpoint.detach().reshape(-1)
        share = -(-flat.numel() // self._mp.world_size)
        part = flat[self._mp.rank * share : (self._mp.rank + 1) * share]
        padded = F.pad(part, (0, share - part.numel())) if part.numel() < share else part
        return _Partitioned(self._parts.put(padded, unit), checkpoint.shape, self._mp, unit)


class _Partitioned:
    def __init__(self, part: Kept, shape: torch.Size, mp: Comm, unit: str) -> None:
        self._part, self._shape, self._mp, self._unit = part, shape, mp, unit

    def get(self) -> torch.Tensor:
        part = self._part.get()
        padded = part.new_empty(part.numel() * self._mp.world_size)
        self._mp.all_gather(padded, part, self._unit).wait()
        return padded[: self._shape.numel()].view(self._shape)
