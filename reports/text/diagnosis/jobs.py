"""What is not the same in both jobs, and their steps held to the same work."""

from zprof.model.equal_work import EqualWork
from zprof.model.printable import printable, shorten
from zprof.model.report import Comparison, Report, StepTimeChange
from zprof.model.units import format_ms
from zprof.reports.text.layout import heading, table, wrap

_MOST = 6
_NAME = 24
_FIRST = "  ! "
#: What the table of equal work says.
_WORK = frozenset({"tokens a step", "samples a step"})


def jobs(report: Report) -> list[str]:
    """Lines under the two runs: that they do the same work, and warnings where they are other jobs."""
    comparison = report.comparison
    if comparison is None:
        return []
    return [*_same_work(comparison), *_differences(comparison)]


def equal_work(report: Report) -> list[str]:
    """The steps of both for the same work; nothing where that is the same anyway."""
    comparison = report.comparison
    if comparison is None or comparison.step_time is None or comparison.equal_work is None:
        return []
    times, work = comparison.step_time, comparison.equal_work
    if _is_same(times, work):
        return []
    names = [shorten(printable(name), _NAME) for name in (comparison.baseline, report.run.name)]
    return ["", heading("AT EQUAL WORK", "ms, for as much as a rank did before"), *_table(names, times, work)]


def _table(names: list[str], times: StepTimeChange, work: EqualWork) -> list[str]:
    whole = max(1, times.a_ns)
    low, high = (bound / whole * 100 for bound in work.ci95)
    change = f"{(work.b_ns / whole - 1) * 100:+.0f} % [{low:+.1f}, {high:+.1f}]"
    unit = work.unit.value
    rows = [
        ["", f"{unit} a step", "step", "at equal work", "change"],
        [names[0], str(work.a_per_step), format_ms(times.a_ns), format_ms(times.a_ns), ""],
        [names[1], str(work.b_per_step), format_ms(times.b_ns), format_ms(work.b_ns), change],
    ]
    told_apart = wrap(
        f"the change of the batch is part of this: what the program alone does shows with the same {unit} "
        "a step in both"
    )
    return [*table(rows), *told_apart]


def _same_work(comparison: Comparison) -> list[str]:
    times, work = comparison.step_time, comparison.equal_work
    if times is None or work is None or not _is_same(times, work) or work.a_per_step != work.b_per_step:
        return []
    return wrap(f"{work.b_per_step} {work.unit.value} a step in both", first="  same work ")


def _differences(comparison: Comparison) -> list[str]:
    shown = [
        entry for entry in comparison.differences if comparison.equal_work is None or entry.what not in _WORK
    ]
    if not shown:
        return []
    said = "; ".join(f"{entry.what} {entry.b}, was {entry.a}" for entry in shown[:_MOST])
    more = f"; and {len(shown) - _MOST} more: zprof compare" if len(shown) > _MOST else ""
    return wrap(printable(f"not the same job: {said}{more}"), first=_FIRST)


def _is_same(times: StepTimeChange, work: EqualWork) -> bool:
    return work.b_ns == times.b_ns
