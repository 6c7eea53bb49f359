"""Both runs row by row: what is no leaf of the report is held against the JSON of ``zprof compare``."""

import json
import re
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.unsplit_ranks import make_unsplit
from zprof.analysis.columns import Groups
from zprof.diagnosis.diagnose import diagnose_side_by_side
from zprof.model.comparison import Setting
from zprof.model.json_format import to_json
from zprof.model.quantities import Aggregation, Value
from zprof.reports.pages.compare_table import (
    CompareOptions,
    WordedValue,
    build_compare_table,
    build_settings_table,
    describe_compared,
)
from zprof.reports.table import Row, Table
from zprof.run.reader import load as open_run
from zprof.tui.session import LoadedRun, PendingAnalysis, make_row_judge
from zprof.tui.table_view import get_text

ALL, DIFFERING, TOKENS = (
    CompareOptions(),
    CompareOptions(only_differences=True),
    CompareOptions(per_token=True),
)
METRIC, A, B, CHANGE, INTERVAL, VERDICT = range(6)


@pytest.fixture(scope="module")
def compared(loaded: LoadedRun) -> Any:
    """The JSON of ``zprof compare``, of runs that are opened and measured anew."""
    report = diagnose_side_by_side(open_run(loaded.before_run.path), open_run(loaded.run.path))
    return json.loads(to_json(report))


def compare_table(loaded: LoadedRun, shown: CompareOptions) -> Table:
    judge = make_row_judge(loaded, per_work=shown.per_token)
    return build_compare_table(loaded.report, loaded.both, judge, shown)


def find_node(tree: Any, key: str) -> Any:
    found = re.fullmatch(r"(\w+)\[(\d+)\](?:\.(\w+)\[(\d+)\])?", key)
    assert found, key
    node = tree[found[1]][int(found[2])]
    return node[found[3]][int(found[4])] if found[3] else node


def find_line(table: Table, name: str) -> Row:
    return next(one for one in table.rows if get_text(one.cells[METRIC]) == name)


def read_verdicts(table: Table) -> dict[str, str]:
    """Return the word of each row's verdict, without its sign."""
    return {get_text(one.cells[METRIC]): get_text(one.cells[VERDICT]).split()[-1] for one in table.rows}


def format_change(a: float, b: float) -> str:
    """Return a change in words, worked out anew."""
    if not a:
        return "new" if b else ""
    if abs(b / a - 1) < 0.0005:
        return ""
    return f"x {b / a:.1f}" if b >= 2 * a else f"{(b / a - 1) * 100:+.1f} %"


def test_every_row_is_that_of_zprof_compare(loaded: LoadedRun, compared: Any) -> None:
    table = compare_table(loaded, ALL)
    assert len(table.rows) > 80
    for one in table.rows:
        row, change = find_node(compared, one.key), one.cells[CHANGE]
        for cell, value in ((one.cells[A], row["a"]), (one.cells[B], row["b"])):
            assert isinstance(cell, Value) == (row["unit"] != "text")
            if isinstance(cell, Value):
                off = 1 if row["unit"] in ("ns", "bytes") else 1e-9
                assert cell.number == (None if value is None else pytest.approx(value, abs=off)), one.key
                assert cell.unit.value == row["unit"]
        known = row["unit"] != "text" and None not in (row["a"], row["b"])
        assert isinstance(change, WordedValue) == known
        if isinstance(change, WordedValue) and row["unit"] == "ratio":
            assert change.number == pytest.approx(row["b"] - row["a"])
        elif isinstance(change, WordedValue):
            expected = row["b"] / row["a"] - 1 if row["a"] else None
            assert change.number == (None if expected is None else pytest.approx(expected))
            assert change.text == format_change(row["a"], row["b"])


def test_the_interval_of_the_hidden_share_is_that_of_the_steps(loaded: LoadedRun) -> None:
    shares = []
    for steps in (loaded.before.steps, loaded.analysis.steps):
        groups = Groups(steps.ints("step"))
        overlapped_ns, collective_ns = (
            groups.sum(steps.ints(name)) for name in ("overlapped_ns", "collective_ns")
        )
        shares.append(overlapped_ns / collective_ns)
    spread = sum(part.var(ddof=1) / len(part) for part in shares) ** 0.5
    change = shares[1].mean() - shares[0].mean()
    shown = get_text(find_line(compare_table(loaded, ALL), "hidden share").cells[INTERVAL])
    low, high = (int(end) / 100 for end in shown.removesuffix(" pt").split(".."))
    assert low == pytest.approx(change - 1.96 * spread, abs=0.01)
    assert high == pytest.approx(change + 1.96 * spread, abs=0.01)
    steps = loaded.before.steps
    first = steps.at(steps.ints("step") == steps.ints("step").min())
    few = replace(loaded, before=replace(loaded.before, steps=first))
    cells = find_line(compare_table(few, ALL), "hidden share").cells
    assert (get_text(cells[INTERVAL]), get_text(cells[VERDICT])) == ("", "not judged")


