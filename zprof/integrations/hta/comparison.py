"""HTA's figures of one rank beside zprof's, and why they differ, as far as that can be seen.

Times are equal within 1 µs for each 1000 rows of the device, at least 1 µs: HTA keeps times with a fraction
as doubles of microseconds, whose step is about 1 ns today.  In traces without a base time it is 250 ns, and
roundings of n edges add up to a few times the square root of n of it, which is allowed on top.  The overlap
is equal within 0.01 points, to which HTA rounds it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zprof.analysis.time.totals import DeviceTotals
from zprof.integrations.hta.answers import Answers, Kinds, Overlap, Rows, Temporal, Work
from zprof.integrations.hta.gaps import unanswered
from zprof.integrations.hta.reasons import reasons
from zprof.model.gaps import Gap
from zprof.model.verification import Figure, FigureStatus, RankVerification

#: Those whose failure is a gap; ``work`` only tells why figures differ.
_FIGURES = ("rows", "overlap", "temporal", "kinds")
QUESTIONS = (*_FIGURES, "work")
OVERLAP_TOLERANCE = 0.01
_LEAST_TOLERANCE_NS = 1_000.0
_NS_A_ROW = 1.0
#: Half the last digit of HTA's rounding would be 0.005; this forgives the doubles on the way.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Theirs:
    """HTA's figures, as far as it has them."""

    overlap: Overlap | None
    temporal: Temporal | None
    kinds: Kinds | None


def compare(totals: DeviceTotals, answers: Answers) -> tuple[RankVerification, list[Gap]]:
    """One rank by both; what HTA could not answer is a gap."""
    rows = answers.get("rows", Rows)
    tolerance = _tolerance_ns(rows)
    theirs = _Theirs(
        overlap=answers.get("overlap", Overlap),
        temporal=answers.get("temporal", Temporal),
        kinds=answers.get("kinds", Kinds),
    )
    figures = _figures(totals, theirs, tolerance)
    why: tuple[str, ...] = ()
    if rows is not None and _differ(figures):
        work = answers.get("work", Work)
        again = _Theirs(overlap=work.overlap, temporal=work.temporal, kinds=work.kinds) if work else theirs
        why = tuple(reasons(rows, equal_without=not _differ(_figures(totals, again, tolerance))))
    verified = RankVerification(
        rank=totals.rank, device_rows=rows.device if rows else 0, figures=figures, reasons=why
    )
    return verified, unanswered(totals.rank, answers, _FIGURES)


def _figures(totals: DeviceTotals, theirs: _Theirs, tolerance: float) -> tuple[Figure, ...]:
    non_compute = totals.span_ns - totals.compute_ns - totals.idle_ns
    temporal, kinds = theirs.temporal, theirs.kinds
    pairs: list[tuple[str, int, int | None]] = [
        ("kernel span", totals.span_ns, temporal.span_ns if temporal else None),
        ("compute", totals.compute_ns, temporal.compute_ns if temporal else None),
        ("non-compute", non_compute, temporal.non_compute_ns if temporal else None),
        ("communication", totals.communication_ns, kinds.communication_ns if kinds else None),
        ("memory", totals.memory_ns, kinds.memory_ns if kinds else None),
        ("idle", totals.idle_ns, temporal.idle_ns if temporal else None),
    ]
    times = [_time(name, mine, other, tolerance) for name, mine, other in pairs]
    return (_overlap(totals, theirs.overlap), *times)


def _differ(figures: Sequence[Figure]) -> bool:
    return any(figure.status is FigureStatus.DIFFERS for figure in figures)


def _overlap(totals: DeviceTotals, answer: Overlap | None) -> Figure:
    ratio = totals.overlap_ratio
    mine = None if ratio is None else 100.0 * ratio
    other = answer.percent if answer else None
    difference = None if mine is None or other is None else mine - other
    status = FigureStatus.UNKNOWN
    if difference is not None:
        status = _status(abs(difference) <= OVERLAP_TOLERANCE + _ROUNDING)
    elif answer is not None:
        status = _status(mine is None and other is None)
    return Figure(
        name="overlap",
        unit="percent",
        zprof=mine,
        other=other,
        difference=difference,
        tolerance=OVERLAP_TOLERANCE,
        status=status,
    )


def _time(name: str, mine: int, other: int | None, tolerance: float) -> Figure:
    difference = None if other is None else mine - other
    return Figure(
        name=name,
        unit="ns",
        zprof=mine,
        other=other,
        difference=difference,
        tolerance=tolerance,
        status=FigureStatus.UNKNOWN if difference is None else _status(abs(difference) <= tolerance),
    )


def _status(equal: bool) -> FigureStatus:
    return FigureStatus.EQUAL if equal else FigureStatus.DIFFERS


def _tolerance_ns(rows: Rows | None) -> float:
    if rows is None:
        return _LEAST_TOLERANCE_NS
    coarse = 2.0 * rows.resolution_ns * math.sqrt(rows.device) if rows.resolution_ns > _NS_A_ROW else 0.0
    return max(_LEAST_TOLERANCE_NS, rows.device * _NS_A_ROW) + coarse
