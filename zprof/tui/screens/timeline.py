"""The timeline: one step of one rank, a lane a stream and thread, over words for what is under the cursor."""

from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static
from textual.worker import get_current_worker

from zprof.model.errors import ZprofError
from zprof.model.printable import printable
from zprof.tui.keys import Where, bindings
from zprof.tui.pages.timeline import step_table
from zprof.tui.popups.text import TextPopup
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import Loaded, Selected
from zprof.tui.timeline.build import build
from zprof.tui.timeline.describe import gap_line, item_line, opened, spot_line
from zprof.tui.timeline.gaps import gap_at
from zprof.tui.timeline.kept import Kept, Key
from zprof.tui.timeline.model import StepModel
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.lanes import Lanes

#: Rows from which on there is room for all that is known of the event under the cursor.
_ROOM = 15
#: Lines of the terminal from which on there is room for what the glyphs mean.
_TALL = 30
_GLYPHS = (
    "▁ to █: compute by eighths of a cell; ╸ of ━, ▗ of ▄: less than half of it; ◦ •: other host work\n"
    "t and a number: a thread, s: a stream; comm: it carries collectives out; in reverse: the cursor"
)
_ASCII_GLYPHS = (
    "+ #: compute in less or more than half of a cell; h H: other host work\n"
    "t and a number: a thread, s: a stream; comm: it carries collectives out; in reverse: the cursor"
)
_OF_LANES = frozenset({"gap(1)", "gap(-1)", "longest", "zoom(-1)", "zoom(1)"})


