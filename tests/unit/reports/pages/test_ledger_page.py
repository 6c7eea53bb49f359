"""The ledger of a step and what is left over: terms and bars sum, and what is unknown is no row."""

import pytest
from msgspec.structs import replace

from tests.support.diagnosis_reports import DIAGNOSES, alone
from tests.support.reports import SITUATIONS, slower, straggler
from zprof.model.metrics import find_metric
from zprof.model.quantities import Value
from zprof.model.report import Report
from zprof.reports.pages.findings import build_findings_table
from zprof.reports.pages.head import build_rest_table, format_warning, format_warning_cell
from zprof.reports.pages.ledger import build_ledger_section, build_ledger_table, step_ns
from zprof.reports.table import Bar, Table
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import get_text

REPORTS = {**DIAGNOSES, **SITUATIONS}


def rows(table: Table) -> dict[str, list[str]]:
    return {get_text(line.cells[0]): [get_text(cell) for cell in line.cells[1:]] for line in table.rows}


def column(table: Table, at: int) -> list[float]:
    return [cell.number or 0.0 for row in table.rows if isinstance(cell := row.cells[at], Value)]


def with_delta(report: Report, delta: dict[str, int]) -> Report:
    return replace(report, comparison=replace(report.comparison, ledger_delta=delta))


def test_terms_and_their_changes_sum_to_the_steps_and_their_change() -> None:
    report = slower()
    times = report.comparison.step_time
    for table in (build_ledger_table(report), build_ledger_section(report)[0].blocks[0]):
        *before, step_before = column(table, 1)
        *now, step_now = column(table, 2)
        *changes, change = column(table, 4)
        assert sum(changes) == pytest.approx(change) == times.b_ns - times.a_ns
        assert sum(now) == pytest.approx(step_now, abs=100_000) == step_ns(report.time.per_rank)
        assert sum(before) == pytest.approx(step_before, abs=100_000)
    weights = [abs(change) for change in column(build_ledger_table(report), 4)[:-1]]
    assert weights == sorted(weights, reverse=True)
    faster = with_delta(report, {term: -change for term, change in report.comparison.ledger_delta.items()})
    slow, fast = build_ledger_table(report), build_ledger_table(faster)
    assert [row.key for row in fast.rows] == [row.key for row in slow.rows]
    assert sum(column(build_ledger_table(straggler()), 2)) == pytest.approx(1, abs=0.01), "of the step"


@pytest.mark.parametrize("name", ["slower", "straggler", "trace", "rank_missing"])
def test_the_waterfall_has_no_gaps_and_ends_at_the_whole(name: str) -> None:
    bars = [row.cells[-1] for row in build_ledger_table(SITUATIONS[name]()).rows]
    drawn = [bar.segments for bar in bars if isinstance(bar, Bar) and bar.segments]
    edges = [(segments[0][1], segments[-1][2]) for segments in drawn]
    assert all(0 <= low <= high <= 1 for low, high in edges)
    *terms, whole = edges
    assert isinstance(bars[0], Bar)
    zero = end = bars[0].zero
    for low, high in terms:
        start = min((low, high), key=lambda edge: abs(edge - end))
        assert start == pytest.approx(end, abs=0.001)
        end = low + high - start
    assert {round(edge, 3) for edge in whole} == {round(zero, 3), round(end, 3)}


@pytest.mark.parametrize("name", REPORTS)
def test_every_number_of_any_report_is_known_and_has_help(name: str) -> None:
    report = REPORTS[name]()
    tables = [build_ledger_table(report), build_findings_table(report), build_rest_table(report)]
    for table in tables:
        assert all(len(line.cells) == len(table.columns) for line in table.rows)
        for figure in table.list_values():
            assert figure.number is not None, figure
            assert all(find_metric(leaf) for leaf in figure.leaves), figure
    assert bool(tables[0].rows) == bool(report.time.per_rank)


def test_headroom_is_that_of_the_fullest_device() -> None:
    report = REPORTS["memory_only"]()
    devices = tuple(
        replace(device, rank=rank, device_used_bytes=used, device_total_bytes=80 << 30)
        for rank, (device, used) in enumerate(
            zip(report.memory.devices * 2, (None, 60 << 30, 70 << 30, 10 << 30), strict=True)
        )
    )
    headroom = rows(build_rest_table(replace(report, memory=replace(report.memory, devices=devices))))[
        "headroom"
    ]
    assert headroom[:3] == ["10.0 GiB", "of", "80.0 GiB"]
    assert "rank 2" in headroom[3]
    unknown = replace(report, memory=replace(report.memory, devices=devices[:1]))
    assert "headroom" not in rows(build_rest_table(unknown))


def test_a_modelled_link_is_warned_of_before_what_may_be_cut(loaded: LoadedRun) -> None:
    comparison = loaded.report.comparison
    many = tuple(replace(comparison.differences[0], what=f"difference {number}") for number in range(20))
    for differences in (comparison.differences, many):
        report = replace(loaded.report, comparison=replace(comparison, differences=differences))
        assert 0 < format_warning(report).index("MODELLED") < 60
    assert format_warning_cell(replace(alone(), run=replace(alone().run, modelled=()))).text == ""
