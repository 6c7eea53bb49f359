"""Two runs side by side: both diagnosed, their leaves paired."""

from zprof.analysis.analysis import RunAnalysis, analyse
from zprof.analysis.side_by_side.other_rows import finding_section, kernel_section, memory_section
from zprof.analysis.side_by_side.settings import settings
from zprof.analysis.side_by_side.time_rows import time_sections
from zprof.model.report import Report
from zprof.model.side_by_side import Section, SideBySide
from zprof.model.time import WindowPolicy
from zprof.rules.diagnose import diagnose
from zprof.run.reader import Run


def side_by_side(
    a: Run,
    b: Run,
    *,
    expected_bus_bytes_per_s: float | None = None,
    policy: WindowPolicy = WindowPolicy.STEP,
) -> SideBySide:
    """``a`` by itself, and ``b`` with ``a`` as its baseline.

    Raises:
        BadInput: a recording is damaged.
    """
    first, second = analyse(a, policy), analyse(b, policy)
    after = diagnose(second, first, expected_bus_bytes_per_s=expected_bus_bytes_per_s)
    return beside((a, first), (b, second), after, expected_bus_bytes_per_s=expected_bus_bytes_per_s)


def beside(
    a: tuple[Run, RunAnalysis],
    b: tuple[Run, RunAnalysis],
    after: Report,
    *,
    expected_bus_bytes_per_s: float | None = None,
) -> SideBySide:
    """The same of two runs that are measured already; ``after``: the report on ``b`` with ``a`` before it."""
    before = diagnose(a[1], expected_bus_bytes_per_s=expected_bus_bytes_per_s)
    others = [memory_section(before, after), kernel_section(a[1], b[1]), finding_section(before, after)]
    return SideBySide(
        zprof_version=after.zprof_version,
        a=before.run,
        b=after.run,
        verdict=after.verdict,
        comparison=after.comparison,
        sections=(*time_sections(before, after), *filter(_is_known, others)),
        settings=settings(a[0], b[0]),
    )


def _is_known(section: Section) -> bool:
    return any(row.a is not None or row.b is not None for row in section.rows)
