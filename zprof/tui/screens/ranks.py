"""The ranks screen: a heat map of ranks and steps, what the critical path goes through, and all ranks."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from zprof.tui.keys import Where, bindings
from zprof.tui.pages.rank_grids import Grids, Metric
from zprof.tui.pages.ranks import path_parts, ranks_table
from zprof.tui.popups.number import NumberPopup
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import Loaded, Selected
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.figure_line import FigureLine
from zprof.tui.widgets.heatmap import HeatMap

#: Keys that work on all of the screen; the others are the heat map's own.
_METRIC_KEYS = ("m", "M")


class RanksScreen(PageScreen):
    """Heat map, path, table.  ``metric`` is what the heat map shows."""

    name_of: ClassVar[str] = "ranks"
    help_of: ClassVar[str] = (
        "The heat map has a row a rank and a column a step; below it stands the number under the cursor.\n"
        "Where ranks do not fit, several share a row, which then shows the worst of them: f gives each its "
        "own.\n"
        "m, M: lateness, step time, compute, exposed wait, exposed transfer, idle, peak memory.\n"
        "enter: this rank and step on all screens, and its timeline. space: the number's formula and rows.\n"
        "! far above the rest, ? unknown."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        each for each in bindings(Where.RANKS) if each.key in _METRIC_KEYS
    ]

    def __init__(self) -> None:
        super().__init__()
        self.metric: Metric | None = None
        self._grids: Grids | None = None
        self._at: Selected | None = None
        self._tabled: tuple[object, ...] = ()

    def parts(self) -> ComposeResult:
        """From the whole to the single rank."""
        yield HeatMap(id="heat")
        yield FigureLine(id="path")
        yield FactTable(id="ranks", classes="fill")

    def fill(self, loaded: Loaded, selected: Selected) -> None:
        """From the report; what only depends on it is made once."""
        if self._grids is None or self._grids.loaded is not loaded:
            self._grids, self.metric = Grids(loaded), None
        if self.metric is None:
            self.metric = self._grids.first()
        self._show_grid()
        if selected != self._at:
            before, self._at = self._at or Selected(), selected
            self.query_one(HeatMap).go_to(
                selected.rank if selected.rank != before.rank else None,
                selected.step if selected.step != before.step else None,
            )
        tabled = (id(loaded), self.zprof.looks)
        if tabled != self._tabled:
            self._tabled = tabled
            self.query_one(FigureLine).show(path_parts(loaded))
            self.query_one(FactTable).show(ranks_table(loaded))

    def action_metric(self, by: int) -> None:
        """The next metric, or the one before."""
        if self._grids is None or self.metric is None:
            return
        metrics = list(Metric)
        self.metric = metrics[(metrics.index(self.metric) + by) % len(metrics)]
        self._show_grid()

    def _show_grid(self) -> None:
        if self._grids is not None and self.metric is not None:
            self.query_one(HeatMap).show(self._grids.of(self.metric))

    def on_heat_map_chosen(self, event: HeatMap.Chosen) -> None:
        """This rank and step on all screens; its timeline, or where it has no step, its memory."""
        self._at = Selected(
            rank=event.rank, step=self.zprof.selected.step if event.step is None else event.step
        )
        self.zprof.select(rank=event.rank, step=event.step)
        name = "memory" if event.step is None else "timeline"
        if self.zprof.is_screen_installed(name):
            self.zprof.action_show(name)

    def on_heat_map_number_asked(self, event: HeatMap.NumberAsked) -> None:
        """The number, opened."""
        if self.zprof.loaded is not None:
            self.zprof.push_screen(NumberPopup(event.number, event.number_title, self.zprof.loaded))
