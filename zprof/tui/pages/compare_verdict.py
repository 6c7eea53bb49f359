"""Whether a row of two runs is better or worse, or cannot be told: one rule for all rows.

What is counted is exact: a byte more is a byte more.  Times vary from step to step.  The step time has its
own interval; any other time of a step must change by more than the doubt of the step time itself (half its
interval, or the noise floor of a term where that is larger).  The hidden share has an interval of its own.
What is fitted, sampled, a bound or a rate has none: it is not judged.
"""

from dataclasses import dataclass
from enum import StrEnum

from zprof.analysis.comparison import NO_INTERVAL
from zprof.model.report import Report
from zprof.model.side_by_side import Row
from zprof.model.units import format_ns
from zprof.rules.claims import spoils
from zprof.tui.tables import Mark, Word

Interval = tuple[float, float]


class Judgement(StrEnum):
    """What a row says.  ``EXACT`` and ``DIFFERS``: it changed, and neither side is better for that.

    ``UNKNOWN``: a side does not know it.  ``UNJUDGED``: both do, and nobody can say whether it is chance.
    """

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    EXACT = "exact"
    DIFFERS = "differs"
    NOISE = "noise"
    UNKNOWN = "unknown"
    UNJUDGED = "not judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """How far times of a step may differ by chance.

    ``times_ns``: None where that is not known; ``why_not`` says why.
    """

    times_ns: float | None
    why_not: str = ""


#: Times of a step, and bytes, of which less is better; all others are neither.
_LESS = frozenset({
    "wall_ns", "wall_median_ns", "compute_ns", "exposed_transfer_ns", "exposed_wait_ns", "exposed_memcpy_ns",
    "idle_ns", "unexplained_ns", "exposed_ns", "wait_ns", "transfer_ns", "total_ns", "memcpy_ns", "bytes",
    "seen_bytes", "kernel_ns",
})  # fmt: skip
#: Shares of which more is better.
_MORE = frozenset({"overlap_ratio"})
_NEITHER_BYTES = frozenset({"expected_bytes"})
#: No interval is known of these: medians of launches, fits, what rests on clocks, samples of a device.
_UNSURE = frozenset({
    "launch_delay_ns", "latency_ns", "uncertainty_ns", "noise_floor_ns", "first_wait_ns", "unsplit_ns",
    "own_wait_ns", "waiting_ranks", "reserved_unused_bytes", "non_pytorch_bytes",
})  # fmt: skip
_SIGNS = {
    Judgement.BETTER: ("✓", Mark.GOOD),
    Judgement.WORSE: ("✗", Mark.BAD),
    Judgement.SAME: ("=", Mark.MUTED),
    Judgement.EXACT: ("*", Mark.PLAIN),
    Judgement.DIFFERS: ("*", Mark.PLAIN),
    Judgement.NOISE: ("~", Mark.MUTED),
    Judgement.UNKNOWN: ("?", Mark.MUTED),
    Judgement.UNJUDGED: ("", Mark.MUTED),
}
#: What makes the steps of two jobs other work.
_OTHER_WORK = frozenset({"ranks", "parameters", "model-parallel ranks", "micro-batches"})


def judged(row: Row, doubt: Doubt, *, own: Interval | None = None, is_bound: bool = False) -> Judgement:
    """The verdict on a row, of b against a.

    Args:
        row: Its figures.
        doubt: How far times may differ by chance.
        own: The 95 % interval of b minus a, where this row has its own.
        is_bound: A figure of it is the least or the most that it can be.
    """
    if row.a is None or row.b is None:
        return Judgement.UNKNOWN
    if isinstance(row.a, str) or isinstance(row.b, str):
        return Judgement.SAME if row.a == row.b else Judgement.DIFFERS
    if own is not None:
        return _by_interval((-own[1], -own[0]) if row.name in _MORE else own, doubt)
    if row.unit not in ("ns", "bytes", "count") or row.name in _UNSURE or is_bound:
        return Judgement.UNJUDGED
    if row.a == row.b:
        return Judgement.SAME
    if row.unit == "ns":
        return _by_doubt(row.name, row.b - row.a, doubt)
    return _exact(row, row.b - row.a)


def _by_interval(own: Interval, doubt: Doubt) -> Judgement:
    low, high = own
    if doubt.times_ns is None:
        return Judgement.UNJUDGED
    return Judgement.WORSE if low > 0 else Judgement.BETTER if high < 0 else Judgement.NOISE


def _by_doubt(name: str, change: float, doubt: Doubt) -> Judgement:
    if doubt.times_ns is None:
        return Judgement.UNJUDGED
    if abs(change) <= doubt.times_ns:
        return Judgement.NOISE
    return _less_is_better(change) if name in _LESS else Judgement.DIFFERS


def _exact(row: Row, change: float) -> Judgement:
    is_less = row.name in _LESS or (row.name.endswith("_bytes") and row.name not in _NEITHER_BYTES)
    return _less_is_better(change) if is_less else Judgement.EXACT


def _less_is_better(change: float) -> Judgement:
    return Judgement.WORSE if change > 0 else Judgement.BETTER


def doubt_of(report: Report, *, per_token: bool = False) -> Doubt:
    """Of the times of a step of this report and its baseline; for the same work where ``per_token``."""
    comparison = report.comparison
    if comparison is None or comparison.step_time is None:
        return Doubt(times_ns=None, why_not="times of both are not known")
    few = next((gap for gap in report.gaps if gap.what == NO_INTERVAL), None)
    if few is not None:
        return Doubt(times_ns=None, why_not=few.reason)
    work, times = comparison.equal_work, comparison.step_time
    if work is None and any(entry.what in _OTHER_WORK for entry in comparison.differences):
        return Doubt(times_ns=None, why_not="these are other jobs, and the work of a step is not known")
    if work is not None and not per_token and work.b_ns != times.b_ns:
        return Doubt(
            times_ns=None,
            why_not=f"the steps are other work: n shows rank times a {work.unit.value.removesuffix('s')}",
        )
    if any(map(spoils, report.findings)):
        return Doubt(times_ns=None, why_not="the recordings of the ranks do not fit together")
    low, high = work.ci95 if work is not None and per_token else times.ci95
    floors = [rank.noise_floor_ns for rank in (*report.time.per_rank, *comparison.baseline_time)]
    return Doubt(times_ns=max((high - low) / 2, *floors))


def verdict_word(judgement: Judgement) -> Word:
    """A sign, and the word."""
    sign, mark = _SIGNS[judgement]
    return Word(f"{sign} {judgement.value}".strip(), mark)


def why(judgement: Judgement, row: Row, doubt: Doubt) -> str:
    """A line on how the verdict was reached."""
    if judgement is Judgement.UNKNOWN:
        return "unknown  a side does not know it"
    if judgement is Judgement.UNJUDGED:
        return f"not judged: {_why_unjudged(row, doubt)}"
    if row.unit == "ratio":
        return f"{judgement.value:<8} {_why_share(judgement)}"
    if judgement in (Judgement.SAME, Judgement.DIFFERS) or row.unit != "ns":
        said = {
            Judgement.SAME: "both are equal",
            Judgement.DIFFERS: "they differ, and neither side is better for that",
            Judgement.EXACT: "counted exactly; neither side is better for that",
        }
        return f"{judgement.value:<8} {said.get(judgement, 'counted exactly; less is better')}"
    return f"{judgement.value:<8} {_why_time(judgement, doubt)}"


def _why_unjudged(row: Row, doubt: Doubt) -> str:
    is_of_steps = row.unit == "ns" or row.name in _MORE
    if is_of_steps and row.name not in _UNSURE and doubt.times_ns is None:
        return doubt.why_not
    return "no interval is known of it: it is a rate, a share, a fit, a sample or a bound"


def _why_share(judgement: Judgement) -> str:
    if judgement is Judgement.NOISE:
        return "the 95 % interval of the change, by the shares of the steps, has 0 in it"
    return "by the 95 % interval of the change, by the shares of the steps; more is better"


def _why_time(judgement: Judgement, doubt: Doubt) -> str:
    limit = format_ns(doubt.times_ns or 0)
    if judgement is Judgement.NOISE:
        return f"no more than the doubt of the step time, {limit}"
    return f"by more than the doubt of the step time, {limit}; less is better"
