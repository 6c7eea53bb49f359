"""The live app: polls a growing run twice per second, and can switch to all screens on it."""

import asyncio
import signal
import time
from contextlib import suppress
from typing import ClassVar

from textual import work
from textual.binding import BindingType

from zprof.tui.figures import Figure
from zprof.tui.keys import KEYS, Where, bindings
from zprof.tui.live.presenter import explain_number, format_gaps
from zprof.tui.live.screen import LiveScreen, LiveShell
from zprof.tui.live.watcher import LiveSnapshot, Watcher
from zprof.tui.popups import TextPopup
from zprof.tui.widgets.fact_table import FactTable

#: Exit codes: the user left the view, or left and wants the job to end.
LEFT, END_JOB = 0, 130
_POLL_S = 0.5
#: After a poll, pause this many times its CPU time, so that the view uses less than 10 % of a core.
_REST_FACTOR = 10.0
#: Keys of all screens that also make sense while a run is recorded.
_SHARED_KEYS = ("question_mark", "f1", "g", "q", "ctrl+p", "tab", "shift+tab")
_HELP = (
    "Above: what goes on, then all ranks step by step: the median of each step as a bar, and the window that "
    "it belongs to. Steps of the memory window take longer: every allocation is watched.\n\n"
    "Then a line a rank; < marks the one that took longest, by a twentieth or more, for the last step that "
    "all have finished. s puts those with the longest median step first. A line opens nothing. What the "
    "allocator counts is shown where there is a device, else what the process holds. These are "
    "the ranks' own lines.\n\n"
    "Below: the step ledger and the tenants at the peak. They are leaves of the report, and exact; they come "
    "when their window is over and written. Until then they are unknown."
)


class LiveApp(LiveShell):
    """Shows one run while it is recorded. ``opens``: the user left to see all screens of the run."""

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
        self._looking = False
        self._rests_until = 0.0

    def on_mount(self) -> None:
        """Show the screen and start polling."""
        with suppress(NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit, LEFT)
        self.push_screen(LiveScreen())
        self.theme_changed_signal.subscribe(self, lambda _: self.take(self.seen))
        if self._every_s:
            self.begin_look()
            self.set_interval(self._every_s, self.begin_look)

    def begin_look(self) -> None:
        """Poll in a worker thread, because a file system may block."""
        if not self._looking and time.monotonic() >= self._rests_until:
            self._looking = True
            self._look()

    @work(thread=True, group="look", description="look")
    def _look(self) -> None:
        began = time.thread_time()
        seen = self.watcher.look()
        with suppress(RuntimeError):  # the app has exited in the meantime
            self.call_from_thread(self._looked, seen, time.thread_time() - began)

    def _looked(self, seen: LiveSnapshot, cost_s: float) -> None:
        """Show the snapshot if it changed, then pause in proportion to the cost of the poll.

        Reading and drawing 1000 ranks takes longer.
        """
        began = time.thread_time()
        if seen != self.seen or self.watcher.hung_up:
            self.take(seen)
        cost_s += time.thread_time() - began
        self._rests_until = time.monotonic() + _REST_FACTOR * cost_s
        self._looking = False

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
        """Leave the view and end the job, as ctrl+c would without a view."""
        self.exit(END_JOB)

    def action_open_run(self) -> None:
        """Leave the view and open all screens on what is recorded so far."""
        if not self.seen.measured.tree:
            self.notify("nothing is measured yet: a window has to be over first", markup=False)
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
        if isinstance(event.cell, Figure) and event.cell.leaves:
            title = f"{event.line.cells[0].text}: {event.cell.text}"
            self.push_screen(TextPopup(title, explain_number(event.cell)))
