"""A window above the screen, closed by ``esc``."""

from typing import ClassVar, TypeVar

from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from zprof.tui.keys import Where, bindings

Result = TypeVar("Result")


class Popup(ModalScreen[Result | None]):
    """Closes with nothing on ``esc``."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.POPUP)]

    def action_scroll_lines(self, by: int) -> None:
        """What is longer than the window, by lines."""
        for frame in self.query(VerticalScroll):
            frame.scroll_relative(y=by, animate=False)

    def action_scroll_page(self, by: int) -> None:
        """The same, by nearly a window."""
        for frame in self.query(VerticalScroll):
            frame.scroll_relative(y=by * max(1, frame.size.height - 1), animate=False)

    def action_close(self) -> None:
        """Back, with nothing chosen."""
        self.dismiss(None)
