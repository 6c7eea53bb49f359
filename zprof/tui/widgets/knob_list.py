"""The list of knobs on the plan screen: arrow keys move between knobs and turn them."""

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Static

from zprof.model.whatif import Change
from zprof.tui.keys import Where, bindings
from zprof.tui.presenters.plan_knobs import Knob
from zprof.tui.tables import Cell, Column, Line, Mark, Table, TextCell
from zprof.tui.theme import MARKS, get_look

CHANGED, _IDLE = "*", "-"
_TITLE, _VALUE = 14, 5
#: Widths from which on arrows next to a value, and the measured value of a turned knob, are shown.
_ARROWS, _WAS = 25, 34
#: Actions of the whole screen, not only of the knobs.
SCREEN_ACTIONS = frozenset({"reset", "reset_all", "next_table"})
_NOTHING = "no knob means anything for this run"


class KnobList(Static, can_focus=True):
    """Shows the knobs of a change; the handler of :class:`Turned` turns them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        each for each in bindings(Where.PLAN) if each.action not in SCREEN_ACTIONS
    ]

    class Turned(Message):
        """A knob was turned by a number of choices."""

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
        """Show the knobs as the change sets them."""
        self.knobs, self.change = knobs, change
        self.cursor = max(0, min(self.cursor, len(knobs) - 1))
        self.border_title = "knobs"
        turned = sum(knob.is_turned(change) for knob in knobs)
        self.border_subtitle = Text(f"{CHANGED} {turned} changed" if turned else "left, right: turn")
        self.styles.height = max(1, len(knobs)) + 2
        self._draw()

    @property
    def under(self) -> Knob | None:
        """The knob under the cursor."""
        return self.knobs[self.cursor] if self.knobs else None

    @property
    def table(self) -> Table | None:
        """The knobs as a table, to copy and explain."""
        return Table(
            name="knobs",
            title="knobs",
            columns=(
                Column(title="knob"),
                Column(title="measured"),
                Column(title="now", says=f"{CHANGED}: changed; {_IDLE}: means nothing as the others stand"),
            ),
            lines=tuple(_build_line(knob, self.change) for knob in self.knobs),
            help="What of the run is changed. up, down: another knob; left, right: turn it; enter: what it "
            "does; x: this one as measured, X: all of them.",
        )

    def focused_line(self) -> tuple[Line, Cell] | None:
        """Return the line and cell of the knob under the cursor."""
        knob = self.under
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
        knob = self.under
        if knob is not None:
            self.post_message(self.Turned(knob, by))

    def action_open(self) -> None:
        """Explain the knob under the cursor."""
        knob = self.under
        if knob is not None:
            self.post_message(self.Opened(knob))

    def on_click(self, event: events.Click) -> None:
        """Move to the clicked knob; clicking the current one turns it, down left of its value's middle."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        row = self._first() + offset.y
        if row == self.cursor:
            self.action_turn(-1 if offset.x < self._value_from() + _VALUE // 2 else 1)
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

    def _value_from(self) -> int:
        return 1 + _TITLE + (3 if self.content_size.width >= _ARROWS else 1)

    def _first(self) -> int:
        """Return the index of the first visible knob, if not all fit."""
        return max(0, self.cursor + 1 - max(1, self.content_size.height or len(self.knobs)))

    def _draw(self) -> None:
        if not self.knobs:
            self.update(_NOTHING)
            return
        lines = [self._drawn(at) for at in range(self._first(), len(self.knobs))]
        self.update(Text("\n", no_wrap=True).join(lines))

    def _drawn(self, at: int) -> Text:
        knob, content_width = self.knobs[at], self.content_size.width
        is_turned, is_under = knob.is_turned(self.change), at == self.cursor
        value = _IDLE if knob.idle else knob.choices[knob.place(self.change)].text
        said = f"{CHANGED if is_turned else ' '}{knob.title:<{_TITLE}} "
        if content_width >= _ARROWS:
            left, right = ("◂", "▸") if is_under and not knob.idle else (" ", " ")
            said += f"{left} {value:>{_VALUE}} {right}"
            said += f" was {knob.choices[knob.measured].text}" if is_turned and content_width >= _WAS else ""
        else:
            said += f"{value:>{_VALUE}}"
        mark = Mark.MUTED if knob.idle else Mark.PREDICTED if is_turned else Mark.PLAIN
        text = Text(said.ljust(content_width), no_wrap=True, end="")
        text.stylize(MARKS[mark].colour(get_look(self.app)))
        if is_turned:
            text.stylize("bold")
        if is_under:
            text.stylize("reverse" if self._is_focused else "underline")
        return text


def _build_line(knob: Knob, change: Change) -> Line:
    now = _IDLE if knob.idle else knob.choices[knob.place(change)].text
    shown = f"{CHANGED} {now}" if knob.is_turned(change) else now
    return Line(
        key=knob.field,
        cells=(TextCell(knob.title), TextCell(knob.choices[knob.measured].text), TextCell(shown)),
    )


def describe_knob(knob: Knob, change: Change) -> tuple[str, str]:
    """Return title and text on a knob."""
    now = knob.choices[knob.place(change)].text
    lines = [
        knob.says,
        "",
        f"measured  {knob.choices[knob.measured].text}",
        f"now       {_IDLE if knob.idle else now}",
        f"choices   {', '.join(choice.text for choice in knob.choices)}",
        *([f"means nothing now: {knob.idle}"] if knob.idle else []),
        "",
        "left and right turn it, x sets it as it was measured, X sets all of them",
    ]
    return knob.title, "\n".join(lines)
