"""The live screen: what goes on, the steps of all ranks, and the windows that are over."""

from collections.abc import Sequence
from typing import ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Footer, Static

from zprof.model.printable import printable, shorten
from zprof.model.units import format_ms
from zprof.tui.keys import Where, bindings
from zprof.tui.live.pages import ledger_table, tenants_table, verdict_text
from zprof.tui.live.rank_lines import RankLines
from zprof.tui.live.rows import rank_rows
from zprof.tui.live.seen import Seen
from zprof.tui.live.shell import LiveShell
from zprof.tui.live.spread import StepSpread, bars, letters, spreads, top_of
from zprof.tui.live.stage import stage_words
from zprof.tui.widgets.cut_text import CutText
from zprof.tui.widgets.fact_table import FactTable

_LABEL, _VERDICT_LINES = 10, 2
_LEGEND = "m memory, t time, . unwatched"


class LiveScreen(Screen[None]):
    """Shows each look."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.LIVE)]

    def __init__(self) -> None:
        super().__init__()
        self.slowest_first = False
        self._measured: object = None

    @property
    def live(self) -> LiveShell:
        """The app, by its own type."""
        return cast(LiveShell, self.app)

    def compose(self) -> ComposeResult:
        """From what changes each second to what comes once a window."""
        yield Static("", id="titles")
        with Vertical(id="body"):
            yield Static("", id="doing")
            yield CutText(lines=_VERDICT_LINES, id="verdict")
            yield Static("", id="spread")
            yield RankLines(id="ranks")
            with Horizontal(id="measured"):
                yield FactTable(id="ledger")
                yield FactTable(id="tenants")
            yield Static("", id="log")
        yield Static("", id="status")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """The title stays."""
        name = printable(self.live.watcher.path.name)
        self.query_one("#titles", Static).update(Text(f"zprof live  {name}", style="bold", no_wrap=True))
        self.show(self.live.seen)

    def on_resize(self) -> None:
        """Other columns, and more or fewer steps, fit."""
        if self.is_mounted:
            self.show(self.live.seen)

    def action_sort_ranks(self) -> None:
        """The slowest rank first, or by number."""
        self.slowest_first = not self.slowest_first
        self.show(self.live.seen)

    def action_say_opens(self) -> None:
        """A rank's line opens nothing: what does is said."""
        self.app.notify(
            "a rank's line opens nothing: tab goes to the tables, whose numbers open", markup=False
        )

    def show(self, seen: Seen) -> None:
        """Draw this look; tables only where they changed."""
        width, ascii_only = self.app.size.width, self.live.ascii_only
        ranks = seen.state.ranks
        self._say("doing", stage_words(seen))
        found = spreads(ranks, max(1, width - _LABEL - 3))
        self._say("spread", *spread_lines(found, ascii_only=ascii_only))
        rows = rank_rows(ranks, width - 3, slowest_first=self.slowest_first, ascii_only=ascii_only)
        self.query_one("#ranks", RankLines).show(rows)
        self._show_tables(seen)
        self._show_log(seen.log)
        verdict = self.query_one("#verdict", CutText)
        verdict.display = bool(verdict_text(seen))
        verdict.show(Text(printable(verdict_text(seen))))
        self._say("status", status_text(seen))

    def _say(self, part: str, *lines: str) -> None:
        room = self.app.size.width - 2
        text = Text("\n".join(shorten(printable(line), room) for line in lines), no_wrap=True)
        self.query_one(f"#{part}", Static).update(text)

    def _show_tables(self, seen: Seen) -> None:
        tables = (ledger_table(seen), tenants_table(seen))
        if (state := (tables, self.live.looks)) == self._measured:
            return
        self._measured = state
        for name, table in zip(("#ledger", "#tenants"), tables, strict=True):
            self.query_one(name, FactTable).show(table)

    def _show_log(self, lines: Sequence[str]) -> None:
        """As many of its last lines as there is room for."""
        log = self.query_one("#log", Static)
        log.display = bool(lines)
        room = self.app.size.width - 2
        shown = lines[-max(1, log.size.height) :]
        log.update(Text("\n".join(shorten(line, room) for line in shown), no_wrap=True))


def spread_lines(found: Sequence[StepSpread], *, ascii_only: bool) -> tuple[str, str, str]:
    """The middle over the ranks of each step, the window of each, and the last one in numbers."""
    if not found:
        return ("all ranks  no step is over yet", "window", "")
    middles = [step.median_ns for step in found]
    last = found[-1]
    shown = bars(middles, top_of(middles), ascii_only=ascii_only)
    numbers = f"step {last.step}: median {format_ms(last.median_ns)} ms"
    if last.ranks > 1:
        numbers += (
            f", {format_ms(last.least_ns)} to {format_ms(last.most_ns)} over {last.ranks} ranks"
            f", longest rank {last.longest}"
        )
    windows = f"{'window':<{_LABEL}} {letters(found)}   {_LEGEND}"
    return (f"{'all ranks':<{_LABEL}} {shown}", windows, numbers)


def status_text(seen: Seen) -> str:
    """One line on the run."""
    manifest = seen.state.manifest
    if manifest is None:
        return "no run yet"
    ranks = len(seen.state.ranks)
    world = manifest.world_size
    whole = "1 rank" if world == 1 else f"{world} ranks"
    parts = [f"{ranks} of {whole}" if ranks < world else whole, manifest.training.engine]
    if seen.state.left_out:
        parts.append(f"{seen.state.left_out} ranks are not shown")
    damaged = sum(rank.damaged for rank in seen.state.ranks)
    if damaged:
        parts.append(f"{damaged} lines of the logs of steps are damaged")
    return " · ".join(parts)
