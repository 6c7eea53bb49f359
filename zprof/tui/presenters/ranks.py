"""Build the content of the ranks screen: rank table, critical path shares, one heat map grid per metric."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from heapq import nlargest
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from zprof.model.leaves import read_value
from zprof.model.metrics.metric import find_unit
from zprof.model.paths import EVERY, Path, parse_path
from zprof.model.quantities import Aggregation, Unit, Value
from zprof.model.report import Report
from zprof.model.time import Blame, PathShare, Time
from zprof.reports.table import Cell, Column, Kind, Mark, Marked, Opens, Row, Table
from zprof.run.reader import Run
from zprof.tui.presenters.heat_grid import HeatGrid, Int64s
from zprof.tui.session import LoadedRun

#: Minimum table widths for idle time, peak, critical path and host.
_NARROW, _WIDE, _WIDER, _WIDEST = 88, 100, 120, 160
_BLAME = "time.blame.per_rank"
_TIMES = ("wall_ns", "compute_ns", "exposed_wait_ns", "exposed_transfer_ns", "idle_ns")
#: Limit on the rows of the table; this many of each column's largest values are always included.
MAX_RANKS, _TOP_PER_COLUMN = 200, 16
_MAX_PATH_SHARES = 4
_MIN_PATH_RATIO = 0.005


def build_ranks_table(loaded: LoadedRun) -> Table:
    """Build the table of ranks, sorted by the wait that they cause, then by non-compute time."""
    report = loaded.report
    order = sort_ranks(report)
    columns, indices = _make_columns(report.time), _RankIndices(report)
    lines = [_make_line(loaded, rank, indices) for rank in _select_ranks(report, order)]
    is_cut = len(lines) < len(order)
    note = f"{len(lines)} of {len(order)} ranks: the largest of each column" if is_cut else ""
    return Table(
        name="ranks",
        title="ranks, most wait caused first (ms)",
        columns=columns,
        rows=tuple(lines),
        help=f"Means {report.time.basis}. Press enter on a rank to select it on all screens, and on a number "
        "for its formula and source rows.",
        note=note,
    )


def sort_ranks(report: Report) -> list[int]:
    """Return all ranks by exposed wait caused, then by step time minus compute, then by number."""
    caused = {entry.rank: entry.exposed_wait_ns for entry in _list_blames(report)}
    lost = {entry.rank: entry.wall_ns - entry.compute_ns for entry in report.time.per_rank}
    ranks = {*report.run.ranks_loaded, *lost, *(entry.rank for entry in report.memory.per_rank)}
    return sorted(ranks, key=lambda rank: (-caused.get(rank, 0), -lost.get(rank, 0), rank))


def _select_ranks(report: Report, order: Sequence[int]) -> Sequence[int]:
    """Limit the ranks to `MAX_RANKS`, including the largest of each column, so that sorting finds them."""
    if len(order) <= MAX_RANKS:
        return order
    selected: set[int] = set()
    for values in _iterate_columns(report):
        selected.update(nlargest(_TOP_PER_COLUMN, values, key=lambda rank: (values[rank], -rank)))
    selected.update([rank for rank in order if rank not in selected][: max(0, MAX_RANKS - len(selected))])
    return [rank for rank in order if rank in selected]


def _iterate_columns(report: Report) -> Iterator[Mapping[int, float]]:
    for name in _TIMES:
        yield {entry.rank: getattr(entry, name) for entry in report.time.per_rank}
    for name in ("exposed_wait_per_rank_ns", "last_ratio"):
        yield {entry.rank: getattr(entry, name) for entry in _list_blames(report)}
    yield {entry.rank: entry.peak_bytes for entry in report.memory.per_rank}
    path: dict[int, float] = defaultdict(float)
    for share in _list_shares(report):
        path[share.rank] += share.ns
    yield path


class _RankIndices:
    """Indices of each rank's entries in the lists of the report."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.times = {entry.rank: index for index, entry in enumerate(report.time.per_rank)}
        blames = {entry.rank: index for index, entry in enumerate(_list_blames(report))}
        is_judged = report.time.blame is not None and report.time.blame.judged > 0
        self.judged = blames if is_judged else {}
        self.memory: dict[int, int] = {}
        for index, entry in enumerate(report.memory.per_rank):
            self.memory.setdefault(entry.rank, index)
        self.path: dict[int, list[int]] = defaultdict(list)
        for index, share in enumerate(_list_shares(report)):
            self.path[share.rank].append(index)


