"""Each number can be opened: help, inputs in the report, and the rows that it was measured from."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace

from tests.support.full_times import full_time
from tests.support.tui_leaves import read_leaves
from tests.support.tui_memory import with_analysis
from zprof.analysis.columns import Columns
from zprof.model.json_format import to_tree
from zprof.model.metrics import METRICS, find_metric
from zprof.model.metrics.communication import COMMUNICATION
from zprof.model.metrics.overview import OVERVIEW
from zprof.model.metrics.time import RANKS, TIME
from zprof.model.quantities import Aggregation, Metric, Value, parse_path, resolve_input
from zprof.model.time import LEDGER_TERMS
from zprof.reports.pages.collectives import (
    build_check_table,
    build_collective_table,
    build_fit_table,
    build_message_table,
    build_unit_table,
)
from zprof.reports.pages.ranks import build_path_parts, build_rank_table
from zprof.tui.heat_grid import MetricGrids, RankMetric
from zprof.tui.opening import build_rows_table, explain_number, find_rows
from zprof.tui.screens.communication import find_split
from zprof.tui.screens.timeline import build_step_table
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.table_view import get_text

#: Sums, what a CPU cannot measure, and what no finding of the fixture has.
NOT_IN_FIXTURE = (
    "_delta[0]",
    "unclaimed[0]",
    "saving_bytes[0]",
    "reserved_unused_bytes",
    "non_pytorch_bytes",
)


def list_leaves(tree: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all leaves of a report; of a list, those of its first element."""
    if isinstance(tree, Mapping):
        for name, child in tree.items():
            yield from list_leaves(child, f"{path}.{name}" if path else name)
    elif isinstance(tree, list):
        for child in tree[:1]:
            yield from list_leaves(child, f"{path}[0]")
    else:
        yield path


def list_figures(loaded: LoadedRun) -> Iterator[Value]:
    """Yield the numbers of the communication and ranks screens."""
    for make in (build_message_table, build_unit_table, build_fit_table, build_check_table):
        yield from make(loaded.report).list_values()
    yield from build_collective_table(loaded.report).list_values()
    yield from build_rank_table(loaded.report).list_values()
    split = find_split(loaded.report, 0)
    yield from split[1:]
    yield from (MetricGrids(loaded).of(metric).figure_at(0, 0) for metric in RankMetric)
    yield from (cell for part in build_path_parts(loaded.report) for cell in part if isinstance(cell, Value))


def rows_of(loaded: LoadedRun, number: Value) -> pd.DataFrame:
    rows = find_rows(number, loaded)
    assert rows is not None
    assert len(rows), number
    return rows.to_frame()


def test_help_is_registered_once_and_its_inputs_are_leaves_of_the_report(loaded: LoadedRun) -> None:
    known = set(map(parse_path, list_leaves(to_tree(loaded.report))))
    leaves = [help.path for help in (*TIME, *OVERVIEW, *RANKS, *COMMUNICATION)]
    assert len(set(leaves)) == len(leaves)
    assert all(METRICS[leaf].path == leaf == parse_path(leaf).pattern for leaf in leaves)
    for found in METRICS.values():
        for leaf in (path for path in known if path.pattern == found.path):
            for name in found.inputs:
                assert resolve_input(leaf, name).at(0) in known, (leaf, name)


@pytest.mark.parametrize("found", [*TIME, *OVERVIEW], ids=lambda found: found.path)
def test_help_of_time_and_overview_is_shown_with_known_inputs(loaded: LoadedRun, found: Metric) -> None:
    leaf = found.path.replace("[]", "[0]")
    lines = explain_number(read_leaves(loaded.report, leaf), loaded)
    assert found.help in lines
    assert "unknown" not in "\n".join(lines).partition("\ninputs")[2]
    assert read_leaves(loaded.report, leaf).number is not None or leaf.endswith(NOT_IN_FIXTURE)


def test_every_number_of_communication_and_ranks_has_help_and_rows(loaded: LoadedRun) -> None:
    own = {found.path for found in COMMUNICATION}
    for number in list_figures(loaded):
        found = find_metric(number.leaves[0])
        assert found is not None, number
        if found.path in own and "unmatched" not in found.path:
            assert len(rows_of(loaded, number))
    traced = replace(loaded, report=replace(loaded.report, time=full_time(loaded.report.time)))
    assert all(explain_number(number, traced) for number in list_figures(traced))


def test_rows_of_a_unit_and_of_a_size_are_its_own(loaded: LoadedRun) -> None:
    for line in build_unit_table(loaded.report).rows:
        assert isinstance(line.cells[-1], Value)
        assert set(rows_of(loaded, line.cells[-1])["unit"]) == {get_text(line.cells[0])}
    rows = loaded.analysis.collectives
    size = rows.ints("bytes")
    for exposed in (size, size.max() - size):
        skewed = rows.with_columns(exposed_wait_ns=np.zeros_like(size), exposed_transfer_ns=exposed)
        changed = with_analysis(loaded, collectives=skewed)
        for place, entry in enumerate(loaded.report.time.messages):
            number = read_leaves(loaded.report, f"time.messages[{place}].exposed_ns")
            sizes = rows_of(changed, number)["bytes"]
            assert entry.at_least_bytes <= sizes.min() <= sizes.max() < entry.below_bytes


