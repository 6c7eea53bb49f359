"""Ledger and tenants of the live view: unknown until their window is over, then leaves of the report."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.growing_run import GrowingRun
from tests.unit.tui.test_every_number import hold
from zprof.model.json_format import to_json as render
from zprof.model.tenants import Tenant
from zprof.run.live import LiveRun
from zprof.tui.live.presenter import (
    build_ledger_table,
    build_tenants_table,
    explain_number,
    format_gaps,
    get_verdict,
)
from zprof.tui.live.watcher import JobState, LiveReport, LiveSnapshot
from zprof.tui.session import LoadedRun
from zprof.tui.tables import Table


@pytest.fixture(scope="module")
def tree(alone: LoadedRun) -> dict[str, Any]:
    """The report on a finished run, as JSON."""
    return dict(json.loads(render(alone.report)))


@pytest.fixture
def before(tmp_path: Path) -> LiveSnapshot:
    """A run whose first step is over."""
    run = GrowingRun(tmp_path)
    run.step(0, 1, 1)
    return LiveSnapshot(state=LiveRun(tmp_path).look())


def texts(table: Table) -> dict[str, str]:
    return {line.key: line.cells[1].text for line in table.lines}


def test_all_is_unknown_at_first(before: LiveSnapshot) -> None:
    assert set(texts(build_ledger_table(before)).values()) == {"unknown"}
    assert set(texts(build_tenants_table(before)).values()) == {"unknown"}
    assert build_ledger_table(before).note == "known after the time window"
    assert build_tenants_table(before).note == "known after the memory window"
    assert get_verdict(before) == ""


def test_what_never_came_is_said(before: LiveSnapshot) -> None:
    over = LiveSnapshot(state=before.state, job=JobState(ours=True, code=1))
    assert build_ledger_table(over).note == "no time window"
    busy = LiveSnapshot(state=before.state, measured=LiveReport(busy=True))
    assert build_tenants_table(busy).note == "measuring"


def test_numbers_are_leaves_of_the_report(
    before: LiveSnapshot, tree: dict[str, Any], alone: LoadedRun
) -> None:
    seen = LiveSnapshot(state=before.state, measured=LiveReport(tree=tree))
    for table in (build_ledger_table(seen), build_tenants_table(seen)):
        assert table.figures()
        hold(tree, table.figures())
        assert all(
            "report" in explain_number(number) or number.leaves[0] in explain_number(number)
            for number in table.figures()
        )
    assert get_verdict(seen) == alone.report.verdict.sentence


def test_the_ledger_sums_to_the_step(before: LiveSnapshot, tree: dict[str, Any]) -> None:
    wall, *terms = build_ledger_table(LiveSnapshot(state=before.state, measured=LiveReport(tree=tree))).lines
    values = [number.value for line in terms for number in line.cells[1:2] if hasattr(number, "value")]
    whole = getattr(wall.cells[1], "value", None)
    assert sum(value or 0 for value in values) == pytest.approx(whole, rel=1e-3)


def test_the_tenants_are_those_of_the_highest_peak(before: LiveSnapshot, tree: dict[str, Any]) -> None:
    peaks = [rank["peak_bytes"] for rank in tree["memory"]["per_rank"]]
    highest = peaks.index(max(peaks))
    table = build_tenants_table(LiveSnapshot(state=before.state, measured=LiveReport(tree=tree)))
    assert [line.key for line in table.lines] == [
        "peak_bytes",
        *(f"tenants.{tenant}" for tenant in Tenant),
        "untagged_bytes",
    ]
    assert all(f"per_rank[{highest}]" in leaf for number in table.figures() for leaf in number.leaves)
    assert table.note.startswith(f"rank {tree['memory']['per_rank'][highest]['rank']}, ")


def test_a_report_without_the_time_window_has_no_ledger_yet(
    before: LiveSnapshot, tree: dict[str, Any]
) -> None:
    part = tree | {"time": tree["time"] | {"per_rank": []}, "run": tree["run"] | {"steps": []}}
    seen = LiveSnapshot(state=before.state, measured=LiveReport(tree=part))
    assert set(texts(build_ledger_table(seen)).values()) == {"unknown"}
    assert build_ledger_table(seen).note == "known after the time window"
    assert "unknown" not in texts(build_tenants_table(seen)).values()
    assert get_verdict(seen) == ""


def test_gaps_are_told(before: LiveSnapshot, tree: dict[str, Any]) -> None:
    assert "nothing so far" in format_gaps(before)
    seen = LiveSnapshot(state=before.state, measured=LiveReport(tree=tree))
    assert all(gap["reason"] in format_gaps(seen) for gap in tree["gaps"])
