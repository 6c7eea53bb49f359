"""Compare two runs side by side, and show the result."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import fields

from zprof.model.comparison import SideBySide
from zprof.notebook.display import Displayed
from zprof.notebook.run import as_run
from zprof.run.reader import Run

if TYPE_CHECKING:
    from zprof.reports.formats import Format
    from zprof.reports.page import Page

#: Settings that ``repr`` names.
_MAX_SETTINGS = 6


class ComparedRuns(Displayed, SideBySide, frozen=True):
    """Two runs side by side; a subclass without fields, as :class:`DiagnosedRun` is of the report."""

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
