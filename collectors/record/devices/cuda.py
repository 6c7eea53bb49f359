"""Read facts about the CUDA devices of this process from torch, without ever initializing CUDA."""

from typing import Any, Protocol

import torch
from msgspec import Struct

from zprof.collectors.record.torch_private import has_cuda_context


class DeviceIdentity(Struct, frozen=True, kw_only=True):
    """Driver-level ids of a device. A torch index is not one: it counts visible devices only.

    ``uuid`` has no prefix (for a MIG instance, it is the UUID of the instance); ``bus_id`` is the PCI
    address.
    """

    uuid: str | None
    bus_id: str | None


class CudaQueries(Protocol):
    """The CUDA queries that device counters need."""

    def is_built(self) -> bool:
        """Return True if this torch can use an NVIDIA GPU at all."""

    def in_use(self) -> bool:
        """Return True if the program has started to use a GPU."""

    def devices(self) -> list[int]:
        """Return the indices of the devices on which this process has a context."""

    def identity(self, index: int) -> DeviceIdentity:
        """Return the driver-level ids of the device."""

    def reserved_bytes(self, index: int) -> int | None:
        """Return the bytes that torch's allocator has reserved on the device, or None."""


class TorchCuda:
    """Answer the queries through torch.

    Safe on any thread: creates no context and never waits for a device.
    """

    def is_built(self) -> bool:
        """Return True if this is a CUDA build of torch."""
        return torch.version.cuda is not None

    def in_use(self) -> bool:
        """Return True if torch has initialized CUDA; False in a child forked after that."""
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def devices(self) -> list[int]:
        """Return the devices on which this process has a context; none before CUDA is initialized."""
        if not self.in_use():
            return []
        return [index for index in range(torch.cuda.device_count()) if self._has_context(index)]

    def identity(self, index: int) -> DeviceIdentity:
        """Return UUID and PCI address from torch's device properties."""
        properties: Any = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        bus_id = None
        if None not in parts:
            domain, bus, device = (int(part_id) for part_id in parts if part_id is not None)
            bus_id = f"{domain:08x}:{bus:02x}:{device:02x}.0"
        return DeviceIdentity(uuid=None if uuid is None else str(uuid), bus_id=bus_id)

    def reserved_bytes(self, index: int) -> int | None:
        """Return the allocator's counter; None if a pluggable allocator keeps no statistics."""
        counters: Any = torch.cuda.memory_stats_as_nested_dict(index)
        try:
            return int(counters["reserved_bytes"]["all"]["current"])
        except (KeyError, TypeError):
            return None

    def _has_context(self, index: int) -> bool:
        has_context = has_cuda_context(index)
        return bool(self.reserved_bytes(index)) if has_context is None else has_context
