"""The memory side of the report: who owned which bytes, when, on which rank, and what the ZeRO formula gives.

Sizes are integer bytes, times integer nanoseconds. ``None`` is unknown, and a gap says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from zprof.model.tenants import Tenant


class Basis(StrEnum):
    """What a byte's tenant rests on: a hook or tag that saw it, a rule about its stack, or nothing."""

    TAGGED = "tagged"
    RULE = "rule"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFormula:
    """Model-state bytes that the stage's law gives one rank (ZeRO paper, section 5 and figure 1).

    ``padding_bytes`` and ``scalar_bytes`` are what the engine says it adds: padding of shards to equal
    size, and the optimizer's step counters.  The law itself is stated without them.
    """

    parameters: int
    gradients: int
    optimizer_state: int
    padding_bytes: int = 0
    scalar_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """Bytes of one kind within a tenant at the peak: ``sub`` is gathered_param, saved, master, …"""

    tenant: str
    sub: str
    bytes: int
    basis: Basis = Basis.TAGGED


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Live bytes of one rank at its allocated peak: the tenants and ``untagged_bytes`` sum to it.

    ``parts`` splits the same bytes by kind.  ``basis_bytes`` says what the tenants rest on and sums to the
    peak too; where it is not all ``tagged``, a face must not show the split without saying so.
    ``upper_bound`` is true where frees may have been missed, so that the true peak can be lower,
    ``lower_bound`` where allocations were, so that it can be higher; both can be.
    """

    rank: int
    device: str
    peak_bytes: int
    peak_step: int
    peak_phase: str
    tenants: Mapping[Tenant, int]
    untagged_bytes: int
    reserved_unused_bytes: int | None
    non_pytorch_bytes: int | None
    formula: StateFormula | None
    state_bytes: Mapping[Tenant, int] | None = None
    upper_bound: bool = False
    lower_bound: bool = False
    method: str = ""
    parts: tuple[MemoryPart, ...] = ()
    basis_bytes: Mapping[Basis, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One of the largest live allocations at a rank's peak; ``stack`` is innermost first.

    Of a snapshot, those of one tenant and stack are one entry: ``bytes`` is the largest of them, ``count``
    how many there are, ``total_bytes`` their sum (None: of one alone).
    """

    rank: int
    bytes: int
    tenant: str
    sub: str
    module: str
    stack: tuple[str, ...] = ()
    operator: str = ""
    basis: Basis = Basis.TAGGED
    count: int = 1
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """The highest point of live bytes within one phase, over the steps of the window."""

    rank: int
    phase: str
    step: int
    peak_bytes: int
    tenants: Mapping[Tenant, int]
    untagged_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePeak:
    """What a module (with all modules inside of it) allocated in the window.

    ``peak_bytes`` is the most that was live of it at one time; ``at_rank_peak_bytes`` what was live of it
    at the rank's own peak.  The root module is the empty name.
    """

    rank: int
    module: str
    peak_bytes: int
    at_rank_peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpread:
    """The largest peak minus the smallest, by tenant (``untagged`` among them); the deltas sum to it."""

    largest_rank: int
    smallest_rank: int
    difference_bytes: int
    tenant: str
    delta_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaCheck:
    """One model state of one rank against the stage's law.

    measured = law + padding + step counters + unexplained; ``cause`` is one sentence, empty where the
    measured bytes are those of the law.
    """

    rank: int
    tenant: Tenant
    law_bytes: int
    measured_bytes: int
    padding_bytes: int
    scalar_bytes: int
    unexplained_bytes: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Where the memory of a GPU is at one moment of a rank; known terms sum to the known total above them.

    reserved = live + rounding + awaiting_free + split + free_segments + private_pools
    process  = reserved + collectives + context            device_used = process + other_processes

    ``moment`` is ``allocated peak`` or ``reserved peak``.  ``live_bytes`` is what was asked for;
    ``rounding_bytes`` what blocks are larger; ``awaiting_free_bytes`` freed blocks that a stream still uses;
    ``split_bytes`` free parts of segments in use; ``free_segments_bytes`` segments wholly free;
    ``private_pools_bytes`` free memory of graph pools.  ``collectives_bytes`` is the growth of the process
    outside the allocator at the first collective of each group, ``context_bytes`` the rest of it.
    ``apart_ns``: how far from the moment the device was sampled.
    """

    rank: int
    device: str
    moment: str
    live_bytes: int
    tenants: Mapping[Tenant, int]
    rounding_bytes: int | None = None
    awaiting_free_bytes: int | None = None
    split_bytes: int | None = None
    free_segments_bytes: int | None = None
    private_pools_bytes: int | None = None
    reserved_bytes: int | None = None
    collectives_bytes: int | None = None
    context_bytes: int | None = None
    process_bytes: int | None = None
    other_processes_bytes: int | None = None
    device_used_bytes: int | None = None
    device_total_bytes: int | None = None
    apart_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorCounters:
    """The allocator's own counters of one rank and device.

    The peaks are the highest that any sample says, ``retries`` and ``ooms`` what the recorded steps add.
    """

    rank: int
    device: str
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    retries: int | None
    ooms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTimeline:
    """Live bytes by tenant over one rank's window, thinned: each point is the highest of its stretch.

    ``time_ns`` counts from the window's begin.  ``tenants`` has one column a tenant and ``untagged``, each
    as long as ``time_ns``.  ``steps`` and ``phases`` say what began when.
    """

    rank: int
    device: str
    time_ns: tuple[int, ...]
    tenants: Mapping[str, tuple[int, ...]]
    steps: tuple[tuple[int, int], ...] = ()
    phases: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory side of the report.

    ``per_rank`` holds each rank's own device (the GPU where it has one), ``host`` the host memory of ranks
    that have a GPU, ``init`` the peaks from the start of the program to its first step.
    """

    per_rank: tuple[RankMemory, ...] = ()
    top: tuple[Allocation, ...] = ()
    phases: tuple[PhasePeak, ...] = ()
    modules: tuple[ModulePeak, ...] = ()
    spread: RankSpread | None = None
    laws: tuple[FormulaCheck, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    counters: tuple[AllocatorCounters, ...] = ()
    host: tuple[RankMemory, ...] = ()
    init: tuple[RankMemory, ...] = ()
    timelines: tuple[MemoryTimeline, ...] = ()
