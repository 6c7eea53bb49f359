"""Put two diagnosed runs side by side, number for number."""

from zprof.analysis.analysis import RunAnalysis, analyse
from zprof.analysis.side_by_side import (
    build_finding_section,
    build_kernel_section,
    build_memory_section,
    build_time_sections,
    list_settings,
)
from zprof.model.report import Report
from zprof.model.side_by_side import ComparedSection, SideBySide
from zprof.model.time import WindowPolicy
from zprof.rules.diagnose import diagnose
from zprof.run.reader import Run


def diagnose_side_by_side(
    a: Run,
    b: Run,
    *,
    expected_bus_bytes_per_s: float | None = None,
    policy: WindowPolicy = WindowPolicy.STEP,
) -> SideBySide:
    """Diagnose ``a`` by itself and ``b`` with ``a`` as its baseline, and pair the results.

    Raises:
        BadInput: A recording is damaged.
    """
    first, second = analyse(a, policy), analyse(b, policy)
    after = diagnose(second, first, expected_bus_bytes_per_s=expected_bus_bytes_per_s)
    return pair_with_baseline(
        (a, first), (b, second), after, expected_bus_bytes_per_s=expected_bus_bytes_per_s
    )


def pair_with_baseline(
    a: tuple[Run, RunAnalysis],
    b: tuple[Run, RunAnalysis],
    after: Report,
    *,
    expected_bus_bytes_per_s: float | None = None,
) -> SideBySide:
    """Pair two analyzed runs; ``after`` is the report on ``b`` with ``a`` as its baseline."""
    before = diagnose(a[1], expected_bus_bytes_per_s=expected_bus_bytes_per_s)
    optional_sections = [
        build_memory_section(before, after),
        build_kernel_section(a[1], b[1]),
        build_finding_section(before, after),
    ]
    return SideBySide(
        zprof_version=after.zprof_version,
        a=before.run,
        b=after.run,
        verdict=after.verdict,
        comparison=after.comparison,
        sections=(*build_time_sections(before, after), *filter(_has_values, optional_sections)),
        settings=list_settings(a[0], b[0]),
    )


def _has_values(section: ComparedSection) -> bool:
    return any(row.a is not None or row.b is not None for row in section.rows)
