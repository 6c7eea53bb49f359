"""What a new baseline changes in an old one, leaf by leaf."""

from dataclasses import replace

import pytest

from tests.support.check_runs import ENVIRONMENT, Made
from zprof.checks.baseline import make_baseline
from zprof.checks.baseline_comparison import compare_figures, list_bounds, list_changes, other_conditions
from zprof.model.baseline import Baseline


def baseline(made: Made) -> Baseline:
    return make_baseline(made.report, ENVIRONMENT, made.name)


def test_equal_baselines_change_nothing() -> None:
    assert list_changes(baseline(Made()), baseline(Made())) == ()
    assert len(compare_figures(baseline(Made()), baseline(Made()))) > 10


def test_each_change_is_a_row_with_both_values() -> None:
    after = Made(peaks=(1100, 900), walls=(200_000_000,) * 8)
    found = {row.name: (row.unit, row.a, row.b) for row in list_changes(baseline(Made()), baseline(after))}
    assert found["peak_memory"] == ("bytes", 1000, 1100)
    assert found["step_time"] == ("ns", 100_000_000, 200_000_000)
    assert found["exposed_ratio"] == ("ratio", 0.2, 0.1)
    assert "exposed_wait" not in found
    assert "all_gather count (float32, 2 ranks)" not in found


def test_what_only_one_has_is_unknown_in_the_other() -> None:
    fewer = Made(memory=False, collectives=(("all_gather", "float32", 20.0, 1200),))
    found = {row.name: (row.a, row.b) for row in list_changes(baseline(Made()), baseline(fewer))}
    assert found["peak_memory"] == (1000, None)
    assert found["all_gather count (float32, 2 ranks)"] == (18.0, 20.0)
    assert found["reduce_scatter bytes (float32, 2 ranks)"] == (600, None)
    back = {row.name: (row.a, row.b) for row in list_changes(baseline(fewer), baseline(Made()))}
    assert back["peak_memory"] == (None, 1000)


@pytest.mark.parametrize(
    ("made", "row"),
    [
        (Made(upper_memory=True), ("peak_memory, only", "an upper bound")),
        (Made(lower_memory=True), ("peak_memory, only", "a lower bound")),
        (Made(upper_time=True), ("exposed times, only", "an upper bound")),
        (Made(unsplit=1), ("exposed_wait, only", "a lower bound")),
        (Made(timed=(0,)), ("timed steps, without", "rank 1")),
        (Made(peaks=(1000,)), ("peak_memory, without", "rank 1")),
        (
            Made(collectives=(("all_gather", "float32", 18.0, 0), ("reduce_scatter", "float32", 9.0, 600))),
            ("all_gather bytes (float32, 2 ranks), only", "a lower bound"),
        ),
    ],
)
def test_what_makes_a_check_judge_less_is_a_row_and_a_doubt(made: Made, row: tuple[str, str]) -> None:
    found = [(change.name, change.a, change.b) for change in list_changes(baseline(Made()), baseline(made))]
    assert (row[0], None, row[1]) in found
    assert " ".join(row) in list_bounds(baseline(made))
    assert not list_bounds(baseline(Made()))


def test_the_window_is_a_row() -> None:
    before = baseline(Made())
    after = replace(before, conditions=replace(before.conditions, window="trace"))
    assert [(row.name, row.a, row.b) for row in list_changes(before, after)] == [("window", "step", "trace")]


def test_conditions_are_told_apart() -> None:
    before = baseline(Made())
    after = replace(before, conditions=replace(before.conditions, torch="2.8.0", stage=2))
    assert other_conditions(before, before) == ()
    assert len(other_conditions(before, after)) == 2
    assert {row.name for row in list_changes(before, after)} == {"stage", "torch"}
