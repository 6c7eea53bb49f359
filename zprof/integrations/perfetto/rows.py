"""Rows of one process in the written trace: each gets lanes and names, and its slices are written."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.integrations.perfetto.entries import slice_line, thread_lines
from zprof.integrations.perfetto.lanes import NO_LANE, lanes, order


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Slices of one row of the viewer, in any order, on the common clock since the trace's begin.

    ``name``, ``category`` and ``args`` give JSON for the index of a slice.
    """

    title: str
    start_ns: Int64s
    end_ns: Int64s
    name: Callable[[int], str]
    category: Callable[[int], str]
    args: Callable[[int], str]


class Process:
    """Numbers the rows of one rank as they come, and remembers what did not fit."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.left_out = 0
        self._next_tid = 1

    def lines(self, row: Row) -> Iterator[str]:
        """The row's slices, lane by lane, each lane in the order of time."""
        for _, _, lines in self.placed(row):
            yield from lines

    def placed(self, row: Row) -> Iterator[tuple[int, list[int], Iterator[str]]]:
        """As :meth:`lines`, by lane: its thread, the indices of its slices, and its lines."""
        sequence = order(row.start_ns, row.end_ns)
        lane = lanes(row.start_ns[sequence], row.end_ns[sequence])
        self.left_out += int((lane == NO_LANE).sum())
        for number in range(int(lane.max(initial=NO_LANE)) + 1):
            tid, self._next_tid = self._next_tid, self._next_tid + 1
            chosen = sequence[lane == number].tolist()
            title = row.title if number == 0 else f"{row.title} ({number + 1})"
            yield tid, chosen, self._lane(row, tid, title, chosen)

    def _lane(self, row: Row, tid: int, title: str, chosen: Sequence[int]) -> Iterator[str]:
        yield from thread_lines(self.pid, tid, title)
        starts, lengths = row.start_ns, row.end_ns - row.start_ns
        for index in chosen:
            yield slice_line(
                self.pid,
                tid,
                int(starts[index]),
                int(lengths[index]),
                row.name(index),
                row.category(index),
                row.args(index),
            )


def spans_row(title: str, spans: Int64s, labels: Sequence[tuple[str, str]], category: str) -> Row:
    """A row of few slices: ``labels`` are the name and the arguments of each, as JSON."""
    spans = np.asarray(spans, dtype=np.int64).reshape(-1, 2)
    return Row(
        title=title,
        start_ns=spans[:, 0],
        end_ns=spans[:, 1],
        name=lambda index: labels[index][0],
        category=lambda index: category,
        args=lambda index: labels[index][1],
    )
