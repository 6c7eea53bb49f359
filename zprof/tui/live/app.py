"""Run the live app, which polls a growing run twice per second and can switch to all screens."""

import asyncio
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar, cast

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.geometry import Size
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Static

from zprof.base.formatting import format_ms, printable, shorten
from zprof.model.quantities import Value
from zprof.reports.table import Mark
from zprof.run.live import LiveState
from zprof.tui.keys import KEYS, Where, bindings
from zprof.tui.live.presenter import (
    RankRows,
    StepSpread,
    build_ledger_table,
    build_rank_rows,
    build_tenants_table,
    compute_bar_scale,
    compute_spreads,
    describe_stage,
    draw_bars,
    explain_number,
    format_gaps,
    format_windows,
    get_verdict,
)
from zprof.tui.live.watcher import LiveSnapshot, Watcher
from zprof.tui.popups import TextPopup
from zprof.tui.table_view import get_text
from zprof.tui.theme import MARKS, ThemedApp, get_look
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.text import TruncatedText

#: Exit codes: the user left the view, or left it and interrupted the job.
LEFT, END_JOB = 0, 130
_POLL_S = 0.5
#: After a poll, pause this many times its CPU time, to use less than 10 % of a core.
_REST_FACTOR = 10.0
#: Global keys that also work while a run is being recorded.
_SHARED_KEYS = ("question_mark", "f1", "g", "q", "ctrl+p", "tab", "shift+tab")
_HELP = (
    "Top: the current activity, then one bar per step for the median step time over all ranks, and the "
    "window of each step. Steps of the memory window take longer because every allocation is "
    "recorded.\n\nMiddle: one line per rank, from the rank's own step log. < marks the slowest rank of the "
    "last step that all ranks have finished, if it took over 5 % longer than the fastest. s sorts the "
    "ranks by median step time. Memory is the allocator's counters on a device, and the memory of the "
    "process otherwise.\n\nBottom: the step ledger and the tenants at the memory peak. They are exact and "
    "equal the values in the report. They are unknown until their window is complete and written. Press "
    "enter on a number to explain it."
)
_PLAIN = Style()
_LABEL_WIDTH, _VERDICT_LINES = 10, 2
_LEGEND = "m memory, t time, . not recorded"


class RankLines(ScrollView, can_focus=True):
    """Show :class:`~zprof.tui.live.presenter.RankRows` below a fixed header line."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows = RankRows()

    def show(self, rows: RankRows) -> None:
        """Replace the rows."""
        self.rows = rows
        self.virtual_size = Size(self.size.width, len(rows.rows) + 1)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw the header line, or the row at the scroll position."""
        width = self.size.width
        if y == 0:
            return self._make_strip(self._align_columns(self.rows.titles), width, Mark.TITLE)
        index = y - 1 + self.scroll_offset.y
        if index >= len(self.rows.rows):
            return Strip.blank(width)
        row = self.rows.rows[index]
        mark = Mark.BAD if row.is_slowest else Mark.MUTED if row.is_finished else Mark.PLAIN
        # A mark between cells and bars shows the slowest rank without colour.
        text = f"{self._align_columns(row.cells)} {'<' if row.is_slowest else ' '} {row.bars}"
        return self._make_strip(text, width, mark)

    def _align_columns(self, texts: tuple[str, ...]) -> str:
        return "".join(text.rjust(width) for text, width in zip(texts, self.rows.widths, strict=False))

    def _make_strip(self, text: str, width: int, mark: Mark) -> Strip:
        style = (
            Style.parse(MARKS[mark].colour(get_look(self.app)) or "none")
            if mark is not Mark.PLAIN
            else _PLAIN
        )
        strip = Strip([Segment(text, style)]).adjust_cell_length(width)
        return strip.apply_style(self.rich_style)


class LiveShell(ThemedApp):
    """Base of the live app: the watcher of one run and its latest snapshot."""

    def __init__(self, watcher: Watcher, *, ascii_only: bool = False, mono: bool = False) -> None:
        super().__init__(ascii_only=ascii_only, mono=mono)
        self.watcher = watcher
        self.seen = LiveSnapshot(state=LiveState())


