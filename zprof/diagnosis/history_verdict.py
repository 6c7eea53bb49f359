"""Say in one sentence what holds the memory of a snapshot at its peak, and what to change."""

from collections.abc import Iterator, Mapping, Sequence

from zprof.causes.cause import Cause
from zprof.model.findings import Confidence, Finding
from zprof.model.formatting import format_bytes, format_percent, printable, shorten
from zprof.model.memory import Basis, RankMemory
from zprof.model.memory_changes import GroupChange
from zprof.model.out_of_memory import OutOfMemory
from zprof.model.quantities import BOUND_WORDS, Bound
from zprof.model.report import Comparison
from zprof.model.tenants import DISPLAY_ORDER, Tenant

_MAX_TENANTS = 2
#: Smaller shares of the peak are not worth a mention.
_MIN_TENANT_RATIO, _MIN_UNKNOWN_RATIO = 0.01, 0.1
#: Columns of a fix and of a frame in the sentence.
_MAX_FIX, _MAX_PLACE = 90, 60


def describe_history(
    rank: RankMemory,
    findings: Sequence[Finding],
    causes: Mapping[str, Cause],
    comparison: Comparison | None,
    failures: Sequence[OutOfMemory] = (),
) -> str:
    """Return the sentence about the largest rank of a snapshot; findings are in order of importance.

    ``failures``: allocations that failed; the last one leads the sentence.
    """
    moment = f", in the {rank.peak_phase}" if rank.peak_phase else ""
    step = f" of step {rank.peak_step}" if rank.peak_phase and rank.peak_step >= 0 else ""
    growth = _describe_growth(comparison) if comparison else ""
    peak = f"peak {_format_bound(rank)}{format_bytes(rank.peak_bytes)} on rank {rank.rank}"
    failed = [entry for entry in failures if entry.rank == rank.rank]
    lead = f"{_describe_failure(failed[-1])}; " if failed else ""
    return (
        f"{lead}{peak}{moment}{step}{growth}: {_describe_holders(rank)}; {_describe_advice(findings, causes)}"
    )


def _describe_failure(failure: OutOfMemory) -> str:
    """Return what was requested, what was free, and whether it would have been enough in one piece."""
    text = f"out of memory: {format_bytes(failure.requested_bytes)} requested"
    if failure.device_free_bytes is not None:
        text += f", {format_bytes(failure.device_free_bytes)} free on the device"
    if failure.is_limited:
        return f"{text}: a limit of the process refused it"
    if failure.would_fit_defragmented:
        return f"{text}; a defragmented pool would have had room"
    if failure.short_bytes:
        return f"{text}; even a defragmented pool is {format_bytes(failure.short_bytes)} short"
    return text


def _format_bound(rank: RankMemory) -> str:
    return BOUND_WORDS[rank.bounds.get("peak_bytes", Bound.EXACT)]


def _describe_holders(rank: RankMemory) -> str:
    """Return the largest tenants with size and share, and what has no known owner."""
    least = _MIN_TENANT_RATIO * rank.peak_bytes
    largest = sorted(DISPLAY_ORDER, key=lambda tenant: -rank.tenants.get(tenant, 0))[:_MAX_TENANTS]
    named = [tenant for tenant in largest if rank.tenants.get(tenant, 0) >= max(1, least)]
    parts = list(_list_holders(rank, named))
    if rank.untagged_bytes >= max(1, _MIN_UNKNOWN_RATIO * rank.peak_bytes):
        if not named:
            return "none of its owners is known"
        parts.append(f"the owner of {_format_share(rank, rank.untagged_bytes)} is not known")
    return ", ".join(parts) or "no owner holds a hundredth of it"


def _list_holders(rank: RankMemory, tenants: Sequence[Tenant]) -> Iterator[str]:
    sizes: list[str] = []
    for tenant in tenants:
        by_sizes = any(part.tenant == tenant.value and part.basis is Basis.SIZES for part in rank.parts)
        share = _format_share(rank, rank.tenants[tenant], mark="~" if by_sizes else "")
        sizes.append(f"{tenant.value.replace('_', ' ')} {share}")
    if sizes:
        yield f"held by {' and '.join(sizes)}"


def _format_share(rank: RankMemory, size_bytes: int, mark: str = "") -> str:
    return f"{mark}{format_bytes(size_bytes)} ({format_percent(size_bytes / max(1, rank.peak_bytes))})"


def _describe_growth(comparison: Comparison) -> str:
    """Return the change of the peak against the baseline, and the group that grew or shrank the most."""
    change = comparison.memory_delta.get("peak_bytes")
    if change is None or not comparison.groups:
        return ""
    baseline = shorten(printable(comparison.baseline), _MAX_PLACE)
    if not change:
        return f", as much as {baseline}"
    main = max(comparison.groups, key=lambda group: group.delta_bytes * (1 if change > 0 else -1))
    size = format_bytes(abs(main.delta_bytes))
    return (
        f", {format_bytes(abs(change))} {'more' if change > 0 else 'less'} than {baseline}"
        f" (largest change: {_name_group(main)}, {'+' if change > 0 else '-'}{size})"
    )


def _name_group(group: GroupChange) -> str:
    path, colon, rest = group.where.partition(":")
    place = f"{path.rpartition('/')[2]}{colon}{rest}" or group.operator
    if group.before_history:
        place = "from before the history"
    place = f" {shorten(printable(place), _MAX_PLACE)}" if place and not group.merged else ""
    return f"{group.tenant.replace('_', ' ')}{place}"


def _describe_advice(findings: Sequence[Finding], causes: Mapping[str, Cause]) -> str:
    """Return the fix of the first finding in a few words, and what it frees."""
    likely = [entry for entry in findings if entry.confidence is not Confidence.LOW]
    # that memory ran out is what happened; what frees most is what to do about it
    freeing = [entry for entry in likely if entry.saving_bytes is not None and entry.saving_bytes[1] > 0]
    finding = next(iter(freeing or likely or findings), None)
    if finding is None:
        return "no tested change would free much of it"
    frees = ""
    if finding.saving_bytes is not None and finding.saving_bytes[1] > 0:
        frees = ", frees " + " to ".join(dict.fromkeys(map(format_bytes, finding.saving_bytes)))
    doubt = ", low confidence" if finding.confidence is Confidence.LOW else ""
    return f"to change: {_shorten_fix(finding, causes[finding.cause])} ({finding.id}{frees}{doubt})"


def _shorten_fix(finding: Finding, cause: Cause) -> str:
    """Return what to do in a few words, else the first line of the fix that is not a title."""
    if cause.action:
        return cause.action
    lines = [
        line.strip() for line in finding.fix.split("\n") if line.strip() and not line.rstrip().endswith(":")
    ]
    return shorten(lines[0], _MAX_FIX) if lines else finding.cause.replace("_", " ")
