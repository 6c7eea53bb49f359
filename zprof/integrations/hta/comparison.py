"""HTA's figures of one rank beside zprof's, and why they differ, as far as that can be seen.

HTA keeps times with a fraction as doubles of microseconds, so each edge of an interval may be off by half
a step of them: 1 ns today, 256 ns in traces without a base time.  Times are equal within that step for each
device row, and never less than 1 µs; the overlap is equal within 0.01 points, to which HTA rounds it.
"""

from dataclasses import dataclass

from zprof.analysis.time.totals import DeviceTotals
from zprof.integrations.hta.answers import Answers, Kinds, Overlap, Rows, Temporal
from zprof.integrations.hta.gaps import unanswered
from zprof.integrations.hta.reasons import reasons
from zprof.model.gaps import Gap
from zprof.model.verification import Figure, FigureStatus, RankVerification

QUESTIONS = ("rows", "overlap", "temporal", "kinds")
OVERLAP_TOLERANCE = 0.01
_LEAST_TOLERANCE_NS = 1_000.0
#: Half the last digit of HTA's rounding would be 0.005; this forgives the doubles on the way.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    name: str
    zprof: float | None
    other: float | None


def compare(totals: DeviceTotals, answers: Answers) -> tuple[RankVerification, list[Gap]]:
    """One rank by both; what HTA could not answer is a gap."""
    rows = answers.get("rows", Rows)
    temporal, kinds = answers.get("temporal", Temporal), answers.get("kinds", Kinds)
    tolerance = _tolerance_ns(rows)
    non_compute = totals.span_ns - totals.compute_ns - totals.idle_ns
    pairs = [
        _Pair(name="kernel span", zprof=totals.span_ns, other=temporal.span_ns if temporal else None),
        _Pair(name="compute", zprof=totals.compute_ns, other=temporal.compute_ns if temporal else None),
        _Pair(name="non-compute", zprof=non_compute, other=temporal.non_compute_ns if temporal else None),
        _Pair(
            name="communication",
            zprof=totals.communication_ns,
            other=kinds.communication_ns if kinds else None,
        ),
        _Pair(name="memory", zprof=totals.memory_ns, other=kinds.memory_ns if kinds else None),
        _Pair(name="idle", zprof=totals.idle_ns, other=temporal.idle_ns if temporal else None),
    ]
    figures = [_overlap(totals, answers), *(_time(pair, tolerance) for pair in pairs)]
    differ = any(figure.status is FigureStatus.DIFFERS for figure in figures)
    verified = RankVerification(
        rank=totals.rank,
        device_rows=rows.device if rows else 0,
        figures=tuple(figures),
        reasons=tuple(reasons(rows)) if differ and rows else (),
    )
    return verified, unanswered(totals.rank, answers, QUESTIONS)


def _overlap(totals: DeviceTotals, answers: Answers) -> Figure:
    ratio = totals.overlap_ratio
    mine = None if ratio is None else 100.0 * ratio
    answer = answers.get("overlap", Overlap)
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


def _time(pair: _Pair, tolerance: float) -> Figure:
    difference = None if pair.zprof is None or pair.other is None else pair.zprof - pair.other
    return Figure(
        name=pair.name,
        unit="ns",
        zprof=pair.zprof,
        other=pair.other,
        difference=difference,
        tolerance=tolerance,
        status=FigureStatus.UNKNOWN if difference is None else _status(abs(difference) <= tolerance),
    )


def _status(equal: bool) -> FigureStatus:
    return FigureStatus.EQUAL if equal else FigureStatus.DIFFERS


def _tolerance_ns(rows: Rows | None) -> float:
    return max(_LEAST_TOLERANCE_NS, rows.device * rows.resolution_ns) if rows else _LEAST_TOLERANCE_NS
