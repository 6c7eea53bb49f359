"""What a new baseline changes in an old one, and which conditions make two incomparable."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.check_runs import Made
from zprof.checks.baseline import (
    compare_figures,
    find_condition_differences,
    list_bounds,
)
from zprof.model.baseline import Conditions

BASE = Made().baseline


def changes(after: Made, before: Made | None = None) -> dict[str, tuple[Any, Any]]:
    rows = compare_figures(BASE if before is None else before.baseline, after.baseline)
    return {row.name: (row.a, row.b) for row in rows if row.a != row.b}


def test_each_change_has_both_values_in_its_unit() -> None:
    after = Made(peaks=(1100, 900), walls=(200_000_000,) * 8)
    found = changes(after)
    assert found["peak_memory"] == (1000, 1100)
    assert found["step_time"] == (100_000_000, 200_000_000)
    assert found["exposed_ratio"] == (0.2, 0.1)
    assert "exposed_wait" not in found
    units = {row.name: row.unit for row in compare_figures(BASE, after.baseline)}
    assert [units[name] for name in ("peak_memory", "step_time", "exposed_ratio")] == ["bytes", "ns", "ratio"]


def test_what_only_one_has_is_unknown_in_the_other() -> None:
    fewer = Made(memory=False, collectives=(("all_gather", "float32", 20.0, 1200),))
    found = changes(fewer)
    assert found["peak_memory"] == (1000, None)
    assert found["all_gather count (float32, 2 ranks)"] == (18.0, 20.0)
    assert found["reduce_scatter bytes (float32, 2 ranks)"] == (600, None)
    assert changes(Made(), fewer)["peak_memory"] == (None, 1000)


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
            Made(collectives=(("all_gather", "float32", 18.0, 0),)),
            ("all_gather bytes (float32, 2 ranks), only", "a lower bound"),
        ),
    ],
)
def test_what_makes_a_check_judge_less_is_listed(made: Made, row: tuple[str, str]) -> None:
    assert changes(made)[row[0]] == (None, row[1])
    assert " ".join(row) in list_bounds(made.baseline)
    assert not list_bounds(BASE)


HERE = Conditions(
    device="cpu", backend="gloo", world_size=4, engine="reference", stage=3, torch="2.13.0+cpu",
    modelled=("link of 50.0 MB/s",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sides"),
    [
        ({"world_size": 2}, ("4", "2")),
        ({"device": "cuda (H200)"}, ("cpu", "cuda (H200)")),
        ({"backend": "nccl"}, ("gloo", "nccl")),
        ({"engine": "FSDP2"}, ("reference", "FSDP2")),
        ({"stage": None}, ("3", "unknown")),
        ({"stage": 0}, ("3", "0")),
        ({"torch": "2.13.1+cpu"}, ("2.13.0", "2.13.1")),
        ({"torch": ""}, ("2.13.0", "unknown")),
        ({"modelled": ()}, ("50.0 MB/s", "nothing")),
        ({"window": "trace"}, ("step by step", "one interval")),
    ],
)
def test_each_difference_is_one_phrase_with_both_sides(
    change: dict[str, Any], sides: tuple[str, str]
) -> None:
    (phrase,) = find_condition_differences(replace(HERE, **change), HERE)
    now, before = phrase.split(", ")
    assert sides[0] in now
    assert sides[1] in before


def test_builds_of_torch_and_planted_causes_are_no_conditions() -> None:
    planted = ("planted no_prefetch: every unit is gathered late", *HERE.modelled, "straggler: rank 1 late")
    for alike in ({}, {"torch": "2.13.0+cu130"}, {"modelled": planted}):
        assert find_condition_differences(HERE, replace(HERE, **alike)) == ()  # type: ignore[arg-type]
