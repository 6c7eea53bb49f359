"""A few lines of words: where there are more of them than lines, the last one ends in a sign that says so."""

from rich.console import Console
from rich.text import Text
from textual import events
from textual.widgets import Static

_MORE = "…"


class CutText(Static):
    """Shows a text in at most ``lines`` lines."""

    def __init__(self, *, lines: int, id: str | None = None) -> None:
        super().__init__("", id=id)
        self.lines = lines
        self.whole = Text("")

    def show(self, text: Text) -> None:
        """Show this one from now on."""
        self.whole = text
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Lines of another length."""
        self._draw()

    def _draw(self) -> None:
        self.update(cut(self.whole, self.content_size.width, self.lines))


def cut(text: Text, width: int, most: int) -> Text:
    """At most so many lines of a text, wrapped; nothing is cut where the width is not known yet."""
    if width < 1:
        return text
    lines = text.wrap(Console(width=width, file=None, color_system=None), width)
    if len(lines) <= most:
        return text
    kept = lines[:most]
    kept[-1].rstrip()
    kept[-1].truncate(width - 1)
    kept[-1].append(_MORE)
    for line in kept[:-1]:
        line.rstrip()
    return Text("\n").join(kept)
