"""The first screen: a ledger whose bars sum, findings by saving, and what is left over."""

import pytest
from msgspec.structs import replace

from tests.support.diagnosis_reports import DIAGNOSES, alone
from tests.support.reports import SITUATIONS
from zprof.model.metrics.catalogue import find_metric
from zprof.model.quantities import Value
from zprof.model.report import Report, RunFacts
from zprof.reports.pages.findings import build_findings_table
from zprof.reports.pages.head import build_rest_table, format_warning, format_warning_cell
from zprof.reports.pages.ledger import build_ledger_table, layout_bars, list_terms
from zprof.reports.table import Bar, Table
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import get_text

REPORTS = {**DIAGNOSES, **SITUATIONS}
STEP = "wall_ns"


def shown(report: Report) -> LoadedRun:
    """Return a report without the run that it is of."""
    return LoadedRun(run=None, report=report, pending=None)


def rows(table: Table) -> dict[str, list[str]]:
    return {get_text(line.cells[0]): [get_text(cell) for cell in line.cells[1:]] for line in table.rows}


def length(cell: object) -> float:
    assert isinstance(cell, Bar)
    return sum(end - begin for _, begin, end in cell.segments)


def test_terms_of_the_ledger_come_by_weight_and_sum_to_the_step(loaded: LoadedRun, alone: LoadedRun) -> None:
    table = build_ledger_table(loaded.report)
    assert list(rows(table)) == ["exposed transfer", "idle", "exposed wait", "compute", "step"]
    for column in (1, 2, 4):
        *terms, step = [line.cells[column] for line in table.rows]
        assert isinstance(step, Value)
        values = [cell.number or 0 for cell in terms if isinstance(cell, Value)]
        assert sum(values) == pytest.approx(step.number, abs=60_000)
    *bars, whole = [line.cells[-1] for line in build_ledger_table(alone.report).rows]
    assert sum(map(length, bars)) == pytest.approx(1, abs=1e-3)
    assert length(whole) == pytest.approx(1, abs=1e-3)


def test_bars_of_the_change_begin_where_the_one_above_ends(loaded: LoadedRun) -> None:
    terms = list_terms(loaded.report)
    segments = layout_bars(loaded.report, terms)
    delta = loaded.report.comparison.ledger_delta
    at = 0.0
    for term in terms:
        ((_, begin, end),) = segments[term].segments
        assert begin == pytest.approx(at)
        assert end - begin == pytest.approx(delta[term] / sum(delta.values()), abs=1e-6)
        at = end
    assert segments[STEP].segments[0][1:] == (0.0, pytest.approx(at))


@pytest.mark.parametrize(
    ("delta", "bars"),
    [
        ((100, 30, -50), [(0, 100), (100, 130), (80, 130), (0, 80)]),
        ((0, 20, -50), [(0, 0), (30, 50), (0, 50), (0, 30)]),
    ],
    ids=["slower", "faster"],
)
def test_a_term_that_shrank_goes_back(delta: tuple[int, ...], bars: list[tuple[int, int]]) -> None:
    report = REPORTS["against_baseline"]()
    terms = ["exposed_transfer_ns", "compute_ns", "idle_ns"]
    zero = dict.fromkeys(("exposed_wait_ns", "exposed_memcpy_ns", "unexplained_ns"), 0)
    ledger = zero | dict(zip(terms, delta, strict=True))
    turned = replace(report, comparison=replace(report.comparison, ledger_delta=ledger))
    shown = {term: bar for term, bar in zip([*terms, STEP], bars, strict=True) if bar[1]}
    segments = layout_bars(turned, [term for term in shown if term != STEP])
    whole = max(end for _, end in bars)
    for term, (begin, end) in shown.items():
        assert segments[term].segments[0][1:] == (pytest.approx(begin / whole), pytest.approx(end / whole)), (
            term
        )


@pytest.mark.parametrize("name", REPORTS)
def test_every_number_of_any_report_is_known_and_has_help(name: str) -> None:
    at = shown(REPORTS[name]())
    tables = [build_ledger_table(at.report), build_findings_table(at.report), build_rest_table(at.report)]
    for table in tables:
        assert all(len(line.cells) == len(table.columns) for line in table.rows)
        for figure in table.list_values():
            assert figure.number is not None, figure
            assert all(find_metric(leaf) for leaf in figure.leaves), figure
    assert bool(tables[0].rows) == bool(at.report.time.per_rank)


def test_headroom_is_that_of_the_fullest_device() -> None:
    report = REPORTS["memory_only"]()
    devices = tuple(
        replace(device, rank=rank, device_used_bytes=used, device_total_bytes=80 << 30)
        for rank, (device, used) in enumerate(
            zip(report.memory.devices * 2, (None, 60 << 30, 70 << 30, 10 << 30), strict=True)
        )
    )
    full = replace(report, memory=replace(report.memory, devices=devices))
    headroom = rows(build_rest_table(full))["headroom"]
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
        assert format_warning_cell(report).text.startswith("! ")
    facts: RunFacts = replace(alone().run, modelled=())
    assert format_warning_cell(replace(alone(), run=facts)).text == ""
