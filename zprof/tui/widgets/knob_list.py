"""The list of knobs on the plan screen: arrow keys move between knobs and turn them."""

from typing import ClassVar

from msgspec.structs import replace
from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Static

from zprof.model.plan import Change
from zprof.reports.pages.whatif import MEASURED
from zprof.reports.table import Cell, Column, Kind, Mark, Row, Table
from zprof.tui.keys import Where, bindings
from zprof.tui.knobs import Knob
from zprof.tui.theme import MARKS, get_look

CHANGED, _NOT_APPLICABLE = "*", "-"
_TITLE_WIDTH, _VALUE_WIDTH = 14, 5
#: Minimum widths to show the arrows, and the measured value of a changed knob.
_MIN_WIDTH_FOR_ARROWS, _MIN_WIDTH_FOR_MEASURED = 25, 34
#: Actions that the screen handles, not this widget.
SCREEN_ACTIONS = frozenset({"reset", "reset_all", "layouts", "next_table"})
_NO_KNOBS = "no setting applies to this run"


class KnobList(Static, can_focus=True):
    """List the settings of a what-if change; the handler of :class:`Turned` applies a change."""

    BINDINGS: ClassVar[list[BindingType]] = [
        binding for binding in bindings(Where.PLAN) if binding.action not in SCREEN_ACTIONS
    ]

    class Turned(Message):
        """A knob was moved by a number of choices."""

        def __init__(self, knob: Knob, by: int) -> None:
            super().__init__()
            self.knob, self.by = knob, by

    class Opened(Message):
        """Request to explain a knob."""

        def __init__(self, knob: Knob) -> None:
            super().__init__()
            self.knob = knob

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id)
        self.knobs: tuple[Knob, ...] = ()
        self.change = Change()
        self.cursor = 0
        self._is_focused = False

    def show(self, knobs: tuple[Knob, ...], change: Change) -> None:
        """Show the knobs at the values in ``change``."""
        self.knobs, self.change = knobs, change
        self.cursor = max(0, min(self.cursor, len(knobs) - 1))
        self.border_title = "knobs"
        turned = sum(knob.is_turned(change) for knob in knobs)
        self.border_subtitle = Text(f"{CHANGED} {turned} changed" if turned else "left, right: change")
        self.styles.height = max(1, len(knobs)) + 2
        self._draw()

    @property
    def selected_knob(self) -> Knob | None:
        """The knob under the cursor."""
        return self.knobs[self.cursor] if self.knobs else None

    @property
    def table(self) -> Table | None:
        """The knobs as a table, for copying and help."""
        return Table(
            name="knobs",
            title="knobs",
            columns=(
                Column(title="knob", kind=Kind.TEXT),
                replace(MEASURED, kind=Kind.TEXT),
                Column(
                    title="now",
                    kind=Kind.TEXT,
                    help=f"{CHANGED}: changed; {_NOT_APPLICABLE}: does not apply with the other settings",
                ),
            ),
            rows=tuple(_build_line(knob, self.change) for knob in self.knobs),
            help="What to change about the run. up, down: select; left, right: change; enter: explain "
            "it; x: reset it to the measured value; X: reset all.",
        )

    def get_focused_line(self) -> tuple[Row, Cell] | None:
        """Return the line and cell of the knob under the cursor."""
        knob = self.selected_knob
        if knob is None:
            return None
        line = _build_line(knob, self.change)
        return line, line.cells[0]

    def action_along(self, by: int) -> None:
        """Move to another knob."""
        self.cursor = max(0, min(len(self.knobs) - 1, self.cursor + by))
        self._draw()

    def action_turn(self, by: int) -> None:
        """Turn the knob under the cursor."""
        knob = self.selected_knob
        if knob is not None:
            self.post_message(self.Turned(knob, by))

    def action_open(self) -> None:
        """Explain the knob under the cursor."""
        knob = self.selected_knob
        if knob is not None:
            self.post_message(self.Opened(knob))

    def on_click(self, event: events.Click) -> None:
        """Move to the clicked knob; a click on the selected knob lowers (left half) or raises its value."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        row = self._first_visible() + offset.y
        if row == self.cursor:
            arrow_width = 3 if self.content_size.width >= _MIN_WIDTH_FOR_ARROWS else 1
            middle = 1 + _TITLE_WIDTH + arrow_width + _VALUE_WIDTH // 2
            self.action_turn(-1 if offset.x < middle else 1)
        elif 0 <= row < len(self.knobs):
            self.cursor = row
            self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Redraw for the new width."""
        self._draw()

    def on_focus(self, event: events.Focus) -> None:
        """Draw the cursor in reverse."""
        self._is_focused = True
        self._draw()

    def on_blur(self, event: events.Blur) -> None:
        """Draw the cursor as an underline."""
        self._is_focused = False
        self._draw()

    def _first_visible(self) -> int:
        """Return the index of the first visible knob; 0 if all fit."""
        return max(0, self.cursor + 1 - max(1, self.content_size.height or len(self.knobs)))

    def _draw(self) -> None:
        if not self.knobs:
            self.update(_NO_KNOBS)
            return
        lines = [self._render_knob(index) for index in range(self._first_visible(), len(self.knobs))]
        self.update(Text("\n", no_wrap=True).join(lines))

    def _render_knob(self, index: int) -> Text:
        knob, content_width = self.knobs[index], self.content_size.width
        is_turned, is_selected = knob.is_turned(self.change), index == self.cursor
        value = _NOT_APPLICABLE if knob.idle else knob.choices[knob.place(self.change)].text
        line = f"{CHANGED if is_turned else ' '}{knob.title:<{_TITLE_WIDTH}} "
        if content_width >= _MIN_WIDTH_FOR_ARROWS:
            left, right = ("◂", "▸") if is_selected and not knob.idle else (" ", " ")
            line += f"{left} {value:>{_VALUE_WIDTH}} {right}"
            line += (
                f" was {knob.choices[knob.measured].text}"
                if is_turned and content_width >= _MIN_WIDTH_FOR_MEASURED
                else ""
            )
        else:
            line += f"{value:>{_VALUE_WIDTH}}"
        mark = Mark.MUTED if knob.idle else Mark.PREDICTED if is_turned else Mark.PLAIN
        text = Text(line.ljust(content_width), no_wrap=True, end="")
        text.stylize(MARKS[mark].colour(get_look(self.app)))
        if is_turned:
            text.stylize("bold")
        if is_selected:
            text.stylize("reverse" if self._is_focused else "underline")
        return text


def _build_line(knob: Knob, change: Change) -> Row:
    now = _NOT_APPLICABLE if knob.idle else knob.choices[knob.place(change)].text
    value_text = f"{CHANGED} {now}" if knob.is_turned(change) else now
    return Row(
        key=knob.field,
        cells=(knob.title, knob.choices[knob.measured].text, value_text),
    )


def describe_knob(knob: Knob, change: Change) -> tuple[str, str]:
    """Return the title and help text of a knob."""
    now = knob.choices[knob.place(change)].text
    lines = [
        knob.help,
        "",
        f"measured  {knob.choices[knob.measured].text}",
        f"now       {_NOT_APPLICABLE if knob.idle else now}",
        f"choices   {', '.join(choice.text for choice in knob.choices)}",
        *([f"does not apply: {knob.idle}"] if knob.idle else []),
        "",
        "left, right: change; x: reset to the measured value; X: reset all",
    ]
    return knob.title, "\n".join(lines)
