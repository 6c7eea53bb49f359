"""Read facts about the CUDA devices of this process from torch, without ever initializing CUDA."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from zprof.collectors.torch_private import has_cuda_context


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """Ids by which the driver knows a device; torch's index counts visible devices only.

    ``uuid`` has no prefix (for a MIG instance it is the instance's); ``bus_id`` is the PCI address.
    """

    uuid: str | None
    bus_id: str | None


class Cuda(Protocol):
    """The part of torch that device counters need."""

    def is_built(self) -> bool:
        """Return whether this torch can use an NVIDIA GPU at all."""

    def in_use(self) -> bool:
        """Return whether the program has started to use a GPU."""

    def devices(self) -> list[int]:
        """Return the indices of the devices on which this process has a context."""

    def identity(self, index: int) -> DeviceIdentity:
        """Return the ids by which the driver knows the device."""

    def reserved_bytes(self, index: int) -> int | None:
        """Return the bytes that torch's allocator has reserved on the device, or None."""


class TorchCuda:
    """The implementation with torch.

    Safe on any thread: it creates no context and never waits for a device.
    """

    def is_built(self) -> bool:
        """Return whether this is a CUDA build of torch."""
        return torch.version.cuda is not None

    def in_use(self) -> bool:
        """Return whether torch has initialized CUDA; False in a child forked after that."""
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def devices(self) -> list[int]:
        """Return the devices with a context of this process; none before CUDA is initialized."""
        if not self.in_use():
            return []
        return [index for index in range(torch.cuda.device_count()) if self._has_context(index)]

    def identity(self, index: int) -> DeviceIdentity:
        """Return UUID and PCI address from torch's device properties."""
        properties: Any = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        return DeviceIdentity(uuid=None if uuid is None else str(uuid), bus_id=_bus_id(properties))

    def reserved_bytes(self, index: int) -> int | None:
        """Return the allocator's counter; None for a pluggable allocator that does not count."""
        counters: Any = torch.cuda.memory_stats_as_nested_dict(index)
        try:
            return int(counters["reserved_bytes"]["all"]["current"])
        except (KeyError, TypeError):
            return None

    def _has_context(self, index: int) -> bool:
        known = has_cuda_context(index)
        return bool(self.reserved_bytes(index)) if known is None else known


def _bus_id(properties: Any) -> str | None:
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in numbers:
        return None
    domain, bus, device = (int(number) for number in numbers if number is not None)
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"
