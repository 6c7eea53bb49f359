"""Measure what the device of each rank did over its whole trace, on its own clock and without steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from zprof.analysis.intervals import Intervals, intersect, intervals, measure, union
from zprof.analysis.time.timeline import load_collectives, load_timelines
from zprof.model.gaps import Gap, GapKind
from zprof.model.time import WindowPolicy
from zprof.run.reader import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTotals:
    """Lengths of unions, from the start of the first kernel or copy to the end of the last.

    Compute, communication and memory may overlap, so they need not sum; idle is the span without all three.
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
    wanted = [timeline for timeline in timelines if ranks is None or timeline.rank in ranks]
    found: list[DeviceTotals] = []
    collectives = load_collectives(run, wanted) if wanted else None
    for timeline in wanted:
        if not timeline.activity.on_device or collectives is None:
            gaps.append(_no_device_gap(timeline.rank))
            continue
        rows = collectives[collectives["rank"] == timeline.rank]
        ran = union(intervals(rows["start_ns"], rows["end_ns"]), timeline.activity.nameless)
        found.append(_make_totals(timeline.rank, timeline.activity.compute, ran, timeline.activity.copies))
    return found, gaps


def _make_totals(rank: int, compute: Intervals, communication: Intervals, copies: Intervals) -> DeviceTotals:
    busy = union(compute, communication, copies)
    span_ns = int(busy[-1, 1] - busy[0, 0]) if len(busy) else 0
    return DeviceTotals(
        rank=rank,
        span_ns=span_ns,
        compute_ns=measure(compute),
        communication_ns=measure(communication),
        memory_ns=measure(copies),
        overlapped_ns=measure(intersect(compute, communication)),
        idle_ns=span_ns - measure(busy),
    )


def _no_device_gap(rank: int) -> Gap:
    return Gap(
        kind=GapKind.DEVICE,
        what="work of a device",
        rank=rank,
        reason="no kernel in its trace: there is nothing that other programs measure",
        remedy="record with ProfilerActivity.CUDA, on a rank with a GPU",
    )
