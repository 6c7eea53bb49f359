"""The popup that explains one number: its meaning, formula, inputs, and source rows."""

from typing import ClassVar

import numpy as np
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from zprof.analysis.columns import Columns, Texts
from zprof.analysis.source_rows import find_source_rows
from zprof.model.cursor import follow, read
from zprof.model.formatting import printable, shorten
from zprof.model.metrics import find_metric
from zprof.model.quantities import EVERY, Aggregation, Path, Value, find_unit, resolve_input, strip_unit
from zprof.reports.table import Cell, Column, Kind, Mark, Row, Table
from zprof.tui.popups import Popup
from zprof.tui.session import LoadedRun
from zprof.tui.theme import MARKS, get_look
from zprof.tui.widgets.fact_table import FactTable, PagedTable

_MAX_LEAVES = 8
#: Width of the column of input names.
_NAME_WIDTH = 26
#: Leaves with this prefix come from the baseline, so their rows are the baseline's.
_BASELINE = "comparison.baseline_"


class NumberPopup(Popup[None]):
    """Popup with the formula, inputs and source rows of a number."""

    CSS: ClassVar[str] = """
    NumberPopup #popup { max-width: 190; }
    NumberPopup FactTable { scrollbar-size-horizontal: 0; }
    """

    def __init__(self, number: Value, title: str, loaded: LoadedRun) -> None:
        super().__init__()
        self.number, self.shown_title, self.loaded = number, title, loaded
        self._rows = find_rows(number, loaded)

    def compose(self) -> ComposeResult:
        """Yield the explanation, and below it a table if the number has source rows."""
        with VerticalScroll(id="popup") as frame:
            frame.border_title = Text(f"{printable(self.shown_title)}: {self.number.text}")
            frame.border_subtitle = "esc: back"
            text = Text("\n".join(explain_number(self.number, self.loaded)))
            text.highlight_words(
                [str(leaf) for leaf in list_leaves(self.number)], MARKS[Mark.MUTED].colour(get_look(self.app))
            )
            yield Static(text)
            if self._rows is not None and len(self._rows):
                yield PagedTable(id="rows")

    def on_mount(self) -> None:
        """Fill the table of source rows."""
        if self._rows is not None and len(self._rows):
            self.query_one("#rows", FactTable).show(build_rows_table(self._rows, self.number.leaves[0].name))
            self.call_after_refresh(self._update_key_hint)

    def on_resize(self) -> None:
        """Update the key hint, because a different number of columns fits."""
        self.call_after_refresh(self._update_key_hint)

    def _update_key_hint(self) -> None:
        """Tell in the frame that more columns exist; a scroll bar would cover a single row."""
        for table in self.query(FactTable):
            is_cut_off = table.virtual_size.width > table.size.width
            more = "tab, left, right: more columns, " if is_cut_off else ""
            self.query_one("#popup").border_subtitle = f"{more}esc: back"


def explain_number(number: Value, loaded: LoadedRun) -> list[str]:
    """Format a number's meaning, formula, leaves and inputs as lines."""
    lines = []
    meaning = find_metric(number.leaves[0]) if number.leaves else None
    if meaning:
        lines += [meaning.help, *([f"formula  {meaning.formula}"] if meaning.formula else [])]
    if number.how is not Aggregation.LEAF:
        lines.append(f"this is  {number.how.value}")
    lines += [f"  {_get_leaf_title(leaf)}  {leaf}" for leaf in list_leaves(number)]
    if meaning and len(number.leaves) == 1:
        lines += _format_inputs(number.leaves[0], meaning.inputs, loaded)
    return lines


def list_leaves(number: Value) -> list[Path]:
    """Return the first `_MAX_LEAVES` distinct leaves of a number."""
    leaves = dict.fromkeys(number.leaves)
    return list(leaves)[:_MAX_LEAVES]


def _get_leaf_title(leaf: Path) -> str:
    """Return the name of a leaf as the screens show it."""
    meaning = find_metric(leaf)
    return meaning.title if meaning else strip_unit(leaf.name)


def _format_inputs(leaf: Path, names: tuple[str, ...], loaded: LoadedRun) -> list[str]:
    paths = [resolve_input(leaf, name) for name in names]
    figures = [
        (
            path,
            read(
                follow(loaded.report, path),
                how=Aggregation.MEAN if EVERY in path.parts else Aggregation.LEAF,
            ),
        )
        for path in paths
    ]
    shown = [
        (_get_leaf_title(path), value.text, str(path).removeprefix(f"{leaf.parent}."))
        for path, value in figures
    ]
    lines = [
        f"  {shorten(title, _NAME_WIDTH):<{_NAME_WIDTH}} {text:>12}  {name}" for title, text, name in shown
    ]
    return ["inputs", *lines] if figures else []


def find_rows(number: Value, loaded: LoadedRun) -> Columns | None:
    """Return the rows that the number was measured from, or None if none are available."""
    if not number.leaves:
        return None
    baseline = loaded.before if str(number.leaves[0]).startswith(_BASELINE) else None
    return find_source_rows(number.leaves[0], baseline or loaded.analysis)


_MAX_ROWS = 50
_FIRST_COLUMNS = ("step", "rank")


def build_rows_table(rows: Columns, first_column: str = "") -> Table:
    """Return a table of the first `_MAX_ROWS` rows: step, rank, ``first_column``, then the others.

    Its numbers have no leaves, because they are the source that leaves are computed from.
    """
    shown = rows.at(slice(_MAX_ROWS))
    first = [name for name in (*_FIRST_COLUMNS, first_column) if name in shown]
    names = [*first, *(name for name in shown.names if name not in first)]
    columns = tuple(
        Column(title=strip_unit(name), kind=Kind.TEXT if isinstance(shown[name], Texts) else Kind.NUMBER)
        for name in names
    )
    cells = ([_make_cell(name, value) for value in shown[name].tolist()] for name in names)
    lines = [Row(key=str(index), cells=row) for index, row in enumerate(zip(*cells, strict=True))]
    note = f"first {len(shown)} of {len(rows)}" if len(rows) > len(shown) else ""
    return Table(name="rows", title="measured from", columns=columns, rows=tuple(lines), note=note)


def _make_cell(name: str, value: str | float | None) -> Cell:
    if value is None or isinstance(value, bool | str):
        return "" if value is None else str(value)
    return Value(number=None if np.isnan(value) else float(value), unit=find_unit(name), leaves=())
