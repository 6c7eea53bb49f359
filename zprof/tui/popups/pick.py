"""A list to pick from, narrowed by typing."""

from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from zprof.model.printable import printable
from zprof.tui.popups.popup import Popup

_MOST = 200


class PickPopup(Popup[str]):
    """Gives the key of what was picked; ``present``: that of what is picked now, where it begins."""

    def __init__(self, title: str, choices: Sequence[tuple[str, str]], present: str = "") -> None:
        super().__init__()
        self.shown_title, self.choices, self.present = title, choices, present

    def compose(self) -> ComposeResult:
        """A line to type in, and the list."""
        with Vertical(id="popup") as frame:
            frame.border_title = Text(printable(self.shown_title))
            yield Input(id="narrow")
            yield OptionList(id="choices")

    def on_mount(self) -> None:
        """All of them at first."""
        self._narrow("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Those in which the text stands."""
        self._narrow(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The first of what is left."""
        choices = self.query_one(OptionList)
        if choices.option_count:
            self.dismiss(str(choices.get_option_at_index(choices.highlighted or 0).id))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Picked."""
        self.dismiss(str(event.option.id))

    def on_key(self, event: object) -> None:
        """Arrows move in the list while the line has the focus."""
        key = getattr(event, "key", "")
        choices = self.query_one(OptionList)
        if key == "down":
            choices.action_cursor_down()
        elif key == "up":
            choices.action_cursor_up()

    def _narrow(self, text: str) -> None:
        found = [(key, says) for key, says in self.choices if text.casefold() in says.casefold()]
        at = next((at for at, (key, _) in enumerate(found) if key == self.present and not text), 0)
        first = max(0, min(at - _MOST // 2, len(found) - _MOST))
        shown = found[first : first + _MOST]
        choices = self.query_one(OptionList)
        choices.clear_options()
        choices.add_options(Option(Text(printable(says)), id=key) for key, says in shown)
        if shown:
            choices.highlighted = at - first
        hidden = f" ({len(shown)} of {len(found)} shown)" if len(shown) < len(found) else ""
        self.query_one("#popup").border_subtitle = f"type to narrow{hidden}, enter: pick, esc: back"


class LinePopup(Popup[str]):
    """Gives a line that was typed."""

    def __init__(self, title: str, value: str = "") -> None:
        super().__init__()
        self.shown_title, self.value = title, value

    def compose(self) -> ComposeResult:
        """One line."""
        with Vertical(id="popup", classes="line") as frame:
            frame.border_title = Text(printable(self.shown_title))
            frame.border_subtitle = "enter: take it, esc: back"
            yield Input(value=self.value, id="line")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Taken."""
        self.dismiss(event.value)
