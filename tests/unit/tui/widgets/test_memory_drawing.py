"""Bars and curve of memory as they are drawn: glyphs and letters, one scale, the peak is marked."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.full_memories import full_memory
from tests.support.tui_memory import of_ranks, on_a_device, timeline_of, with_memory
from zprof.model.memory import Memory
from zprof.reports.pages.memory_timeline import Curve
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.theme import TENANTS, Look, Pen
from zprof.tui.widgets.stacked_bars import Stacks, build_stacks, draw_bars
from zprof.tui.widgets.trend import compute_gutter_width, draw_trend, pick_points

PLAIN = Pen(look=Look.DARK, ascii_only=False, focused=False)
FOCUSED = replace(PLAIN, focused=True)
ASCII = Pen(look=Look.DARK, ascii_only=True, focused=True)
FULL = Curve(timeline=full_memory().timelines[0], index=0)
LETTERS = set("PGOATC?.:")


def stacks(loaded: LoadedRun, memory: Memory) -> Stacks:
    drawn = build_stacks(with_memory(loaded, memory).report, Selection(rank=1))
    return drawn


def bars(drawn: Stacks, pen: Pen = PLAIN, width: int = 80, most: int = 4) -> list[str]:
    return [line.plain for line in draw_bars(drawn, width, most, 1, 0, pen)]


def bar_of(lines: list[str], rank: int, end: str = "│") -> str:
    """Return what is drawn between a rank's name and the end of its bar."""
    line = next(line for line in lines if f" rank {rank} " in line[:12])
    return line[line.index(f"rank {rank}") + 10 : line.index(end)]


def trend(
    curve: Curve, pen: Pen = PLAIN, point: int | None = None, rows: int = 4, width: int = 80
) -> list[str]:
    return [
        line.plain for line in draw_trend(curve, curve.peak if point is None else point, rows, width, pen)
    ]


def test_parts_stand_in_order_and_are_as_long_as_their_share(alone: LoadedRun) -> None:
    drawn = bar_of(bars(stacks(alone, on_a_device())), 1)
    order = [paint.glyph for paint in TENANTS.values()]
    known = [sign for sign in drawn if sign != " "]
    assert known == sorted(known, key=order.index)
    assert drawn.count(TENANTS["non_pytorch"].glyph) > drawn.count(TENANTS["activations"].glyph)
    assert drawn.endswith(" "), "the device has more"
    lines = bars(stacks(alone, of_ranks(3)))
    assert " " not in bar_of(lines, 1)
    assert " " in bar_of(lines, 2)


def test_in_ascii_parts_have_letters_and_without_colours_the_same_is_drawn(alone: LoadedRun) -> None:
    drawn = stacks(alone, full_memory())
    lines = bars(drawn, ASCII)
    assert {"P"} <= set(bar_of(lines, 1, "|").strip()) <= LETTERS
    assert "".join(lines).replace("·", "").isascii()
    assert (
        bars(drawn)
        == bars(drawn, replace(PLAIN, look=Look.MONO))
        == bars(drawn, replace(PLAIN, look=Look.LIGHT))
    )


@settings(max_examples=40)
@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=240), st.integers(40, 200), st.integers(1, 12))
def test_the_peak_is_marked_however_short_it_is(heights: list[int], width: int, rows: int) -> None:
    curve = Curve(timeline=timeline_of(heights), index=0)
    lines = trend(curve, rows=rows, width=width)
    assert lines[1].count("▼") == 1
    assert max(map(len, lines)) <= width
    column = lines[1].index("▼")
    assert heights[pick_points(curve, width)[column - compute_gutter_width(curve)]] == max(heights)
    assert all(line[column] == TENANTS["activations"].glyph for line in lines[2 : rows + 1])


def test_the_point_under_the_cursor_and_a_rank_that_stands_in_are_named() -> None:
    lines = trend(FULL, FOCUSED, 2)
    assert all(part in lines[0] for part in ("20.0 ms", "step 3 optimizer", "rank 1"))
    column = lines[-1].index("▲") - compute_gutter_width(FULL)
    assert pick_points(FULL, 80)[column] == 2
    assert "▲" not in "".join(trend(FULL, PLAIN, 2))
    assert "rank 5" in trend(replace(FULL, instead_of=5), width=100)[0]