class LiveScreen(Screen[None]):
    """Show the latest snapshot."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.LIVE)]

    def __init__(self) -> None:
        super().__init__()
        self.slowest_first = False
        self._shown_tables: object = None

    @property
    def live(self) -> LiveShell:
        """Return the app, typed as `LiveShell`."""
        return cast(LiveShell, self.app)

    def compose(self) -> ComposeResult:
        """Yield the widgets, from the most to the least frequently updated."""
        yield Static("", id="titles")
        with Vertical(id="body"):
            yield Static("", id="doing")
            yield TruncatedText(lines=_VERDICT_LINES, id="verdict")
            yield Static("", id="spread")
            yield RankLines(id="ranks")
            with Horizontal(id="measured"):
                yield FactTable(id="ledger")
                yield FactTable(id="tenants")
            yield Static("", id="log")
        yield Static("", id="status")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Set the title and show the snapshot."""
        name = printable(self.live.watcher.path.name)
        self.query_one("#titles", Static).update(Text(f"zprof live  {name}", style="bold", no_wrap=True))
        self.show(self.live.seen)

    def on_resize(self) -> None:
        """Redraw for the new size."""
        if self.is_mounted:
            self.show(self.live.seen)

    def action_sort_ranks(self) -> None:
        """Toggle between slowest rank first and order by number."""
        self.slowest_first = not self.slowest_first
        self.show(self.live.seen)

    def action_explain_open(self) -> None:
        """Tell the user that only numbers in tables can be opened."""
        self.app.notify(
            "only numbers in the tables below can be opened; press tab to move there", markup=False
        )

    def show(self, seen: LiveSnapshot) -> None:
        """Draw a snapshot; redraw tables only if they changed."""
        width, ascii_only = self.app.size.width, self.live.ascii_only
        ranks = seen.state.ranks
        self._set_text("doing", describe_stage(seen))
        spreads = compute_spreads(ranks, max(1, width - _LABEL_WIDTH - 3))
        self._set_text("spread", *format_spread(spreads, ascii_only=ascii_only))
        rows = build_rank_rows(ranks, width - 3, slowest_first=self.slowest_first, ascii_only=ascii_only)
        self.query_one("#ranks", RankLines).show(rows)
        self._show_tables(seen)
        # Show as many of the last log lines as fit.
        log = self.query_one("#log", Static)
        log.display = bool(seen.log)
        text_width = self.app.size.width - 2
        last_lines = seen.log[-max(1, log.size.height) :]
        log.update(Text("\n".join(shorten(line, text_width) for line in last_lines), no_wrap=True))
        verdict = self.query_one("#verdict", TruncatedText)
        verdict.display = bool(get_verdict(seen))
        verdict.show(Text(printable(get_verdict(seen))))
        self._set_text("status", format_status(seen))

    def _set_text(self, widget_id: str, *lines: str) -> None:
        text_width = self.app.size.width - 2
        text = Text("\n".join(shorten(printable(line), text_width) for line in lines), no_wrap=True)
        self.query_one(f"#{widget_id}", Static).update(text)

    def _show_tables(self, seen: LiveSnapshot) -> None:
        tables = (build_ledger_table(seen), build_tenants_table(seen))
        if (state := (tables, self.live.looks)) == self._shown_tables:
            return
        self._shown_tables = state
        for name, table in zip(("#ledger", "#tenants"), tables, strict=True):
            self.query_one(name, FactTable).show(table)


