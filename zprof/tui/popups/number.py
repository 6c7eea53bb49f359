"""A number, opened: what it means, its formula, its inputs, and the rows that it was measured from."""

from typing import ClassVar

import pandas as pd
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from zprof.model.printable import printable, shorten
from zprof.tui.figures import Figure, How, figure
from zprof.tui.meanings.meaning import beside, indices_of, input_path
from zprof.tui.meanings.registry import meaning_of
from zprof.tui.pages.rows import rows_table
from zprof.tui.popups.popup import Popup
from zprof.tui.session import Loaded
from zprof.tui.tables import Mark
from zprof.tui.theme.looks import look_of
from zprof.tui.theme.palette import MARKS
from zprof.tui.units import unit_of, word_of
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.paged_table import PagedTable

_MOST_LEAVES = 8
#: Columns of the word for an input.
_WORD = 26
#: Leaves of the baseline: their rows are its own.
_BASELINE = "comparison.baseline_"


class NumberPopup(Popup[None]):
    """Formula, inputs, rows."""

    CSS: ClassVar[str] = """
    NumberPopup #popup { max-width: 190; }
    NumberPopup FactTable { scrollbar-size-horizontal: 0; }
    """

    def __init__(self, number: Figure, title: str, loaded: Loaded) -> None:
        super().__init__()
        self.number, self.shown_title, self.loaded = number, title, loaded

    def compose(self) -> ComposeResult:
        """Text above, rows below."""
        with VerticalScroll(id="popup") as frame:
            frame.border_title = Text(f"{printable(self.shown_title)}: {self.number.text}")
            frame.border_subtitle = "esc: back"
            said = Text("\n".join(said_of(self.number, self.loaded)))
            said.highlight_words(leaves_of(self.number), MARKS[Mark.MUTED].colour(look_of(self.app)))
            yield Static(said)
            rows = rows_behind(self.number, self.loaded)
            if rows is not None and len(rows):
                yield PagedTable(id="rows")

    def on_mount(self) -> None:
        """Fill the rows."""
        rows = rows_behind(self.number, self.loaded)
        if rows is not None and len(rows):
            self.query_one("#rows", FactTable).show(
                rows_table(rows, self.number.leaves[0].rpartition(".")[2])
            )
            self.call_after_refresh(self._say_keys)

    def on_resize(self) -> None:
        """More or fewer columns fit."""
        self.call_after_refresh(self._say_keys)

    def _say_keys(self) -> None:
        """A bar to scroll by would cover the only row: so the frame says that there are more columns."""
        for table in self.query(FactTable):
            hides = table.virtual_size.width > table.size.width
            more = "tab, left, right: more columns, " if hides else ""
            self.query_one("#popup").border_subtitle = f"{more}esc: back"


def said_of(number: Figure, loaded: Loaded) -> list[str]:
    """What it means, how it is made, and of what."""
    lines = []
    meaning = meaning_of(number.leaves[0]) if number.leaves else None
    if meaning:
        lines += [meaning.says, *([f"formula  {meaning.formula}"] if meaning.formula else [])]
    if number.how is not How.LEAF:
        lines.append(f"this is  {number.how.value}")
    lines += [f"  {_called(leaf)}  {leaf}" for leaf in leaves_of(number)]
    if meaning and len(number.leaves) == 1:
        lines += _inputs(number.leaves[0], meaning.inputs, loaded)
    return lines


def leaves_of(number: Figure) -> list[str]:
    """The first leaves that it is made of, each once."""
    leaves = dict.fromkeys(leaf for part in number.in_report() for leaf in part.leaves)
    return list(leaves)[:_MOST_LEAVES]


def _called(leaf: str) -> str:
    """What a leaf is called on the screens."""
    meaning = meaning_of(leaf)
    return meaning.title if meaning else word_of(leaf.rpartition(".")[2])


def _inputs(leaf: str, names: tuple[str, ...], loaded: Loaded) -> list[str]:
    paths = [input_path(leaf, name) for name in names]
    found = [(path, figure(loaded.tree, unit_of(path), path, how=_how(path))) for path in paths]
    shown = [(_called(path), value.text, path.removeprefix(f"{beside(leaf)}.")) for path, value in found]
    lines = [f"  {shorten(word, _WORD):<{_WORD}} {text:>12}  {name}" for word, text, name in shown]
    return ["inputs", *lines] if found else []


def _how(path: str) -> How:
    return How.MEAN if "[*]" in path else How.LEAF


def rows_behind(number: Figure, loaded: Loaded) -> pd.DataFrame | None:
    """The rows that it was measured from; None where none are kept."""
    meaning = meaning_of(number.leaves[0]) if number.leaves else None
    if meaning is None or meaning.rows is None:
        return None
    before = loaded.before if number.leaves[0].startswith(_BASELINE) else None
    return meaning.rows(before or loaded.analysis, indices_of(number.leaves[0]))
