"""Compare zprof's figures with HTA's on raw traces, and explain differences.

Both measure the same window: the entire trace, one rank at a time. Times must agree within 1 µs per 1000
device rows, and at least 1 µs: HTA stores fractional times as doubles in microseconds, whose resolution is
about 1 ns today, but 250 ns in traces without a base time. The rounding of n edges then adds up to a few
times sqrt(n) times the resolution, so 2 sqrt(n) times the resolution is allowed in addition. The overlap must
agree within 0.01 points, HTA's rounding.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from zprof.analysis.time.rank import DeviceTotals, measure_device_totals
from zprof.base.errors import BadInput, MissingData
from zprof.base.formatting import format_ns
from zprof.collectors.read.imports.cache import read_origin
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.integrations.hta.process import (
    COPIES,
    WORK,
    Critical,
    HtaAnswers,
    HtaOverlap,
    HtaWork,
    IdleRow,
    Kinds,
    NameRow,
    Rows,
    Temporal,
    ask_all,
    find_unanswered,
    format_source_name,
)
from zprof.model.communication_kernels import is_collective_kernel
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.report import (
    FigureStatus,
    HtaCriticalPath,
    RankOpinion,
    RankVerification,
    Report,
    SecondOpinion,
    StreamIdle,
    Verification,
    VerifiedFigure,
)
from zprof.run.manifest import MANIFEST_NAME
from zprof.run.reader import load
from zprof.version import __version__

_SETTINGS = "HTA_DISABLE_NS_ROUNDING=1, include_last_profiler_step=True"
#: Questions that become a gap on failure; ``work`` only explains differences.
_FIGURES = ("rows", "overlap", "temporal", "kinds")
QUESTIONS = (*_FIGURES, "work")
OVERLAP_TOLERANCE = 0.01
_MIN_TOLERANCE_NS = 1_000.0
_NS_PER_ROW = 1.0
#: Allowance for floating-point error on top of HTA's rounding error of up to 0.005.
_ROUNDING = 1e-9
_MAX_LISTED = 6
_MAX_NAME_LENGTH = 60
_QUESTIONS = ("rows", "idle", "critical")


def verify_with_hta(
    path: Path,
    *,
    ranks: frozenset[int] | None = None,
    wall_s: float | None = None,
    print_note: Callable[[str], None] = lambda text: None,
) -> Verification:
    """Compare the ranks (default: all) of the trace, or folder of traces, at ``path``.

    ``wall_s`` limits HTA's time per rank. ``print_note`` receives the notes of the import.

    Raises:
        BadInput: the path is not a trace, or lacks a requested rank.
        MissingData: the path is a run, which contains no trace for HTA.
    """
    if (path / MANIFEST_NAME).exists():
        raise MissingData(
            f"{path}: this is a run, which does not contain the trace that HTA needs",
            hint="pass the trace (.json, .json.gz), or the folder of traces, that it was imported from",
        )
    with tempfile.TemporaryDirectory(prefix="zprof-verify-") as folder:
        imported = import_paths([path], Path(folder) / "trace.zprof")
        for note in imported.notes:
            print_note(note)
        run = load(imported.run)
        if run.manifest.source != "trace":
            raise BadInput(
                f"{path}: not a trace but a {run.manifest.source}",
                hint="pass a Kineto trace (.json, .json.gz)",
            )
        files = _choose_ranks({file.rank: file.path for file in imported.files}, ranks)
        totals, gaps = measure_device_totals(run, tuple(files))
    measured = {entry.rank: entry for entry in totals}
    answers = ask_all({rank: files[rank] for rank in measured}, QUESTIONS, wall_s)
    return _make_verification(measured, answers, [gap for gap in gaps if gap.rank in files])


def _make_verification(
    measured: Mapping[int, DeviceTotals], answers: Mapping[int, HtaAnswers], gaps: Sequence[Gap]
) -> Verification:
    compared = [compare_rank(entry, answers[rank]) for rank, entry in sorted(measured.items())]
    return Verification(
        zprof_version=__version__,
        source=format_source_name(answers.values()),
        settings=_SETTINGS,
        window="entire trace",
        ranks=tuple(rank for rank, _ in compared),
        gaps=(*gaps, *(gap for _, rank_gaps in compared for gap in rank_gaps)),
    )


def _choose_ranks(files: Mapping[int, Path], ranks: frozenset[int] | None) -> dict[int, Path]:
    absent = (ranks or frozenset()) - set(files)
    if absent:
        raise BadInput(
            f"no trace of rank {min(absent)}", hint=f"there are {len(files)} traces, from rank {min(files)}"
        )
    return {rank: path for rank, path in files.items() if ranks is None or rank in ranks}


#: HTA's figures; None if unavailable.
_HtaFigures = tuple[HtaOverlap | None, Temporal | None, Kinds | None]


def compare_rank(totals: DeviceTotals, answers: HtaAnswers) -> tuple[RankVerification, list[Gap]]:
    """Compare the figures of one rank; unanswered questions become gaps."""
    rows = answers.get("rows", Rows)
    if rows is None:
        tolerance = _MIN_TOLERANCE_NS
    else:
        rounding = (
            2.0 * rows.resolution_ns * math.sqrt(rows.device) if rows.resolution_ns > _NS_PER_ROW else 0.0
        )
        tolerance = max(_MIN_TOLERANCE_NS, rows.device * _NS_PER_ROW) + rounding
    hta_figures: _HtaFigures = (
        answers.get("overlap", HtaOverlap),
        answers.get("temporal", Temporal),
        answers.get("kinds", Kinds),
    )
    figures = _compare_figures(totals, hta_figures, tolerance)
    reasons: tuple[str, ...] = ()
    if rows is not None and _has_differences(figures):
        work = answers.get("work", HtaWork)
        work_figures = (work.overlap, work.temporal, work.kinds) if work else hta_figures
        reasons = tuple(
            explain_differences(
                rows,
                equal_without_other=not _has_differences(_compare_figures(totals, work_figures, tolerance)),
            )
        )
    verified = RankVerification(
        rank=totals.rank, device_rows=rows.device if rows else 0, figures=figures, reasons=reasons
    )
    return verified, find_unanswered(totals.rank, answers, _FIGURES)


def _compare_figures(
    totals: DeviceTotals, hta_figures: _HtaFigures, tolerance: float
) -> tuple[VerifiedFigure, ...]:
    non_compute = totals.span_ns - totals.compute_ns - totals.idle_ns
    overlap, temporal, kinds = hta_figures
    pairs: list[tuple[str, int, int | None]] = [
        ("kernel span", totals.span_ns, temporal.span_ns if temporal else None),
        ("compute", totals.compute_ns, temporal.compute_ns if temporal else None),
        ("non-compute", non_compute, temporal.non_compute_ns if temporal else None),
        ("communication", totals.communication_ns, kinds.communication_ns if kinds else None),
        ("memory", totals.memory_ns, kinds.memory_ns if kinds else None),
        ("idle", totals.idle_ns, temporal.idle_ns if temporal else None),
    ]
    times = []
    for name, own, other in pairs:
        difference = None if other is None else own - other
        times.append(
            VerifiedFigure(
                name=name,
                unit="ns",
                zprof=own,
                other=other,
                difference=difference,
                tolerance=tolerance,
                status=FigureStatus.UNKNOWN
                if difference is None
                else _choose_status(abs(difference) <= tolerance),
            )
        )
    return (_compare_overlap(totals, overlap), *times)


def _has_differences(figures: Sequence[VerifiedFigure]) -> bool:
    return any(figure.status is FigureStatus.DIFFERS for figure in figures)


def _compare_overlap(totals: DeviceTotals, answer: HtaOverlap | None) -> VerifiedFigure:
    ratio = totals.overlap_ratio
    own = None if ratio is None else 100.0 * ratio
    other = answer.percent if answer else None
    difference = None if own is None or other is None else own - other
    status = FigureStatus.UNKNOWN
    if difference is not None:
        status = _choose_status(abs(difference) <= OVERLAP_TOLERANCE + _ROUNDING)
    elif answer is not None:
        status = _choose_status(own is None and other is None)
    return VerifiedFigure(
        name="overlap",
        unit="percent",
        zprof=own,
        other=other,
        difference=difference,
        tolerance=OVERLAP_TOLERANCE,
        status=status,
    )


def _choose_status(equal: bool) -> FigureStatus:
    return FigureStatus.EQUAL if equal else FigureStatus.DIFFERS


def explain_differences(rows: Rows, *, equal_without_other: bool) -> Iterator[str]:
    """Yield reasons for differences; ``equal_without_other``: HTA agrees if only work rows count."""
    if rows.kept < rows.device:
        yield (
            f"HTA drops {rows.device - rows.kept} of {_count_rows(rows.device)} of the device: their launch "
            "is not in the trace, or comes after its last step"
        )
    other = [row for row in rows.names if row.category not in WORK]
    if other:
        # Describe stream rows without device work, such as event waits.
        kinds = sorted({row.kind.lower() for row in other})
        categories = sorted({row.category for row in other})
        count, total_ns = sum(row.count for row in other), sum(row.total_ns for row in other)
        yield (
            f"HTA counts {_count_rows(count)} of {', '.join(categories)} ({format_ns(total_ns)}) as device "
            f"work ({', '.join(kinds)}), but the device is idle in them"
        ) + ("; without them HTA agrees" if equal_without_other else "")
    misclassified = [row for row in rows.names if row not in other and row.kind != _classify(row)]
    for row in sorted(misclassified, key=lambda row: -row.total_ns)[:_MAX_LISTED]:
        name = row.name if len(row.name) <= _MAX_NAME_LENGTH else row.name[: _MAX_NAME_LENGTH - 1] + "…"
        yield (
            f"HTA classifies {name} ({row.count}, {format_ns(row.total_ns)}) as {row.kind.lower()}; "
            f"it is {_classify(row).lower()}"
        )
    if len(misclassified) > _MAX_LISTED:
        yield f"and {len(misclassified) - _MAX_LISTED} more names that HTA classifies differently"


def _classify(row: NameRow) -> str:
    """Return zprof's classification in HTA's names."""
    if row.category in COPIES:
        return "MEMORY"
    return "COMMUNICATION" if is_collective_kernel(row.name) else "COMPUTATION"


def _count_rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def add_second_opinion(report: Report, run: Path, wall_s: float | None = None) -> Report:
    """Add HTA's results (or gaps) for the traces that ``run`` was imported from to the report."""
    files = read_origin(run) if report.run.source == "trace" else None
    if files is None:
        return replace(report, gaps=(*report.gaps, make_gap("hta_without_trace")))
    loaded_files = {rank: path for rank, path in files.items() if rank in report.run.ranks_loaded}
    opinion, gaps = ask_second_opinion(loaded_files, wall_s)
    return replace(report, second_opinion=opinion, gaps=(*report.gaps, *gaps))


