"""Define the memory part of the report: bytes by tenant, time, rank and stack, and the ZeRO formula.

Sizes are integer bytes, times integer nanoseconds. ``None`` is unknown, and a gap has the reason.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from zprof.model.endings import OutOfMemory
from zprof.model.findings import Confidence
from zprof.model.quantities import Bound, Bounds
from zprof.model.tenants import Tenant


class GroupChange(Struct, frozen=True, kw_only=True):
    """Bytes that one owner holds from one allocation site at two peaks; ``b`` is compared with ``a``.

    Of two runs, ``a`` is the baseline; of two ranks, the smallest. ``where`` and ``operator`` are as in an
    allocation, from ``b`` if it has the group. ``before_history``: allocated before the histories start.
    ``merged``: groups too small to list, without a known allocation site.
    """

    tenant: str
    sub: str
    where: str
    operator: str
    a_bytes: int
    b_bytes: int
    a_blocks: int
    b_blocks: int
    before_history: bool = False
    merged: bool = False

    @property
    def delta_bytes(self) -> int:
        """Return the growth from ``a`` to ``b``."""
        return self.b_bytes - self.a_bytes


class RankSpread(Struct, frozen=True, kw_only=True):
    """Largest peak minus smallest, by tenant (including ``untagged``); the deltas sum to the difference.

    ``groups``: for snapshots, the same by owner and allocation site, the largest difference first; ``a`` is
    the smallest rank.
    """

    largest_rank: int
    smallest_rank: int
    difference_bytes: int
    tenant: str
    delta_bytes: Mapping[str, int]
    groups: tuple[GroupChange, ...] = ()


class StackNodeKind(StrEnum):
    """Kind of a node in the stack tree.

    Frames; the root; several branches too small to show; blocks from before the history; blocks without a
    stack.
    """

    FRAMES = "frames"
    ROOT = "root"
    MERGED = "merged"
    BEFORE = "before"
    NO_STACK = "no_stack"


class StackNode(Struct, frozen=True, kw_only=True):
    """One node of the tree of stacks of live memory at a rank's peak; ``parent`` is its caller.

    ``parent`` is a position in the tree, -1 for the root. ``bytes`` and ``blocks`` include everything below.
    ``tenant`` owns most of the bytes. Frames with a single callee form one node: ``chain`` has all frames,
    outermost first, and ``frame`` is the frame to show; ``operator`` is what the innermost frame called.
    ``branches``: number of merged branches.
    """

    frame: str
    parent: int
    bytes: int
    blocks: int
    tenant: str
    kind: StackNodeKind = StackNodeKind.FRAMES
    operator: str = ""
    chain: tuple[str, ...] = ()
    branches: int = 0


class StackTree(Struct, frozen=True, kw_only=True):
    """Stacks at the peak of one rank, outermost frames first; small branches are merged."""

    rank: int
    device: str
    nodes: tuple[StackNode, ...]


class WindowKind(StrEnum):
    """What an allocator's history contains of a program.

    Steps with a backward pass; an optimizer alone; a forward pass that keeps its tensors for a backward pass;
    a forward pass that does not; unknown.
    """

    TRAINING = "training"
    OPTIMIZER = "optimizer"
    FORWARD = "forward"
    INFERENCE = "inference"
    UNKNOWN = "unknown"


class HistoryWindow(Struct, frozen=True, kw_only=True):
    """The steps in one rank's history: ``steps`` optimizer steps with ``micro_batches`` backward passes each.

    ``micro_batches`` is None if the history contains no complete step.
    """

    rank: int
    kind: WindowKind
    steps: int
    micro_batches: int | None


class Basis(StrEnum):
    """Basis of a byte's attribution: a hook or tag, its stack and lifetime, only its size, or nothing."""

    TAGGED = "tagged"
    RULE = "rule"
    SIZES = "sizes"
    UNKNOWN = "unknown"


class StateFormula(Struct, frozen=True, kw_only=True):
    """Model-state bytes per rank by the ZeRO formula of the stage (ZeRO paper, section 5 and figure 1).

    ``padding_bytes`` and ``scalar_bytes`` are reported by the engine in addition to the formula: padding of
    shards to equal size, and the optimizer's step counters.
    """

    parameters: int
    gradients: int
    optimizer_state: int
    padding_bytes: int = 0
    scalar_bytes: int = 0


