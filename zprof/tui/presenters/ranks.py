"""Content of the ranks screen: the table of ranks, critical path shares, one heat map grid per metric."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import nlargest
from typing import Any, Protocol

import numpy as np

from zprof.model.report import Report
from zprof.model.time import Blame, PathShare
from zprof.tui.figures import AT_LEAST, AT_MOST, EXACT, Aggregation, Figure, Unit, figure, make_bound_figure
from zprof.tui.presenters.heat_grid import HeatGrid, Int64s
from zprof.tui.session import LoadedRun
from zprof.tui.tables import Cell, Column, Line, Mark, Opens, Table, TextCell, numeric_column

#: Table widths from which on idle time, peak, critical path and host are shown.
_NARROW, _WIDE, _WIDER, _WIDEST = 88, 100, 120, 160
_BLAME = "time.blame.per_rank"
_TIMES = ("wall_ns", "compute_ns", "exposed_wait_ns", "exposed_transfer_ns", "idle_ns")
#: Limit on the rows of the table; this many of each column's largest values are always included.
MAX_RANKS, _TOP_PER_COLUMN = 200, 16
_MAX_PATH_SHARES = 4
_MIN_PATH_RATIO = 0.005


def build_ranks_table(loaded: LoadedRun) -> Table:
    """Return ranks by the wait that they cause, then by non-compute time."""
    report = loaded.report
    order = sort_ranks(report)
    columns, places = _columns(), _Places(report)
    lines = [_line(loaded, rank, places) for rank in _select_ranks(report, order)]
    note = f"{len(lines)} of {len(order)} ranks: the first of each column" if len(lines) < len(order) else ""
    return Table(
        name="ranks",
        title="ranks, those that others wait for most first (ms)",
        columns=columns,
        lines=tuple(lines),
        help="Means of a step. enter on a rank: show it from now on; on a number: its formula and rows.",
        note=note,
    )


def sort_ranks(report: Report) -> list[int]:
    """Return all ranks by exposed wait caused, then by step time minus compute, then by number."""
    caused = {entry.rank: entry.exposed_wait_ns for entry in _blames(report)}
    lost = {entry.rank: entry.wall_ns - entry.compute_ns for entry in report.time.per_rank}
    ranks = {*report.run.ranks_loaded, *lost, *(entry.rank for entry in report.memory.per_rank)}
    return sorted(ranks, key=lambda rank: (-caused.get(rank, 0), -lost.get(rank, 0), rank))


def _select_ranks(report: Report, order: Sequence[int]) -> Sequence[int]:
    """Limit the ranks to `MAX_RANKS`, including the largest of each column, so that sorting finds them."""
    if len(order) <= MAX_RANKS:
        return order
    kept: set[int] = set()
    for values in _values_by_column(report):
        kept.update(nlargest(_TOP_PER_COLUMN, values, key=lambda rank: (values[rank], -rank)))
    kept.update([rank for rank in order if rank not in kept][: max(0, MAX_RANKS - len(kept))])
    return [rank for rank in order if rank in kept]


def _values_by_column(report: Report) -> Iterator[Mapping[int, float]]:
    for name in _TIMES:
        yield {entry.rank: getattr(entry, name) for entry in report.time.per_rank}
    for name in ("exposed_wait_per_rank_ns", "last_ratio"):
        yield {entry.rank: getattr(entry, name) for entry in _blames(report)}
    yield {entry.rank: entry.peak_bytes for entry in report.memory.per_rank}
    path: dict[int, float] = defaultdict(float)
    for share in _shares(report):
        path[share.rank] += share.ns
    yield path


class _Places:
    """Indices of each rank's entries in the lists of the report."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.times = {entry.rank: place for place, entry in enumerate(report.time.per_rank)}
        blames = {entry.rank: place for place, entry in enumerate(_blames(report))}
        is_judged = report.time.blame is not None and report.time.blame.judged > 0
        self.judged = blames if is_judged else {}
        self.unsplit = {entry.rank for entry in report.time.per_rank if entry.unsplit_ns > 0}
        self.memory: dict[int, int] = {}
        for place, entry in enumerate(report.memory.per_rank):
            self.memory.setdefault(entry.rank, place)
        self.path: dict[int, list[int]] = defaultdict(list)
        for place, share in enumerate(_shares(report)):
            self.path[share.rank].append(place)


