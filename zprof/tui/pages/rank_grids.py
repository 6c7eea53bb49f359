"""What the heat map of ranks and steps can show: one grid a metric, built once from the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from zprof.model.report import Report
from zprof.tui.figures import Unit, figure
from zprof.tui.heat import HeatGrid, Int64s
from zprof.tui.pages.bounds import AT_LEAST, AT_MOST
from zprof.tui.session import Loaded

_NOT_TIMED = "no step was timed"
_NOT_MATCHED = "no collective was seen on all of its ranks, so nobody knows who came late"
_NO_MEMORY = "no memory was recorded"


class Metric(StrEnum):
    """In the order in which they are gone through."""

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


#: Of ranks in whose collectives other ranks were not seen: there waiting is the least that it can be.
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


class Grids:
    """The grids of a run, each made when it is first asked for."""

    def __init__(self, loaded: Loaded) -> None:
        report, self.loaded = loaded.report, loaded
        timed = {(entry.rank, entry.step) for entry in report.time.steps}
        timed |= {(entry.rank, entry.step) for entry in report.time.lateness}
        others = {*report.run.ranks_loaded, *(entry.rank for entry in report.memory.per_rank)}
        self.ranks = tuple(sorted(others | {rank for rank, _ in timed}))
        self.steps = tuple(sorted({step for _, step in timed}))
        self._made: dict[Metric, HeatGrid] = {}

    def of(self, metric: Metric) -> HeatGrid:
        """Its grid."""
        if metric not in self._made:
            self._made[metric] = self._make(metric)
        return self._made[metric]

    def first(self) -> Metric:
        """The first metric of which something is known."""
        return next((metric for metric in Metric if self.of(metric).is_known), Metric.LATENESS)

    def _make(self, metric: Metric) -> HeatGrid:
        source, sign = _SOURCES[metric], _SIGNS.get(metric)
        steps = self.steps if metric is not Metric.PEAK_MEMORY else ()
        values, places = self._table(_entries(self.loaded.report, metric), source.leaf, steps)
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
            bounds=dict.fromkeys(_unsplit(self.loaded.report), sign) if sign else {},
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


def _unsplit(report: Report) -> list[int]:
    return [entry.rank for entry in report.time.per_rank if entry.unsplit_ns > 0]


def _entries(report: Report, metric: Metric) -> Sequence[_Entry]:
    """The list of the report that its numbers stand in."""
    if metric is Metric.PEAK_MEMORY:
        return report.memory.per_rank
    return report.time.lateness if metric is Metric.LATENESS else report.time.steps
