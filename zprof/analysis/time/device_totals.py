"""Measure the device activity of each rank over its entire trace, on its own clock and without steps."""

from collections.abc import Sequence

from msgspec import Struct

from zprof.analysis.intervals import intersect, intervals, measure, union
from zprof.analysis.time.timeline import load_collectives, load_timelines
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.time import WindowPolicy
from zprof.run.reader import Run


class DeviceTotals(Struct, frozen=True, kw_only=True):
    """Total time of each kind, from the start of the first kernel or copy to the end of the last.

    Compute, communication and memory may overlap, so they need not sum to the span; idle is the rest of it.
    ``overlapped_ns`` is the communication hidden by compute.
    """

    rank: int
    span_ns: int
    compute_ns: int
    communication_ns: int
    memory_ns: int
    overlapped_ns: int
    idle_ns: int

    @property
    def overlap_ratio(self) -> float | None:
        """Share of the communication hidden by compute; None if there is none."""
        return self.overlapped_ns / self.communication_ns if self.communication_ns else None


def measure_device_totals(
    run: Run, ranks: Sequence[int] | None = None
) -> tuple[list[DeviceTotals], list[Gap]]:
    """Return totals of the ranks whose trace has device work, and gaps for the others."""
    timelines, gaps = load_timelines(run, WindowPolicy.TRACE)
    selected = [timeline for timeline in timelines if ranks is None or timeline.rank in ranks]
    totals: list[DeviceTotals] = []
    collectives = load_collectives(selected) if selected else None
    for timeline in selected:
        if not timeline.activity.on_device or collectives is None:
            gaps.append(make_gap("device_work_missing", rank=timeline.rank))
            continue
        rows = collectives.at(collectives.ints("rank") == timeline.rank)
        spans = intervals(rows.ints("start_ns"), rows.ints("end_ns"))
        compute, copies = timeline.activity.compute, timeline.activity.copies
        communication = union(spans, timeline.activity.nameless)
        busy = union(compute, communication, copies)
        span_ns = int(busy[-1, 1] - busy[0, 0]) if len(busy) else 0
        totals.append(
            DeviceTotals(
                rank=timeline.rank,
                span_ns=span_ns,
                compute_ns=measure(compute),
                communication_ns=measure(communication),
                memory_ns=measure(copies),
                overlapped_ns=measure(intersect(compute, communication)),
                idle_ns=span_ns - measure(busy),
            )
        )
    return totals, gaps
