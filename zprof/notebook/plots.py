"""Charts of a report and of a run, drawn as SVG from the blocks shared by all outputs.

Lanes are the same as in the terminal: one role per time column.
"""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from zprof.base.errors import BadInput, MissingData
from zprof.notebook.display import write_file

if TYPE_CHECKING:
    from zprof.model.report import Report
    from zprof.notebook.run import AnalysedRun
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from zprof.analysis.step_timeline.lane import IDLE, ROLE_NAMES, LaneRole, TimelineLane, compute_columns
from zprof.analysis.step_timeline.step_model import StepTimeline
from zprof.base.formatting import format_ns, format_percent, printable, shorten
from zprof.model.quantities import Bound, Unit, Value
from zprof.model.report import Report
from zprof.model.time import LEDGER_NAMES, UnitTime
from zprof.reports.page import Bars, LegendEntry, Segment, StackedBar
from zprof.reports.pages.collectives import sort_units
from zprof.reports.pages.names import group_name
from zprof.reports.svg_charts import LaneSpan, draw_lanes

_SUFFIX = ".svg"
#: Maps for ``heatmap``.
STEP_TIME, LATENESS = "step time", "lateness"
#: Time columns per step; the drawing is about as many pixels wide.
COLUMNS = 800
#: Minimum share of the axis to draw a phase or a unit; shorter boxes would be invisible.
_MIN_NAMED_SHARE = 1 / COLUMNS
_MAX_NAME = 60
_COLOURS = {
    LaneRole.COMPUTE: "time-compute",
    LaneRole.TRANSFER: "time-exposed-transfer",
    LaneRole.WAIT: "time-exposed-wait",
    LaneRole.HIDDEN: "time-overlapped",
    LaneRole.MEMCPY: "time-exposed-memcpy",
    LaneRole.UNEXPLAINED: "time-unexplained",
    LaneRole.HOST: "time-host",
}
MAX_UNITS = 24
#: Field, style class, letter.
_TERMS = (
    ("exposed_wait_ns", "time-exposed-wait", "W"),
    ("exposed_transfer_ns", "time-exposed-transfer", "T"),
)


@dataclass(frozen=True, slots=True, repr=False)
class Chart:
    """A drawing. A notebook shows it as an image, so its content cannot affect the notebook page."""

    svg: str
    title: str

    def __repr__(self) -> str:
        """Return a description of the drawing."""
        return f"<zprof chart {self.title}: .save('chart.svg')>"

    def _repr_svg_(self) -> str:
        """Return the SVG document."""
        return self.svg

    def _repr_html_(self) -> str:
        """Return an image element that contains the document."""
        data = b64encode(self.svg.encode()).decode("ascii")
        source = f"data:image/svg+xml;base64,{data}"
        return f'<img alt="{self.title}" style="width:100%;max-width:960px" src="{source}">'

    def save(self, path: str | Path) -> Path:
        """Write the document to an .svg file.

        Raises:
            BadInput: the name has another suffix, or the file cannot be written.
        """
        path = Path(path)
        if path.suffix.lower() != _SUFFIX:
            raise BadInput(f"{path}: a chart is written as SVG", hint=f"end the name with {_SUFFIX}")
        return write_file(path, self.svg)