def test_a_term_is_judged_by_its_own_interval_not_by_that_of_the_step(loaded: LoadedRun) -> None:
    """A step time that varies by a second hides no change of a term that is the same in each step."""
    steps = loaded.analysis.steps.ints("step")
    before = loaded.before.steps
    before = before.with_columns(exposed_transfer_ns=np.full(len(before), 500_000_000))
    after = loaded.analysis.steps.with_columns(
        exposed_transfer_ns=np.full(len(steps), 900_000_000), wall_ns=1_000_000_000 * (steps % 2)
    )
    analysis = replace(loaded.analysis, steps=after)
    comparison = loaded.report.comparison
    wide = replace(comparison.step_time, ci95=(-int(1e9), int(1e9)))
    changed = replace(
        loaded,
        before=replace(loaded.before, steps=before),
        pending=PendingAnalysis(lambda: analysis),
        report=replace(loaded.report, comparison=replace(comparison, step_time=wide)),
    )
    table = compare_table(changed, ALL)
    line = find_line(table, "exposed transfer")
    assert get_text(line.cells[VERDICT]).split()[-1] in ("worse", "better")
    low, high = (float(end) for end in get_text(line.cells[INTERVAL]).removesuffix(" ms").split(".."))
    assert low <= 400 <= high < 500
    assert read_verdicts(table)["step time"] == "noise"


@pytest.mark.parametrize("side", [A, B], ids=["baseline", "run"])
def test_with_ranks_missing_on_a_side_waits_and_transfers_are_not_judged(
    loaded: LoadedRun, side: int
) -> None:
    report = loaded.report
    ranks = report.time.per_rank if side == B else report.comparison.baseline_time
    unsplit = make_unsplit(ranks)
    if side == B:
        report = replace(report, time=replace(report.time, per_rank=unsplit))
    else:
        report = replace(report, comparison=replace(report.comparison, baseline_time=unsplit))
    unsure = replace(loaded, report=report)
    table = compare_table(unsure, ALL)
    verdicts = read_verdicts(table)
    assert verdicts["exposed transfer"] == verdicts["exposed wait"] == "judged"
    assert verdicts["step time"] == verdicts["idle"] == "worse"
    for name, sign in (
        ("exposed transfer", "≤ "),
        ("exposed wait", "≥ "),
        ("all_gather transfer time", "≤ "),
    ):
        line = find_line(table, name)
        assert [get_text(cell).startswith(sign) for cell in line.cells[A : B + 1]] == [
            side == A,
            side == B,
        ], name
        assert sign in describe_compared(unsure.both, make_row_judge(unsure), line.key)[1]
    per_token = find_line(compare_table(unsure, TOKENS), "exposed transfer")
    assert get_text(per_token.cells[side]).startswith("≤ ")


def test_per_token_is_the_time_of_all_ranks_over_the_tokens(loaded: LoadedRun) -> None:
    table = compare_table(loaded, TOKENS)
    step = find_line(table, "rank time").cells[B]
    assert isinstance(step, Value)
    assert step.how is Aggregation.PER_WORK
    assert step.number == pytest.approx(sum(rank.wall_ns for rank in loaded.report.time.per_rank) / 64)
    verdicts, of_step = read_verdicts(table), read_verdicts(compare_table(loaded, ALL))
    for name, verdict in verdicts.items():
        assert verdict == of_step["step time" if name == "rank time" else name], "the same work in a step"
    assert {"peak memory"} <= set(verdicts)
    assert not {"step time", "all_gather exposed", "rank 0 compute"} & set(verdicts)


def test_settings_that_differ_come_first_and_names_are_escaped(loaded: LoadedRun, compared: Any) -> None:
    everything, differing = (build_settings_table(loaded.both, options) for options in (ALL, DIFFERING))
    assert [get_text(one.cells[METRIC]) for one in differing.rows] == ["stage", "modelled"]
    assert [one.key for one in everything.rows[:2]] == [one.key for one in differing.rows]
    assert len(everything.rows) == len(compared["settings"])
    for one in everything.rows:
        setting = find_node(compared, one.key)
        assert get_text(one.cells[2]).split()[-1] == ("same" if setting["a"] == setting["b"] else "differs")
    hostile = Setting(where="environment", name="X\x1b[2J", a="[bold]\n1", b="\u202e2")
    wild = replace(loaded, both=replace(loaded.both, settings=(hostile,)))
    cells = build_settings_table(wild.both, ALL).rows[0].cells
    assert [get_text(cell) for cell in cells[:2]] == ["X\\x1b[2J", "[bold]\\x0a1"]
    assert get_text(cells[3]) == "\\u202e2"
