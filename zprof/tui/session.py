"""Load a run and its baseline for the TUI, and pick the rank and step to show first."""

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.facts import describe_run
from zprof.cache.reports import ask_diagnosis, find_report_file, keep, recall
from zprof.model.comparison import JudgedRow, RowPlace, SideBySide
from zprof.model.report import Report, RunFacts
from zprof.model.time import WindowPolicy
from zprof.run.reader import Run

if TYPE_CHECKING:
    from zprof.analysis.analysis import RunAnalysis


Opener = Callable[[Path], Run]
#: Called with each stage, and with the run once its numbers are known.
Progress = Callable[["str | LoadedRun"], None]


class RunRequest(Struct, frozen=True, kw_only=True):
    """A run, its baseline, and how to measure both; ``opener`` opens a path as a run."""

    path: Path
    opener: Opener
    baseline: Path | None = None
    policy: WindowPolicy = WindowPolicy.STEP
    expected_bus_bytes_per_s: float | None = None


class PendingAnalysis:
    """The analysis of a run, computed on first use and shared by threads."""

    def __init__(self, make: "Callable[[], RunAnalysis]") -> None:
        self._make = make
        self._made: RunAnalysis | None = None
        self._lock = Lock()

    def get(self) -> "RunAnalysis":
        """Return the analysis; block until it is available.

        Raises:
            BadInput: a table of the run is damaged.
        """
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made


class LoadedRun(Struct, frozen=True, kw_only=True):
    """A measured run, the input to every page.

    ``is_judged``: False while causes are looked for; the report then has numbers and no findings.
    ``pending``: its tables, for drill-down and predictions only; for a cached report they are computed in the
    background after the first screen. ``before`` and ``before_run``: the baseline. ``both``: the side-by-side
    comparison, as in ``zprof compare``.
    """

    run: Run
    report: Report
    pending: PendingAnalysis
    is_judged: bool = True
    before: "RunAnalysis | None" = None
    before_run: Run | None = None
    both: SideBySide | None = None

    @property
    def analysis(self) -> "RunAnalysis":
        """The tables of the run; blocks until they are available."""
        return self.pending.get()


class Selection(Struct, frozen=True, kw_only=True):
    """The selected rank and step; each None if the run has none."""

    rank: int | None = None
    step: int | None = None


class RunPreview(Struct, frozen=True, kw_only=True):
    """Facts about a run from its manifests alone, available at once."""

    facts: RunFacts


def preview_run(request: RunRequest) -> RunPreview:
    """Open the run and return its facts without reading any table.

    Raises:
        BadInput: no run exists at the path, or its manifest is damaged.
    """
    return RunPreview(facts=describe_run(request.opener(request.path)))


def load(request: RunRequest, progress: Progress) -> LoadedRun:
    """Measure the run and its baseline, then look for causes.

    ``progress`` is called with each stage, and with the run before causes are looked for.

    Raises:
        BadInput: a table of a run is damaged.
    """
    progress("opening")
    run = request.opener(request.path)
    question = ask_diagnosis(run, None, request.expected_bus_bytes_per_s, request.policy)
    file = find_report_file(question) if request.baseline is None else None
    kept = recall(file, Report)
    if kept is not None:
        return LoadedRun(run=run, report=kept, pending=PendingAnalysis(lambda: _analyse(run, request.policy)))
    progress(f"measuring {describe_run(run).name}: {len(run.ranks)} ranks")
    analysis = _analyse(run, request.policy)
    from zprof.diagnosis.diagnose import report_numbers

    measured = LoadedRun(
        run=run,
        report=report_numbers(analysis),
        pending=PendingAnalysis(lambda: analysis),
        is_judged=False,
    )
    progress(measured)
    if request.baseline is None:
        loaded = _diagnose_loaded(request, measured, None, progress)
        keep(loaded.report, file)
        return loaded
    progress("measuring the baseline")
    before_run = request.opener(request.baseline)
    before = (before_run, _analyse(before_run, request.policy))
    return _diagnose_loaded(request, measured, before, progress)


def _analyse(run: Run, policy: WindowPolicy) -> "RunAnalysis":
    from zprof.analysis.analysis import analyse

    return analyse(run, policy)


def swap_baseline(request: RunRequest, loaded: LoadedRun, progress: Progress) -> LoadedRun:
    """Return the loaded pair with run and baseline swapped, without measuring again.

    ``loaded`` must have a baseline.
    """
    assert loaded.before is not None
    assert loaded.before_run is not None
    before = loaded.before
    other = replace(loaded, run=loaded.before_run, pending=PendingAnalysis(lambda: before))
    return _diagnose_loaded(request, other, (loaded.run, loaded.analysis), progress)


def _diagnose_loaded(
    request: RunRequest,
    measured: LoadedRun,
    before: "tuple[Run, RunAnalysis] | None",
    progress: Progress,
) -> LoadedRun:
    progress("looking for causes")
    from zprof.diagnosis.diagnose import diagnose, diagnose_side_by_side

    expected = request.expected_bus_bytes_per_s
    run, analysis = measured.run, measured.analysis
    report = diagnose(
        analysis,
        before[1] if before else None,
        expected_bus_bytes_per_s=expected,
        policy=request.policy,
        progress=lambda done, total: progress(f"looking for causes: {done} of {total}"),
    )
    if before is None:
        return LoadedRun(run=run, report=report, pending=measured.pending)
    progress("comparing with the baseline")
    both = diagnose_side_by_side(
        before[0],
        run,
        analyses=(before[1], analysis),
        report=report,
        expected_bus_bytes_per_s=expected,
    )
    return LoadedRun(
        run=run, report=report, pending=measured.pending, before=before[1], before_run=before[0], both=both
    )


def make_row_judge(loaded: LoadedRun, *, per_work: bool = False) -> "Callable[[RowPlace], JudgedRow]":
    """Return a function that compares a row between the runs, per token or sample with ``per_work``."""
    from zprof.analysis.compare.judgement import make_judge

    steps = None if loaded.before is None else (loaded.before.steps, loaded.analysis.steps)
    return make_judge(loaded.report, steps, per_work=per_work)


def keep_selection(report: Report, current: Selection) -> Selection:
    """Return the current selection if it was timed in the run, else the default selection."""
    is_timed = any(step.rank == current.rank and step.step == current.step for step in report.time.steps)
    return current if is_timed else pick_selection(report)


def pick_selection(report: Report) -> Selection:
    """Return the rank and step to show first; without a timed step, the first rank."""
    from zprof.model.time import pick_rank_and_step

    picked = pick_rank_and_step(report.time)
    if picked is None:
        return Selection(rank=min(report.run.ranks_loaded, default=None))
    return Selection(rank=picked[0], step=picked[1])
