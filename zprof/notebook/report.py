"""Diagnose a run, and display the report."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import fields

from zprof.base.errors import BadInput
from zprof.model.report import Report
from zprof.model.time import WindowPolicy
from zprof.notebook.display import Displayed
from zprof.notebook.plots import ReportPlots
from zprof.run.reader import Run

if TYPE_CHECKING:
    from zprof.analysis.analysis import RunAnalysis
    from zprof.reports.formats import Format
    from zprof.reports.page import Page
from typing import TYPE_CHECKING

from zprof.model.comparison import SideBySide
from zprof.notebook.run import as_run

if TYPE_CHECKING:
    from zprof.reports.formats import Format
    from zprof.reports.page import Page

#: Maximum findings in ``repr``.
_MAX_FINDINGS = 3
#: Maximum settings in ``repr``.
_MAX_SETTINGS = 6


class DiagnosedRun(Displayed, Report, frozen=True):
    """A report with notebook display; without new fields, so all functions on reports accept it."""

    @property
    def plot(self) -> ReportPlots:
        """Charts of the report."""
        return ReportPlots(lambda: self)

    def _list_formats(self, *, short: bool) -> "Sequence[Format[Any]]":
        from zprof.reports.formats import DIAGNOSES, FORMATS

        return DIAGNOSES if short else FORMATS

    def _build_short_page(self) -> "Page":
        from zprof.reports.pages.diagnosis import build_diagnosis_page

        return build_diagnosis_page(self)

    def _list_lines(self) -> Iterator[str]:
        from zprof.reports.pages.findings import worth
        from zprof.reports.pages.head import build_modelled_notes, list_baseline_runs

        yield f"{self.run.name}: {self.verdict.sentence}"
        for finding in self.findings[:_MAX_FINDINGS]:
            yield f"  {finding.id} {finding.cause}: {worth(finding)}"
        omitted = len(self.findings) - _MAX_FINDINGS
        if omitted > 0:
            yield f"  and {omitted} more: .findings, .to_text()"
        for note in build_modelled_notes([self.run, *list_baseline_runs(self)]):
            yield f"  {note.label}: {note.text}"
        if self.gaps:
            yield f"  {len(self.gaps)} gaps: .gaps"


def diagnose(
    run: "str | Path | Run | RunAnalysis",
    baseline: "str | Path | Run | RunAnalysis | None" = None,
    *,
    expected_bus_bytes_per_s: float | None = None,
    window: str | None = None,
) -> DiagnosedRun:
    """Explain why a run is slow, how much time is lost, and what to change.

    Args:
        run: A run from :func:`zprof.load`, which is measured once, or a path that ``load`` takes.
        baseline: The run to compare with; the report then has the change of each step term.
        expected_bus_bytes_per_s: The bus bandwidth that the link should give large messages.
        window: ``"step"`` or ``"trace"``; a run from ``load`` has its own already.

    Raises:
        BadInput: A path is no run and cannot be imported, or a recording is damaged.
        MissingData: No rank finished its recording.
    """
    from zprof.diagnosis.diagnose import diagnose as diagnose_analysis

    report = diagnose_analysis(
        measure(run, window),
        None if baseline is None else measure(baseline, window),
        expected_bus_bytes_per_s=expected_bus_bytes_per_s,
    )
    return make_displayed(report)


def make_displayed(report: Report) -> DiagnosedRun:
    """Return the same report with display methods."""
    return DiagnosedRun(**{field.name: getattr(report, field.name) for field in fields(Report)})


def measure(run: "str | Path | Run | RunAnalysis", window: str | None = None) -> "RunAnalysis":
    """Return the analysis of a run or a path; the analysis of an open run is computed once and cached.

    Raises:
        BadInput: An open run has another window than ``window``.
    """
    from zprof.analysis.analysis import RunAnalysis, analyse
    from zprof.notebook.run import AnalysedRun, as_run, parse_window

    if isinstance(run, RunAnalysis):
        return run
    run = as_run(run, window)
    policy = None if window is None else parse_window(window)
    if not isinstance(run, AnalysedRun):
        return analyse(run, policy or WindowPolicy.STEP)
    if policy not in (None, run.policy):
        raise BadInput(
            f"{run.path}: was opened with window={run.policy.value!r}",
            hint=f"open it again: zprof.load(..., window={window!r})",
        )
    return run.analysis


class ComparedRuns(Displayed, SideBySide, frozen=True):
    """Two runs side by side; a subclass without new fields, like :class:`DiagnosedRun` of the report."""

    def _list_formats(self, *, short: bool) -> "Sequence[Format[Any]]":
        from zprof.reports.formats import COMPARISONS, COMPARISONS_IN_FULL

        return COMPARISONS if short else COMPARISONS_IN_FULL

    def _build_short_page(self) -> "Page":
        from zprof.reports.pages.compare import build_compare_page

        return build_compare_page(self)

    def _list_lines(self) -> Sequence[str]:
        from zprof.reports.pages.compare import select_shown_settings
        from zprof.reports.pages.head import build_modelled_notes

        different = [setting.name for setting in select_shown_settings(self.settings, everything=False)]
        lines = [f"{self.b.name} against {self.a.name}: {self.verdict.sentence}"]
        lines += [f"  {note.label}: {note.text}" for note in build_modelled_notes([self.a, self.b])]
        if different:
            more = f" and {len(different) - _MAX_SETTINGS} more" if len(different) > _MAX_SETTINGS else ""
            lines.append(f"  settings that differ: {', '.join(different[:_MAX_SETTINGS])}{more}")
        return (*lines, f"  {len(self.sections)} sections of figures: .sections, .to_text()")


def compare(
    a: str | Path | Run,
    b: str | Path | Run,
    *,
    expected_bus_bytes_per_s: float | None = None,
    window: str | None = None,
) -> ComparedRuns:
    """Compare ``b`` with ``a``: all figures and settings side by side.

    ``zprof.diagnose(b, a)`` explains the difference.

    Args:
        a: The run to compare with, from :func:`zprof.load` or as a path.
        b: The run.
        expected_bus_bytes_per_s: The bus bandwidth that the link should give large messages.
        window: ``"step"`` or ``"trace"``; a run from ``load`` has its own already.

    Raises:
        BadInput: A path is no run and cannot be imported, or a recording is damaged.
        MissingData: No rank finished its recording.
    """
    from zprof.diagnosis.diagnose import diagnose_side_by_side
    from zprof.notebook.report import measure

    before, after = as_run(a, window), as_run(b, window)
    both = diagnose_side_by_side(
        before,
        after,
        analyses=(measure(before, window), measure(after, window)),
        expected_bus_bytes_per_s=expected_bus_bytes_per_s,
    )
    return ComparedRuns(**{field.name: getattr(both, field.name) for field in fields(SideBySide)})
