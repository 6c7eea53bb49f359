"""Export the ranks of a run as one Chrome JSON trace, for ui.perfetto.dev and chrome://tracing.

Each rank is a process with its rows in sequence; one rank is in memory at a time. Arrows lead from the rank
that arrived last at a collective to those that waited for it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.integrations.perfetto.chrome_trace import Process, flow_lines, process_lines
from zprof.integrations.perfetto.rank_rows import (
    ExportChoice,
    RankWindow,
    choose_windows,
    collectives_row,
    measured_rows,
    recorded_rows,
    select_collectives,
)
from zprof.model.errors import MissingData
from zprof.run.reader import Run
from zprof.version import __version__

Measured = TimeAnalysis | RunAnalysis


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Written ranks and slices, and notes."""

    ranks: tuple[int, ...]
    slices: int
    notes: tuple[str, ...]


def export_trace(run: Run, choice: ExportChoice, out: BinaryIO, measured: Measured | None = None) -> Exported:
    """Write the chosen part of a run as a Chrome JSON trace on the common clock.

    Args:
        run: The run.
        choice: The ranks, steps and rows to export.
        out: The file to write to.
        measured: Times of this run, if already computed; the choice is among its steps.

    Raises:
        BadInput, MissingData: the choice includes ranks or steps that were not timed.
    """
    analysis = measured or analyse_time(run)
    chosen = choose_windows(analysis.tracks, choice)
    if not chosen:
        raise MissingData("no chosen rank has a chosen step", hint="choose others, or leave the choice out")
    return _Writer(run, analysis, chosen, out).write(python=choice.python)


class _Writer:
    """Writer of one trace."""

    def __init__(self, run: Run, analysis: Measured, chosen: list[RankWindow], out: BinaryIO) -> None:
        self._run, self._analysis, self._chosen, self._out = run, analysis, chosen, out
        self._base_ns = min(window.begin_ns for window in chosen)
        self._left_out = 0
        self._arrows = Arrows(analysis.collectives, {}, self._base_ns)

    def write(self, *, python: bool) -> Exported:
        slices = 0
        self._out.write(self._head().encode("ascii"))
        separator = b"\n"
        for line in self._lines(python=python):
            self._out.write(separator + line.encode("ascii"))
            separator = b",\n"
            slices += line.startswith('{"ph":"X"')
        self._out.write(b"\n]}\n")
        ranks = tuple(window.tracks.rank for window in self._chosen)
        return Exported(ranks=ranks, slices=slices, notes=tuple(self._notes()))

    def _head(self) -> str:
        """Return everything before the events; the base makes times absolute, as in torch's own traces."""
        alignment = self._analysis.time.alignment
        about = {
            "producer": f"zprof {__version__}",
            "clock": alignment.method if alignment else "unknown",
            "clock_uncertainty_ns": alignment.uncertainty_ns if alignment else None,
        }
        head = {"displayTimeUnit": "ns", "baseTimeNanoseconds": self._base_ns, "otherData": about}
        return json.dumps(head)[:-1] + ', "traceEvents": ['

    def _lines(self, *, python: bool) -> Iterator[str]:
        frame = self._analysis.collectives
        places: dict[int, tuple[int, int]] = {}
        for position, window in enumerate(self._chosen):
            process = Process(window.tracks.rank)
            yield from process_lines(process.pid, _process_name(window), position)
            mine = select_collectives(frame, window)
            for row in measured_rows(window, mine, self._base_ns):
                yield from process.lines(row)
            for tid, chosen, lines in process.placed(collectives_row(mine, self._base_ns)):
                places |= {int(mine.index[index]): (process.pid, tid) for index in chosen}
                yield from lines
            for row in recorded_rows(self._run, window, self._base_ns, python=python):
                yield from process.lines(row)
            self._left_out += process.left_out
        self._arrows = Arrows(frame, places, self._base_ns)
        yield from self._arrows.lines()

    def _notes(self) -> Iterator[str]:
        alone = sorted(window.tracks.rank for window in self._chosen if not self._is_aligned(window))
        if alone:
            yield f"ranks {alone} stand on their own clocks: nothing aligns them with the others"
        if self._left_out:
            yield f"{self._left_out} slices are left out: too many overlap on one row"
        if self._arrows.left_out:
            yield f"{self._arrows.left_out} arrows between ranks are left out"

    def _is_aligned(self, window: RankWindow) -> bool:
        alignment = self._analysis.time.alignment
        return len(self._chosen) == 1 or (
            alignment is not None and window.tracks.rank in alignment.offsets_ns
        )


def _process_name(window: RankWindow) -> str:
    host = window.tracks.host
    return f"rank {window.tracks.rank} ({host})" if host else f"rank {window.tracks.rank}"


MAX_ARROWS = 20_000
#: Process and thread of a collective's slice, by the index of its row in the table.
Places = Mapping[int, tuple[int, int]]


class Arrows:
    """The first ``MAX_ARROWS`` arrows of a trace; ``left_out`` counts the others."""

    def __init__(self, collectives: pd.DataFrame, places: Places, base_ns: int) -> None:
        self._collectives, self._places, self._base_ns = collectives, places, base_ns
        self.left_out = 0

    def lines(self) -> Iterator[str]:
        """Yield two lines per arrow; both ends are at the start of a slice."""
        frame = self._collectives
        drawn = frame[frame["matched"].astype(bool) & frame.index.isin(list(self._places))]
        number = 0
        for _, rows in drawn.groupby("instance", sort=False):
            ordered = rows.sort_values(["start_ns", "rank"])
            kind, last = str(ordered["kind"].iloc[0]), self._end(ordered, -1)
            for position in range(len(ordered) - 1):
                if number == MAX_ARROWS:
                    self.left_out += 1
                    continue
                number += 1
                yield from flow_lines(number, kind, last, self._end(ordered, position))

    def _end(self, rows: pd.DataFrame, position: int) -> tuple[int, int, int]:
        start_ns = int(rows["start_ns"].iloc[position])
        return (*self._places[rows.index[position]], start_ns - self._base_ns)
