"""One line: how much of a collective's time is hidden, exposed waiting and exposed transfer."""

from rich.text import Text
from textual.widgets import Static

from zprof.model.printable import shorten
from zprof.tui.figures import Figure
from zprof.tui.pages.communication import Split
from zprof.tui.theme.looks import look_of
from zprof.tui.theme.palette import TIMES
from zprof.tui.widgets.paint import bar

_HIDDEN, _WAIT, _TRANSFER = TIMES["overlapped_ns"], TIMES["exposed_wait_ns"], TIMES["exposed_transfer_ns"]
_HIDES, _LEAST_BAR = "  hidden ", 8


class SplitLine(Static):
    """Follows the row that is focused."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id)
        self.split: Split | None = None

    def show(self, split: Split | None) -> None:
        """Show this one from now on."""
        self.split = split
        self.draw()

    def on_resize(self) -> None:
        """A longer bar may fit."""
        self.draw()

    def draw(self) -> None:
        """The bar in what its name and numbers leave of the line."""
        if self.split is None:
            self.update("")
            return
        ascii_only, look = bool(getattr(self.app, "ascii_only", False)), look_of(self.app)
        parts = ((_HIDDEN, self.split.hidden), (_WAIT, self.split.wait), (_TRANSFER, self.split.transfer))
        legend = Text(" exposed:", no_wrap=True)
        for name, (paint, number) in zip(("wait", "transfer"), parts[1:], strict=True):
            legend.append("  ").append(paint.shown(ascii_only=ascii_only), paint.colour(look))
            legend.append(f" {name} {number.text}")
        name = shorten(self.split.name, self.app.size.width - legend.cell_len - len(_HIDES) - _LEAST_BAR - 1)
        text = Text(f" {name}{_HIDES}", no_wrap=True)
        sizes = [(paint, max(0.0, number.value or 0.0)) for paint, number in parts]
        room = max(_LEAST_BAR, self.app.size.width - text.cell_len - legend.cell_len)
        whole = sum(size for _, size in sizes)
        text.append_text(bar(sizes, room, whole, look, ascii_only=ascii_only)).append_text(legend)
        self.update(text)

    def shown_figures(self) -> list[Figure]:
        """Its numbers; what is hidden is drawn only."""
        return [self.split.wait, self.split.transfer] if self.split else []
