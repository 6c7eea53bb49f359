"""Compare zprof's figures with HTA's on raw traces, and explain differences.

Both measure the same window: the whole trace, each rank by itself. Times must agree within 1 µs per 1000
device rows, and at least 1 µs: HTA stores fractional times as doubles of microseconds, whose resolution is
about 1 ns today. In traces without a base time it is 250 ns. The rounding of n edges then adds up to a few
times sqrt(n) times the resolution, so 2 sqrt(n) times the resolution is allowed on top. The overlap must
agree within 0.01 points, to which HTA rounds it.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zprof.analysis.time.device_totals import DeviceTotals, measure_device_totals
from zprof.integrations.hta.answers import (
    COPIES,
    WORK,
    Answers,
    Kinds,
    NameRow,
    Overlap,
    Rows,
    Temporal,
    Work,
    find_unanswered,
)
from zprof.integrations.hta.process import ask_all, source_name
from zprof.integrations.imports.import_paths import import_paths
from zprof.model.errors import BadInput, MissingData
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.kernels import is_collective_kernel
from zprof.model.second_opinion import Figure, FigureStatus, RankVerification, Verification
from zprof.run.manifest import MANIFEST_NAME
from zprof.run.reader import load
from zprof.version import __version__

_SETTINGS = "HTA_DISABLE_NS_ROUNDING=1, include_last_profiler_step=True"


def verify_with_hta(
    path: Path,
    *,
    ranks: frozenset[int] | None = None,
    wall_s: float | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Verification:
    """Compare the ranks (default: all) of the trace, or folder of traces, at ``path``.

    ``wall_s`` limits HTA's time per rank. ``note`` is called with the notes of the import.

    Raises:
        BadInput: it is not a trace, or lacks a requested rank.
        MissingData: it is a run, which holds no trace that HTA could read.
    """
    if (path / MANIFEST_NAME).exists():
        raise MissingData(
            f"{path}: a run, which keeps no trace that HTA could read",
            hint="give the trace (.json, .json.gz), or the folder of traces, that it was made of",
        )
    with tempfile.TemporaryDirectory(prefix="zprof-verify-") as folder:
        imported = import_paths([path], Path(folder) / "trace.zprof")
        for said in imported.notes:
            note(said)
        run = load(imported.run)
        if run.manifest.source != "trace":
            raise BadInput(
                f"{path}: no trace, a {run.manifest.source}", hint="give a Kineto trace (.json, .json.gz)"
            )
        files = _choose_ranks({file.rank: file.path for file in imported.files}, ranks)
        totals, gaps = measure_device_totals(run, tuple(files))
    measured = {entry.rank: entry for entry in totals}
    answers = ask_all({rank: files[rank] for rank in measured}, QUESTIONS, wall_s)
    return _make_verification(measured, answers, [gap for gap in gaps if gap.rank in files])


def _make_verification(
    measured: Mapping[int, DeviceTotals], answers: Mapping[int, Answers], gaps: Sequence[Gap]
) -> Verification:
    compared = [compare_rank(entry, answers[rank]) for rank, entry in sorted(measured.items())]
    return Verification(
        zprof_version=__version__,
        source=source_name(answers.values()),
        settings=_SETTINGS,
        window="whole trace",
        ranks=tuple(rank for rank, _ in compared),
        gaps=(*gaps, *(gap for _, found in compared for gap in found)),
    )


def _choose_ranks(files: Mapping[int, Path], ranks: frozenset[int] | None) -> dict[int, Path]:
    absent = (ranks or frozenset()) - set(files)
    if absent:
        raise BadInput(
            f"no trace of rank {min(absent)}", hint=f"there are {len(files)}, from {min(files)} on"
        )
    return {rank: path for rank, path in files.items() if ranks is None or rank in ranks}


#: Questions whose failure is a gap; ``work`` only explains differences.
_FIGURES = ("rows", "overlap", "temporal", "kinds")
QUESTIONS = (*_FIGURES, "work")
OVERLAP_TOLERANCE = 0.01
_MIN_TOLERANCE_NS = 1_000.0
_NS_PER_ROW = 1.0
#: HTA's rounding gives at most half a digit, 0.005; this allows for floating-point error.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _HtaFigures:
    """HTA's figures, as far as available."""

    overlap: Overlap | None
    temporal: Temporal | None
    kinds: Kinds | None


