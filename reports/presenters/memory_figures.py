"""Memory as outputs show it: names and marks of sizes, the largest rank, model states, a stacked timeline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zprof.model.formatting import format_bytes, format_percent
from zprof.model.memory import Allocation, Basis, FormulaCheck, Memory, MemoryPart, MemoryTimeline, RankMemory
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.reports.page import UNKNOWN, LegendEntry

#: Marks a size that rests on a rule and not on what was seen.
BY_RULE = "~"
#: Terms of the identity, from what the tenants hold to what the device has.
DEVICE_TERMS = (
    ("live_bytes", "tenants and untagged"),
    ("rounding_bytes", "rounding to blocks"),
    ("awaiting_free_bytes", "freed, a stream still uses it"),
    ("split_bytes", "free parts of used segments"),
    ("free_segments_bytes", "free segments"),
    ("private_pools_bytes", "free in private pools"),
    ("reserved_bytes", "= reserved by the allocator"),
    ("collectives_bytes", "communicators (by growth)"),
    ("context_bytes", "context and the rest"),
    ("process_bytes", "= this process on the device"),
    ("other_processes_bytes", "other processes"),
    ("device_used_bytes", "= in use on the device"),
    ("device_total_bytes", "the device has"),
)
#: What a rank may hold outside the allocator's live bytes: leaf, name.
OUTSIDE_LIVE_TERMS = (("reserved_unused_bytes", "reserved, unused"), ("non_pytorch_bytes", "outside PyTorch"))
UNTAGGED = "untagged"
#: Bottom to top, and left to right: what stays comes before what comes and goes.
ORDER = (*(tenant.value for tenant in DISPLAY_ORDER), UNTAGGED)
LETTERS: dict[str, str] = {
    Tenant.PARAMETERS.value: "P",
    Tenant.GRADIENTS.value: "G",
    Tenant.OPTIMIZER_STATE.value: "O",
    Tenant.ACTIVATIONS.value: "A",
    Tenant.TEMPORARY_BUFFERS.value: "T",
    Tenant.COMMUNICATION_BUFFERS.value: "C",
    UNTAGGED: "?",
}
#: Folders of code that the user did not write.
_INSTALLED = ("/site-packages/", "/dist-packages/", "<frozen ", "/lib/python3")
#: Parameters, gradients, optimizer state.
_STATES = 3
#: What the analysis says if it knows no cause.
_NO_CAUSE = frozenset({"", "not explained"})
#: The room above the highest point of a chart.
_HEADROOM = 1.08


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCheck:
    """Measured bytes of one rank's model states against the ZeRO formula.

    ``rest_bytes`` is what neither formula, padding nor step counters explain; ``off_bytes`` the same without
    signs, state by state, so that too much of one and too little of another do not cancel.
    """

    rank: int
    law_bytes: int
    measured_bytes: int
    padding_bytes: int
    scalar_bytes: int
    rest_bytes: int
    off_bytes: int
    has_cause: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Areas:
    """A stacked timeline: (name, lower edge, upper edge) of each area, bottom first, in bytes.

    ``peak`` is the index of the highest point, ``top_bytes`` a little above it, ``end_ns`` the end of the
    last point.
    """

    timeline: MemoryTimeline
    bands: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    peak: int
    peak_bytes: int
    top_bytes: float
    end_ns: int


def tenant_name(tenant: str) -> str:
    """Return ``optimizer_state`` as ``optimizer state``."""
    return tenant.replace("_", " ")


def get_tenant_class(name: str) -> str:
    """Return the style class of a tenant; only for names of ``ORDER``."""
    return f"tenant-{name.replace('_', '-')}"


def build_tenant_legend() -> tuple[LegendEntry, ...]:
    """Return the tenants with their colours and letters."""
    return tuple(
        LegendEntry(colour=get_tenant_class(name), letter=LETTERS[name], name=tenant_name(name))
        for name in ORDER
    )


def largest_rank(ranks: Sequence[RankMemory]) -> RankMemory | None:
    """Return the rank with the largest peak, the first of equals; None if none was measured."""
    return max(ranks, key=lambda rank: (rank.peak_bytes, -rank.rank), default=None)


def sort_by_peak(ranks: Sequence[RankMemory]) -> tuple[int, ...]:
    """Return the places of the ranks, the one with the largest peak first."""
    places = range(len(ranks))
    return tuple(sorted(places, key=lambda at: (-ranks[at].peak_bytes, ranks[at].rank)))


def select_largest_ranks(ranks: Sequence[RankMemory], most: int) -> tuple[RankMemory, ...]:
    """Return at most ``most`` ranks in order of rank: those with the largest peaks."""
    return tuple(sorted((ranks[at] for at in sort_by_peak(ranks)[:most]), key=lambda rank: rank.rank))


def peak_bytes(ranks: Sequence[RankMemory]) -> int:
    """Return the peak of the rank that has the largest."""
    return max(rank.peak_bytes for rank in ranks)


def compute_peak_change_ratio(before: Sequence[RankMemory], after: Sequence[RankMemory]) -> float:
    """Return the change of the largest peak as a share of what it was."""
    return peak_bytes(after) / max(1, peak_bytes(before)) - 1


def peak_mark(rank: RankMemory) -> str:
    """Return the mark of a peak that is a bound; empty for an exact one."""
    if rank.upper_bound and rank.lower_bound:
        return "≈ "
    return "≤ " if rank.upper_bound else "≥ " if rank.lower_bound else ""


def format_peak(rank: RankMemory) -> str:
    """Return a rank's peak with its mark."""
    return f"{peak_mark(rank)}{format_bytes(rank.peak_bytes)}"