class LiveApp(LiveShell):
    """Show one run during recording. ``opens``: the user left to open all screens of the run."""

    TITLE = "zprof live"
    CSS_PATH: ClassVar[list[str]] = ["../zprof.tcss", "live.tcss"]  # type: ignore[assignment]
    BINDINGS: ClassVar[list[BindingType]] = [
        *(binding for binding in bindings(Where.EVERYWHERE) if binding.key in _SHARED_KEYS),
        *(binding for binding in bindings(Where.LIVE) if binding.priority),  # must work above popups, too
    ]

    def __init__(
        self, watcher: Watcher, *, ascii_only: bool = False, mono: bool = False, every_s: float = _POLL_S
    ) -> None:
        """Create the app; ``every_s``: polling interval; 0: poll only on calls of ``poll``."""
        super().__init__(watcher, ascii_only=ascii_only, mono=mono)
        self._every_s = every_s
        self.opens = False
        self._is_polling = False
        self._resume_time_s = 0.0

    def on_mount(self) -> None:
        """Show the screen and start polling."""
        with suppress(NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit, LEFT)
        self.push_screen(LiveScreen())
        self.theme_changed_signal.subscribe(self, lambda _: self.take(self.seen))
        if self._every_s:
            self.start_poll()
            self.set_interval(self._every_s, self.start_poll)

    def start_poll(self) -> None:
        """Poll in a worker thread, because file system calls may block."""
        if not self._is_polling and time.monotonic() >= self._resume_time_s:
            self._is_polling = True
            self._poll_in_thread()

    @work(thread=True, group="look", description="look")
    def _poll_in_thread(self) -> None:
        start_s = time.thread_time()
        seen = self.watcher.look()
        with suppress(RuntimeError):  # the app has exited in the meantime
            self.call_from_thread(self._handle_poll, seen, time.thread_time() - start_s)

    def _handle_poll(self, seen: LiveSnapshot, cost_s: float) -> None:
        """Show the snapshot if it changed, then pause in proportion to the poll's cost.

        Reading and drawing 1000 ranks costs more than a few.
        """
        start_s = time.thread_time()
        if seen != self.seen or self.watcher.hung_up:
            self.take(seen)
        cost_s += time.thread_time() - start_s
        self._resume_time_s = time.monotonic() + _REST_FACTOR * cost_s
        self._is_polling = False

    def poll(self) -> None:
        """Poll now and show the snapshot."""
        self.take(self.watcher.look())

    def take(self, seen: LiveSnapshot) -> None:
        """Show a snapshot, or exit if the command that started the view has hung up."""
        self.seen = seen
        if self.watcher.hung_up:
            self.exit(LEFT)
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen) and screen.is_mounted:
                screen.show(seen)

    async def action_quit(self) -> None:
        """Leave the view; the job continues."""
        self.exit(LEFT)

    def action_end_job(self) -> None:
        """Leave the view and interrupt the job, like ctrl+c without a view."""
        self.exit(END_JOB)

    def action_open_run(self) -> None:
        """Leave the view and open all screens with the data recorded so far."""
        if not self.seen.measured.tree:
            self.notify("no data to show yet: the first window is not complete", markup=False)
            return
        self.opens = True
        self.exit(LEFT)

    def action_explain(self) -> None:
        """Explain the live view."""
        self.push_screen(TextPopup("live view", _HELP))

    def action_help(self) -> None:
        """List the keys of the live view."""
        keys = [key for key in KEYS if key.where in (Where.LIVE, Where.TABLE) or key.keys in _SHARED_KEYS]
        self.push_screen(TextPopup("keys", "\n".join(f"{key.written:<10} {key.help}" for key in keys)))

    def action_gaps(self) -> None:
        """List what could not be measured so far."""
        self.push_screen(TextPopup("what could not be measured", format_gaps(self.seen)))

    def on_fact_table_opened(self, event: FactTable.Opened) -> None:
        """Explain the opened number."""
        if isinstance(event.cell, Value) and event.cell.leaves:
            title = f"{get_text(event.line.cells[0])}: {event.cell.text}"
            self.push_screen(TextPopup(title, explain_number(event.cell)))


def format_spread(spreads: Sequence[StepSpread], *, ascii_only: bool) -> tuple[str, str, str]:
    """Format three lines: step medians as bars, windows, and the numbers of the last step."""
    if not spreads:
        return ("all ranks  no step finished yet", "window", "")
    medians = [step.median_ns for step in spreads]
    last = spreads[-1]
    bars = draw_bars(medians, compute_bar_scale(medians), ascii_only=ascii_only)
    numbers = f"step {last.step}: median {format_ms(last.median_ns)} ms"
    if last.ranks > 1:
        numbers += (
            f", {format_ms(last.min_ns)} to {format_ms(last.max_ns)} over {last.ranks} ranks"
            f", slowest rank {last.slowest_rank}"
        )
    windows = f"{'window':<{_LABEL_WIDTH}} {format_windows(spreads)}   {_LEGEND}"
    return (f"{'all ranks':<{_LABEL_WIDTH}} {bars}", windows, numbers)


def format_status(seen: LiveSnapshot) -> str:
    """Format the run status as one line: ranks, engine, hidden ranks, damaged log lines."""
    manifest = seen.state.manifest
    if manifest is None:
        return "no run yet"
    ranks = len(seen.state.ranks)
    world = manifest.world_size
    world_text = "1 rank" if world == 1 else f"{world} ranks"
    parts = [f"{ranks} of {world_text}" if ranks < world else world_text, manifest.training.engine]
    if seen.state.left_out:
        parts.append(f"{seen.state.left_out} ranks not shown")
    damaged = sum(rank.damaged for rank in seen.state.ranks)
    if damaged:
        parts.append(f"{damaged} damaged lines in the step logs")
    return " · ".join(parts)
