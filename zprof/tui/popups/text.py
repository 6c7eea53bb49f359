"""A page of text: a finding, a gap, help."""

from collections.abc import Callable

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.widgets import Static

from zprof.model.printable import printable_lines
from zprof.tui.popups.popup import Popup

#: Until it is known how many there are.
_COLUMNS = 80
#: Text for so many columns.
Laid = Callable[[int], str]


class TextPopup(Popup[None]):
    """Lines of text under a title; they scroll.  ``copies``: what ``y`` copies, where not all of them."""

    def __init__(self, title: str, text: str | Laid, *, copies: str = "") -> None:
        """``text``: as it stands, or what lays it out in the columns that there are."""
        super().__init__()
        self._laid = text if callable(text) else lambda columns: text
        self.shown_title, self._copies = title, copies

    @property
    def copies(self) -> str:
        """What ``y`` copies."""
        return self._copies or self._laid(_COLUMNS)

    def compose(self) -> ComposeResult:
        """The lines in a frame."""
        with VerticalScroll(id="popup") as frame:
            frame.border_title = Text(" ".join(printable_lines(self.shown_title)))
            frame.border_subtitle = "esc: back"
            yield _Lines(self._laid)


class _Lines(Static):
    def __init__(self, laid: Laid) -> None:
        super().__init__()
        self._laid = laid
        self._lay(_COLUMNS)

    def on_resize(self, event: Resize) -> None:
        self._lay(event.size.width)

    def _lay(self, columns: int) -> None:
        self.update(Text("\n".join(printable_lines(self._laid(columns)))))