class ReportPlots:
    """Charts of a report: :meth:`ledger`, :meth:`units`, :meth:`memory`, :meth:`heatmap`."""

    def __init__(self, get_report: "Callable[[], Report]") -> None:
        self._get_report = get_report

    def __repr__(self) -> str:
        names = (name for name in dir(self) if not name.startswith("_"))
        return f"<charts: {', '.join(f'.{name}()' for name in names)}>"

    @property
    def _report(self) -> "Report":
        return self._get_report()

    def ledger(self) -> Chart:
        """Draw the step time, or with a baseline its change, as a waterfall.

        Raises:
            MissingData: no step was timed.
        """
        from zprof.reports.pages.ledger import build_ledger_table
        from zprof.reports.svg_charts import draw_bar_table

        if not self._report.time.per_rank:
            raise self._make_error("no step was timed")
        table = build_ledger_table(self._report)
        return Chart(draw_bar_table(table, self._list_notes()), "step ledger")

    def units(self) -> Chart:
        """Draw the exposed time of each unit (wrapped module), most exposed first.

        Raises:
            MissingData: the recording does not link collectives to units.
        """
        from zprof.notebook.plots import build_unit_bars
        from zprof.reports.svg_charts import draw_bars

        bars = build_unit_bars(self._report)
        if bars is None:
            raise MissingData(
                f"{self._report.run.name}: no collective has a unit, because the recording names none",
                hint="use run.collectives().groupby('kind'), or record with zprof",
            )
        return Chart(draw_bars(bars, self._list_notes()), "exposed time by unit")

    def memory(self, rank: int | None = None) -> Chart:
        """Draw live bytes over time by tenant, for ``rank`` or the rank with the largest peak.

        Raises:
            MissingData: no memory was recorded, or the report has no timeline of the rank.
        """
        from zprof.reports.svg_memory import render

        report = self._report
        if rank is not None:
            kept = tuple(entry for entry in report.memory.timelines if entry.rank == rank)
            if not kept:
                known = ", ".join(str(entry.rank) for entry in report.memory.timelines) or "none"
                raise MissingData(
                    f"{report.run.name}: no memory timeline of rank {rank}", hint=f"kept: {known}"
                )
            report = replace(report, memory=replace(report.memory, timelines=kept))
        return Chart(render(report), "live memory")

    def heatmap(self, what: str = STEP_TIME) -> Chart:
        """Draw a number for each rank and step: ``"step time"``, or ``"lateness"`` at collectives.

        Raises:
            MissingData: the number was not measured.
            BadInput: ``what`` is neither.
        """
        from zprof.reports.pages.ranks import build_lateness_map, build_step_time_map
        from zprof.reports.svg_charts import draw_heat_map

        maps = {STEP_TIME: build_step_time_map, LATENESS: build_lateness_map}
        if what not in maps:
            raise BadInput(f"no heat map of {what!r}", hint=f"use one of {', '.join(map(repr, maps))}")
        heat = maps[what](self._report)
        if heat is None:
            raise self._make_error(f"no {what} was measured")
        return Chart(draw_heat_map(heat, self._list_notes()), f"{what} by rank and step")

    def _list_notes(self) -> tuple[str, ...]:
        """Return the mandatory notes below every time chart: simulated parts and bounds."""
        from zprof.reports.pages.head import build_modelled_notes, list_baseline_runs
        from zprof.reports.pages.ledger import describe_unsplit_time

        report = self._report
        notes = build_modelled_notes([report.run, *list_baseline_runs(report)])
        upper = ("Exposed times are upper bounds: not every wait was recorded.",)
        return (
            *(f"{note.label}: {note.text}" for note in notes),
            *(upper if any(rank.upper_bound for rank in report.time.per_rank) else ()),
            *filter(None, [describe_unsplit_time(report.time.per_rank)]),
        )

    def _make_error(self, reason: str) -> MissingData:
        return MissingData(f"{self._report.run.name}: {reason}", hint="the gaps of the report say why")


class RunPlots(ReportPlots):
    """Charts of a run: its report charts and :meth:`timeline`."""

    def __init__(self, run: "AnalysedRun") -> None:
        super().__init__(lambda: run.report)  # not measured before a chart is drawn
        self._run = run

    def timeline(self, rank: int | None = None, step: int | None = None) -> Chart:
        """Draw one step of one rank by lane: phases, units, collectives, streams, threads.

        Args:
            rank: Default: the rank with the most time outside compute.
            step: Default: the rank's median step.

        Raises:
            MissingData: the rank or the step was not timed.
        """
        from zprof.analysis.step_timeline.build import build_step_model
        from zprof.model.time import pick_rank_and_step

        if rank is None or step is None:
            picked = pick_rank_and_step(self._report.time, rank)
            if picked is None:
                who = "no step" if rank is None else f"no step of rank {rank}"
                raise self._make_error(f"{who} was timed")
            rank, step = picked[0], picked[1] if step is None else step
        model = build_step_model(self._run, self._run.analysis, rank, step)
        return Chart(draw_step(model, self._report.run.name, self._list_notes()), f"rank {rank}, step {step}")