def _columns() -> tuple[Column, ...]:
    return (
        Column(title="rank"),
        numeric_column("wall", "Its step time."),
        numeric_column("compute", "Time in which it computes."),
        numeric_column("wait", "Exposed waiting: for other ranks, with nothing beside it."),
        numeric_column("transfer", "Exposed transfer: bytes on their way, with nothing beside them."),
        numeric_column("idle", "Nothing runs, and nothing is waited for.", from_width=_NARROW),
        numeric_column("caused", "Wait caused: exposed, of a step, per rank that waited for this one."),
        numeric_column("last", "Of the collectives that could be judged, the share to which it came last."),
        Column(
            title="because",
            says="What it did longer than the others before it came last, mostly.",
            rest=True,
        ),
        numeric_column("peak", "Most bytes of memory allocated at once.", from_width=_WIDE),
        numeric_column("on path", "Its part of the critical path of a step.", from_width=_WIDER),
        Column(title="host", says="The machine that it ran on.", from_width=_WIDEST),
    )


def _line(loaded: LoadedRun, rank: int, places: _Places) -> Line:
    def of(stem: str, found: Mapping[int, int], name: str, unit: Unit = Unit.MS, sign: str = EXACT) -> Figure:
        place = found.get(rank)
        if place is None:
            return Figure(value=None, unit=unit, leaves=(stem,))
        return make_bound_figure(loaded.tree, unit, f"{stem}[{place}].{name}", sign=sign)

    signs = {"exposed_wait_ns": AT_LEAST, "exposed_transfer_ns": AT_MOST} if rank in places.unsplit else {}
    times = [of("time.per_rank", places.times, name, sign=signs.get(name, EXACT)) for name in _TIMES]
    cells: list[Cell] = [
        TextCell(f"r{rank}"),
        *times,
        of(_BLAME, places.judged, "exposed_wait_per_rank_ns"),
        of(_BLAME, places.judged, "last_ratio", Unit.RATIO),
        _find_reason(places, rank),
        of("memory.per_rank", places.memory, "peak_bytes", Unit.BYTES),
        _sum_path_shares(loaded, places.path.get(rank, [])),
        _name_host(loaded.analysis.hosts, rank),
    ]
    return Line(key=str(rank), cells=tuple(cells), opens=Opens.RANK, target=rank)


def _find_reason(places: _Places, rank: int) -> TextCell:
    place = places.judged.get(rank)
    if place is None:
        return TextCell("unknown", Mark.MUTED)
    reasons = _blames(places.report)[place].reasons
    if not reasons:
        return TextCell("-", Mark.MUTED)
    return TextCell(max(reasons, key=lambda reason: (reasons[reason], reason)).replace("_", " "))


def _sum_path_shares(loaded: LoadedRun, shares: Sequence[int]) -> Cell:
    if not shares and _shares(loaded.report):
        return TextCell("-", Mark.MUTED)
    if not shares:
        return Figure(value=None, unit=Unit.MS, leaves=("time.critical_path",))
    leaves = [f"time.critical_path.shares[{share}].ns" for share in shares]
    return figure(loaded.tree, Unit.MS, *leaves, how=Aggregation.SUM)


def _name_host(hosts: Mapping[int, str], rank: int) -> TextCell:
    return TextCell(hosts[rank]) if rank in hosts else TextCell("unknown", Mark.MUTED)


def build_path_parts(loaded: LoadedRun) -> list[list[Cell]]:
    """Return the critical path's length and largest shares as cells; empty if unknown."""
    path = loaded.report.time.critical_path
    if path is None or not path.shares:
        return []
    wall = "time.critical_path.wall_ns"
    parts: list[list[Cell]] = [[TextCell("critical path", Mark.MUTED), figure(loaded.tree, Unit.NS, wall)]]
    shares = sorted(range(len(path.shares)), key=lambda place: -path.shares[place].ns)
    for place in shares[:_MAX_PATH_SHARES]:
        share = path.shares[place]
        if share.ns >= _MIN_PATH_RATIO * path.wall_ns:
            part = f"time.critical_path.shares[{place}].ns"
            ratio = figure(loaded.tree, Unit.RATIO, part, wall, how=Aggregation.SHARE)
            parts.append([TextCell(f"r{share.rank} {share.what.value}"), ratio])
    return parts


def _blames(report: Report) -> Sequence[Blame]:
    return report.time.blame.per_rank if report.time.blame else ()


def _shares(report: Report) -> Sequence[PathShare]:
    return report.time.critical_path.shares if report.time.critical_path else ()


_NOT_TIMED = "no step was timed"
_NOT_MATCHED = "no collective was seen on all of its ranks, so nobody knows who came late"
_NO_MEMORY = "no memory was recorded"


class Metric(StrEnum):
    """Metrics of the heat map, in the order in which ``m`` cycles through them."""

    LATENESS = "lateness"
    STEP_TIME = "step time"
    COMPUTE = "compute"
    EXPOSED_WAIT = "exposed wait"
    EXPOSED_TRANSFER = "exposed transfer"
    IDLE = "idle"
    PEAK_MEMORY = "peak memory"


