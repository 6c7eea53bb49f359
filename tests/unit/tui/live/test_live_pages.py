"""Ledger and tenants of the live view: unknown until their window is over, then leaves of the report."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.growing_run import GrowingRun
from tests.unit.tui.test_every_number import hold
from zprof.model.json_tree import to_json as render
from zprof.model.tenants import Tenant
from zprof.run.live import LiveRun
from zprof.tui.live.pages import gaps_text, ledger_table, said_of, tenants_table, verdict_text
from zprof.tui.live.seen import Job, Measured, Seen
from zprof.tui.session import Loaded
from zprof.tui.tables import Table


@pytest.fixture(scope="module")
def tree(alone: Loaded) -> dict[str, Any]:
    """The report on a finished run, as JSON."""
    return dict(json.loads(render(alone.report)))


@pytest.fixture
def before(tmp_path: Path) -> Seen:
    """A run whose first step is over."""
    run = GrowingRun(tmp_path)
    run.step(0, 1, 1)
    return Seen(state=LiveRun(tmp_path).look())


def texts(table: Table) -> dict[str, str]:
    return {line.key: line.cells[1].text for line in table.lines}


def test_all_is_unknown_at_first(before: Seen) -> None:
    assert set(texts(ledger_table(before)).values()) == {"unknown"}
    assert set(texts(tenants_table(before)).values()) == {"unknown"}
    assert ledger_table(before).note == "known after the time window"
    assert tenants_table(before).note == "known after the memory window"
    assert verdict_text(before) == ""


def test_what_never_came_is_said(before: Seen) -> None:
    over = Seen(state=before.state, job=Job(ours=True, code=1))
    assert ledger_table(over).note == "no time window"
    busy = Seen(state=before.state, measured=Measured(busy=True))
    assert tenants_table(busy).note == "measuring"


def test_numbers_are_leaves_of_the_report(before: Seen, tree: dict[str, Any], alone: Loaded) -> None:
    seen = Seen(state=before.state, measured=Measured(tree=tree))
    for table in (ledger_table(seen), tenants_table(seen)):
        assert table.figures()
        hold(tree, table.figures())
        assert all(
            "report" in said_of(number) or number.leaves[0] in said_of(number) for number in table.figures()
        )
    assert verdict_text(seen) == alone.report.verdict.sentence


def test_the_ledger_sums_to_the_step(before: Seen, tree: dict[str, Any]) -> None:
    wall, *terms = ledger_table(Seen(state=before.state, measured=Measured(tree=tree))).lines
    values = [number.value for line in terms for number in line.cells[1:2] if hasattr(number, "value")]
    whole = getattr(wall.cells[1], "value", None)
    assert sum(value or 0 for value in values) == pytest.approx(whole, rel=1e-3)


def test_the_tenants_are_those_of_the_highest_peak(before: Seen, tree: dict[str, Any]) -> None:
    peaks = [rank["peak_bytes"] for rank in tree["memory"]["per_rank"]]
    highest = peaks.index(max(peaks))
    table = tenants_table(Seen(state=before.state, measured=Measured(tree=tree)))
    assert [line.key for line in table.lines] == [
        "peak_bytes",
        *(f"tenants.{tenant}" for tenant in Tenant),
        "untagged_bytes",
    ]
    assert all(f"per_rank[{highest}]" in leaf for number in table.figures() for leaf in number.leaves)
    assert table.note.startswith(f"rank {tree['memory']['per_rank'][highest]['rank']}, ")


def test_a_report_without_the_time_window_has_no_ledger_yet(before: Seen, tree: dict[str, Any]) -> None:
    part = tree | {"time": tree["time"] | {"per_rank": []}, "run": tree["run"] | {"steps": []}}
    seen = Seen(state=before.state, measured=Measured(tree=part))
    assert set(texts(ledger_table(seen)).values()) == {"unknown"}
    assert ledger_table(seen).note == "known after the time window"
    assert "unknown" not in texts(tenants_table(seen)).values()
    assert verdict_text(seen) == ""


def test_gaps_are_told(before: Seen, tree: dict[str, Any]) -> None:
    assert "nothing so far" in gaps_text(before)
    seen = Seen(state=before.state, measured=Measured(tree=tree))
    assert all(gap["reason"] in gaps_text(seen) for gap in tree["gaps"])
