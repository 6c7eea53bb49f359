"""Cells of two numbers, and bars: both numbers are the report's, and a bar is as long as it says."""

import pytest

from zprof.tui.figures import Figure, Unit, figure, make_range
from zprof.tui.tables import BarCell
from zprof.tui.theme import Look
from zprof.tui.widgets.text import render_bar

TREE = {"saving_ns": [31_900_000, 125_800_000], "small": [800_000, 1_200_000], "none": [None, None]}


def both(name: str, unit: Unit = Unit.NS) -> tuple[Figure, Figure]:
    low, high = (figure(TREE, unit, f"{name}[{end}]") for end in (0, 1))
    return low, high


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("saving_ns", "31.9..125.8 ms"),
        ("small", "800.0 µs..1.2 ms"),
        ("none", "unknown"),
    ],
)
def test_a_range_names_its_unit_once(name: str, text: str) -> None:
    assert make_range(*both(name)).text == text


def test_equal_ends_are_one_number() -> None:
    low, _ = both("small")
    assert make_range(low, low).text == "800.0 µs"


def test_both_ends_are_held_against_the_report() -> None:
    low, high = both("saving_ns")
    assert [found.leaves for found in make_range(low, high).in_report()] == [low.leaves, high.leaves]
    assert make_range(low, high).value == 125_800_000, "tables sort by the upper end"


@pytest.mark.parametrize(
    ("segments", "text"),
    [
        ((("compute_ns", 0.0, 1.0),), "██████████"),
        ((("compute_ns", 0.5, 1.0),), "     █████"),
        ((("compute_ns", 0.5, 0.501),), "     █"),
        ((("compute_ns", 1.0, 1.0),), "         █"),
        ((("compute_ns", 0.0, 0.6), ("idle_ns", 0.6, 1.0)), "██████····"),
        ((("compute_ns", 0.0, 0.34), ("idle_ns", 0.34, 0.35), ("exposed_wait_ns", 0.35, 1.0)), "███·▒▒▒▒▒▒"),
        ((), ""),
    ],
)
def test_segments_stand_at_their_places(segments: tuple[tuple[str, float, float], ...], text: str) -> None:
    assert render_bar(BarCell("", segments=segments), 10, Look.MONO, ascii_only=False).plain == text


def test_letters_without_glyphs_and_longer_where_there_is_room() -> None:
    bar = BarCell("", segments=(("exposed_transfer_ns", 0.0, 1.0),), columns=10)
    assert render_bar(bar, 10, Look.DARK, ascii_only=True).plain == "=" * 10
    assert bar.columns_at(80) == 10
    assert bar.columns_at(200) == 70
    assert bar.columns_at(60) == 10
