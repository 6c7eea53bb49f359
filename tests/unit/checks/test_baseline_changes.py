"""What a new baseline changes in an old one, leaf by leaf."""

from dataclasses import replace

from tests.support.check_runs import ENVIRONMENT, Made
from zprof.checks.baseline import baseline_of
from zprof.checks.changes import changed, other_conditions, rows
from zprof.model.baseline import Baseline


def baseline(made: Made) -> Baseline:
    return baseline_of(made.report, ENVIRONMENT, made.name)


def test_equal_baselines_change_nothing() -> None:
    assert changed(baseline(Made()), baseline(Made())) == ()
    assert len(rows(baseline(Made()), baseline(Made()))) > 10


def test_each_change_is_a_row_with_both_values() -> None:
    after = Made(peaks=(1100, 900), walls=(200_000_000,) * 8)
    found = {row.name: (row.unit, row.a, row.b) for row in changed(baseline(Made()), baseline(after))}
    assert found["peak_memory"] == ("bytes", 1000, 1100)
    assert found["step_time"] == ("ns", 100_000_000, 200_000_000)
    assert found["exposed_ratio"] == ("ratio", 0.2, 0.1)
    assert "exposed_wait" not in found
    assert "all_gather count (float32, 2 ranks)" not in found


def test_what_only_one_has_is_unknown_in_the_other() -> None:
    fewer = Made(memory=False, collectives=(("all_gather", "float32", 20.0, 1200),))
    found = {row.name: (row.a, row.b) for row in changed(baseline(Made()), baseline(fewer))}
    assert found["peak_memory"] == (1000, None)
    assert found["all_gather count (float32, 2 ranks)"] == (18.0, 20.0)
    assert found["reduce_scatter bytes (float32, 2 ranks)"] == (600, None)
    back = {row.name: (row.a, row.b) for row in changed(baseline(fewer), baseline(Made()))}
    assert back["peak_memory"] == (None, 1000)


def test_conditions_are_told_apart() -> None:
    before = baseline(Made())
    after = replace(before, conditions=replace(before.conditions, torch="2.8.0", stage=2))
    assert other_conditions(before, before) == ()
    assert len(other_conditions(before, after)) == 2
    assert {row.name for row in changed(before, after)} == {"stage", "torch"}
