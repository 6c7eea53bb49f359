"""What a generated snapshot holds: the owner of each block lifetime, the phases, and both peaks."""

from collections.abc import Iterable
from dataclasses import dataclass

from zprof.model.tenants import Tenant


@dataclass(slots=True, eq=False)
class TrueLifetime:
    """One block from its allocation to its free; entries are numbers of trace entries, None if not freed.

    ``tenant`` is the owner from birth on, for a tensor that becomes a gradient or is saved for the backward
    later too. ``also`` are owners that are right as well: the definition of tenants leaves them open.
    """

    address: int
    requested_bytes: int
    tenant: Tenant
    sub: str
    alloc_entry: int
    freed_entry: int | None = None
    released_entry: int | None = None
    also: tuple[Tenant, ...] = ()
    born_in: str = ""

    def accepts(self, tenant: str) -> bool:
        """Whether this is a right name for the owner."""
        return tenant == self.tenant or tenant in self.also


@dataclass(frozen=True, slots=True, kw_only=True)
class TruePhase:
    """A range of entries [begin, end) of one phase; ``micro_batch`` is -1 in the optimizer.

    ``is_cut``: it began before the window.
    """

    phase: str
    step: int
    micro_batch: int
    begin_entry: int
    end_entry: int
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTruth:
    """The truth of one snapshot, cut to what its window shows.

    Entries count from the first one in the snapshot; what happened before it has the entry -1.
    ``entry_ns`` are their times as they are imported. ``peak_entry`` is the entry after which the requested
    bytes in use are at their maximum, -1 for the state before the first. ``keeps_for_backward``: a forward
    keeps its tensors for a backward, whether or not the window shows one.
    """

    seed: int
    variant: str
    options: dict[str, object]
    lifetimes: tuple[TrueLifetime, ...]
    phases: tuple[TruePhase, ...]
    entry_ns: tuple[int, ...]
    peak_bytes: int
    peak_entry: int
    reserved_peak_bytes: int
    keeps_for_backward: bool = True

    def live_at(self, entry: int) -> list[TrueLifetime]:
        """Return what is in use after an entry."""
        return [
            each
            for each in self.lifetimes
            if each.alloc_entry <= entry and (each.freed_entry is None or each.freed_entry > entry)
        ]


def make_entry_times(times_us: Iterable[int]) -> list[int]:
    """Return distinct times in ns: each is at least a nanosecond after the previous one."""
    times_ns: list[int] = []
    last = -1
    for time_us in times_us:
        last = max(time_us * 1000, last + 1)
        times_ns.append(last)
    return times_ns