@pytest.mark.parametrize("term", LEDGER_TERMS)
def test_a_term_has_a_formula_and_the_rows_of_its_rank(loaded: LoadedRun, term: str) -> None:
    for stem in ("time.per_rank", "comparison.baseline_time"):
        number = read_leaves(loaded.report, f"{stem}[1].{term}")
        found = find_metric(number.leaves[0])
        assert found.formula
        assert set(rows_of(loaded, number)["rank"]) == {1}


@pytest.mark.parametrize("stem", ["time.per_rank", "comparison.baseline_time"])
def test_rows_of_the_whole_are_of_all_ranks_of_its_run(loaded: LoadedRun, stem: str) -> None:
    number = read_leaves(loaded.report, f"{stem}[*].wall_ns", how=Aggregation.MEAN)
    rows = rows_of(loaded, number)
    assert set(rows["rank"]) == {0, 1}
    assert rows["wall_ns"].is_monotonic_decreasing
    assert rows["wall_ns"].mean() == pytest.approx(number.number, abs=1)


def test_rows_of_exposed_transfer_are_collectives_the_worst_first(loaded: LoadedRun) -> None:
    rows = rows_of(loaded, read_leaves(loaded.report, "time.per_rank[0].exposed_transfer_ns"))
    known = loaded.analysis.collectives
    longest_ns = known.ints("exposed_transfer_ns")[known.ints("rank") == 0].max()
    assert rows["exposed_transfer_ns"].is_monotonic_decreasing
    assert rows["exposed_transfer_ns"].iloc[0] == longest_ns
    step = loaded.report.time.steps[0]
    own = rows_of(loaded, read_leaves(loaded.report, "time.steps[0].exposed_transfer_ns"))
    assert own["exposed_transfer_ns"].sum() == step.exposed_transfer_ns
    assert "launch_ns" in rows_of(loaded, read_leaves(loaded.report, "time.per_rank[0].idle_ns")).columns


def test_rows_of_a_lateness_and_of_a_wait_are_those_of_the_rank(alone: LoadedRun) -> None:
    number = MetricGrids(alone).of(RankMetric.LATENESS).figure_at(1, 2)
    rows = rows_of(alone, number)
    entry = alone.report.time.lateness[number.leaves[0].indices[0]]
    assert (set(rows["rank"]), set(rows["step"])) == ({1}, {entry.step})
    assert rows["lateness_ns"].iloc[0] == entry.largest_ns == rows["lateness_ns"].max()
    assert rows["lateness_ns"].mean() == pytest.approx(entry.mean_ns, abs=1)
    table = build_rank_table(alone.report)
    (line,) = [line for line in table.rows if line.key == "0"]
    titles = [column.title for column in table.columns]
    caused, own = (
        rows_of(alone, line.cells[titles.index(title)]) for title in ("wait caused", "exposed wait")
    )
    assert set(caused["blamed_rank"]) == set(own["rank"]) == {0}
    assert caused["exposed_wait_ns"].is_monotonic_decreasing


def test_the_ledger_of_a_step_sums_and_has_the_rows_of_its_rank(alone: LoadedRun) -> None:
    for entry in alone.report.time.steps:
        table = build_step_table(alone, Selection(rank=entry.rank, step=entry.step), ascii_only=True)
        assert all(column.title.isascii() for column in table.columns)
        wall, *terms, hidden = table.list_values()
        assert (wall.number, hidden.number) == (entry.wall_ns, entry.overlapped_ns)
        assert sum(term.number or 0 for term in terms) == entry.wall_ns
        assert {leaf.name for term in terms for leaf in term.leaves} == set(LEDGER_TERMS)
    for number in (wall, *terms, hidden):
        rows = rows_of(alone, number)
        if "rank" in rows.columns:
            assert rows["rank"].tolist() == [entry.rank]
            assert rows[number.leaves[0].name].tolist() == [number.number]
    for selected in (Selection(rank=0, step=999), Selection()):
        assert build_step_table(alone, selected).rows == ()


def test_rows_begin_with_step_rank_and_what_was_opened_the_first_ones_first(loaded: LoadedRun) -> None:
    found = find_rows(read_leaves(loaded.report, "time.per_rank[0].exposed_transfer_ns"), loaded)
    rows = Columns.concat([found] * 5)
    table = build_rows_table(rows, "exposed_transfer_ns")
    assert [column.title for column in table.columns][:3] == ["step", "rank", "exposed transfer"]
    assert len(table.columns) == len(rows.names)
    shown = [line.cells[2].number for line in table.rows]
    assert shown == rows.ints("exposed_transfer_ns").tolist()[: len(shown)]
    assert len(shown) < len(rows)