def format_largest_peak(ranks: Sequence[RankMemory]) -> str:
    """Return the peak of the rank that has the largest, with its mark; empty without ranks."""
    rank = largest_rank(ranks)
    return format_peak(rank) if rank else ""


def format_peak_time(rank: RankMemory) -> str:
    """Return when a rank peaks; empty if unknown."""
    phase, step = rank.peak_phase, rank.peak_step
    return f"{phase} of step {step}" if phase and step >= 0 else phase


def format_optional_bytes(size: int | None) -> str:
    """Return a size, or that it is unknown."""
    return "unknown" if size is None else format_bytes(size)


def format_signed_bytes(count_bytes: int) -> str:
    """Return a change with its sign."""
    return f"+{format_bytes(count_bytes)}" if count_bytes > 0 else format_bytes(count_bytes)


def format_marked_size(entry: MemoryPart | Allocation) -> str:
    """Return the bytes of a part or an allocation, marked if a rule gave it its tenant."""
    return f"{BY_RULE if entry.basis == Basis.RULE else ''}{format_bytes(entry.bytes)}"


def tenant_bytes(rank: RankMemory, tenant: Tenant) -> str:
    """Return a tenant's bytes, marked if a rule gave it any; a dash if nothing could have told."""
    basis = rank.basis_bytes
    if basis and not basis.get(Basis.TAGGED) and not rank.tenants.get(tenant):
        return UNKNOWN
    by_rule = any(part.tenant == tenant.value and part.basis is not Basis.TAGGED for part in rank.parts)
    return f"{BY_RULE if by_rule else ''}{format_bytes(rank.tenants.get(tenant, 0))}"


def format_tenant_cells(rank: RankMemory) -> tuple[str, ...]:
    """Return the six tenants, what is untagged and the peak."""
    sizes = (tenant_bytes(rank, tenant) for tenant in DISPLAY_ORDER)
    return (*sizes, format_bytes(rank.untagged_bytes), format_peak(rank))


def basis_note(rank: RankMemory) -> str:
    """Return what a rank's tenants rest on, if that is not hooks or tags alone; else empty."""
    basis = rank.basis_bytes or {}
    if not basis.get(Basis.RULE) or not rank.peak_bytes:
        return ""
    parts = [
        f"{format_percent(basis.get(kind, 0) / rank.peak_bytes)} {what}"
        for kind, what in (
            (Basis.TAGGED, "tagged"),
            (Basis.RULE, f"by rules on stacks ({BY_RULE})"),
            (Basis.UNKNOWN, "unknown"),
        )
    ]
    return f"The tenants of rank {rank.rank} rest on: {', '.join(parts)}."


