"""The recorded events of one rank as rows: a row a stream, a row a thread, cut to the window."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zprof.analysis.intervals import Int64s
from zprof.integrations.perfetto.choice import RankWindow
from zprof.integrations.perfetto.entries import text
from zprof.integrations.perfetto.rows import Row
from zprof.run.reader import Run

_COLUMNS = (
    "start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation", "external_id", "bytes",
)  # fmt: skip
_ARGUMENTS = ("correlation", "external_id", "bytes")
_PYTHON = "python_function"
_NO_STREAM = np.iinfo(np.int64).min


def recorded_rows(run: Run, window: RankWindow, base_ns: int, *, python: bool) -> Iterator[Row]:
    """Streams by number, then threads by number; one rank's columns are in memory at a time."""
    table = run.table(window.tracks.rank, "events", _COLUMNS)
    if not python:
        table = table.filter(pc.invert(pc.equal(table.column("category").cast(pa.string()), _PYTHON)))
    events = _Events(table, window, base_ns)
    stream = pc.fill_null(table.column("stream"), _NO_STREAM).to_numpy()
    thread = table.column("thread").to_numpy()
    on_stream = stream != _NO_STREAM
    for number in np.unique(stream[on_stream & events.inside]).tolist():
        yield events.row(f"stream {number}", on_stream & (stream == number))
    for number in np.unique(thread[~on_stream & events.inside]).tolist():
        yield events.row(f"thread {number}", ~on_stream & (thread == number))


class _Events:
    """Columns of a rank; each distinct name becomes JSON once."""

    def __init__(self, table: pa.Table, window: RankWindow, base_ns: int) -> None:
        start = table.column("start_ns").to_numpy()
        clock = window.tracks.clock
        begin, end = clock.common(start), clock.common(start + table.column("duration_ns").to_numpy())
        reaches = (end > window.begin_ns) | (begin >= window.begin_ns)
        self.inside: npt.NDArray[np.bool_] = (begin < window.end_ns) & reaches
        self._start = np.clip(begin, window.begin_ns, window.end_ns) - base_ns
        self._end = np.maximum(np.clip(end, window.begin_ns, window.end_ns) - base_ns, self._start)
        self._names, self._name = _encoded(table, "name")
        self._categories, self._category = _encoded(table, "category")
        self._arguments = {name: _numbers(table, name) for name in _ARGUMENTS}

    def row(self, title: str, mask: npt.NDArray[np.bool_]) -> Row:
        """The events of one stream or thread."""
        at = np.flatnonzero(mask & self.inside)
        return Row(
            title=title,
            start_ns=self._start[at],
            end_ns=self._end[at],
            name=lambda index: self._names[self._name[at[index]]],
            category=lambda index: self._categories[self._category[at[index]]],
            args=lambda index: self._args(int(at[index])),
        )

    def _args(self, index: int) -> str:
        known = ((name, column[index]) for name, column in self._arguments.items())
        return "{" + ",".join(f'"{name}":{value}' for name, value in known if value != _NO_STREAM) + "}"


def _encoded(table: pa.Table, column: str) -> tuple[list[str], npt.NDArray[np.int32]]:
    combined = table.column(column).unify_dictionaries().combine_chunks()
    indices = combined.indices.to_numpy(zero_copy_only=False)
    return [text(str(word)) for word in combined.dictionary.to_pylist()], indices


def _numbers(table: pa.Table, name: str) -> Int64s:
    found: Int64s = pc.fill_null(table.column(name), _NO_STREAM).to_numpy()
    return found
