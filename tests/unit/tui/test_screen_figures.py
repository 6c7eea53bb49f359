"""Numbers of a screen are leaves of the report, or what is said of how they are made of leaves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.tui.figures import UNKNOWN, Aggregation, Figure, Unit, combine, figure, resolve

TREE = {
    "time": {
        "per_rank": [
            {"rank": 0, "wall_ns": 4_000_000, "compute_ns": 1_000_000, "overlap_ratio": None},
            {"rank": 1, "wall_ns": 6_000_000, "compute_ns": 3_000_000, "overlap_ratio": 0.25},
        ]
    },
    "tenants": {"parameters": 1024, "gradients": 2048},
    "name": "7",
    "bound": True,
}


@pytest.mark.parametrize(
    ("leaf", "values"),
    [
        ("time.per_rank[1].wall_ns", [6_000_000]),
        ("time.per_rank[*].wall_ns", [4_000_000, 6_000_000]),
        ("tenants[*]", [1024, 2048]),
        ("tenants.gradients", [2048]),
        ("time.per_rank[0].overlap_ratio", [None]),
        ("time.per_rank[2].wall_ns", [None]),
        ("time.nothing", [None]),
        ("name", [None]),
        ("bound", [None]),
    ],
)
def test_a_path_leads_to_numbers(leaf: str, values: list[float | None]) -> None:
    assert list(resolve(TREE, leaf)) == values


@pytest.mark.parametrize(
    ("how", "leaves", "value"),
    [
        (Aggregation.MEAN, ["time.per_rank[*].wall_ns"], 5_000_000),
        (Aggregation.SUM, ["time.per_rank[*].wall_ns"], 10_000_000),
        (Aggregation.LARGEST, ["time.per_rank[*].wall_ns"], 6_000_000),
        (Aggregation.SMALLEST, ["time.per_rank[*].wall_ns"], 4_000_000),
        (Aggregation.DIFFERENCE, ["time.per_rank[1].wall_ns", "time.per_rank[0].wall_ns"], 2_000_000),
        (Aggregation.SHARE, ["time.per_rank[*].compute_ns", "time.per_rank[*].wall_ns"], 0.4),
        (Aggregation.MEAN, ["time.per_rank[*].overlap_ratio"], 0.25),
        (Aggregation.SHARE, ["tenants.parameters", "nothing"], None),
        (Aggregation.DIFFERENCE, ["nothing", "tenants.parameters"], None),
        (Aggregation.MEAN, ["nothing"], None),
    ],
)
def test_leaves_are_combined(how: Aggregation, leaves: list[str], value: float | None) -> None:
    made = figure(TREE, Unit.NS, *leaves, how=how)
    assert made.value == (pytest.approx(value) if value is not None else None)
    assert made.leaves == tuple(leaves)


@pytest.mark.parametrize(
    ("value", "unit", "signed", "text"),
    [
        (412_000_000, Unit.NS, False, "412.0 ms"),
        (412_000_000, Unit.MS, True, "+412.0"),
        (-412_000_000, Unit.MS, True, "-412.0"),
        (0, Unit.MS, True, "0.0"),
        (400, Unit.MS, True, "0.0"),
        (1_572_864, Unit.BYTES, False, "1.5 MiB"),
        (0.384, Unit.RATIO, False, "38.4 %"),
        (96.0, Unit.COUNT, False, "96"),
        (72.4e9, Unit.BYTES_PER_S, False, "72.4 GB/s"),
        (1.5, Unit.FACTOR, False, "1.50x"),
        (None, Unit.NS, True, UNKNOWN),
    ],
)
def test_a_figure_reads_in_its_unit(value: float | None, unit: Unit, signed: bool, text: str) -> None:
    assert Figure(value=value, unit=unit, leaves=(), signed=signed).text == text


@given(st.lists(st.one_of(st.none(), st.floats(-1e15, 1e15)), max_size=20))
def test_unknown_is_never_zero(values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    for how in (Aggregation.SUM, Aggregation.MEAN, Aggregation.LARGEST, Aggregation.SMALLEST):
        made = combine(how, [values])
        assert (made is None) == (not known)
    if known:
        assert combine(Aggregation.SUM, [values]) == pytest.approx(math.fsum(known), abs=1e-3, rel=1e-9)
