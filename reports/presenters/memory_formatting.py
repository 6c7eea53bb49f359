"""Format memory values: sizes, tenants, peaks, model-state checks and the stacked timeline."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from zprof.model.findings import Confidence
from zprof.model.formatting import format_bytes, format_percent, printable, shorten
from zprof.model.leaves import take_value
from zprof.model.memory import (
    NOT_EXPLAINED,
    Allocation,
    Basis,
    FormulaCheck,
    Memory,
    MemoryPart,
    MemoryTimeline,
    RankMemory,
)
from zprof.model.quantities import ESTIMATE_SIGN, Unit, Value
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.reports.page import LegendEntry

#: How sure the owner of an untagged block is.
CONFIDENCE_WORDS = {Confidence.HIGH: "sure", Confidence.MEDIUM: "likely", Confidence.LOW: "guess"}
#: Rows of the device memory table, from the tenants to the device total: field, name.
DEVICE_TERMS = (
    ("live_bytes", "tenants and untagged"),
    ("rounding_bytes", "rounding to blocks"),
    ("awaiting_free_bytes", "freed, still in use by a stream"),
    ("split_bytes", "free parts of used segments"),
    ("free_segments_bytes", "free segments"),
    ("private_pools_bytes", "free in private pools"),
    ("reserved_bytes", "= reserved by the allocator"),
    ("collectives_bytes", "communicators (estimated from growth)"),
    ("context_bytes", "context and other"),
    ("process_bytes", "= this process on the device"),
    ("other_processes_bytes", "other processes"),
    ("device_used_bytes", "= in use on the device"),
    ("device_total_bytes", "total on the device"),
)
#: Memory of a rank outside the allocator's live bytes.
OUTSIDE_LIVE_TERMS = ("reserved_unused_bytes", "non_pytorch_bytes")
UNTAGGED = "untagged"
#: Bottom to top and left to right: long-lived tenants before short-lived ones.
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
#: Parts of paths of installed code, which the user did not write.
_INSTALLED = ("/site-packages/", "/dist-packages/", "<frozen ", "/lib/python3")
#: Parameters, gradients, optimizer state.
_STATE_COUNT = 3
#: Causes that mean the analysis found none.
_UNKNOWN_CAUSES = frozenset({"", NOT_EXPLAINED})
#: Maximum length of the path of a frame, and of its line and function.
_MAX_PATH, _MAX_FUNCTION = 60, 50
_ALL_FOLDERS = 1_000
#: Height of a chart relative to its highest point.
_HEIGHT_RATIO = 1.08


class StateCheck(Struct, frozen=True, kw_only=True):
    """Measured bytes of one rank's model states against the ZeRO formula.

    ``unexplained_bytes``: signed sum of what formula, padding and step counters do not explain;
    ``abs_unexplained_bytes``: sum of the absolute values per state, in which opposite signs do not cancel.
    """

    rank: int
    formula_bytes: int
    measured_bytes: int
    padding_bytes: int
    scalar_bytes: int
    unexplained_bytes: int
    abs_unexplained_bytes: int
    has_cause: bool


class Areas(Struct, frozen=True, kw_only=True):
    """A stacked timeline: (name, lower edge, upper edge) of each area, bottom first, in bytes.

    ``peak``: index of the highest point; ``top_bytes``: upper end of the axis; ``end_ns``: end of the last
    point.
    """

    timeline: MemoryTimeline
    bands: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    peak: int
    peak_bytes: int
    top_bytes: float
    end_ns: int


def tenant_name(tenant: str) -> str:
    """Format the name of a tenant, such as ``optimizer state`` for ``optimizer_state``."""
    return tenant.replace("_", " ")


def get_tenant_class(name: str) -> str:
    """Return the style class of a tenant; ``name`` must be in ``ORDER``."""
    return f"tenant-{name.replace('_', '-')}"


def build_tenant_legend() -> tuple[LegendEntry, ...]:
    """Build the legend of the tenants with their colours and letters."""
    return tuple(
        LegendEntry(colour=get_tenant_class(name), letter=LETTERS[name], name=tenant_name(name))
        for name in ORDER
    )


def largest_rank(ranks: Sequence[RankMemory]) -> RankMemory | None:
    """Return the rank with the largest peak (the lowest of equals), or None if none was measured."""
    return max(ranks, key=lambda rank: (rank.peak_bytes, -rank.rank), default=None)


def sort_by_peak(ranks: Sequence[RankMemory]) -> tuple[int, ...]:
    """Return the indices of the ranks, largest peak first."""
    indices = range(len(ranks))
    return tuple(sorted(indices, key=lambda index: (-ranks[index].peak_bytes, ranks[index].rank)))


def select_largest_ranks(ranks: Sequence[RankMemory], max_ranks: int) -> tuple[RankMemory, ...]:
    """Return the ``max_ranks`` ranks with the largest peaks, in order of rank."""
    return tuple(
        sorted((ranks[index] for index in sort_by_peak(ranks)[:max_ranks]), key=lambda rank: rank.rank)
    )


def peak_bytes(ranks: Sequence[RankMemory]) -> int:
    """Return the largest peak of all ranks."""
    return max(rank.peak_bytes for rank in ranks)


def compute_peak_change_ratio(before: Sequence[RankMemory], after: Sequence[RankMemory]) -> float:
    """Return the change of the largest peak relative to its previous value."""
    return peak_bytes(after) / max(1, peak_bytes(before)) - 1


def format_largest_peak(ranks: Sequence[RankMemory]) -> str:
    """Format the largest peak of all ranks, with its mark; empty without ranks."""
    rank = largest_rank(ranks)
    return take_value(rank, "peak_bytes").text if rank else ""


def format_peak_time(rank: RankMemory) -> str:
    """Format the phase and step of a rank's peak; empty if unknown."""
    phase, step = rank.peak_phase, rank.peak_step
    return f"{phase} of step {step}" if phase and step >= 0 else phase