def compare_rank(totals: DeviceTotals, answers: Answers) -> tuple[RankVerification, list[Gap]]:
    """Compare the figures of one rank; unanswered questions become gaps."""
    rows = answers.get("rows", Rows)
    tolerance = _tolerance_ns(rows)
    theirs = _HtaFigures(
        overlap=answers.get("overlap", Overlap),
        temporal=answers.get("temporal", Temporal),
        kinds=answers.get("kinds", Kinds),
    )
    figures = _compare_figures(totals, theirs, tolerance)
    why: tuple[str, ...] = ()
    if rows is not None and _any_differs(figures):
        work = answers.get("work", Work)
        again = (
            _HtaFigures(overlap=work.overlap, temporal=work.temporal, kinds=work.kinds) if work else theirs
        )
        why = tuple(
            explain_differences(
                rows, equal_without=not _any_differs(_compare_figures(totals, again, tolerance))
            )
        )
    verified = RankVerification(
        rank=totals.rank, device_rows=rows.device if rows else 0, figures=figures, reasons=why
    )
    return verified, find_unanswered(totals.rank, answers, _FIGURES)


def _compare_figures(totals: DeviceTotals, theirs: _HtaFigures, tolerance: float) -> tuple[Figure, ...]:
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
    times = [_compare_time(name, mine, other, tolerance) for name, mine, other in pairs]
    return (_compare_overlap(totals, theirs.overlap), *times)


def _any_differs(figures: Sequence[Figure]) -> bool:
    return any(figure.status is FigureStatus.DIFFERS for figure in figures)


def _compare_overlap(totals: DeviceTotals, answer: Overlap | None) -> Figure:
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


def _compare_time(name: str, mine: int, other: int | None, tolerance: float) -> Figure:
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
        return _MIN_TOLERANCE_NS
    coarse = 2.0 * rows.resolution_ns * math.sqrt(rows.device) if rows.resolution_ns > _NS_PER_ROW else 0.0
    return max(_MIN_TOLERANCE_NS, rows.device * _NS_PER_ROW) + coarse


_MAX = 6
_LONGEST = 60


def explain_differences(rows: Rows, *, equal_without: bool) -> Iterator[str]:
    """Yield reasons for differences of one rank; ``equal_without``: HTA agrees without non-work rows."""
    if rows.kept < rows.device:
        yield (
            f"HTA leaves out {rows.device - rows.kept} of {_count_rows(rows.device)} of the device: "
            "their launch "
            "is not in the trace, or comes after its last step"
        )
    other = [row for row in rows.names if row.category not in WORK]
    if other:
        yield _describe_idle_rows(other) + ("; without them HTA says the same" if equal_without else "")
    wrong = [row for row in rows.names if row not in other and row.kind != _own_kind(row)]
    for row in sorted(wrong, key=lambda row: -row.total_ns)[:_MAX]:
        yield f"HTA counts {_describe_name(row)} as {row.kind.lower()}; it is {_own_kind(row).lower()}"
    if len(wrong) > _MAX:
        yield f"and {len(wrong) - _MAX} more names that HTA counts as something else"


def _own_kind(row: NameRow) -> str:
    """Return zprof's classification in HTA's terms."""
    if row.category in COPIES:
        return "MEMORY"
    return "COMMUNICATION" if is_collective_kernel(row.name) else "COMPUTATION"


def _describe_idle_rows(rows: list[NameRow]) -> str:
    """Describe rows on a stream in which no engine of the device ran, such as waits for an event."""
    kinds = sorted({row.kind.lower() for row in rows})
    categories = sorted({row.category for row in rows})
    count, total_ns = sum(row.count for row in rows), sum(row.total_ns for row in rows)
    return (
        f"HTA counts {_count_rows(count)} of {', '.join(categories)} ({format_ns(total_ns)}) as work of "
        "the device "
        f"({', '.join(kinds)}); nothing runs in them"
    )


def _count_rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _describe_name(row: NameRow) -> str:
    name = row.name if len(row.name) <= _LONGEST else row.name[: _LONGEST - 1] + "…"
    return f"{name} ({row.count}, {format_ns(row.total_ns)})"
