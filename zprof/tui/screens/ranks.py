"""The ranks screen: a heat map of ranks and steps, the critical path in one line, the rank table.

For a stuck job without times, it shows only a table of what each rank does, the cause first.
"""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Static

from zprof.model.hang import is_stuck
from zprof.model.quantities import Value
from zprof.reports.page import HeatMap
from zprof.reports.pages.hang import build_standings_table
from zprof.reports.pages.parallelism import build_mesh_map
from zprof.reports.pages.ranks import build_path_parts, build_rank_table
from zprof.reports.pages.slowdown import build_worker_map
from zprof.reports.table import Cell
from zprof.tui.heat_grid import MetricGrids, RankMetric
from zprof.tui.keys import Where, bindings
from zprof.tui.opening import NumberPopup
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.theme import get_look
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.heat_map import PageHeatMap, RankHeatMap
from zprof.tui.widgets.text import render_cell

#: Keys that work on the whole screen; the heat map binds its own keys.
_METRIC_KEYS = ("m", "M")


_HELP = (
    "The heat map has a row per rank and a column per step; the number under the cursor is shown below.\n"
    "If not all ranks fit, several share a row, which shows the worst of them; f gives each its own.\n"
    "m, M: lateness, step time, compute, exposed wait, exposed transfer, idle, peak memory, "
    "the mesh.\n"
    "enter: select this rank and step on all screens, and open its timeline. space: the number's formula "
    "and rows.\n"
    "! far above the rest, ? unknown."
)
_HANG_HELP = (
    "The job is stuck, and no step was timed: the table has what each rank does, the cause first.\n"
    "enter: all operations that the rank waits in; of the cause its last operation and its stack."
)


class RanksScreen(PageScreen):
    """Heat map, critical path and table. ``metric``: metric of the heat map."""

    name_of: ClassVar[str] = "ranks"
    page_help: ClassVar[str] = _HELP
    BINDINGS: ClassVar[list[BindingType]] = [
        binding for binding in bindings(Where.RANKS) if binding.key in _METRIC_KEYS
    ]

    def __init__(self) -> None:
        super().__init__()
        self.metric: RankMetric | None = None
        self.shows_mesh = False
        self._mesh: HeatMap | None = None
        self._grids: MetricGrids | None = None
        self._last_selection: Selection | None = None
        self._filled_state: tuple[object, ...] = ()

    def parts(self) -> ComposeResult:
        """Yield the heat map, the critical path and the rank table."""
        yield RankHeatMap(id="heat")
        yield PageHeatMap(id="mesh")
        yield FigureLine(id="path")
        yield FactTable(id="ranks", classes="fill")

    def refill(self) -> None:
        """Refill the screen; for a stuck job, what each rank does replaces the heat map."""
        super().refill()
        if self._is_stuck:
            for name in ("#heat", "#mesh", "#path"):
                self.query_one(name).display = False
            if not isinstance(self.focused, FactTable):
                self.set_focus(self.query_one(FactTable), scroll_visible=False)

    @property
    def _is_stuck(self) -> bool:
        loaded = self.zprof.loaded
        return loaded is not None and is_stuck(loaded.report.hang)

    def fill(self, loaded: LoadedRun, selected: Selection) -> None:
        """Fill from the report; parts that do not depend on the selection are built once per run."""
        self.page_help = _HANG_HELP if self._is_stuck else _HELP  # type: ignore[misc]
        if self._is_stuck:
            self.query_one(FactTable).show(build_standings_table(loaded.report))
            self.refresh_bindings()
            return
        if self._grids is None or self._grids.loaded is not loaded:
            if self._grids is None or self._grids.loaded.pending is not loaded.pending:
                self.metric = self._last_selection = None
            self._grids = MetricGrids(loaded)
            slowdown = loaded.report.time.slowdown
            self._mesh = build_mesh_map(loaded.report)
            if self._mesh is None and slowdown is not None:
                self._mesh = build_worker_map(slowdown)
            self.shows_mesh = self._mesh is not None and not loaded.report.time.per_rank
        if self.metric is None:
            self.metric = self._grids.first()
        self._show_grid()
        if selected != self._last_selection:
            previous, self._last_selection = self._last_selection or Selection(), selected
            self.query_one(RankHeatMap).go_to(
                selected.rank if selected.rank != previous.rank else None,
                selected.step if selected.step != previous.step else None,
            )
            outlier = self._grids.of(self.metric).find_outlier() if previous == Selection() else None
            if outlier is not None:
                self.query_one(RankHeatMap).move_to(outlier)
        state = (id(loaded), self.zprof.looks)
        if state != self._filled_state:
            self._filled_state = state
            self.query_one(FigureLine).show(build_path_parts(loaded.report))
            manifests = loaded.run.rank_manifests
            hosts = {rank: manifest.host for rank, manifest in manifests.items() if manifest.host}
            self.query_one(FactTable).show(build_rank_table(loaded.report, hosts))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return False for the keys of the heat map while it is hidden."""
        return action != "metric" or not self._is_stuck

    def action_metric(self, by: int) -> None:
        """Show the next or previous metric."""
        if self._grids is None or self.metric is None:
            return
        metrics = [*RankMetric, *([] if self._mesh is None else [None])]  # None: the mesh
        metric = metrics[(metrics.index(None if self.shows_mesh else self.metric) + by) % len(metrics)]
        self.shows_mesh, self.metric = metric is None, metric or self.metric
        self._show_grid()

    def _show_grid(self) -> None:
        if self._grids is not None and self.metric is not None:
            heat = self.query_one(RankHeatMap)
            heat.show(self._grids.of(self.metric))
            shows_mesh = self._mesh is not None and (self.shows_mesh or not heat.display)
            heat.display = heat.display and not shows_mesh
            self.query_one(PageHeatMap).show(self._mesh if shows_mesh else None)

    def on_rank_heat_map_chosen(self, event: RankHeatMap.Chosen) -> None:
        """Select the rank and step on all screens and show the timeline, or memory without a step."""
        self._last_selection = Selection(
            rank=event.rank, step=self.zprof.selected.step if event.step is None else event.step
        )
        self.zprof.select(rank=event.rank, step=event.step)
        name = "memory" if event.step is None else "timeline"
        if self.zprof.is_screen_installed(name):
            self.zprof.action_show(name)

    def on_rank_heat_map_number_requested(self, event: RankHeatMap.NumberRequested) -> None:
        """Open a popup on the number."""
        if self.zprof.loaded is not None:
            self.zprof.push_screen(NumberPopup(event.number, event.number_title, self.zprof.loaded))


_SEPARATOR = "  "


class FigureLine(Static):
    """A line of parts with some cells each; hidden without parts."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id)
        self._parts: Sequence[Sequence[Cell]] = ()
        self._shown: list[Sequence[Cell]] = []

    def show(self, parts: Sequence[Sequence[Cell]]) -> None:
        """Show these parts."""
        self._parts = parts
        self.display = bool(parts)
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Redraw, because a different number of parts may fit."""
        self._draw()

    def _draw(self) -> None:
        look, line = get_look(self.app), Text(no_wrap=True)
        self._shown = []
        for cells in self._parts:
            part = Text(" ").join(render_cell(cell, look) for cell in cells)
            if line.cell_len + len(_SEPARATOR) + part.cell_len > self.size.width and line:
                break
            line.append(_SEPARATOR if line else "").append_text(part)
            self._shown.append(cells)
        self.update(line)

    def shown_figures(self) -> list[Value]:
        """Return the displayed numbers."""
        return [cell for cells in self._shown for cell in cells if isinstance(cell, Value)]