def _make_columns(time: Time) -> tuple[Column, ...]:
    return (
        Column(title="rank", kind=Kind.TEXT),
        Column(title="wall", help="step time"),
        Column(title="compute", help="time in which the rank computes"),
        Column(title="wait", help="exposed wait: waiting for other ranks, not hidden by compute"),
        Column(title="transfer", help="exposed transfer: data moves, not hidden by compute"),
        Column(title="idle", help="neither running work nor waiting for a collective", from_width=_NARROW),
        Column(title="caused", help=f"exposed wait caused {time.basis}, averaged over the ranks that waited"),
        Column(title="last", help="share of the judged collectives at which the rank arrived last"),
        Column(
            title="because",
            kind=Kind.TEXT,
            help="main reason why the rank arrived last: what it spent more time on than the others",
            takes_rest=True,
        ),
        Column(title="peak", help="peak of allocated memory", from_width=_WIDE),
        Column(
            title="on path", help=f"the rank's time on the critical path, {time.basis}", from_width=_WIDER
        ),
        Column(title="host", kind=Kind.TEXT, help="machine that the rank ran on", from_width=_WIDEST),
    )


def _make_line(loaded: LoadedRun, rank: int, indices: _RankIndices) -> Row:
    def make_cell(stem: str, index_by_rank: Mapping[int, int], name: str) -> Value:
        index = index_by_rank.get(rank)
        if index is None:
            return Value(number=None, unit=find_unit(name), leaves=(parse_path(stem),))
        return read_value(loaded.report, f"{stem}[{index}].{name}", in_ms=name.endswith("_ns"))

    times = [make_cell("time.per_rank", indices.times, name) for name in _TIMES]
    cells: list[Cell] = [
        f"r{rank}",
        *times,
        make_cell(_BLAME, indices.judged, "exposed_wait_per_rank_ns"),
        make_cell(_BLAME, indices.judged, "last_ratio"),
        _find_reason(indices, rank),
        make_cell("memory.per_rank", indices.memory, "peak_bytes"),
        _sum_path_shares(loaded, indices.path.get(rank, [])),
        _name_host(loaded.run, rank),
    ]
    return Row(key=str(rank), cells=tuple(cells), opens=Opens.RANK, target=rank)


def _find_reason(indices: _RankIndices, rank: int) -> Cell:
    index = indices.judged.get(rank)
    if index is None:
        return Marked("unknown", Mark.MUTED)
    reasons = _list_blames(indices.report)[index].reasons
    if not reasons:
        return Marked("-", Mark.MUTED)
    return max(reasons, key=lambda reason: (reasons[reason], reason)).replace("_", " ")


def _sum_path_shares(loaded: LoadedRun, shares: Sequence[int]) -> Cell:
    if not shares and _list_shares(loaded.report):
        return Marked("-", Mark.MUTED)
    if not shares:
        return Value(number=None, unit=Unit.NS, leaves=(Path(("time", "critical_path")),))
    leaves = [f"time.critical_path.shares[{share}].ns" for share in shares]
    return read_value(loaded.report, *leaves, how=Aggregation.SUM, in_ms=True)


def _name_host(run: Run, rank: int) -> Cell:
    manifest = run.rank_manifests.get(rank)
    return manifest.host if manifest and manifest.host else Marked("unknown", Mark.MUTED)


def build_path_parts(loaded: LoadedRun) -> list[list[Cell]]:
    """Build cells with the critical path's length and largest shares; empty if unknown."""
    path = loaded.report.time.critical_path
    if path is None or not path.shares:
        return []
    wall = "time.critical_path.wall_ns"
    parts: list[list[Cell]] = [[Marked("critical path", Mark.MUTED), read_value(loaded.report, wall)]]
    order = sorted(range(len(path.shares)), key=lambda index: -path.shares[index].ns)
    for index in order[:_MAX_PATH_SHARES]:
        share = path.shares[index]
        if share.ns >= _MIN_PATH_RATIO * path.wall_ns:
            part = f"time.critical_path.shares[{index}].ns"
            ratio = read_value(loaded.report, part, wall, how=Aggregation.SHARE)
            parts.append([f"r{share.rank} {share.what.value}", ratio])
    return parts


def _list_blames(report: Report) -> Sequence[Blame]:
    return report.time.blame.per_rank if report.time.blame else ()


def _list_shares(report: Report) -> Sequence[PathShare]:
    return report.time.critical_path.shares if report.time.critical_path else ()


