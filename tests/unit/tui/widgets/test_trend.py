"""Live bytes over time as they are drawn: the peak is marked, phases are named."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.full_memories import full_memory
from tests.support.tui_memory import timeline_of
from zprof.tui.presenters.memory_timeline import Curve
from zprof.tui.theme import TENANTS, Look
from zprof.tui.widgets.stacked_bars import Pen
from zprof.tui.widgets.trend import draw_trend, gutter_width, pick_points


def drawn(
    curve: Curve, point: int | None = None, *, rows: int = 4, width: int = 80, **pen: bool
) -> list[str]:
    how = Pen(look=Look.DARK, ascii_only=pen.get("ascii_only", False), focused=pen.get("focused", False))
    lines = draw_trend(curve, curve.peak if point is None else point, rows, width, how)
    return [line.plain for line in lines]


FULL = Curve(timeline=full_memory().timelines[0], place=0)


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=240), st.integers(40, 200), st.integers(1, 12))
def test_the_peak_is_drawn_however_short_it_is(heights: list[int], width: int, rows: int) -> None:
    lines = drawn(Curve(timeline=timeline_of(heights), place=0), rows=rows, width=width)
    assert lines[1].count("▼") == 1
    assert max(map(len, lines)) <= width


def test_one_high_point_among_many_is_seen() -> None:
    heights = [1000] * 240
    heights[133] = 4_000_000
    lines = drawn(Curve(timeline=timeline_of(heights), place=0))
    assert lines[0] == "  live bytes, rank 1: peak 3.8 MiB at 133.0 µs"
    assert lines[1].startswith(" 3.8 MiB│")
    assert lines[1].count("▼") == 1
    column = lines[1].index("▼")
    assert all(line[column] == TENANTS["activations"].glyph for line in lines[2:5])


def test_phases_are_named_and_on_tall_screens_steps_too() -> None:
    small, tall = "\n".join(drawn(FULL)), "\n".join(drawn(FULL, rows=8))
    assert all(f"╵{name}" in small for name in ("forward", "backward", "optimizer"))
    assert "╵step 3" in tall
    assert "╵step 3" not in small


def test_the_point_under_the_cursor_is_told_of() -> None:
    lines = drawn(FULL, 2, focused=True)
    assert "at 20.0 ms · step 3 optimizer · optimizer state" in lines[0]
    column = lines[-1].index("▲") - gutter_width(FULL)
    assert pick_points(FULL, 80)[column] == 2
    assert "▲" not in "".join(drawn(FULL, 2))


def test_of_whom_it_is_where_a_rank_has_none() -> None:
    lines = drawn(replace(FULL, instead_of=5), width=100)
    assert lines[0].startswith("  live bytes, rank 1 (none is kept of rank 5): peak")


@pytest.mark.parametrize("focused", [False, True])
def test_in_ascii(focused: bool) -> None:
    lines = drawn(FULL, ascii_only=True, focused=focused)
    assert "".join(lines[1:]).isascii()
    assert "'optimizer" in lines[-1]
    assert ("^" in lines[-1]) == focused
    assert lines[1].count("v") == 1
    assert set("".join(line.partition("|")[2] for line in lines[1:5])) <= set("PGOATC? v")
