"""Export the operations of a pipeline as one Chrome JSON trace, with the ideal step beside each recorded one.

Steps follow each other: in a file, each may start at 0.
"""

import json
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from zprof.analysis.analysis import analyse, list_operations
from zprof.analysis.columns import Columns, Floats
from zprof.analysis.intervals import Int64s
from zprof.analysis.slowdown.graph import COMMUNICATION, POINT_TO_POINT
from zprof.analysis.slowdown.measure import Timeline, find_ideal_seconds, make_timeline
from zprof.analysis.slowdown.replay import replay_ideal
from zprof.base.errors import MissingData
from zprof.integrations.perfetto.chrome_trace import (
    ChromeTraceRow,
    ProcessRows,
    encode_arguments,
    encode_text,
    format_process,
)
from zprof.integrations.perfetto.export import Exported
from zprof.integrations.perfetto.rank_rows import ExportChoice
from zprof.run.reader import Run
from zprof.version import __version__

_ROWS = ("compute", "send and receive", "collectives")


def export_operations(run: Run, choice: ExportChoice, out: BinaryIO, *, with_ideal: bool) -> Exported:
    """Write the chosen workers and steps; with the ideal timeline as further rows of each worker.

    Raises:
        BadInput, MissingData: the run is damaged, its steps cannot be replayed, or nothing was chosen.
    """
    timeline = _load_timeline(run)
    steps = [at for at, step in enumerate(timeline.steps) if choice.steps is None or step in choice.steps]
    workers = [
        (rank, place)
        for place, rank in timeline.ranks.items()
        if choice.ranks is None or rank in choice.ranks
    ]
    if not steps or not workers:
        raise MissingData("none of the chosen ranks has any of the chosen steps", hint="choose others")
    metadata = {"producer": f"zprof {__version__}"}
    header = {"displayTimeUnit": "ns", "baseTimeNanoseconds": 0, "otherData": metadata}
    out.write((json.dumps(header)[:-1] + ', "traceEvents": [').encode("ascii"))
    separator, slices = b"\n", 0
    for line in _format_lines(timeline, steps, workers, with_ideal):
        out.write(separator + line.encode("ascii"))
        separator = b",\n"
        slices += line.startswith('{"ph":"X"')
    out.write(b"\n]}\n")
    return Exported(ranks=tuple(rank for rank, _ in workers), slices=slices, notes=())


def _load_timeline(run: Run) -> Timeline:
    """Return the timeline of an imported operation timeline or of a recorded pipeline."""
    table = run.job_table("operations")
    operations, gaps = (Columns.from_arrow(table), ()) if table is not None else list_operations(analyse(run))
    if operations is not None:
        timeline, gaps = make_timeline(operations)
        if timeline is not None:
            return timeline
    if gaps:
        raise MissingData(f"{run.path}: {gaps[-1].reason}", hint=gaps[-1].remedy)
    raise MissingData(
        f"{run.path}: neither the traces of all ranks of a pipeline nor an operation timeline",
        hint="export it without --ideal",
    )


def _format_lines(
    timeline: Timeline, steps: list[int], workers: list[tuple[int, tuple[int, int]]], with_ideal: bool
) -> Iterator[str]:
    ideal = replay_ideal(timeline.graph, find_ideal_seconds(timeline.operations, timeline.seconds))
    lengths_ns = np.maximum(timeline.spans_ns[steps], round(1e9 * float(ideal[1].max())))
    begins_ns = np.cumsum(lengths_ns) - lengths_ns
    first_ns = timeline.starts_ns.min(axis=(0, 2))[steps]
    rows = np.array([_choose_row(each.kind) for each in timeline.operations])
    stages = np.array([each.stage for each in timeline.operations])
    for position, (rank, (dp_rank, stage)) in enumerate(workers):
        process, replica = ProcessRows(rank), timeline.dp_ranks.index(dp_rank)
        yield from format_process(rank, f"rank {rank} (dp_rank {dp_rank}, stage {stage})", position)
        for row, title in enumerate(_ROWS):
            chosen = np.flatnonzero((stages == stage) & (rows == row))
            shift_ns = begins_ns - first_ns
            starts = timeline.starts_ns[chosen, :, replica][:, steps] + shift_ns
            ends = timeline.ends_ns[chosen, :, replica][:, steps] + shift_ns
            yield from process.format_row(_make_row(timeline, title, chosen, steps, starts, ends))
            if with_ideal:
                starts, ends = (_place_ideal(seconds[chosen], begins_ns) for seconds in ideal)
                row_of_ideal = _make_row(timeline, f"ideal: {title}", chosen, steps, starts, ends)
                yield from process.format_row(row_of_ideal)


def _choose_row(kind: str) -> int:
    return 1 if kind in POINT_TO_POINT else 2 if kind in COMMUNICATION else 0


def _place_ideal(seconds: Floats, begins_ns: Int64s) -> Int64s:
    """Return times of the ideal step in ns, by operation and step."""
    return np.rint(1e9 * seconds).astype(np.int64)[:, None] + begins_ns


def _make_row(
    timeline: Timeline, title: str, chosen: Int64s, steps: list[int], starts: Int64s, ends: Int64s
) -> ChromeTraceRow:
    """Return the slices of some operations; times are by operation and step."""
    operations = [timeline.operations[at] for at in chosen.tolist()]

    def describe(index: int) -> str:
        operation, step = operations[index // len(steps)], timeline.steps[steps[index % len(steps)]]
        values = {"step": step, "number": operation.sequence}
        if operation.micro_batch >= 0:
            values["micro_batch"] = operation.micro_batch
        return encode_arguments(values)

    return ChromeTraceRow(
        title=title,
        start_ns=starts.ravel(),
        end_ns=np.maximum(starts, ends).ravel(),
        name=lambda index: encode_text(operations[index // len(steps)].kind),
        category=lambda index: encode_text(title),
        args=describe,
    )
