"""The timeline screen: ledger and lanes of one step on one rank, and the event under the cursor."""

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static
from textual.worker import get_current_worker

from zprof.analysis.step_timeline.build import build_step_model, find_step_span, find_tracks
from zprof.analysis.step_timeline.rank_rows import RankOrder, RankRow, build_rank_row, order_ranks
from zprof.analysis.step_timeline.step_model import StepTimeline, find_gap
from zprof.base.errors import ZprofError
from zprof.base.formatting import printable
from zprof.model.cursor import Cursor, read
from zprof.reports.pages.ledger import read_terms
from zprof.reports.table import Column, Row, Table
from zprof.tui.keys import Where, bindings
from zprof.tui.popups import TextPopup
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.theme import TIMES
from zprof.tui.timeline_cursor import describe_event, describe_gap, describe_item, describe_target
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.lanes import Lanes
from zprof.tui.widgets.rank_rows import RankRows

#: Minimum rows of the description to show all facts about the event under the cursor.
_FULL_TEXT_HEIGHT = 15
#: Minimum lines of the terminal to show the glyph legend.
_MIN_TALL_HEIGHT = 30
#: Lines of titles, ledger, description, status and keys; in a tall terminal with the legend and all facts.
_FIXED_LINES, _FIXED_TALL_LINES = 9, 14
#: Lanes of the selected rank that are always shown below the ranks.
_MIN_LANES = 5
_GLYPHS = (
    "▁ to █: compute in eighths of a cell; ╸ for ━, ▗ for ▄: less than half a cell; ◦ •: other host work\n"
    "t and a number: a thread; s: a stream; comm: it runs collectives; reverse video: the cursor"
)
_ASCII_GLYPHS = (
    "+ #: compute in less or more than half a cell; h H: other host work\n"
    "t and a number: a thread; s: a stream; comm: it runs collectives; reverse video: the cursor"
)
_LANE_ACTIONS = frozenset({"gap(1)", "gap(-1)", "longest", "zoom(-1)", "zoom(1)"})
#: Maximum number of cached timelines.
MAX_TIMELINES = 8
#: Maximum event rows of all cached timelines; the latest timeline is kept regardless of size.
MAX_EVENT_ROWS = 4_000_000
RankStep = tuple[int, int]


class TimelineCache:
    """Least-recently-used cache of timelines by rank and step."""

    def __init__(self) -> None:
        self._models: OrderedDict[RankStep, StepTimeline] = OrderedDict()

    def __len__(self) -> int:
        return len(self._models)

    def get(self, key: RankStep) -> StepTimeline | None:
        """Return the cached timeline, or None."""
        if key in self._models:
            self._models.move_to_end(key)
        return self._models.get(key)

    def put(self, key: RankStep, model: StepTimeline) -> None:
        """Cache a timeline, and evict the least recently used timelines over the limits."""
        self._models[key] = model
        self._models.move_to_end(key)
        while len(self._models) > 1 and (
            len(self._models) > MAX_TIMELINES
            or sum(cached.weight for cached in self._models.values()) > MAX_EVENT_ROWS
        ):
            self._models.popitem(last=False)

    def clear(self) -> None:
        """Remove all timelines, because another run was loaded."""
        self._models.clear()