def take_owned_bytes(entry: MemoryPart | Allocation, name: str = "bytes") -> Value:
    """Return the bytes of a part or an allocation, an estimate if only sizes support its tenant."""
    return replace(take_value(entry, name), is_estimate=entry.basis is Basis.SIZES)


def take_tenant_bytes(rank: RankMemory, tenant: Tenant) -> Value:
    """Return the bytes of a tenant: an estimate if only sizes support some, unknown if undeterminable."""
    if rank.is_unknown(tenant):
        return Value(None, Unit.BYTES)
    by_sizes = any(part.tenant == tenant.value and part.basis is Basis.SIZES for part in rank.parts)
    return Value(rank.tenants.get(tenant, 0), Unit.BYTES, is_estimate=by_sizes)


def make_tenant_cells(rank: RankMemory) -> tuple[Value, ...]:
    """Return the six tenants, the untagged bytes and the peak."""
    sizes = (take_tenant_bytes(rank, tenant) for tenant in DISPLAY_ORDER)
    return (*sizes, take_value(rank, "untagged_bytes"), take_value(rank, "peak_bytes"))


def describe_attribution(rank: RankMemory) -> str:
    """Describe how a rank's memory was attributed; empty if by hooks or tags alone."""
    basis = rank.basis_bytes or {}
    if not rank.peak_bytes or not (basis.get(Basis.RULE) or basis.get(Basis.SIZES)):
        return ""
    parts = [
        f"{format_percent(basis.get(kind, 0) / rank.peak_bytes)} {what}"
        for kind, what in (
            (Basis.TAGGED, "by tags"),
            (Basis.RULE, "by stacks and lifetimes"),
            (Basis.SIZES, f"by sizes alone ({ESTIMATE_SIGN})"),
            (Basis.UNKNOWN, "unknown"),
        )
        if basis.get(kind) or kind is Basis.UNKNOWN
    ]
    return f"Owners of rank {rank.rank}'s memory: {', '.join(parts)}."


def is_installed(frame: str) -> bool:
    """Return True for a frame of an installed package or of Python itself."""
    return any(folder in frame for folder in _INSTALLED)


def shorten_frame(frame: str, folders: int = _ALL_FOLDERS) -> str:
    """Return a frame with the last ``folders`` folders of its path, cut to about 100 characters.

    Of a long path the end is kept, of a long function the start.
    """
    path, colon, rest = printable(frame).partition(":")
    path = "/".join(path.split("/")[-folders - 1 :])
    path = path if len(path) <= _MAX_PATH else f"…{path[1 - _MAX_PATH :]}"
    return f"{path}{colon}{shorten(rest, _MAX_FUNCTION)}"


