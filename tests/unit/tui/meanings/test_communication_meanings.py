"""Each number of the communication screen can be opened: what it means, and the rows behind it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.full_times import full_time
from zprof.tui.figures import Figure
from zprof.tui.metric_help.communication import COMMUNICATION
from zprof.tui.metric_help.metric import MetricHelp, parse_indices
from zprof.tui.metric_help.registry import find_help
from zprof.tui.number_popup import explain_number, find_rows
from zprof.tui.presenters.communication import build_collectives_table, find_split
from zprof.tui.presenters.communication_checks import build_checks_table
from zprof.tui.presenters.communication_parts import build_fits_table, build_sizes_table, build_units_table
from zprof.tui.session import LoadedRun


def shown(loaded: LoadedRun) -> Iterator[Figure]:
    for make in (build_sizes_table, build_units_table, build_fits_table):
        yield from make(loaded).figures()
    yield from build_collectives_table(loaded).figures()
    yield from build_checks_table(loaded).figures()
    split = find_split(loaded, 0)
    assert split is not None
    yield from (split.hidden, split.wait, split.transfer)


def test_every_number_has_a_meaning(loaded: LoadedRun) -> None:
    assert [figure.leaves for figure in shown(loaded) if find_help(figure.leaves[0]) is None] == []


def test_every_number_has_rows(loaded: LoadedRun) -> None:
    mine = {meaning.leaf for meaning in COMMUNICATION}
    for figure in shown(loaded):
        meaning = find_help(figure.leaves[0])
        if meaning is not None and meaning.leaf in mine and "unmatched" not in meaning.leaf:
            rows = find_rows(figure, loaded)
            assert rows is not None
            assert len(rows), figure


def test_inputs_are_leaves_beside_it(loaded: LoadedRun) -> None:
    for figure in shown(loaded):
        if figure.leaves[0].startswith("time.collectives") and len(figure.leaves) == 1:
            assert not any(line.endswith(" unknown") for line in explain_number(figure, loaded)), figure


@pytest.mark.parametrize("meaning", COMMUNICATION, ids=lambda meaning: str(meaning.leaf))
def test_a_place_that_is_not_there_has_no_rows_and_no_error(loaded: LoadedRun, meaning: MetricHelp) -> None:
    rows, leaf = meaning.rows, meaning.leaf.replace("[]", "[999]")
    assert rows is not None
    found = rows(loaded.analysis, parse_indices(leaf))
    assert "[]" not in meaning.leaf or not len(found)


def test_rows_of_a_unit_are_its_own(loaded: LoadedRun) -> None:
    table = build_units_table(loaded)
    for line in table.lines:
        rows = find_rows(line.cells[-1], loaded) if isinstance(line.cells[-1], Figure) else None
        assert rows is not None
        assert set(rows["unit"]) == {line.cells[0].text}


@pytest.mark.parametrize("sign", [1, -1], ids=["large ones exposed", "small ones exposed"])
def test_rows_of_a_size_lie_in_it(loaded: LoadedRun, sign: int) -> None:
    rows = loaded.analysis.collectives
    exposed = rows["bytes"] if sign > 0 else rows["bytes"].max() - rows["bytes"]
    analysis = replace(
        loaded.analysis, collectives=rows.assign(exposed_wait_ns=0, exposed_transfer_ns=exposed)
    )
    meaning = find_help("time.messages[0].exposed_ns")
    assert meaning is not None
    assert meaning.rows is not None
    for place, entry in enumerate(loaded.report.time.messages):
        sizes = meaning.rows(analysis, (place,))["bytes"]
        assert entry.at_least_bytes <= sizes.min() <= sizes.max() < entry.below_bytes


def test_full_reports_have_them_too(loaded: LoadedRun) -> None:
    made = replace(loaded, report=replace(loaded.report, time=full_time(loaded.report.time)))
    for figure in shown(made):
        assert explain_number(figure, made)
