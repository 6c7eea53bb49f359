"""Measure the copies around collectives: what they cost beside compute, and how fast they are."""

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Mask
from zprof.analysis.per_step import GRADIENT_COPY_KERNEL, mean_per_step, select_copy_kernels
from zprof.analysis.time.collective_rows import select_kind
from zprof.analysis.time.transfer.repeated_gathers import select_needless_gathers
from zprof.model.collectives import CollectiveKind


class CopyCost(Struct, frozen=True, kw_only=True):
    """Copies around collectives, per rank and step.

    ``exposed_ns``: without concurrent compute, and without the copies of needless gathers, which disappear
    with the gathers. ``into_ns``: the part before reductions. ``total_ns``: of all copies, ``largest_ns`` of
    the name that takes most. ``gathered_bytes``: bytes of the gathers.
    """

    exposed_ns: float
    into_ns: float
    total_ns: float
    count: float
    largest_ns: float
    largest_name: str
    gathered_bytes: float


def measure_copies(analysis: RunAnalysis) -> CopyCost:
    """Measure the copies around collectives; there must be some."""
    rows = select_copy_kernels(analysis)
    uncovered_ns, into = rows.ints("uncovered_ns"), _copy_into_reductions(rows)
    gathered, needless = (
        float(select_kind(each, CollectiveKind.ALL_GATHER).ints("bytes").sum())
        for each in (analysis.collectives, select_needless_gathers(analysis))
    )
    out_ns = mean_per_step(analysis, float(uncovered_ns[~into].sum()))
    needless_ns = out_ns * needless / gathered if gathered else 0.0
    names = rows.group_by("name")
    ns_by_name = names.sum(uncovered_ns)
    largest = int(ns_by_name.argmax())
    return CopyCost(
        exposed_ns=mean_per_step(analysis, float(uncovered_ns.sum())) - needless_ns,
        into_ns=mean_per_step(analysis, float(uncovered_ns[into].sum())),
        total_ns=mean_per_step(analysis, float(rows.ints("total_ns").sum())),
        count=mean_per_step(analysis, float(rows.ints("count").sum())),
        largest_ns=mean_per_step(analysis, ns_by_name[largest]),
        largest_name=rows.texts("name")[int(names.first[largest])],
        gathered_bytes=mean_per_step(analysis, gathered),
    )


def measure_copy_speed_ratio(analysis: RunAnalysis) -> float | None:
    """Return the speed of copies out of gathers relative to copies into reductions, by bytes of the messages.

    None if either, or its bytes, are not in the recording.
    """
    rows = select_copy_kernels(analysis)
    into, total_ns = _copy_into_reductions(rows), rows.ints("total_ns")
    in_ns, out_ns = (float(total_ns[chosen].sum()) for chosen in (into, ~into))
    gathered, reduced = (
        float(select_kind(analysis.collectives, kind).ints("bytes").sum())
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    )
    if min(in_ns, out_ns, gathered, reduced) <= 0:
        return None
    return (gathered / out_ns) / (reduced / in_ns)


def _copy_into_reductions(rows: Columns) -> Mask:
    return rows.texts("name").match(lambda name: GRADIENT_COPY_KERNEL in name)
