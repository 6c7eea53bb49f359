"""Memory, kernels and findings of two runs."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.side_by_side.pairs import most_of, unit_of
from zprof.model.causes import FINDING_IDS, Cause
from zprof.model.findings import Finding
from zprof.model.memory import RankMemory
from zprof.model.report import Report
from zprof.model.side_by_side import Row, Section
from zprof.model.tenants import SHOWN, Tenant
from zprof.model.units import format_bytes, format_ns

_MEMORY = ("untagged_bytes", "peak_bytes", "reserved_unused_bytes", "non_pytorch_bytes")
_KERNEL_COLUMNS = {"name", "total_ns"}


def memory_section(a: Report, b: Report) -> Section:
    """Each tenant on the rank that holds most of it, at that rank's peak."""
    sides = (a.memory.per_rank, b.memory.per_rank)
    rows = [
        Row(
            name=f"{tenant.value}_bytes",
            unit="bytes",
            a=_tenant(sides[0], tenant),
            b=_tenant(sides[1], tenant),
        )
        for tenant in SHOWN
    ]
    rows += [
        Row(name=name, unit=unit_of(name), a=most_of(sides[0], name), b=most_of(sides[1], name))
        for name in _MEMORY
    ]
    return Section(title="memory", note="at the peak, largest rank of each line", rows=tuple(rows))


def _tenant(ranks: tuple[RankMemory, ...], tenant: Tenant) -> int | None:
    return max((rank.tenants.get(tenant, 0) for rank in ranks), default=None)


def kernel_section(a: RunAnalysis, b: RunAnalysis) -> Section:
    """Time of each kernel (on CPU ranks operator) a step; a kernel that only one run has takes no time."""
    before, after = _kernels(a), _kernels(b)
    names = sorted({*before, *after}, key=lambda name: -max(before.get(name, 0), after.get(name, 0)))
    known = bool(before and after)
    rows = [
        Row(
            name=name,
            unit="ns",
            a=before.get(name, 0 if known else None),
            b=after.get(name, 0 if known else None),
        )
        for name in names
    ]
    return Section(title="kernels", note="a step, mean of the ranks", rows=tuple(rows))


def _kernels(run: RunAnalysis) -> dict[str, int]:
    table: pd.DataFrame = run.kernels
    if table.empty or not set(table.columns) >= _KERNEL_COLUMNS or run.steps.empty:
        return {}
    sums: Any = table.groupby(table["name"].astype(str), sort=False)["total_ns"].sum()
    return {str(name): round(total / len(run.steps)) for name, total in sums.items()}


def finding_section(a: Report, b: Report) -> Section:
    """What each cause costs in each run: found, not found, or not tested."""
    by_cause = [{finding.cause: finding for finding in report.findings} for report in (a, b)]
    causes = list(dict.fromkeys(finding.cause for report in (b, a) for finding in report.findings))
    rows = [
        Row(
            name=f"{FINDING_IDS[cause]} {cause.value}",
            unit="text",
            a=_found(by_cause[0].get(cause), cause, a),
            b=_found(by_cause[1].get(cause), cause, b),
        )
        for cause in causes
    ]
    return Section(title="findings", note="what each may save", rows=tuple(rows))


def _found(finding: Finding | None, cause: Cause, report: Report) -> str | None:
    if finding is None:
        return None if cause.value in set(_untested(report)) else "not found"
    if finding.saving_ns[1] > 0:
        saving = f"{format_ns(finding.saving_ns[0])} to {format_ns(finding.saving_ns[1])}, "
    elif finding.saving_bytes is not None:
        saving = f"{format_bytes(finding.saving_bytes[1])}, "
    else:
        saving = ""
    return f"{saving}{finding.confidence.value}"


def _untested(report: Report) -> Iterable[str]:
    for gap in report.gaps:
        if gap.what.startswith("rule"):
            yield from gap.what.replace(",", " ").split()
