"""The bars as they are drawn: glyphs and letters, one scale, as many ranks as fit."""

import pytest

from tests.support.full_memories import full_memory
from tests.support.tui_memory import of_ranks, on_a_device, with_memory
from zprof.model.memory import Memory
from zprof.tui.presenters.memory import Stacks, build_legend_table, build_stacks
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.theme import TENANTS, Look
from zprof.tui.widgets.stacked_bars import NOT_FOUND, Pen, draw_bars, find_item, layout_legend


def pen(look: Look = Look.DARK, *, ascii_only: bool = False, focused: bool = False) -> Pen:
    return Pen(look=look, ascii_only=ascii_only, focused=focused)


def made(loaded: LoadedRun, memory: Memory, rank: int = 1) -> Stacks:
    drawn = build_stacks(with_memory(loaded, memory), Selection(rank=rank))
    assert drawn is not None
    return drawn


def text_of(drawn: Stacks, how: Pen | None = None, width: int = 80, most: int = 4) -> str:
    lines = draw_bars(drawn, width, most, 1, 0, how or pen())
    return "\n".join(line.plain for line in lines)


def bar_of(text: str, rank: int, end: str = "│") -> str:
    """What is drawn between a rank's name and the end of its bar."""
    line = next(line for line in text.splitlines() if f" rank {rank} " in line[:12])
    return line[line.index(f"rank {rank}") + 10 : line.index(end)]


def test_parts_have_their_glyphs_in_order(alone: LoadedRun) -> None:
    drawn = bar_of(text_of(made(alone, on_a_device())), 1)
    order = [paint.glyph for paint in TENANTS.values()]
    known = [sign for sign in drawn if sign != " "]
    assert known == sorted(known, key=order.index)
    assert drawn.count(TENANTS["non_pytorch"].glyph) > drawn.count(TENANTS["activations"].glyph)
    assert drawn.endswith(" ")  # the device has more


def test_in_ascii_parts_have_their_letters(alone: LoadedRun) -> None:
    text = text_of(made(alone, full_memory()), pen(ascii_only=True, focused=True))
    drawn = bar_of(text, 1, "|").strip()
    assert set(drawn) <= set("PGOATC?.:")
    assert "P" in drawn
    assert "C comm. buffers 8.0 MiB" in text
    assert text.replace("·", "").isascii()


def test_without_colours_the_same_is_said(alone: LoadedRun) -> None:
    drawn = made(alone, full_memory())
    assert text_of(drawn) == text_of(drawn, pen(Look.MONO)) == text_of(drawn, pen(Look.LIGHT))


def test_a_bar_is_as_long_as_its_share(alone: LoadedRun) -> None:
    text = text_of(made(alone, of_ranks(3)))
    assert " " not in bar_of(text, 1)
    assert " " in bar_of(text, 2)
    assert len(bar_of(text, 1)) == len(bar_of(text, 2))


def test_of_many_ranks_some_are_shown_and_it_is_said(alone: LoadedRun) -> None:
    drawn = made(alone, of_ranks(64))
    assert "4 of 64 ranks" in text_of(drawn)
    begins = [line[:12] for line in text_of(drawn).splitlines()[1:5]]
    assert begins == ["▶ rank 1    ", "  rank 61   ", "  rank 62   ", "  rank 63   "]
    assert "12 of 64 ranks" in text_of(drawn, most=12)


@pytest.mark.parametrize(("width", "rows"), [(40, 7), (80, 3), (120, 2), (200, 1)])
def test_the_legend_takes_as_few_rows_as_fit(alone: LoadedRun, width: int, rows: int) -> None:
    table = build_legend_table(alone, alone.report.memory.per_rank[0], 0)
    placed = layout_legend(table.lines, width)
    assert len(placed) <= rows
    assert [place for row in placed for place, _, _ in row] == list(range(7))
    assert max(column + len(said) + 2 for row in placed for _, said, column in row) <= width
    place, _, column = placed[-1][-1]
    assert find_item(placed, len(placed) - 1, column + 1) == place
    assert find_item(placed, len(placed), 0) == NOT_FOUND


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_longer_than_the_room(alone: LoadedRun, width: int) -> None:
    for memory in (full_memory(), on_a_device(), of_ranks(64)):
        assert max(map(len, text_of(made(alone, memory), width=width).splitlines())) <= width
