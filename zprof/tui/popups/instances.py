"""The worst instances of one kind of collective, sorted and searched like any table."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical

from zprof.model.printable import printable
from zprof.tui.pages.communication_instances import instances_table
from zprof.tui.popups.popup import Popup
from zprof.tui.session import Loaded
from zprof.tui.widgets.fact_table import FactTable


class InstancesPopup(Popup[None]):
    """Of the collective at a place of the report."""

    CSS: ClassVar[str] = """
    InstancesPopup #popup { width: 100%; max-width: 190; height: 90%; padding: 0; }
    InstancesPopup FactTable { height: 1fr; border: none; }
    InstancesPopup FactTable:focus { border: none; }
    """

    def __init__(self, loaded: Loaded, at: int) -> None:
        super().__init__()
        self.shown = instances_table(loaded, at)

    def compose(self) -> ComposeResult:
        """The table in a frame."""
        with Vertical(id="popup") as frame:
            frame.border_title = Text(printable(self.shown.title))
            frame.border_subtitle = Text(printable(f"{self.shown.note}  esc: back"))
            yield FactTable(id="instances", classes="fill")

    def on_mount(self) -> None:
        """Fill it."""
        self.query_one(FactTable).show(self.shown)
