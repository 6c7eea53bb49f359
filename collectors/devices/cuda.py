"""Ask torch about the CUDA devices of this process, without ever initializing CUDA by asking."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """By what the driver knows a device; torch's index counts visible devices only.

    ``uuid`` has no prefix (that of a MIG instance is the instance's); ``bus_id`` is the PCI address.
    """

    uuid: str | None
    bus_id: str | None


class Cuda(Protocol):
    """torch's side of a device."""

    def is_built(self) -> bool:
        """Whether this torch can use a GPU of NVIDIA's at all."""

    def in_use(self) -> bool:
        """Whether the program has begun to use a GPU."""

    def devices(self) -> list[int]:
        """Indices of the devices on which this process has a context."""

    def identity(self, index: int) -> DeviceIdentity:
        """By what the driver knows the device."""

    def reserved_bytes(self, index: int) -> int | None:
        """What torch's allocator holds of the device."""


class TorchCuda:
    """The real one.  All of it is safe on any thread: nothing makes a context or waits for the device."""

    def is_built(self) -> bool:
        """Whether this is a CUDA build of torch."""
        return torch.version.cuda is not None

    def in_use(self) -> bool:
        """Whether torch has started CUDA; never in a child forked after that."""
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def devices(self) -> list[int]:
        """Devices with a context of this process; nothing before CUDA has started."""
        if not self.in_use():
            return []
        return [index for index in range(torch.cuda.device_count()) if self._has_context(index)]

    def identity(self, index: int) -> DeviceIdentity:
        """Its UUID and PCI address as torch's device properties have them."""
        properties: Any = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        return DeviceIdentity(uuid=None if uuid is None else str(uuid), bus_id=_bus_id(properties))

    def reserved_bytes(self, index: int) -> int | None:
        """The allocator's counter; None where another allocator is plugged in that does not count."""
        counters: Any = torch.cuda.memory_stats_as_nested_dict(index)
        try:
            return int(counters["reserved_bytes"]["all"]["current"])
        except (KeyError, TypeError):
            return None

    def _has_context(self, index: int) -> bool:
        asks = getattr(torch._C, "_cuda_hasPrimaryContext", None)
        return bool(asks(index)) if asks is not None else bool(self.reserved_bytes(index))


def _bus_id(properties: Any) -> str | None:
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in numbers:
        return None
    domain, bus, device = (int(number) for number in numbers if number is not None)
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"