def select_user_frames(stack: Sequence[str], max_frames: int) -> tuple[str, ...]:
    """Return the innermost frame and the frames of user code, or the innermost frames if there are none.

    Paths are cut to their last two folders; the report data has the full paths.
    """
    own = [frame for frame in stack[1:] if not is_installed(frame)]
    chosen = [*stack[:1], *own] if own else list(stack)
    return tuple(shorten_frame(frame, 2) for frame in chosen[:max_frames])


def describe_states(checks: Sequence[FormulaCheck], max_ranks: int) -> tuple[str, ...]:
    """Describe the model states of each rank, largest deviation first; one sentence if all ranks agree."""
    rank_checks = _sum_state_checks(checks)
    if len({replace(check, rank=0) for check in rank_checks}) == 1:
        return (_describe_state("each rank", rank_checks[0]),)
    largest = sorted(rank_checks, key=lambda check: (-check.abs_unexplained_bytes, check.rank))[:max_ranks]
    omission = f"{len(largest)} of {len(rank_checks)} ranks, largest deviations first."
    lines = [_describe_state(f"rank {check.rank}", check) for check in largest]
    return (*lines, *((omission,) if len(largest) < len(rank_checks) else ()))


def _sum_state_checks(checks: Sequence[FormulaCheck]) -> list[StateCheck]:
    """Sum the three states of each rank; ranks without a formula for every state are omitted."""
    by_rank: dict[int, list[FormulaCheck]] = {}
    for state in checks:
        by_rank.setdefault(state.rank, []).append(state)
    return [
        _sum_state_check(rank, rank_checks)
        for rank, rank_checks in by_rank.items()
        if len(rank_checks) == _STATE_COUNT
    ]


def _sum_state_check(rank: int, checks: Sequence[FormulaCheck]) -> StateCheck:
    return StateCheck(
        rank=rank,
        formula_bytes=sum(state.law_bytes for state in checks),
        measured_bytes=sum(state.measured_bytes for state in checks),
        padding_bytes=sum(state.padding_bytes for state in checks),
        scalar_bytes=sum(state.scalar_bytes for state in checks),
        unexplained_bytes=sum(state.unexplained_bytes for state in checks),
        abs_unexplained_bytes=sum(abs(state.unexplained_bytes) for state in checks),
        has_cause=all(state.cause not in _UNKNOWN_CAUSES for state in checks if state.unexplained_bytes),
    )


def _describe_state(subject: str, check: StateCheck) -> str:
    sizes = (
        f"formula {format_bytes(check.formula_bytes)}",
        f"measured {format_bytes(check.measured_bytes)}",
        f"padding {format_bytes(check.padding_bytes)}",
        f"step counters {format_bytes(check.scalar_bytes)}",
    )
    return f"Model states of {subject}: {', '.join(sizes)}; {_describe_difference(check)}."


def _describe_difference(check: StateCheck) -> str:
    """Describe the unexplained difference."""
    if not check.abs_unexplained_bytes:
        return "exact to the byte"
    difference = format_bytes(check.abs_unexplained_bytes)
    if check.has_cause:
        return f"{difference} difference with known cause"
    if abs(check.unexplained_bytes) == check.abs_unexplained_bytes:
        return f"{Value(check.unexplained_bytes, Unit.BYTES, signed=True).text} unexplained"
    return f"{difference} unexplained: some states are larger than expected, others smaller"


def stack_areas(memory: Memory) -> Areas | None:
    """Stack the timeline with the highest peak; None if no timeline was recorded."""
    timelines = [timeline for timeline in memory.timelines if timeline.time_ns and timeline.tenants]
    if not timelines:
        return None
    timeline = max(timelines, key=lambda entry: max(_sum_heights(entry)))
    heights = _sum_heights(timeline)
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
        top_bytes=heights[peak] * _HEIGHT_RATIO,
        end_ns=last + max(1, (last - first) // max(1, len(heights) - 1)),
    )


def _sum_heights(timeline: MemoryTimeline) -> list[int]:
    return [sum(values) for values in zip(*timeline.tenants.values(), strict=True)]
