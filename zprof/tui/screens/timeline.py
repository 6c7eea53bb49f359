"""The timeline screen: ledger and lanes of one step of one rank, and the event under the cursor."""

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
from zprof.model.formatting import printable
from zprof.tui.figures import AT_LEAST, AT_MOST, EXACT, Unit, make_bound_figure
from zprof.tui.keys import Where, bindings
from zprof.tui.popups import TextPopup
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.tables import Column, Line, Table
from zprof.tui.theme import TIMES
from zprof.tui.timeline.build import build
from zprof.tui.timeline.describe import describe_event, describe_gap, describe_item, describe_target
from zprof.tui.timeline.step_model import RankStep, StepModel, TimelineCache, find_gap
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.lanes import Lanes

#: Minimum height of the description, in rows, to show everything about the event under the cursor.
_FULL_TEXT_HEIGHT = 15
#: Minimum height of the terminal, in lines, to show the legend of glyphs.
_TALL = 30
_GLYPHS = (
    "▁ to █: compute by eighths of a cell; ╸ of ━, ▗ of ▄: less than half of it; ◦ •: other host work\n"
    "t and a number: a thread, s: a stream; comm: it carries collectives out; in reverse: the cursor"
)
_ASCII_GLYPHS = (
    "+ #: compute in less or more than half of a cell; h H: other host work\n"
    "t and a number: a thread, s: a stream; comm: it carries collectives out; in reverse: the cursor"
)
_LANE_ACTIONS = frozenset({"gap(1)", "gap(-1)", "longest", "zoom(-1)", "zoom(1)"})


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
    #: Lane keys that also work while the ledger has the focus; hidden here because the lanes put them in the
    #: footer.
    BINDINGS: ClassVar[list[BindingType]] = [
        replace(each, show=False) for each in bindings(Where.TIMELINE) if each.action in _LANE_ACTIONS
    ]
    CSS: ClassVar[str] = """
    TimelineScreen #step, TimelineScreen #step:focus { border: none; height: 2; min-height: 2; }
    TimelineScreen #under { height: 1fr; min-height: 3; padding: 0 1; }
    TimelineScreen #legend { height: auto; }
    TimelineScreen #glyphs { height: auto; padding: 0 1; color: $text-muted; display: none; }
    """

    class Built(Message):
        """A timeline was built, or a text explains why not."""

        def __init__(self, loaded: LoadedRun, key: RankStep, built: StepModel | str) -> None:
            super().__init__()
            self.loaded, self.key, self.built = loaded, key, built

    def __init__(self) -> None:
        super().__init__()
        self._kept = TimelineCache()
        self._of: LoadedRun | None = None
        #: True while events are being read.
        self.is_reading = False

    def parts(self) -> ComposeResult:
        """Yield ledger, lanes, description and legend."""
        yield FactTable(id="step", classes="fill")
        yield Lanes(id="lanes")
        yield Static("", id="under")
        with Vertical(id="legend"):
            yield Static(Text(_ASCII_GLYPHS if self.zprof.ascii_only else _GLYPHS), id="glyphs")

    def fill(self, loaded: LoadedRun, selected: Selection) -> None:
        """Show the ledger at once, and the lanes after their events have been read."""
        self.query_one("#step", FactTable).show(
            build_step_table(loaded, selected, ascii_only=self.zprof.ascii_only)
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
    def read_events(self, loaded: LoadedRun, key: RankStep) -> None:
        """Build the timeline of a rank and step in a worker thread."""
        try:
            built: StepModel | str = build(loaded.run, loaded.analysis, *key)
        except ZprofError as error:
            built = f"{error} ({error.hint})" if error.hint else str(error)
        if not get_current_worker().is_cancelled:
            self.post_message(self.Built(loaded, key, built))

    def on_timeline_screen_built(self, event: Built) -> None:
        """Show the timeline, unless another rank, step or run is selected by now."""
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
        """Jump to the next or previous exposed gap in the lanes."""
        self.query_one(Lanes).action_gap(by)

    def action_longest(self) -> None:
        """Jump to the longest exposed gap in the lanes."""
        self.query_one(Lanes).action_longest()

    def action_zoom(self, by: int) -> None:
        """Zoom the lanes in or out by a factor of two."""
        self.query_one(Lanes).action_zoom(by)

    def on_resize(self) -> None:
        """Show the legend of glyphs if the terminal is tall enough."""
        self.query_one("#glyphs").styles.display = "block" if self.app.size.height >= _TALL else "none"

    def on_lanes_moved(self) -> None:
        """Describe what is under the cursor."""
        under = self.query_one("#under", Static)
        lines = describe_cursor(self.query_one(Lanes), whole=under.size.height >= _FULL_TEXT_HEIGHT)
        under.update(Text("\n".join(lines)))

    def on_lanes_opened(self, event: Lanes.Opened) -> None:
        """Open a popup on the event."""
        model = self.query_one(Lanes).model
        if model is not None:
            self.app.push_screen(TextPopup(*describe_event(model, event.lane, event.place)))


def describe_cursor(lanes: Lanes, *, whole: bool = False) -> list[str]:
    """Return lines on the column, event and gap under the cursor, or why there are none.

    ``whole``: append everything that a popup on the event would show.
    """
    model, lane, spot = lanes.model, lanes.lane, lanes.spot()
    if model is None:
        return [printable(lanes.said)]
    if lane is None or spot is None:
        return ["nothing ran in this step"]
    cursor, place = lanes.view.cursor_ns, spot.place
    lines = [
        describe_target(lane, spot),
        describe_item(model, lane, spot),
        describe_gap(
            model, find_gap(model, cursor, cursor + 1) or find_gap(model, spot.begin_ns, spot.end_ns)
        ),
    ]
    if whole and place is not None:
        lines += ["\n", *describe_event(model, lane, place)[1].split("\n")]
    return [printable(line) if line != "\n" else "" for line in lines if line]


#: Ledger terms in display order with their titles; the last one is not part of the sum.
_TERMS = (
    ("compute_ns", "compute"),
    ("exposed_transfer_ns", "transfer"),
    ("exposed_wait_ns", "wait"),
    ("exposed_memcpy_ns", "copies"),
    ("idle_ns", "idle"),
    ("unexplained_ns", "unexpl."),
    ("overlapped_ns", "hidden"),
)
_SIGNS = {"exposed_wait_ns": AT_LEAST, "exposed_transfer_ns": AT_MOST}
_SAYS = {
    "compute_ns": "the rank computes",
    "exposed_transfer_ns": "bytes move, and nothing computes",
    "exposed_wait_ns": "a collective waits for the last rank, and nothing computes",
    "exposed_memcpy_ns": "only copies or fills run",
    "idle_ns": "nothing runs: the host launches, or does something else",
    "unexplained_ns": "the trace is silent, or a wait has no collective",
    "overlapped_ns": "collectives run that hold nothing up; not part of the sum",
}


def build_step_table(loaded: LoadedRun, selected: Selection, *, ascii_only: bool = False) -> Table:
    """Return a table with the step's ledger in ms, without a row if the step was not timed.

    Titles double as the legend of glyphs. If not all ranks of the rank's collectives were seen, wait is a
    lower and transfer an upper bound.
    """
    columns = [Column(title="step ms", says="wall time of the step", numeric=True)]
    for term, word in _TERMS:
        glyph = TIMES[term].shown(ascii_only=ascii_only)
        columns.append(Column(title=f"{glyph} {word}", says=_SAYS[term], numeric=True))
    place = find_step_place(loaded, selected)
    return Table(
        name="step",
        title="the step, in ms",
        columns=tuple(columns),
        lines=(_build_line(loaded, place),) if place is not None else (),
        help="The ledger of this step on this rank, in ms. The lanes below are drawn of the same instants.",
    )


def find_step_place(loaded: LoadedRun, selected: Selection) -> int | None:
    """Return the index of this rank's step in the report, or None."""
    for place, entry in enumerate(loaded.report.time.steps):
        if entry.rank == selected.rank and entry.step == selected.step:
            return place
    return None


def _build_line(loaded: LoadedRun, place: int) -> Line:
    stem = f"time.steps[{place}]"
    rank = loaded.report.time.steps[place].rank
    is_split = all(entry.unsplit_ns == 0 for entry in loaded.report.time.per_rank if entry.rank == rank)
    signs = {} if is_split else _SIGNS
    return Line(
        key="step",
        cells=tuple(
            make_bound_figure(loaded.tree, Unit.MS, f"{stem}.{term}", sign=signs.get(term, EXACT))
            for term in ("wall_ns", *(term for term, _ in _TERMS))
        ),
    )
