"""Names, colours and bytes of tenants, and the selection of ranks to show."""

from collections.abc import Sequence

from msgspec.structs import replace

from zprof.model.cursor import Cursor, get, read
from zprof.model.findings import Confidence
from zprof.model.memory import Basis, RankMemory
from zprof.model.metrics import METRICS
from zprof.model.quantities import ESTIMATE_SIGN, Unit, Value
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.reports.page import LegendEntry, Segment
from zprof.reports.table import Column, Mark, Marked

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
_SHORT_NAMES: dict[str, str] = {
    Tenant.PARAMETERS.value: "params",
    Tenant.OPTIMIZER_STATE.value: "optimizer",
    Tenant.TEMPORARY_BUFFERS.value: "temp. buf.",
    Tenant.COMMUNICATION_BUFFERS.value: "comm. buf.",
}
#: Certainty of an untagged block's owner.
CONFIDENCE_WORDS = {Confidence.HIGH: "sure", Confidence.MEDIUM: "likely", Confidence.LOW: "guess"}
#: Memory of a rank outside the allocator's live bytes.
OUTSIDE_LIVE_TERMS = ("reserved_unused_bytes", "non_pytorch_bytes")
PEAK = METRICS["memory.per_rank[].peak_bytes"].title
#: Bytes of a part of a peak, and its share of the peak.
SIZE = Column(
    title="size", unit="bytes", help=f"{ESTIMATE_SIGN} prefix: known by the sizes of the blocks alone"
)
SHARE = Column(title=f"of the {PEAK}", unit="%")
#: Minimum table width on a screen to show less important tenants.
_MIN_WIDTH = 100
_ALWAYS_SHOWN = (Tenant.GRADIENTS, Tenant.ACTIVATIONS, Tenant.COMMUNICATION_BUFFERS)


def tenant_name(tenant: str) -> str:
    """Format the name of a tenant, such as ``optimizer state`` for ``optimizer_state``."""
    return tenant.replace("_", " ")


def shorten_tenant(tenant: str) -> str:
    """Return the name of a tenant for a narrow screen column."""
    return _SHORT_NAMES.get(tenant) or tenant_name(tenant)


def make_tenant_cell(tenant: str, sign: str = "") -> Marked:
    """Return the name of a tenant as a cell, after ``sign``."""
    return Marked(f"{sign}{tenant_name(tenant)}", Mark.PLAIN, short=f"{sign}{shorten_tenant(tenant)}")


def get_tenant_class(name: str) -> str:
    """Return the style class of a tenant; ``name`` must be in ``ORDER``."""
    return f"tenant-{name.replace('_', '-')}"


def build_tenant_legend() -> tuple[LegendEntry, ...]:
    """Build the tenant legend with colours and letters."""
    return tuple(
        LegendEntry(colour=get_tenant_class(name), letter=LETTERS[name], name=tenant_name(name))
        for name in ORDER
    )


def make_peak_columns() -> tuple[Column, ...]:
    """Return the columns for the six tenants, the untagged bytes, and the peak that they sum to."""
    return (
        *(
            Column(
                title=METRICS[f"memory.per_rank[].tenants.{tenant.value}"].title,
                short=shorten_tenant(tenant.value),
                unit="bytes",
                from_width=0 if tenant in _ALWAYS_SHOWN else _MIN_WIDTH,
            )
            for tenant in DISPLAY_ORDER
        ),
        Column(title=UNTAGGED, unit="bytes", from_width=_MIN_WIDTH),
        Column(title=f"= {PEAK}", unit="bytes", help="the tenants and untagged sum to it"),
    )


def read_peak(peak: Cursor) -> tuple[Value, ...]:
    """Return the cells for :func:`make_peak_columns` of a rank, a phase, or a rank's host memory."""
    tenants = (read_tenant(peak, tenant) for tenant in DISPLAY_ORDER)
    return (*tenants, read(peak.untagged_bytes), read(peak.peak_bytes))


def read_tenant(peak: Cursor, tenant: Tenant) -> Value:
    """Return the bytes of a tenant: an estimate if some are inferred from sizes; possibly unknown."""
    entry = get(peak)
    value = read(peak.tenants[tenant.value])
    if not isinstance(entry, RankMemory):
        return value
    if entry.is_unknown(tenant):
        return Value(None, Unit.BYTES)
    by_sizes = any(part.tenant == tenant.value and part.basis is Basis.SIZES for part in entry.parts)
    return replace(value, is_estimate=by_sizes)


def read_owned(entry: Cursor, name: str = "bytes") -> Value:
    """Return the bytes of a part or an allocation, an estimate if its tenant is inferred from size only."""
    return replace(read(entry[name]), is_estimate=get(entry).basis is Basis.SIZES)


def largest_rank(ranks: Sequence[RankMemory]) -> RankMemory | None:
    """Return the rank with the largest peak (the lowest rank on ties), or None if no rank was measured."""
    return max(ranks, key=lambda rank: (rank.peak_bytes, -rank.rank), default=None)


def find_largest_rank(ranks: Cursor) -> Cursor | None:
    """Return the cursor to the rank with the largest peak in a list of ranks; None if the list is empty."""
    order = sort_by_peak(get(ranks))
    return ranks[order[0]] if order else None


def sort_by_peak(ranks: Sequence[RankMemory]) -> tuple[int, ...]:
    """Return the rank indices, largest peak first."""
    indices = range(len(ranks))
    return tuple(sorted(indices, key=lambda index: (-ranks[index].peak_bytes, ranks[index].rank)))


def select_largest_ranks(ranks: Sequence[RankMemory], max_ranks: int) -> tuple[int, ...]:
    """Return the indices of the ``max_ranks`` ranks with the largest peaks, in rank order."""
    return tuple(sorted(sort_by_peak(ranks)[:max_ranks], key=lambda index: ranks[index].rank))


def peak_bytes(ranks: Sequence[RankMemory]) -> int:
    """Return the largest peak of all ranks."""
    return max(rank.peak_bytes for rank in ranks)


def format_largest_peak(ranks: Sequence[RankMemory]) -> str:
    """Format the largest peak of all ranks, with its mark; empty without ranks."""
    rank = largest_rank(ranks)
    return read(Cursor(rank).peak_bytes).text if rank else ""


def stack_segments(parts: Sequence[tuple[str, int, str]], scale: int) -> tuple[Segment, ...]:
    """Lay out (tenant, bytes, text) parts end to end, skipping parts of zero bytes."""
    segments, start = [], 0
    for name, size, text in parts:
        if size > 0:
            segments.append(
                Segment(
                    colour=get_tenant_class(name),
                    letter=LETTERS[name],
                    text=f"{tenant_name(name)} {text}",
                    start=round(100 * start / scale, 3),
                    width=round(100 * size / scale, 3),
                )
            )
        start += size
    return tuple(segments)