_NOT_TIMED = "no step was timed"
_NOT_MATCHED = "no collective was recorded on all of its ranks, so lateness is unknown"
_NO_MEMORY = "no memory was recorded"


class RankMetric(StrEnum):
    """Metrics of the heat map, in the order in which ``m`` cycles through them."""

    LATENESS = "lateness"
    STEP_TIME = "step time"
    COMPUTE = "compute"
    EXPOSED_WAIT = "exposed wait"
    EXPOSED_TRANSFER = "exposed transfer"
    IDLE = "idle"
    PEAK_MEMORY = "peak memory"


class _Source(Struct, frozen=True):
    leaf: Path
    says: str
    unknown: str = _NOT_TIMED


_STEPS = ("time", "steps", EVERY)
_SOURCES = {
    RankMetric.LATENESS: _Source(
        Path(("time", "lateness", EVERY, "mean_ns")), "delay after the first rank", _NOT_MATCHED
    ),
    RankMetric.STEP_TIME: _Source(Path((*_STEPS, "wall_ns")), "wall time of the step"),
    RankMetric.COMPUTE: _Source(Path((*_STEPS, "compute_ns")), "time in which the rank computes"),
    RankMetric.EXPOSED_WAIT: _Source(
        Path((*_STEPS, "exposed_wait_ns")), "waiting for other ranks, not hidden by compute"
    ),
    RankMetric.EXPOSED_TRANSFER: _Source(
        Path((*_STEPS, "exposed_transfer_ns")), "data moves, not hidden by compute"
    ),
    RankMetric.IDLE: _Source(Path((*_STEPS, "idle_ns")), "neither running work nor waiting for a collective"),
    RankMetric.PEAK_MEMORY: _Source(
        Path(("memory", "per_rank", EVERY, "peak_bytes")), "peak of allocated memory", _NO_MEMORY
    ),
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
        other_ranks = {*report.run.ranks_loaded, *(entry.rank for entry in report.memory.per_rank)}
        self.ranks = tuple(sorted(other_ranks | {rank for rank, _ in timed}))
        self.steps = tuple(sorted({step for _, step in timed}))
        self._grids: dict[RankMetric, HeatGrid] = {}

    def of(self, metric: RankMetric) -> HeatGrid:
        """Return the grid of a metric."""
        if metric not in self._grids:
            self._grids[metric] = self._make_grid(metric)
        return self._grids[metric]

    def first(self) -> RankMetric:
        """Return the first metric with known values."""
        return next((metric for metric in RankMetric if self.of(metric).is_known), RankMetric.LATENESS)

    def _make_grid(self, metric: RankMetric) -> HeatGrid:
        source = _SOURCES[metric]
        name = source.leaf.name
        by_rank = self.loaded.report.time.bounds_by_rank
        bounds = {rank: bounds[name] for rank, bounds in by_rank.items() if name in bounds}
        steps = self.steps if metric is not RankMetric.PEAK_MEMORY else ()
        values, places = self._fill_arrays(_list_entries(self.loaded.report, metric), name, steps)
        is_aligned = metric is RankMetric.LATENESS and self.loaded.report.time.alignment is not None
        uncertainty = read_value(self.loaded.report, "time.alignment.uncertainty_ns") if is_aligned else None
        return HeatGrid(
            title=metric.value,
            says=source.says,
            leaf=source.leaf,
            ranks=self.ranks,
            steps=steps or (None,),
            values=values,
            places=places,
            report=self.loaded.report,
            unknown=source.unknown,
            floor=uncertainty,
            bounds=bounds,
        )

    def _fill_arrays(
        self, entries: Sequence[Any], name: str, steps: tuple[int, ...]
    ) -> tuple[np.ndarray[Any, np.dtype[np.float64]], Int64s]:
        shape = (len(self.ranks), max(1, len(steps)))
        values, places = np.full(shape, np.nan), np.full(shape, -1)
        if not entries:
            return values, places
        row = np.searchsorted(self.ranks, [entry.rank for entry in entries])
        column = np.searchsorted(steps, [entry.step for entry in entries]) if steps else np.zeros_like(row)
        values[row, column] = [getattr(entry, name) for entry in entries]
        places[row, column] = np.arange(len(entries))
        return values, places


def _list_entries(report: Report, metric: RankMetric) -> Sequence[_Entry]:
    """Return the report's list that contains the metric's values."""
    if metric is RankMetric.PEAK_MEMORY:
        return report.memory.per_rank
    return report.time.lateness if metric is RankMetric.LATENESS else report.time.steps