class MemoryPart(Struct, frozen=True, kw_only=True):
    """Bytes of one kind within a tenant at the peak; ``sub`` is gathered_param, saved, master, …

    Imported histories also have the number of blocks and the basis of the attribution: ``reason`` is the name
    of the rule, ``confidence`` is high only if no other owner is possible.
    """

    tenant: str
    sub: str
    bytes: int
    basis: Basis = Basis.TAGGED
    blocks: int | None = None
    confidence: Confidence | None = None
    reason: str = ""


class RankMemory(Struct, frozen=True, kw_only=True):
    """Live bytes of one rank at its allocated peak: the tenants and ``untagged_bytes`` sum to it.

    ``parts`` splits the same bytes by kind. ``basis_bytes`` gives the basis of the tenants and also sums to
    the peak; unless all bytes are ``tagged``, an output that shows the split must mark it. ``upper_bound`` is
    true if frees may have been missed, so the actual peak can be lower; ``lower_bound`` if allocations may
    have been missed, so it can be higher. Both can be true. ``unknown``: tenants whose 0 is not a
    measurement, because nothing in the history was attributed to them. ``tenant_peaks``: the own maximum of
    each tenant (and ``untagged``) in the window; these have no meaningful sum.
    ``program_buffers_peak_bytes``: the maximum of the communication buffers without the collective backend's
    own copies.
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
    unknown: tuple[Tenant, ...] = ()
    tenant_peaks: Mapping[str, int] | None = None
    program_buffers_peak_bytes: int | None = None

    @property
    def bounds(self) -> Bounds:
        """Its peak, if it is a bound."""
        if self.upper_bound and self.lower_bound:
            return {"peak_bytes": Bound.UNKNOWN}
        if self.upper_bound or self.lower_bound:
            return {"peak_bytes": Bound.AT_MOST if self.upper_bound else Bound.AT_LEAST}
        return {}

    def is_unknown(self, tenant: Tenant) -> bool:
        """Return True if no block was ever attributed to a tenant, and no tag could attribute one."""
        return tenant in self.unknown


class Allocation(Struct, frozen=True, kw_only=True):
    """One of the largest live allocations at a rank's peak; ``stack`` is innermost first.

    In a snapshot, the live blocks of one owner and one allocation site form one entry: ``bytes`` is the size
    of the largest, ``smallest_bytes`` of the smallest, ``count`` their number, ``total_bytes`` their sum
    (None for a single allocation). ``where`` is the frame of the user's code, ``operator`` what it called.
    ``before``: allocated before the history started, so the stack is unknown. ``groups`` > 1: that many
    smaller entries of a tenant, merged. All entries of a rank of a snapshot sum to its peak.
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
    where: str = ""
    confidence: Confidence | None = None
    reason: str = ""
    smallest_bytes: int | None = None
    before: bool = False
    groups: int = 1

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the entire entry."""
        return self.bytes if self.total_bytes is None else self.total_bytes


class PeakGrowth(Struct, frozen=True, kw_only=True):
    """How the live memory of one rank grew to its peak.

    ``start_ns`` is the last time before the peak at which little more than the minimum was live, and
    ``peak_ns`` the time of the peak, both from the start of the history. ``grown_bytes`` is by tenant,
    including ``untagged``, and sums to the peak minus ``start_bytes``. ``largest``: groups allocated since,
    largest first.
    """

    rank: int
    device: str
    start_ns: int
    peak_ns: int
    start_bytes: int
    peak_bytes: int
    grown_bytes: Mapping[str, int]
    largest: tuple[Allocation, ...] = ()


class PhasePeak(Struct, frozen=True, kw_only=True):
    """Highest live bytes within one phase, over the steps of the window."""

    rank: int
    phase: str
    step: int
    peak_bytes: int
    tenants: Mapping[Tenant, int]
    untagged_bytes: int


class ModulePeak(Struct, frozen=True, kw_only=True):
    """Memory that a module, including all its submodules, allocated in the window.

    ``peak_bytes`` is the maximum of its live bytes, ``at_rank_peak_bytes`` its live bytes at the rank's peak.
    The root module has an empty name.
    """

    rank: int
    module: str
    peak_bytes: int
    at_rank_peak_bytes: int


#: ``cause`` of a check if no known cause predicts the difference.
NOT_EXPLAINED = "not explained"


class FormulaCheck(Struct, frozen=True, kw_only=True):
    """One model state of one rank, checked against the ZeRO formula of the stage.

    measured = formula + padding + step counters + unexplained. ``cause`` is one sentence, empty if the
    measured bytes match the formula. ``law_bytes`` is the old name of ``formula_bytes``, with the same value.
    """

    rank: int
    tenant: Tenant
    formula_bytes: int
    law_bytes: int
    measured_bytes: int
    padding_bytes: int
    scalar_bytes: int
    unexplained_bytes: int
    cause: str


class DeviceMemory(Struct, frozen=True, kw_only=True):
    """GPU memory at one moment of a rank, by location; known terms sum to the known total above them.

      reserved = live + rounding + awaiting_free + split + free_segments + private_pools
      process  = reserved + collectives + context            device_used = process + other_processes

    ``moment`` is ``allocated peak`` or ``reserved peak``. ``live_bytes`` is the requested size,
    ``rounding_bytes`` the excess of blocks over the requested size. ``awaiting_free_bytes``: freed blocks
    that a stream still uses. ``split_bytes``: free parts of segments in use. ``free_segments_bytes``:
    segments that are entirely free. ``private_pools_bytes``: free memory of graph pools.
    ``collectives_bytes`` is the growth of the process outside of the allocator at the first collective of
    each group, ``context_bytes`` the rest outside of the allocator. ``apart_ns``: time between the moment and
    the device sample.
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


