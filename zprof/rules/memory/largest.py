"""The rank that a memory finding speaks of: the one with the largest peak, and what is known of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.memory import Allocation, Basis, DeviceMemory, PhasePeak, RankMemory
from zprof.model.tenants import Tenant

#: Bytes that a change takes away of a phase, given its name and what each tenant holds at its peak.
Removable = Callable[[str, Mapping[Tenant, int]], float]
RESERVED_PEAK = "reserved peak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest rank's peak, the peaks of its phases, its largest allocations, its device."""

    memory: RankMemory
    phases: tuple[PhasePeak, ...]
    top: tuple[Allocation, ...]
    devices: tuple[DeviceMemory, ...]

    @property
    def peak_bytes(self) -> int:
        """The peak, never 0, so that shares of it can be taken."""
        return max(1, self.memory.peak_bytes)

    @property
    def rank(self) -> int:
        """Which rank it is."""
        return self.memory.rank

    @property
    def on_gpu(self) -> bool:
        """Whether the memory is an accelerator's."""
        return self.memory.device != "cpu"

    @property
    def total_bytes(self) -> int | None:
        """What the device has; None where nobody asked it."""
        return max((device.device_total_bytes or 0 for device in self.devices), default=0) or None

    def at_reserved_peak(self) -> DeviceMemory | None:
        """The device when the allocator held most; None where that was not seen."""
        return next((device for device in self.devices if device.moment == RESERVED_PEAK), None)

    def of(self, tenant: Tenant) -> int:
        """What a tenant holds at the peak."""
        return self.memory.tenants.get(tenant, 0)

    def weak_ratio(self, *tenants: Tenant) -> float:
        """Share of what these tenants hold that no hook or tag saw, 0 where nothing is said about it."""
        names = {tenant.value for tenant in tenants}
        parts = [part for part in self.memory.parts if part.tenant in names]
        total = sum(part.bytes for part in parts)
        if total:
            return sum(part.bytes for part in parts if part.basis is not Basis.TAGGED) / total
        basis = self.memory.basis_bytes
        return 1 - basis.get(Basis.TAGGED, 0) / self.peak_bytes if basis else 0.0

    def would_fall(self, removable: Removable) -> float:
        """How far the peak falls at most: another phase may be the highest then.

        peak - max over the phases of (their peak - what the change takes away there)
        """
        moments = [(self.memory.peak_phase, self.memory.tenants, self.memory.peak_bytes)]
        moments += [(phase.phase, phase.tenants, phase.peak_bytes) for phase in self.phases]
        after = max(size - max(0.0, removable(phase, held)) for phase, held, size in moments)
        return max(0.0, self.memory.peak_bytes - after)


def largest_rank(analysis: RunAnalysis) -> Largest | None:
    """The rank with the largest peak; None where no rank's memory was watched."""
    memory = analysis.memory
    if not memory.per_rank:
        return None
    rank = max(memory.per_rank, key=lambda entry: (entry.peak_bytes, -entry.rank))
    return Largest(
        memory=rank,
        phases=tuple(phase for phase in memory.phases if phase.rank == rank.rank),
        top=tuple(entry for entry in memory.top if entry.rank == rank.rank),
        devices=tuple(device for device in memory.devices if device.rank == rank.rank),
    )
