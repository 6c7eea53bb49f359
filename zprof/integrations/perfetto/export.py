"""Export the ranks of a run as one Chrome JSON trace, for ui.perfetto.dev and chrome://tracing.

Each rank is a process with its rows in order; only one rank is in memory at a time. Arrows point from the
last rank to reach a collective to the ranks that waited for it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups
from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.base.errors import MissingData
from zprof.integrations.perfetto.chrome_trace import ProcessRows, format_flow, format_process
from zprof.integrations.perfetto.rank_rows import (
    ExportChoice,
    RankWindow,
    choose_windows,
    make_collectives_row,
    make_measured_rows,
    make_recorded_rows,
    select_collectives,
)
from zprof.run.reader import Run
from zprof.version import __version__

Measured = TimeAnalysis | RunAnalysis
MAX_ARROWS = 20_000


class Exported(Struct, frozen=True, kw_only=True):
    """Exported ranks, number of slices, and notes."""

    ranks: tuple[int, ...]
    slices: int
    notes: tuple[str, ...]


def export_trace(run: Run, choice: ExportChoice, out: BinaryIO, measured: Measured | None = None) -> Exported:
    """Write the chosen part of a run as a Chrome JSON trace on the common clock.

    Args:
        run: The run.
        choice: The ranks, steps and rows to export.
        out: The file to write to.
        measured: Times of this run, if already computed; only steps in them can be chosen.

    Raises:
        BadInput, MissingData: the choice includes ranks or steps that were not timed.
    """
    analysis = measured or analyse_time(run)
    windows = choose_windows(analysis.tracks, choice)
    if not windows:
        raise MissingData(
            "none of the chosen ranks has any of the chosen steps",
            hint="choose other ranks or steps, or export all",
        )
    return _Writer(run, analysis, windows, out).write(python=choice.python)


class _Writer:
    """Writes one trace."""

    def __init__(self, run: Run, analysis: Measured, windows: list[RankWindow], out: BinaryIO) -> None:
        self._run, self._analysis, self._windows, self._out = run, analysis, windows, out
        self._base_ns = min(window.begin_ns for window in windows)
        self._omitted_slices = 0
        self._arrows = Arrows(analysis.collectives, {}, self._base_ns)

    def write(self, *, python: bool) -> Exported:
        slices = 0
        # Text before the events; the base time makes times absolute, as in torch's own traces.
        alignment = self._analysis.time.alignment
        metadata = {
            "producer": f"zprof {__version__}",
            "clock": alignment.method if alignment else "unknown",
            "clock_uncertainty_ns": alignment.uncertainty_ns if alignment else None,
        }
        header = {"displayTimeUnit": "ns", "baseTimeNanoseconds": self._base_ns, "otherData": metadata}
        self._out.write((json.dumps(header)[:-1] + ', "traceEvents": [').encode("ascii"))
        separator = b"\n"
        for line in self._format_lines(python=python):
            self._out.write(separator + line.encode("ascii"))
            separator = b",\n"
            slices += line.startswith('{"ph":"X"')
        self._out.write(b"\n]}\n")
        ranks = tuple(window.tracks.rank for window in self._windows)
        return Exported(ranks=ranks, slices=slices, notes=tuple(self._list_notes()))

    def _format_lines(self, *, python: bool) -> Iterator[str]:
        collectives = self._analysis.collectives
        slice_threads: dict[int, tuple[int, int]] = {}
        for position, window in enumerate(self._windows):
            process = ProcessRows(window.tracks.rank)
            host = window.tracks.host
            yield from format_process(
                process.pid,
                (f"rank {window.tracks.rank} ({host})" if host else f"rank {window.tracks.rank}"),
                position,
            )
            own_collectives = select_collectives(collectives, window)
            for row in make_measured_rows(window, own_collectives, self._base_ns):
                yield from process.format_row(row)
            for tid, indices, lines in process.format_lanes(
                make_collectives_row(own_collectives, self._base_ns)
            ):
                slice_threads |= {int(own_collectives.row[index]): (process.pid, tid) for index in indices}
                yield from lines
            for row in make_recorded_rows(self._run, window, self._base_ns, python=python):
                yield from process.format_row(row)
            self._omitted_slices += process.omitted_slices
        self._arrows = Arrows(collectives, slice_threads, self._base_ns)
        yield from self._arrows.format_lines()

    def _list_notes(self) -> Iterator[str]:
        alignment = self._analysis.time.alignment
        aligned = alignment.offsets_ns if alignment else {}
        unaligned = sorted({window.tracks.rank for window in self._windows} - set(aligned))
        if unaligned and len(self._windows) > 1:
            yield f"ranks {unaligned} are on their own clocks, not aligned with the others"
        if self._omitted_slices:
            yield f"{self._omitted_slices} slices omitted: too many overlap on one row"
        if self._arrows.omitted:
            yield f"{self._arrows.omitted} arrows between ranks omitted"


#: Process and thread of a collective's slice, by table row number.
SliceThreads = Mapping[int, tuple[int, int]]


class Arrows:
    """The first ``MAX_ARROWS`` arrows of a trace; ``omitted``: the number of others."""

    def __init__(self, collectives: Columns, slice_threads: SliceThreads, base_ns: int) -> None:
        self._collectives, self._slice_threads, self._base_ns = collectives, slice_threads, base_ns
        self.omitted = 0

    def format_lines(self) -> Iterator[str]:
        """Yield two lines per arrow, from and to the start of a slice."""
        rows = self._collectives
        drawn = rows.at(rows.bools("matched") & np.isin(rows.row, list(self._slice_threads)))
        instances = Groups(drawn.ints("instance"))
        members, number = instances.split(), 0
        for instance in np.argsort(instances.first).tolist():
            ordered = drawn.at(members[instance]).sort_by("start_ns", "rank")
            kind, last = ordered.texts("kind")[0], self._find_endpoint(ordered, -1)
            for position in range(len(ordered) - 1):
                if number == MAX_ARROWS:
                    self.omitted += 1
                    continue
                number += 1
                yield from format_flow(number, kind, last, self._find_endpoint(ordered, position))

    def _find_endpoint(self, rows: Columns, position: int) -> tuple[int, int, int]:
        start_ns = int(rows.ints("start_ns")[position])
        return (*self._slice_threads[int(rows.row[position])], start_ns - self._base_ns)