class TimelineScreen(PageScreen):
    """The ledger of the step, its lanes, and the item under the cursor."""

    AUTO_FOCUS: ClassVar[str | None] = "Lanes"
    name_of: ClassVar[str] = "timeline"
    page_help: ClassVar[str] = (
        "One step of one rank. Above, its ledger in ms; the column titles are the legend of the glyphs.\n"
        "Below, a lane per stream or thread, and one for all collectives; a cell shows its dominant role.\n"
        "t and a number: a host thread; s: a device stream; comm: it runs collectives.\n"
        "Glyphs: as in the titles above. Compute fills a cell in eighths (▁ to █); a thin glyph (╸ for ━, "
        "▗ for ▄) covers less than half of its cell; ◦ •: other host work, less or more than half. "
        "The cell under the cursor is in reverse video, as is a ruler digit in its column.\n"
        "n: next exposed gap, x: the longest; + and -: zoom; [ ] and r: another step or rank.\n"
        "enter: open the event under the cursor. o: write the step as a Perfetto trace."
    )
    #: Lane keys that also work while the ledger has the focus; hidden here, because the footer shows them for
    #: the lanes.
    BINDINGS: ClassVar[list[BindingType]] = [
        dataclasses.replace(binding, show=False)
        for binding in bindings(Where.TIMELINE)
        if binding.action in _LANE_ACTIONS
    ]
    CSS: ClassVar[str] = """
    TimelineScreen #step, TimelineScreen #step:focus { border: none; height: 2; min-height: 2; }
    TimelineScreen #under { height: 1fr; min-height: 3; padding: 0 1; }
    TimelineScreen #legend { height: auto; }
    TimelineScreen #glyphs { height: auto; padding: 0 1; color: $text-muted; display: none; }
    """

    class Stacked(Message):
        """The rows of some or all ranks were built."""

        def __init__(
            self, loaded: LoadedRun, key: RankStep, rows: Sequence[RankRow], order: RankOrder, origin_ns: int
        ) -> None:
            super().__init__()
            self.loaded, self.key, self.rows, self.order = loaded, key, rows, order
            self.origin_ns = origin_ns

    class Read(Message):
        """Everything that is shown of a rank and step was read."""

        def __init__(self, key: RankStep) -> None:
            super().__init__()
            self.key = key

    class Built(Message):
        """A timeline was built, or a message explains why it could not be."""

        def __init__(self, loaded: LoadedRun, key: RankStep, built: StepTimeline | str) -> None:
            super().__init__()
            self.loaded, self.key, self.built = loaded, key, built

    def __init__(self) -> None:
        super().__init__()
        self._cache = TimelineCache()
        self._rows: dict[RankStep, RankRow] = {}
        self._filled_run: LoadedRun | None = None
        #: True while events are being read.
        self.is_reading = False

    def parts(self) -> ComposeResult:
        """Yield ledger, lanes, description and legend."""
        yield FactTable(id="step", classes="fill")
        yield RankRows(id="stack")
        yield Lanes(id="lanes")
        yield Static("", id="under")
        with Vertical(id="legend"):
            yield Static(Text(_ASCII_GLYPHS if self.zprof.ascii_only else _GLYPHS), id="glyphs")

    def fill(self, loaded: LoadedRun, selected: Selection) -> None:
        """Show the ledger at once, and the lanes once their events have been read."""
        self.query_one("#step", FactTable).show(
            build_step_table(loaded, selected, ascii_only=self.zprof.ascii_only)
        )
        if self._filled_run is None or loaded.pending is not self._filled_run.pending:
            self._cache.clear()
            self._rows.clear()
        self._filled_run = loaded
        lanes = self.query_one(Lanes)
        if self.focused is None:
            lanes.focus()
        if selected.rank is None or selected.step is None:
            lanes.show_message("no step of this run was timed: press g for the reason and the remedy")
            return
        key = (selected.rank, selected.step)
        model = self._cache.get(key)
        if model is not None:
            lanes.show(model)
        else:
            lanes.show_message(f"reading rank {selected.rank} ...")
        self._arrange()
        self.is_reading = True
        self.read_events(loaded, key, self._divide_lines()[0])

    @work(thread=True, exclusive=True, group="timeline", description="read events")
    def read_events(self, loaded: LoadedRun, key: RankStep, rows: int) -> None:
        """Build the timeline for a rank and step, and the rows of this many ranks, in a worker thread."""
        worker = get_current_worker()

        def send(message: Message) -> None:
            if not worker.is_cancelled:
                self.post_message(message)

        try:
            model = self._cache.get(key) or build_step_model(loaded.run, loaded.analysis, *key)
            send(self.Built(loaded, key, model))
            for stacked in self._stack_ranks(loaded, key, rows) if rows else ():
                send(stacked)
                if worker.is_cancelled:
                    return
        except ZprofError as error:
            send(self.Built(loaded, key, f"{error} ({error.hint})" if error.hint else str(error)))
        send(self.Read(key))

    def _stack_ranks(self, loaded: LoadedRun, key: RankStep, count: int) -> Iterator[Stacked]:
        """Yield ever more rows: the culprit, its victims, others; the selected rank is among them."""
        (selected, step), analysis = key, loaded.analysis
        order = order_ranks(analysis, step)
        ranks = order.ranks[:count]
        if selected not in ranks:
            ranks = (*ranks[:-1], selected)
        origin_ns = find_step_span(find_tracks(analysis, selected), step)[0]
        shown: list[RankRow] = []
        for rank in ranks:
            if (rank, step) not in self._rows:
                self._rows[rank, step] = build_rank_row(loaded.run, analysis, rank, step)
            shown.append(self._rows[rank, step])
            yield self.Stacked(loaded, key, tuple(shown), order, origin_ns)

    def on_timeline_screen_built(self, event: Built) -> None:
        """Show the timeline unless another rank, step or run is now selected."""
        selected = self.zprof.selected
        if self._filled_run is None or event.loaded.pending is not self._filled_run.pending:
            return
        if isinstance(event.built, StepTimeline):
            self._cache.put(event.key, event.built)
        if event.key != (selected.rank, selected.step):
            return
        lanes = self.query_one(Lanes)
        if isinstance(event.built, str):
            lanes.show_message(event.built)
        elif lanes.model is not event.built:
            lanes.show(event.built)
            self._arrange()

    def on_timeline_screen_stacked(self, event: Stacked) -> None:
        """Show the ranks unless another rank, step or run is now selected."""
        selected = self.zprof.selected
        is_current = self._filled_run is not None and event.loaded.pending is self._filled_run.pending
        if is_current and event.key == (selected.rank, selected.step):
            self.query_one(RankRows).show(event.rows, event.order, event.origin_ns)

    def on_timeline_screen_read(self, event: Read) -> None:
        """Note that all of the selected rank and step was read."""
        if event.key == (self.zprof.selected.rank, self.zprof.selected.step):
            self.is_reading = False

    def _divide_lines(self) -> tuple[int, int]:
        """Return the lines for ranks and for the selected rank's lanes with their ruler.

        A quarter of the terminal is for the lanes, the rest for ranks, or what they leave for lanes; a single
        rank needs no row.
        """
        loaded, step, height = self._filled_run, self.zprof.selected.step, self.app.size.height
        ranks = sum(entry.step == step for entry in loaded.report.time.steps) if loaded is not None else 0
        free = height - (_FIXED_LINES if height < _MIN_TALL_HEIGHT else _FIXED_TALL_LINES)
        lanes = 1 + max(_MIN_LANES, height // 4)
        rows = max(2, min(ranks, free - lanes)) if ranks > 1 else 0
        return rows, max(lanes, free - rows)

    def _arrange(self) -> None:
        stack = self.query_one(RankRows)
        rows, lanes = self._divide_lines()
        stack.display, stack.styles.height = rows > 0, rows
        self.query_one(Lanes).styles.max_height = lanes

    def on_rank_rows_moved(self, event: RankRows.Moved) -> None:
        """Describe the rank under the cursor, or move to the lanes."""
        stack = self.query_one(RankRows)
        if event.is_below:
            self.query_one(Lanes).focus()
            self.on_lanes_moved()
        elif stack.has_focus:
            self.query_one("#under", Static).update(Text("\n".join(stack.describe())))

    def on_rank_rows_chosen(self, event: RankRows.Chosen) -> None:
        """Select the rank on all screens."""
        self.zprof.select(rank=event.rank)

    def on_lanes_left_above(self) -> None:
        """Move from the first lane to the ranks."""
        if self.query_one(RankRows).display:
            self.query_one(RankRows).focus()

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
        """Show the glyph legend if the terminal is tall enough."""
        self.query_one("#glyphs").styles.display = (
            "block" if self.app.size.height >= _MIN_TALL_HEIGHT else "none"
        )
        self._arrange()
        loaded = self._filled_run
        if loaded is not None and self._divide_lines()[0] > len(self.query_one(RankRows).rows):
            self.fill(loaded, self.zprof.selected)

    def on_lanes_moved(self) -> None:
        """Describe the item under the cursor, and draw the ranks in the same view."""
        stack = self.query_one(RankRows)
        stack.set_view(self.query_one(Lanes).view)
        if stack.has_focus and stack.rows:
            return
        description = self.query_one("#under", Static)
        lines = describe_cursor(self.query_one(Lanes), full=description.size.height >= _FULL_TEXT_HEIGHT)
        description.update(Text("\n".join(lines)))

    def on_lanes_opened(self, event: Lanes.Opened) -> None:
        """Open a popup on the event."""
        model = self.query_one(Lanes).model
        if model is not None:
            self.app.push_screen(TextPopup(*describe_event(model, event.lane, event.index)))


def describe_cursor(lanes: Lanes, *, full: bool = False) -> list[str]:
    """Describe the column, event and gap under the cursor in a few lines, or explain why nothing is shown.

    ``full``: append all facts of the event's popup.
    """
    model, lane, target = lanes.model, lanes.lane, lanes.find_target()
    if model is None:
        return [printable(lanes.message)]
    if lane is None or target is None:
        return ["nothing ran in this step"]
    cursor, event_index = lanes.view.cursor_ns, target.index
    lines = [
        describe_target(lane, target),
        describe_item(model, lane, target),
        describe_gap(
            model, find_gap(model, cursor, cursor + 1) or find_gap(model, target.begin_ns, target.end_ns)
        ),
    ]
    if full and event_index is not None:
        lines += ["\n", *describe_event(model, lane, event_index)[1].split("\n")]
    return [printable(line) if line != "\n" else "" for line in lines if line]


#: Ledger terms in display order with their titles; the last term is not part of the sum.
_TERMS = (
    ("compute_ns", "compute"),
    ("exposed_transfer_ns", "transfer"),
    ("exposed_wait_ns", "wait"),
    ("exposed_memcpy_ns", "copies"),
    ("idle_ns", "idle"),
    ("unexplained_ns", "unexpl."),
    ("overlapped_ns", "hidden"),
)


_TERM_HELP = {
    "compute_ns": "the rank computes",
    "exposed_transfer_ns": "data moves while nothing computes",
    "exposed_wait_ns": "a collective waits for the last rank while nothing computes",
    "exposed_memcpy_ns": "only copies or fills run",
    "idle_ns": "nothing runs: the host launches work or does something else",
    "unexplained_ns": "the trace has no events, or a wait has no collective",
    "overlapped_ns": "collectives run without blocking the rank; not part of the sum",
}


def build_step_table(loaded: LoadedRun, selected: Selection, *, ascii_only: bool = False) -> Table:
    """Return a table with the step's ledger in ms; empty if the step was not timed.

    Titles double as the glyph legend. If some ranks of its collectives are missing, wait is a lower bound and
    transfer an upper bound.
    """
    columns = [
        Column(
            title="step ms",
            help="wall time of the step",
        )
    ]
    for term, word in _TERMS:
        glyph = TIMES[term].shown(ascii_only=ascii_only)
        columns.append(
            Column(
                title=f"{glyph} {word}",
                help=_TERM_HELP[term],
            )
        )
    index = find_step_index(loaded, selected)
    rows = []
    if index is not None:
        time, place = loaded.report.time, Cursor(loaded.report).time.steps[index]
        bounds = time.bounds_by_rank.get(time.steps[index].rank, {})
        rows.append(
            Row(key="step", cells=(*read_terms(place, bounds), read(place.overlapped_ns, in_ms=True)))
        )
    return Table(
        name="step",
        title="the step, in ms",
        columns=tuple(columns),
        rows=tuple(rows),
        help="The ledger of this step on this rank, in ms. The lanes below show the same interval.",
    )


def find_step_index(loaded: LoadedRun, selected: Selection) -> int | None:
    """Return the index of this rank and step in the report, or None."""
    for index, entry in enumerate(loaded.report.time.steps):
        if entry.rank == selected.rank and entry.step == selected.step:
            return index
    return None
