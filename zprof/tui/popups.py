"""Popups over a screen: the base class, a text page, a pick list, a text input."""

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from zprof.base.formatting import printable, printable_lines
from zprof.tui.keys import Where, bindings

Result = TypeVar("Result")


class Popup(ModalScreen[Result | None]):
    """Base class of popups; ``esc`` closes it with result None."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.POPUP)]

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Close the popup with a result; a second key press does not close the screen below."""
        return super().dismiss(result) if self.app.screen is self else AwaitComplete()

    def action_scroll_lines(self, by: int) -> None:
        """Scroll by lines."""
        for frame in self.query(VerticalScroll):
            frame.scroll_relative(y=by, animate=False)

    def action_scroll_page(self, by: int) -> None:
        """Scroll by pages of the window height minus one line."""
        for frame in self.query(VerticalScroll):
            frame.scroll_relative(y=by * max(1, frame.size.height - 1), animate=False)

    def action_close(self) -> None:
        """Close the popup with result None."""
        self.dismiss(None)


#: Text width until the widget has been laid out.
_COLUMNS = 80
#: Returns the text laid out for a width in columns.
TextLayout = Callable[[int], str]


class TextPopup(Popup[None]):
    """Scrollable text under a title. ``copies``: the text that ``y`` copies, by default all."""

    def __init__(self, title: str, text: str | TextLayout, *, copies: str = "") -> None:
        """Create the popup; ``text`` is a string or a function that lays it out for a width."""
        super().__init__()
        self._layout = text if callable(text) else lambda columns: text
        self.shown_title, self._copies = title, copies

    @property
    def copies(self) -> str:
        """The text that ``y`` copies."""
        return self._copies or self._layout(_COLUMNS)

    def compose(self) -> ComposeResult:
        """Yield the text in a scrollable frame."""
        with VerticalScroll(id="popup") as frame:
            frame.border_title = Text(" ".join(printable_lines(self.shown_title)))
            frame.border_subtitle = "esc: back"
            yield _TextLines(self._layout)


class _TextLines(Static):
    def __init__(self, layout: TextLayout) -> None:
        super().__init__()
        self._layout = layout
        self._update_text(_COLUMNS)

    def on_resize(self, event: Resize) -> None:
        self._update_text(event.size.width)

    def _update_text(self, columns: int) -> None:
        self.update(Text("\n".join(printable_lines(self._layout(columns)))))


_MAX_CHOICES = 200


class PickPopup(Popup[str]):
    """List that returns the key of the picked entry; ``current``: the initially selected key."""

    def __init__(self, title: str, choices: Sequence[tuple[str, str]], current: str = "") -> None:
        super().__init__()
        self.shown_title, self.choices, self.current = title, choices, current

    def compose(self) -> ComposeResult:
        """Yield a search line and the list."""
        with Vertical(id="popup") as frame:
            frame.border_title = Text(printable(self.shown_title))
            yield Input(id="narrow")
            yield OptionList(id="choices")

    def on_mount(self) -> None:
        """Show all choices."""
        self._filter_choices("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the choices that contain the typed text."""
        self._filter_choices(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Pick the highlighted choice, or else the first."""
        choices = self.query_one(OptionList)
        if choices.option_count:
            self.dismiss(str(choices.get_option_at_index(choices.highlighted or 0).id))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Pick the selected choice."""
        self.dismiss(str(event.option.id))

    def on_key(self, event: object) -> None:
        """Move the list cursor with the arrow keys while the input has the focus."""
        key = getattr(event, "key", "")
        choices = self.query_one(OptionList)
        if key == "down":
            choices.action_cursor_down()
        elif key == "up":
            choices.action_cursor_up()

    def find_matches(self, text: str) -> list[tuple[str, str]]:
        """Return the choices that contain the text, ignoring case."""
        return [(key, label) for key, label in self.choices if text.casefold() in label.casefold()]

    def _filter_choices(self, text: str) -> None:
        matches = self.find_matches(text)
        selected = next((i for i, (key, _) in enumerate(matches) if key == self.current and not text), 0)
        first = max(0, min(selected - _MAX_CHOICES // 2, len(matches) - _MAX_CHOICES))
        shown = matches[first : first + _MAX_CHOICES]
        if not self.query(OptionList):
            return  # closed before it was drawn
        choices = self.query_one(OptionList)
        choices.clear_options()
        choices.add_options(Option(Text(printable(label)), id=key) for key, label in shown)
        if shown:
            choices.highlighted = selected - first
        hidden = f" ({len(shown)} of {len(matches)} shown)" if len(shown) < len(matches) else ""
        self.query_one("#popup").border_subtitle = f"type to filter{hidden}, enter: pick, esc: back"


class LinePopup(Popup[str]):
    """Popup that returns a typed line."""

    def __init__(self, title: str, value: str = "") -> None:
        super().__init__()
        self.shown_title, self.value = title, value

    def compose(self) -> ComposeResult:
        """Yield the input line in a frame."""
        with Vertical(id="popup", classes="line") as frame:
            frame.border_title = Text(printable(self.shown_title))
            frame.border_subtitle = "enter: confirm, esc: back"
            yield Input(value=self.value, id="line")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close the popup with the typed line."""
        self.dismiss(event.value)