def draw_step(model: StepTimeline, run_name: str, notes: Sequence[str]) -> str:
    """Draw all lanes of the step; a column shows the role with its largest share."""
    roles = {role for lane in model.lanes for role in lane.covers}
    omitted = (
        [f"{model.omitted_lanes} more streams and threads, the least busy"] if model.omitted_lanes else []
    )
    return draw_lanes(
        title=f"{shorten(printable(run_name), 48)}: rank {model.rank}, step {model.step}, "
        f"{format_ns(model.length_ns)}",
        length_ns=model.length_ns,
        lanes=[
            (
                lane.label,
                [*(_list_names(lane, model.length_ns) if lane.is_named else _list_roles(lane, model))],
            )
            for lane in model.lanes
        ],
        legend=[
            LegendEntry(colour=_COLOURS[role], letter="", name=ROLE_NAMES[role])
            for role in LaneRole
            if role in roles
        ],
        notes=(*omitted, *notes),
    )


def _list_names(lane: TimelineLane, length_ns: int) -> Iterator[LaneSpan]:
    """Yield a box for each phase or unit."""
    items = lane.items
    for start_ns, end_ns, row in zip(
        items.start_ns.tolist(), items.end_ns.tolist(), items.row.tolist(), strict=True
    ):
        start, end = max(0, start_ns) / length_ns, min(length_ns, end_ns) / length_ns
        if end - start >= _MIN_NAMED_SHARE:
            name = shorten(printable(lane.names[row]), _MAX_NAME)
            tooltip = f"{name}: {format_ns(end_ns - start_ns)}"
            yield LaneSpan(start=start, end=end, colour="time-host", text=name, tooltip=tooltip)


def _list_roles(lane: TimelineLane, model: StepTimeline) -> Iterator[LaneSpan]:
    """Yield a box for each run of columns with the same dominant role."""
    edges = np.linspace(0.0, float(model.length_ns), COLUMNS + 1)
    columns = compute_columns(lane, edges)
    changes = np.flatnonzero(np.diff(columns.first)) + 1
    for first, last in zip([0, *changes.tolist()], [*changes.tolist(), COLUMNS], strict=True):
        index = int(columns.first[first])
        if index == IDLE:
            continue
        role = columns.roles[index]
        share = float(columns.shares[index, first:last].mean())
        length = format_ns(round(model.length_ns * (last - first) / COLUMNS))
        yield LaneSpan(
            start=first / COLUMNS,
            end=last / COLUMNS,
            colour=_COLOURS[role],
            tooltip=f"{ROLE_NAMES[role]}: {format_percent(share)} of {length}",
        )


def build_unit_bars(report: Report) -> Bars | None:
    """Build one bar per unit and kind of collective, most exposed first; None if no unit is known.

    Entries of different groups are separate bars: each is a mean over the ranks of its group.
    """
    time = report.time
    units = sort_units(time)[:MAX_UNITS]
    if not units:
        return None
    longest_ns = max(1, *(unit.exposed_ns for unit in units))
    groups = Counter((unit.unit, unit.kind) for unit in time.units)
    omitted = len(time.units) - len(units)
    return Bars(
        title=f"Exposed time by unit, {time.basis}, mean of the ranks",
        bars=tuple(
            StackedBar(
                name=f"{unit.unit} {unit.kind}"
                + (f", group {group_name(unit.group)}" if groups[unit.unit, unit.kind] > 1 else ""),
                note=format_ns(unit.exposed_ns),
                segments=tuple(_list_segments(unit, longest_ns)),
            )
            for unit in units
        ),
        legend=tuple(
            LegendEntry(colour=colour, letter=letter, name=LEDGER_NAMES[field])
            for field, colour, letter in _TERMS
        ),
        notes=(f"{omitted} more with less exposed time",) if omitted else (),
    )


def _list_segments(unit: UnitTime, longest_ns: int) -> Iterator[Segment]:
    start = 0.0
    for field, colour, letter in _TERMS:
        time_ns: int = getattr(unit, field)
        width = 100 * time_ns / longest_ns
        if time_ns:
            value = Value(time_ns, Unit.NS, bound=unit.bounds.get(field, Bound.EXACT))
            text = f"{LEDGER_NAMES[field]} {value.text}"
            yield Segment(colour=colour, letter=letter, text=text, start=start, width=width)
        start += width
