"""Run the live app: it polls a growing run twice per second and can switch to all screens of the run."""

import asyncio
import signal
import time
from contextlib import suppress
from typing import ClassVar

from textual import work
from textual.binding import BindingType

from zprof.model.quantities import Value
from zprof.tui.keys import KEYS, Where, bindings
from zprof.tui.live.presenter import explain_number, format_gaps
from zprof.tui.live.screen import LiveScreen, LiveShell
from zprof.tui.live.watcher import LiveSnapshot, Watcher
from zprof.tui.popups import TextPopup
from zprof.tui.table_view import get_text
from zprof.tui.widgets.fact_table import FactTable

#: Exit codes: the user left the view, or left it and interrupted the job.
LEFT, END_JOB = 0, 130
_POLL_S = 0.5
#: After a poll, pause this many times its CPU time, so that the view uses less than 10 % of a core.
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


class LiveApp(LiveShell):
    """Show one run while it is recorded. ``opens``: the user left to open all screens of the run."""

    TITLE = "zprof live"
    CSS_PATH: ClassVar[list[str]] = ["../zprof.tcss", "live.tcss"]  # type: ignore[assignment]
    BINDINGS: ClassVar[list[BindingType]] = [
        *(binding for binding in bindings(Where.EVERYWHERE) if binding.key in _SHARED_KEYS),
        *(binding for binding in bindings(Where.LIVE) if binding.priority),  # must work above popups, too
    ]

    def __init__(
        self, watcher: Watcher, *, ascii_only: bool = False, mono: bool = False, every_s: float = _POLL_S
    ) -> None:
        """Create the app; ``every_s`` is the polling interval, 0 polls only when ``poll`` is called."""
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
        """Show the snapshot if it changed, then pause in proportion to the cost of the poll.

        Reading and drawing 1000 ranks takes longer.
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
        """Leave the view and interrupt the job, as ctrl+c would without a view."""
        self.exit(END_JOB)

    def action_open_run(self) -> None:
        """Leave the view and open all screens for the data recorded so far."""
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
        self.push_screen(TextPopup("keys", "\n".join(f"{key.written:<10} {key.says}" for key in keys)))

    def action_gaps(self) -> None:
        """List what could not be measured so far."""
        self.push_screen(TextPopup("what could not be measured", format_gaps(self.seen)))

    def on_fact_table_opened(self, event: FactTable.Opened) -> None:
        """Explain the opened number."""
        if isinstance(event.cell, Value) and event.cell.leaves:
            title = f"{get_text(event.line.cells[0])}: {event.cell.text}"
            self.push_screen(TextPopup(title, explain_number(event.cell)))
