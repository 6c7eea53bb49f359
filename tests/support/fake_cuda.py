"""torch's side of a GPU without a GPU, for tests of device counters."""

from zprof.collectors.record.devices.nvml import DeviceIdentity, TorchCuda


class FakeCuda(TorchCuda):
    """``identities`` by torch's index; ``reserved`` is what the allocator holds on each."""

    def __init__(
        self,
        identities: dict[int, DeviceIdentity] | None = None,
        *,
        used: bool = True,
        built: bool = True,
        reserved: int | None = 0,
    ) -> None:
        self.identities = identities or {}
        self.used, self.built, self.reserved = used, built, reserved

    def is_built(self) -> bool:
        return self.built

    def in_use(self) -> bool:
        return self.used

    def devices(self) -> list[int]:
        return list(self.identities) if self.used else []

    def identity(self, index: int) -> DeviceIdentity:
        return self.identities[index]

    def reserved_bytes(self, index: int) -> int | None:
        return self.reserved
