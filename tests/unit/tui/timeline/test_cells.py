"""Glyphs and names in the cells of a lane."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.model.formatting import display_width
from zprof.tui.timeline.lane import Kind, Lane, LaneKind, Role, build_cover, build_items, compute_columns
from zprof.tui.timeline.view import make_first_view
from zprof.tui.widgets.lane_paint import (
    GLYPHS,
    find_ticks,
    format_ruler,
    pick_glyph,
    pick_glyphs,
    write_names,
)

names = st.text(max_size=12)


def named(spans: list[tuple[int, int, str]], kind: LaneKind = LaneKind.PHASES) -> Lane:
    start = np.array([begin for begin, _, _ in spans], dtype=np.int64)
    end = np.array([stop for _, stop, _ in spans], dtype=np.int64)
    kinds = np.full(len(spans), Kind.RANGE, dtype=np.int8)
    items = build_items(start, end, np.arange(len(spans)), kinds)
    texts = tuple(text for _, _, text in spans)
    return Lane(key="phase", label="phase", title="phases", kind=kind, covers={}, items=items, names=texts)


def line(lane: Lane, length: int, width: int) -> str:
    return "".join(write_names(lane, make_first_view(length), width, ascii_only=True))


def test_each_role_has_its_own_glyph_and_letter() -> None:
    """By eighths compute passes through the glyph that copies have: they stand on lanes of their own."""
    for column in (1, 3):
        assert len({row[column] for row in GLYPHS.values()} | {"·", "."}) >= len(GLYPHS)
    assert set(GLYPHS) == set(Role)
    assert all(text.isascii() for row in GLYPHS.values() for text in row[2:])
    letters = [row[2:] for row in GLYPHS.values()]
    assert not any(set(a) & set(b) for i, a in enumerate(letters) for b in letters[i + 1 :])


@pytest.mark.parametrize(("share", "shown"), [(0.01, "▁"), (0.125, "▁"), (0.13, "▂"), (0.5, "▄"), (1.0, "█")])
def test_compute_fills_a_cell_by_eighths(share: float, shown: str) -> None:
    assert pick_glyph(Role.COMPUTE, share, ascii_only=False) == shown


def test_a_lane_is_drawn() -> None:
    spans = np.array([[0, 10], [20, 25]], dtype=np.int64)
    lane = Lane(
        key="s",
        label="s",
        title="s",
        kind=LaneKind.STREAM,
        covers={Role.COMPUTE: build_cover(spans), Role.TRANSFER: build_cover(np.array([[30, 40]]))},
        items=named([]).items,
        shows_idle=True,
    )
    columns = compute_columns(lane, make_first_view(40).edges(4))
    assert "".join(text for text, _ in pick_glyphs(lane, columns, "·", ascii_only=False)) == "█·▄━"
    assert "".join(text for text, _ in pick_glyphs(lane, columns, ".", ascii_only=True)) == "#.#="


def test_names_begin_where_they_do_and_end_at_the_next() -> None:
    lane = named([(0, 40, "forward"), (40, 70, "backward"), (70, 80, "optimizer"), (90, 100, "forward")])
    assert line(lane, 100, 50) == "|forward            |backward      |opt…     |for…"


def test_units_are_cut_in_front() -> None:
    lane = named([(0, 10, "layers.10"), (10, 20, "layers.11")], LaneKind.UNITS)
    assert line(lane, 20, 24) == "|layers.10  |layers.11  "
    assert line(lane, 20, 14) == "|10    |11    "
    assert line(lane, 20, 6) == "|10|11"
    assert line(lane, 20, 4) == "| | "
    wide = named([(0, 20, "down_proj")], LaneKind.UNITS)
    assert line(wide, 20, 8) == "|…n_proj"


def test_a_name_ends_where_the_next_begins() -> None:
    """Both in one column: the end of the first does not cut the second."""
    lane = named([(0, 47, "forward"), (47, 100, "backward")])
    assert line(lane, 100, 20) == "|forward |backward  "
    lane = named([(0, 46, "forward"), (49, 100, "backward")])
    assert line(lane, 100, 20) == "|forward |backward  "


def test_many_names_in_few_columns_are_bars() -> None:
    lane = named([(place, place + 1, "x" * 9) for place in range(1000)])
    assert line(lane, 1000, 20) == "|" * 20


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30), names), max_size=8),
    st.integers(8, 40),
)
def test_names_never_steer_and_fill_the_line(spans: list[tuple[int, int, str]], width: int) -> None:
    lane = named([(begin, begin + length, text) for begin, length, text in spans])
    shown = write_names(lane, make_first_view(60), width, ascii_only=False)
    assert len(shown) == width
    assert display_width("".join(shown)) == width
    assert not any(character in "".join(shown) for character in "\x1b\n\r\u202e")


@pytest.mark.parametrize("width", [8, 66, 186])
@pytest.mark.parametrize("length", [1, 999, 10_000, 570_000_000, 90_000_000_000])
def test_ticks_stand_at_their_times(length: int, width: int) -> None:
    view = make_first_view(length)
    for column, label in find_ticks(view, width):
        first, last = (view.begin_ns + view.span_ns * edge / width for edge in (column, column + 1))
        assert first - 1 <= float(label) * 1e6 <= last + 1
    assert len(format_ruler(view, width)) == width


def test_a_zoomed_ruler_counts_from_the_begin_of_the_step() -> None:
    view = make_first_view(570_000_000).at(300_000_000)
    for _ in range(12):
        view = view.zoomed(0.5)
    labels = [float(label) for _, label in find_ticks(view, 66)]
    assert labels == sorted(labels)
    assert labels
    assert all(view.begin_ns <= label * 1e6 < view.end_ns for label in labels)


def test_a_name_of_a_stranger_is_shown_as_its_escapes() -> None:
    assert line(named([(0, 10, "a\x1b[2Jb\u202e\n")]), 10, 30).rstrip() == r"|a\x1b[2Jb\u202e\x0a"
