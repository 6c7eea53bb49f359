"""A page of text: a finding, a gap, help."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from zprof.model.printable import printable_lines
from zprof.tui.popups.popup import Popup


class TextPopup(Popup[None]):
    """Lines of text under a title; they scroll.  ``copies``: what ``y`` copies, where not all of them."""

    def __init__(self, title: str, text: str, *, copies: str = "") -> None:
        super().__init__()
        self.shown_title, self.shown_text, self.copies = title, text, copies or text

    def compose(self) -> ComposeResult:
        """The lines in a frame."""
        lines = Text("\n".join(printable_lines(self.shown_text)))
        with VerticalScroll(id="popup") as frame:
            frame.border_title = Text(" ".join(printable_lines(self.shown_title)))
            frame.border_subtitle = "esc: back"
            yield Static(lines)