class AllocatorCounters(Struct, frozen=True, kw_only=True):
    """Allocator counters of one rank and device.

    Peaks are the maximum over all samples; ``retries`` and ``ooms`` are the increases over the recorded
    steps.
    """

    rank: int
    device: str
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    retries: int | None
    ooms: int | None


class MemoryTimeline(Struct, frozen=True, kw_only=True):
    """Live bytes by tenant over one rank's window, thinned: each point is the maximum of its interval.

    ``time_ns`` counts from the start of the window. ``tenants`` has one column per tenant and one for
    ``untagged``, each as long as ``time_ns``. ``steps`` and ``phases`` give the start time of each step and
    phase.
    """

    rank: int
    device: str
    time_ns: tuple[int, ...]
    tenants: Mapping[str, tuple[int, ...]]
    steps: tuple[tuple[int, int], ...] = ()
    phases: tuple[tuple[int, str], ...] = ()


class Memory(Struct, frozen=True, kw_only=True):
    """Memory part of the report.

    ``per_rank`` is each rank's own device (the GPU if it has one), ``host`` the host memory of ranks that
    have a GPU, ``init`` the peaks from the start of the program to its first step. ``out_of_memory`` are the
    failed allocations in snapshots, oldest first within each rank. ``laws`` is the old name of ``formulas``,
    with the same rows.
    """

    per_rank: tuple[RankMemory, ...] = ()
    top: tuple[Allocation, ...] = ()
    phases: tuple[PhasePeak, ...] = ()
    modules: tuple[ModulePeak, ...] = ()
    spread: RankSpread | None = None
    formulas: tuple[FormulaCheck, ...] = ()
    laws: tuple[FormulaCheck, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    counters: tuple[AllocatorCounters, ...] = ()
    host: tuple[RankMemory, ...] = ()
    init: tuple[RankMemory, ...] = ()
    timelines: tuple[MemoryTimeline, ...] = ()
    stacks: tuple[StackTree, ...] = ()
    windows: tuple[HistoryWindow, ...] = ()
    growth: tuple[PeakGrowth, ...] = ()
    out_of_memory: tuple[OutOfMemory, ...] = ()

    def is_history(self, rank: int) -> bool:
        """Return True if a rank's memory comes from the history of an allocator, without hooks."""
        return any(entry.rank == rank for entry in self.growth)
