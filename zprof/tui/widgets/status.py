"""The line of screens on top, and the line that says what is shown below."""

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.widgets import Static

from zprof.model.printable import printable, shorten
from zprof.tui.session import first_selected
from zprof.tui.shell import Shell

#: The screens by their key: name, title, and the title where there is little room.
SCREENS: tuple[tuple[str, str, str], ...] = (
    ("overview", "Overview", "Overview"),
    ("memory", "Memory", "Memory"),
    ("communication", "Communication", "Comm"),
    ("timeline", "Timeline", "Timeline"),
    ("ranks", "Ranks", "Ranks"),
    ("compare", "Compare", "Compare"),
    ("plan", "Plan", "Plan"),
)
_WIDE = 100
#: Columns that the name of a run keeps.
_LEAST_NAME = 12


class TitleLine(Static):
    """The screens and their keys, the present one in reverse."""

    def __init__(self, current: str) -> None:
        super().__init__("", id="titles")
        self._current = current

    def refresh_from(self, app: Shell) -> None:
        """Draw it for the width of the terminal."""
        wide = app.size.width >= _WIDE
        text = Text("zprof ", no_wrap=True, style="bold")
        for number, (name, title, short) in enumerate(SCREENS, 1):
            style = "reverse" if name == self._current else ""
            click = Style.from_meta({"@click": f"app.show('{name}')"})
            text.append(f" {number} {title if wide else short} ", style=Style.parse(style) + click)
        self.update(text)


class StatusLine(Static):
    """Run, ranks, steps, rank and step picked, gaps."""

    def __init__(self) -> None:
        super().__init__("", id="status")

    def refresh_from(self, app: Shell) -> None:
        """Draw it."""
        width = app.size.width - 2
        self.update(Text(shorten(status_text(app, width), width), no_wrap=True))


def status_text(app: Shell, width: int) -> str:
    """One line on what is shown; where it is too long the name of the run gives way first."""
    if app.look is None:
        return app.waiting_text()
    facts, selected = app.look.facts, app.selected
    ranks = len(facts.ranks_loaded)
    parts = [
        f"{ranks} of {facts.world_size} ranks" if ranks < facts.world_size else counted(ranks, "rank"),
        counted(len(facts.steps), "step"),
    ]
    if selected.rank is not None:
        parts.append(
            f"rank {selected.rank}" + (f" step {selected.step}" if selected.step is not None else "")
        )
    if app.loaded is not None:
        parts.append(counted(len(app.loaded.report.gaps), "gap"))
    if app.is_measuring or app.loaded is None:
        parts.append(app.waiting_text())
    said = " · ".join(["", *parts])
    whole = f"{shorten(printable(facts.name), max(_LEAST_NAME, width - cell_len(said)))}{said}"
    why = f" · step {selected.step}: the median one" if _is_first(app) else ""
    return f"{whole}{why}" if cell_len(whole) + len(why) <= width else whole


def _is_first(app: Shell) -> bool:
    """Whether the step is shown because it is the median one of its rank, and not because it was picked."""
    loaded, selected = app.loaded, app.selected
    return loaded is not None and selected.step is not None and selected == first_selected(loaded.report)


def counted(number: int, what: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