@dataclass(frozen=True, slots=True)
class _Source:
    leaf: str
    says: str
    unknown: str = _NOT_TIMED


#: For ranks in whose collectives other ranks are missing: wait is a lower bound, transfer an upper bound.
_SIGNS = {Metric.EXPOSED_WAIT: AT_LEAST, Metric.EXPOSED_TRANSFER: AT_MOST}
_STEPS = "time.steps[{}]"
_SOURCES = {
    Metric.LATENESS: _Source("time.lateness[{}].mean_ns", "after the first rank", _NOT_MATCHED),
    Metric.STEP_TIME: _Source(f"{_STEPS}.wall_ns", "wall time of the step"),
    Metric.COMPUTE: _Source(f"{_STEPS}.compute_ns", "time in which the rank computes"),
    Metric.EXPOSED_WAIT: _Source(f"{_STEPS}.exposed_wait_ns", "waiting for others, nothing beside it"),
    Metric.EXPOSED_TRANSFER: _Source(f"{_STEPS}.exposed_transfer_ns", "moving bytes, no compute beside it"),
    Metric.IDLE: _Source(f"{_STEPS}.idle_ns", "nothing runs, nothing is waited for"),
    Metric.PEAK_MEMORY: _Source("memory.per_rank[{}].peak_bytes", "most bytes allocated at once", _NO_MEMORY),
}


class _Entry(Protocol):
    @property
    def rank(self) -> int: ...


class MetricGrids:
    """The heat map grids of a run, each built on first use."""

    def __init__(self, loaded: LoadedRun) -> None:
        report, self.loaded = loaded.report, loaded
        timed = {(entry.rank, entry.step) for entry in report.time.steps}
        timed |= {(entry.rank, entry.step) for entry in report.time.lateness}
        others = {*report.run.ranks_loaded, *(entry.rank for entry in report.memory.per_rank)}
        self.ranks = tuple(sorted(others | {rank for rank, _ in timed}))
        self.steps = tuple(sorted({step for _, step in timed}))
        self._made: dict[Metric, HeatGrid] = {}

    def of(self, metric: Metric) -> HeatGrid:
        """Return the grid of a metric."""
        if metric not in self._made:
            self._made[metric] = self._make(metric)
        return self._made[metric]

    def first(self) -> Metric:
        """Return the first metric with a known value."""
        return next((metric for metric in Metric if self.of(metric).is_known), Metric.LATENESS)

    def _make(self, metric: Metric) -> HeatGrid:
        source, sign = _SOURCES[metric], _SIGNS.get(metric)
        steps = self.steps if metric is not Metric.PEAK_MEMORY else ()
        values, places = self._table(_list_entries(self.loaded.report, metric), source.leaf, steps)
        late = metric is Metric.LATENESS and self.loaded.report.time.alignment is not None
        uncertainty = figure(self.loaded.tree, Unit.NS, "time.alignment.uncertainty_ns") if late else None
        return HeatGrid(
            title=metric.value,
            says=source.says,
            leaf=source.leaf,
            unit=Unit.BYTES if metric is Metric.PEAK_MEMORY else Unit.NS,
            ranks=self.ranks,
            steps=steps or (None,),
            values=values,
            places=places,
            tree=self.loaded.tree,
            unknown=source.unknown,
            floor=uncertainty,
            bounds=dict.fromkeys(_list_unsplit_ranks(self.loaded.report), sign) if sign else {},
        )

    def _table(
        self, entries: Sequence[Any], leaf: str, steps: tuple[int, ...]
    ) -> tuple[np.ndarray[Any, np.dtype[np.float64]], Int64s]:
        shape = (len(self.ranks), max(1, len(steps)))
        values, places = np.full(shape, np.nan), np.full(shape, -1)
        if not entries:
            return values, places
        name = leaf.rpartition(".")[2]
        row = np.searchsorted(self.ranks, [entry.rank for entry in entries])
        column = np.searchsorted(steps, [entry.step for entry in entries]) if steps else np.zeros_like(row)
        values[row, column] = [getattr(entry, name) for entry in entries]
        places[row, column] = np.arange(len(entries))
        return values, places


def _list_unsplit_ranks(report: Report) -> list[int]:
    return [entry.rank for entry in report.time.per_rank if entry.unsplit_ns > 0]


def _list_entries(report: Report, metric: Metric) -> Sequence[_Entry]:
    """Return the report's list that holds the metric's values."""
    if metric is Metric.PEAK_MEMORY:
        return report.memory.per_rank
    return report.time.lateness if metric is Metric.LATENESS else report.time.steps
