"""The keys below: some of them only where there is room."""

from textual.app import ComposeResult
from textual.widgets import Footer

#: Actions whose keys are for wide terminals.
_FOR_ROOM = frozenset({"help"})


class KeyFooter(Footer):
    """Marks what the style sheet hides in narrow terminals."""

    def compose(self) -> ComposeResult:
        """As the footer is, with what is for wide terminals marked."""
        for part in super().compose():
            if str(getattr(part, "action", "")).removeprefix("app.") in _FOR_ROOM:
                part.add_class("for-room")
            yield part