class TimelineScreen(PageScreen):
    """The ledger of the step, its lanes, and what is under the cursor."""

    AUTO_FOCUS: ClassVar[str | None] = "Lanes"
    name_of: ClassVar[str] = "timeline"
    help_of: ClassVar[str] = (
        "One step of one rank. Above, its ledger in ms: the titles are the key to the glyphs.\n"
        "Below, a lane a stream or thread, and one of all collectives: a cell shows what holds most of it.\n"
        "t and a number: a thread of the host; s: a stream of the device; comm: it carries collectives out.\n"
        "Glyphs: those of the titles above. Compute fills a cell by eighths (▁ to █); a thin glyph (╸ of ━, "
        "▗ of ▄) holds less than half of its cell; ◦ •: other work of the host, in less or more than half of "
        "it. The cell under the cursor is in reverse, and so is a digit of the ruler there.\n"
        "n: to the next exposed gap, x: to the longest; + and -: zoom; [ ] and r: another step or rank.\n"
        "enter: open the event under the cursor. o: the step as a trace for Perfetto."
    )
    #: Keys of the lanes that work while the ledger has the focus, too; the footer has them of the lanes.
    BINDINGS: ClassVar[list[BindingType]] = [
        replace(each, show=False) for each in bindings(Where.TIMELINE) if each.action in _OF_LANES
    ]
    CSS: ClassVar[str] = """
    TimelineScreen #step, TimelineScreen #step:focus { border: none; height: 2; min-height: 2; }
    TimelineScreen #under { height: 1fr; min-height: 3; padding: 0 1; }
    TimelineScreen #legend { height: auto; }
    TimelineScreen #glyphs { height: auto; padding: 0 1; color: $text-muted; display: none; }
    """

    class Built(Message):
        """A timeline is there, or a text that says why not."""

        def __init__(self, loaded: Loaded, key: Key, built: StepModel | str) -> None:
            super().__init__()
            self.loaded, self.key, self.built = loaded, key, built

    def __init__(self) -> None:
        super().__init__()
        self._kept = Kept()
        self._of: Loaded | None = None
        #: Whether events are being read.
        self.is_reading = False

    def parts(self) -> ComposeResult:
        """Ledger, lanes, words."""
        yield FactTable(id="step", classes="fill")
        yield Lanes(id="lanes")
        yield Static("", id="under")
        with Vertical(id="legend"):
            yield Static(Text(_ASCII_GLYPHS if self.zprof.ascii_only else _GLYPHS), id="glyphs")

    def fill(self, loaded: Loaded, selected: Selected) -> None:
        """The ledger at once; the lanes when the events are read."""
        self.query_one("#step", FactTable).show(
            step_table(loaded, selected, ascii_only=self.zprof.ascii_only)
        )
        if loaded is not self._of:
            self._kept.clear()
            self._of = loaded
        lanes = self.query_one(Lanes)
        if self.focused is None:
            lanes.focus()
        if selected.rank is None or selected.step is None:
            lanes.say("no step of this run was timed: g says why, and what helps")
            return
        key = (selected.rank, selected.step)
        model = self._kept.get(key)
        if model is not None:
            lanes.show(model)
            return
        lanes.say(f"reading rank {selected.rank} ...")
        self.is_reading = True
        self.read_events(loaded, key)

    @work(thread=True, exclusive=True, group="timeline", description="read events")
    def read_events(self, loaded: Loaded, key: Key) -> None:
        """Read and sort the events of a rank, beside the screen."""
        try:
            built: StepModel | str = build(loaded.run, loaded.analysis, *key)
        except ZprofError as error:
            built = f"{error} ({error.hint})" if error.hint else str(error)
        if not get_current_worker().is_cancelled:
            self.post_message(self.Built(loaded, key, built))

    def on_timeline_screen_built(self, event: Built) -> None:
        """Show it, unless something else was picked meanwhile."""
        selected = self.zprof.selected
        if event.loaded is not self._of:
            return
        if isinstance(event.built, StepModel):
            self._kept.put(event.key, event.built)
        if event.key != (selected.rank, selected.step):
            return
        self.is_reading = False
        if isinstance(event.built, StepModel):
            self.query_one(Lanes).show(event.built)
        else:
            self.query_one(Lanes).say(event.built)

    def action_gap(self, by: int) -> None:
        """In the lanes, to the next exposed gap or the one before."""
        self.query_one(Lanes).action_gap(by)

    def action_longest(self) -> None:
        """In the lanes, to the longest exposed gap."""
        self.query_one(Lanes).action_longest()

    def action_zoom(self, by: int) -> None:
        """In the lanes, see half as much, or twice."""
        self.query_one(Lanes).action_zoom(by)

    def on_resize(self) -> None:
        """What the glyphs mean, where there is room for it."""
        self.query_one("#glyphs").styles.display = "block" if self.app.size.height >= _TALL else "none"

    def on_lanes_moved(self) -> None:
        """Say what is under the cursor."""
        under = self.query_one("#under", Static)
        lines = said_of(self.query_one(Lanes), whole=under.size.height >= _ROOM)
        under.update(Text("\n".join(lines)))

    def on_lanes_opened(self, event: Lanes.Opened) -> None:
        """A window on the event."""
        model = self.query_one(Lanes).model
        if model is not None:
            self.app.push_screen(TextPopup(*opened(model, event.lane, event.place)))


def said_of(lanes: Lanes, *, whole: bool = False) -> list[str]:
    """Lines on what is under the cursor: what holds it, the event, the exposed gap; or why there is none.

    ``whole``: behind them all that a window on the event would say.
    """
    model, lane, spot = lanes.model, lanes.lane, lanes.spot()
    if model is None:
        return [printable(lanes.said)]
    if lane is None or spot is None:
        return ["nothing ran in this step"]
    cursor, place = lanes.view.cursor_ns, spot.place
    lines = [
        spot_line(lane, spot),
        item_line(model, lane, spot),
        gap_line(model, gap_at(model, cursor, cursor + 1) or gap_at(model, spot.begin_ns, spot.end_ns)),
    ]
    if whole and place is not None:
        lines += ["\n", *opened(model, lane, place)[1].split("\n")]
    return [printable(line) if line != "\n" else "" for line in lines if line]