def telling_frames(stack: Sequence[str], most: int) -> tuple[str, ...]:
    """Return the innermost frame, then those of the program itself; without any, the innermost ones.

    Files keep their last two folders; the leaf has them whole.
    """
    own = [frame for frame in stack[1:] if not any(folder in frame for folder in _INSTALLED)]
    chosen = [*stack[:1], *own] if own else list(stack)
    return tuple("/".join(frame.split("/")[-3:]) for frame in chosen[:most])


def describe_states(laws: Sequence[FormulaCheck], most: int) -> tuple[str, ...]:
    """Return a sentence per rank, the one furthest off its formula first; one if all ranks are alike."""
    checks = _state_checks(laws)
    if len({replace(check, rank=0) for check in checks}) == 1:
        return (_state_line("each rank", checks[0]),)
    worst = sorted(checks, key=lambda check: (-check.off_bytes, check.rank))[:most]
    left = f"{len(worst)} of {len(checks)} ranks, the furthest off."
    lines = [_state_line(f"rank {check.rank}", check) for check in worst]
    return (*lines, *((left,) if len(worst) < len(checks) else ()))


def _state_checks(laws: Sequence[FormulaCheck]) -> list[StateCheck]:
    """Return the three states of each rank as one sum, if each of them has a formula."""
    by_rank: dict[int, list[FormulaCheck]] = {}
    for state in laws:
        by_rank.setdefault(state.rank, []).append(state)
    return [_state_check(rank, found) for rank, found in by_rank.items() if len(found) == _STATES]


def _state_check(rank: int, laws: Sequence[FormulaCheck]) -> StateCheck:
    return StateCheck(
        rank=rank,
        law_bytes=sum(state.law_bytes for state in laws),
        measured_bytes=sum(state.measured_bytes for state in laws),
        padding_bytes=sum(state.padding_bytes for state in laws),
        scalar_bytes=sum(state.scalar_bytes for state in laws),
        rest_bytes=sum(state.unexplained_bytes for state in laws),
        off_bytes=sum(abs(state.unexplained_bytes) for state in laws),
        has_cause=all(state.cause not in _NO_CAUSE for state in laws if state.unexplained_bytes),
    )


def _state_line(who: str, check: StateCheck) -> str:
    sizes = (
        f"formula {format_bytes(check.law_bytes)}",
        f"measured {format_bytes(check.measured_bytes)}",
        f"padding {format_bytes(check.padding_bytes)}",
        f"step counters {format_bytes(check.scalar_bytes)}",
    )
    return f"Model states of {who}: {', '.join(sizes)}; {_agreement(check)}."


def _agreement(check: StateCheck) -> str:
    """Return how far the measured states are from what explains them."""
    if not check.off_bytes:
        return "exact to the byte"
    off = format_bytes(check.off_bytes)
    if check.has_cause:
        return f"{off} off, of known cause"
    if abs(check.rest_bytes) == check.off_bytes:
        return f"{format_signed_bytes(check.rest_bytes)} not explained"
    return f"{off} not explained: too much of one state, too little of another"


def stack_areas(memory: Memory) -> Areas | None:
    """Return the timeline with the highest point, stacked; None if none was recorded."""
    known = [timeline for timeline in memory.timelines if timeline.time_ns and timeline.tenants]
    if not known:
        return None
    timeline = max(known, key=lambda entry: max(_heights(entry)))
    heights = _heights(timeline)
    peak = heights.index(max(heights))
    lower = (0,) * len(heights)
    bands = []
    for name in ORDER:
        values = timeline.tenants.get(name, (0,) * len(heights))
        upper = tuple(below + value for below, value in zip(lower, values, strict=True))
        bands.append((name, lower, upper))
        lower = upper
    last, first = timeline.time_ns[-1], timeline.time_ns[0]
    return Areas(
        timeline=timeline,
        bands=tuple(bands),
        peak=peak,
        peak_bytes=heights[peak],
        top_bytes=heights[peak] * _HEADROOM,
        end_ns=last + max(1, (last - first) // max(1, len(heights) - 1)),
    )


def _heights(timeline: MemoryTimeline) -> list[int]:
    return [sum(values) for values in zip(*timeline.tenants.values(), strict=True)]
