"""A window above the screen, closed by ``esc``."""

from typing import ClassVar, TypeVar

from textual.binding import BindingType
from textual.screen import ModalScreen

from zprof.tui.keys import Where, bindings

Result = TypeVar("Result")


class Popup(ModalScreen[Result | None]):
    """Closes with nothing on ``esc``."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.POPUP)]

    def action_close(self) -> None:
        """Back, with nothing chosen."""
        self.dismiss(None)
