"""The keys of the heat map: they move its cursor, fold it, and open what is under it."""

from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message

from zprof.tui.figures import Figure
from zprof.tui.heat_page import Cursor
from zprof.tui.keys import Where, bindings
from zprof.tui.widgets.heat_view import HeatView


class HeatMap(HeatView, can_focus=True):
    """What keys and the mouse do in a heat map."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.RANKS)]

    class Chosen(Message):
        """``enter`` on a cell: the rank and step of its number."""

        def __init__(self, rank: int, step: int | None) -> None:
            super().__init__()
            self.rank, self.step = rank, step

    class NumberAsked(Message):
        """The focused number is to be opened."""

        def __init__(self, number: Figure, title: str) -> None:
            super().__init__()
            self.number, self.number_title = number, title

    def action_move(self, down: int, right: int) -> None:
        """The cursor by so many cells."""
        if self.grid is not None:
            self.move_to(self.page().moved(self.cursor, down, right))

    def action_choose(self) -> None:
        """Take the rank and step of the focused number."""
        place = self.focused_place()
        if place and self.grid:
            self.post_message(self.Chosen(self.grid.ranks[place[0]], self.grid.steps[place[1]]))

    def action_number(self) -> None:
        """Open the focused number."""
        place = self.focused_place()
        if place and self.grid:
            title = f"{self.grid.title}, {self.where(*place)}"
            self.post_message(self.NumberAsked(self.grid.figure_at(*place), title))

    def action_fold(self) -> None:
        """All ranks and steps on the screen at once, or each in a row and column of its own."""
        place = self.focused_place()
        if place:
            self.folded = not self.folded
            self.move_to(Cursor(row=place[0], column=place[1]))

    def on_click(self, event: events.Click) -> None:
        """The cursor to where it was clicked; there, once more takes it."""
        offset = event.get_content_offset(self)
        clicked = self.page().at(offset.x, offset.y) if self.grid and offset else None
        if clicked is None:
            return
        page, present = self.page(), self.cursor
        same = (page.row_of(clicked), page.column_of(clicked)) == (
            page.row_of(present),
            page.column_of(present),
        )
        if same:
            self.action_choose()
        else:
            self.move_to(clicked)