def ask_second_opinion(
    files: Mapping[int, Path], wall_s: float | None = None
) -> tuple[SecondOpinion | None, list[Gap]]:
    """Return HTA's results by rank (None without results), and gaps for failures."""
    answers = ask_all(files, _QUESTIONS, wall_s)
    results = [_make_rank_opinion(rank, answers[rank]) for rank in sorted(answers)]
    opinions = [opinion for opinion, _ in results if opinion is not None]
    gaps = [gap for _, rank_gaps in results for gap in rank_gaps]
    if not opinions:
        return None, gaps
    return SecondOpinion(source=format_source_name(answers.values()), per_rank=tuple(opinions)), gaps


def _make_rank_opinion(rank: int, answers: HtaAnswers) -> tuple[RankOpinion | None, list[Gap]]:
    rows = answers.get("rows", Rows)
    if rows is not None and not rows.device:
        return None, [make_gap("hta_without_device_work", rank=rank)]
    idle, critical = answers.get("idle", list[IdleRow]), answers.get("critical", Critical)
    gaps = find_unanswered(rank, answers, ("idle", "critical"))
    if idle is None and critical is None:
        return None, gaps
    path = None
    if critical is not None:
        window = f"{critical.steps} of {critical.steps_seen} steps" if critical.steps_seen else "entire trace"
        path = HtaCriticalPath(window=window, length_ns=critical.length_ns, shares=critical.shares)
    opinion = RankOpinion(
        rank=rank,
        critical_path=path,
        idle=None
        if idle is None
        else tuple(
            StreamIdle(
                stream=row.stream,
                host_wait_ns=row.host_wait_ns,
                kernel_wait_ns=row.kernel_wait_ns,
                other_ns=row.other_ns,
            )
            for row in idle
        ),
    )
    return opinion, gaps
