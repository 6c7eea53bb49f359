"""How figures of a plan read: the paper's own digits, one unit a table, unknown is no number."""

import pytest

from zprof.reports.presenters.plan_words import (
    Scale,
    count_words,
    joined,
    round_size,
    scaled,
    signed_percent,
    size_scale,
    time_scale,
    time_words,
    with_unit,
)

GB = Scale(of=1e9, unit="GB")


@pytest.mark.parametrize(
    ("size_bytes", "written"),
    [
        (120_000_000_000, "120"),
        (31_406_250_000, "31.4"),
        (16_640_625_000, "16.6"),
        (1_875_000_000, "1.9"),
        (234_375_000, "0.23"),
        (15_000_000, "0.01"),
        (3_000_000, "0.0030"),
        (10, "<0.0001"),
        (0, "0"),
        (16_000_000_000_000, "16,000"),
        (-2_500_000_000, "-2.5"),
        (None, "-"),
    ],
)
def test_sizes_read_as_the_paper_prints_them(size_bytes: int | None, written: str) -> None:
    assert scaled(size_bytes, GB) == written


@pytest.mark.parametrize(("most", "unit"), [(10**9, "GB"), (10**9 - 1, "MB"), (5_000, "KB"), (12, "B")])
def test_a_table_has_the_unit_that_suits_its_largest(most: int, unit: str) -> None:
    assert size_scale([None, 1, most]).unit == unit


def test_a_table_of_unknown_or_nothing_is_in_gb() -> None:
    assert size_scale([None]).unit == size_scale([0]).unit == size_scale([]).unit == "GB"


@pytest.mark.parametrize(
    ("time_ns", "written"),
    [(146_300_000, "146 ms"), (60_000_000_000, "60.0 s"), (9_999_000_000, "9,999 ms"), (2_000, "2.0 µs")],
)
def test_times(time_ns: int, written: str) -> None:
    assert time_words(time_ns) == written
    assert time_scale([time_ns, None]).unit == written.split()[1]


@pytest.mark.parametrize(
    ("count", "written"),
    [
        (7.642e9, "7.6B"),
        (128e9, "128B"),
        (1.00663e12, "1.0T"),
        (999.9e6, "1.0B"),
        (350e6, "350M"),
        (999, "999"),
        (None, "-"),
    ],
)
def test_counts(count: float | None, written: str) -> None:
    assert count_words(count) == written


def test_what_stands_alone_has_its_unit() -> None:
    assert with_unit(31_406_250_000, GB) == "31.4 GB"
    assert with_unit(None, GB) == time_words(None) == "-"
    assert [round_size(size) for size in (32 * 10**9, 40_500_000_000)] == ["32 GB", "40.5 GB"]


@pytest.mark.parametrize(
    ("ratio", "written"),
    [(0.0231, "+2.3 %"), (-0.0231, "-2.3 %"), (-0.0004, "0.0 %"), (0.0004, "0.0 %"), (None, "-")],
)
def test_a_difference_has_its_sign_and_nothing_has_none(ratio: float | None, written: str) -> None:
    assert signed_percent(ratio) == written


def test_names_in_a_sentence() -> None:
    assert [joined(names) for names in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
