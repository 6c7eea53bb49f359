"""Build the rows of one rank in the exported trace: the chosen window, measured times, recorded events."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from zprof.analysis.intervals import Int64s, Intervals, intersect, intervals, union
from zprof.analysis.time.ledger import RankTracks
from zprof.analysis.time.steps import StepWindows
from zprof.integrations.perfetto.chrome_trace import (
    ChromeTraceRow,
    encode_arguments,
    encode_text,
    make_spans_row,
)
from zprof.model.errors import BadInput, MissingData
from zprof.run.reader import Run

_CATEGORY = encode_text("zprof")
_TIMES = ("wait_ns", "transfer_ns", "exposed_wait_ns", "exposed_transfer_ns", "hidden_ns")
_COLUMNS = (
    "start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation", "external_id", "bytes",
)  # fmt: skip
_ARGUMENTS = ("correlation", "external_id", "bytes")
_PYTHON = "python_function"
_NO_STREAM = np.iinfo(np.int64).min


class ExportChoice(Struct, frozen=True, kw_only=True):
    """Part of a run to export; None means all. ``python``: include Python stack frames."""

    ranks: frozenset[int] | None = None
    steps: frozenset[int] | None = None
    python: bool = False


class RankWindow(Struct, frozen=True, kw_only=True):
    """One chosen rank: its chosen steps, and the exported interval on the common clock."""

    tracks: RankTracks
    steps: StepWindows
    begin_ns: int
    end_ns: int


def choose_windows(tracks: Sequence[RankTracks], choice: ExportChoice) -> list[RankWindow]:
    """Return the windows of the chosen ranks, ordered by rank.

    Raises:
        BadInput: a requested rank or step was not timed.
        MissingData: no rank was timed.
    """
    if not tracks:
        raise MissingData("no step of this run was timed", hint="record with a time window")
    timed_ranks = {entry.rank for entry in tracks}
    if choice.ranks is not None and (absent := choice.ranks - timed_ranks):
        raise BadInput(
            f"no times for rank {_list_numbers(absent)}", hint=f"timed ranks: {_list_numbers(timed_ranks)}"
        )
    numbers = {int(number) for entry in tracks for number in entry.steps.number}
    if choice.steps is not None and (absent := choice.steps - numbers):
        raise BadInput(
            f"step {_list_numbers(absent)} was not timed", hint=f"timed steps: {_list_numbers(numbers)}"
        )
    chosen = [entry for entry in tracks if choice.ranks is None or entry.rank in choice.ranks]
    windows = [
        _make_rank_window(entry, choice.steps) for entry in sorted(chosen, key=lambda entry: entry.rank)
    ]
    return [window for window in windows if window is not None]


def _make_rank_window(tracks: RankTracks, steps: frozenset[int] | None) -> RankWindow | None:
    """Return the window of a rank; None if it has none of the steps."""
    if steps is None:
        kept = tracks.steps
    else:
        keep = np.isin(tracks.steps.number, sorted(steps))
        kept = StepWindows(
            number=tracks.steps.number[keep],
            begin_ns=tracks.steps.begin_ns[keep],
            end_ns=tracks.steps.end_ns[keep],
        )
    spans = kept.spans if steps is not None else union(tracks.coverage, tracks.steps.spans)
    if not len(spans):
        return None
    return RankWindow(
        tracks=tracks, steps=kept, begin_ns=int(spans[:, 0].min()), end_ns=int(spans[:, 1].max())
    )


def _list_numbers(numbers: set[int] | frozenset[int]) -> str:
    """Format numbers as ``0, 1, 2``, at most the first 8 and the last one."""
    ordered = sorted(numbers)
    return ", ".join(map(str, ordered[:8])) + (f", ... {ordered[-1]}" if len(ordered) > 8 else "")


def make_measured_rows(
    window: RankWindow, collectives: pd.DataFrame, base_ns: int
) -> Iterator[ChromeTraceRow]:
    """Yield the rows of steps and exposed times; :func:`make_collectives_row` makes that of collectives."""
    steps = window.steps
    labels = [
        (encode_text(f"step {number}"), encode_arguments({"step": int(number)})) for number in steps.number
    ]
    yield make_spans_row("steps", steps.spans - base_ns, labels, _CATEGORY)
    yield _make_exposed_row("exposed wait", window.tracks.waiting, window, collectives, base_ns)
    yield _make_exposed_row("exposed transfer", window.tracks.moving, window, collectives, base_ns)


def make_collectives_row(collectives: pd.DataFrame, base_ns: int) -> ChromeTraceRow:
    """Return the row of all collectives of the rank, with their wait and transfer times as arguments."""
    spans = intervals(collectives["start_ns"], collectives["end_ns"]) - base_ns
    labels = [
        (encode_text(str(row["kind"])), _encode_collective(row)) for row in collectives.to_dict("records")
    ]
    return make_spans_row("collectives", spans, labels, _CATEGORY)


def select_collectives(collectives: pd.DataFrame, window: RankWindow) -> pd.DataFrame:
    """Return the collectives of the window's rank that its chosen steps launched."""
    is_own = collectives["rank"] == window.tracks.rank
    return collectives[is_own & collectives["step"].isin(window.steps.number.tolist())]


def _make_exposed_row(
    title: str, spans: Intervals, window: RankWindow, collectives: pd.DataFrame, base_ns: int
) -> ChromeTraceRow:
    """Return a row split at each step, so that a step's slices sum to its value in the report."""
    parts, labels = [np.empty((0, 2), dtype=np.int64)], []
    steps = window.steps
    for number, begin, end in zip(steps.number, steps.begin_ns, steps.end_ns, strict=True):
        inside = intersect(spans, intervals([begin], [end]))
        parts.append(inside)
        labels += [
            (encode_text(name), encode_arguments({"step": int(number), "collective": name}))
            for name in _find_running_kinds(inside, collectives)
        ]
    return make_spans_row(title, np.concatenate(parts) - base_ns, labels, _CATEGORY)


def _find_running_kinds(spans: Intervals, collectives: pd.DataFrame) -> list[str]:
    """Return the kind of collective running at the start of each span; if several, the first to start."""
    ordered = collectives.sort_values("start_ns")
    start, end = ordered["start_ns"].to_numpy(np.int64), ordered["end_ns"].to_numpy(np.int64)
    kinds = ordered["kind"].astype(str).tolist()
    latest_end = np.maximum.accumulate(end) if len(end) else end
    running = []
    for begin in spans[:, 0].tolist():
        index = int(np.searchsorted(latest_end, begin, side="right"))
        running.append(kinds[index] if index < len(kinds) and start[index] <= begin else "collective")
    return running


def _encode_collective(row: Mapping[Hashable, Any]) -> str:
    values: dict[str, str | int | float] = {
        "group": str(row["group"]),
        "sequence": int(row["sequence"]),
        "dtype": str(row["dtype"]),
        "bytes": int(row["bytes"]),
    }
    if not pd.isna(row["unit"]):
        values["unit"] = str(row["unit"])
    values |= {name.replace("_ns", "_us"): int(row[name]) / 1000 for name in _TIMES}
    if row["last_rank"] >= 0:
        values["last_rank"] = int(row["last_rank"])
    values["matched"] = "yes" if row["matched"] else "no"
    return encode_arguments(values)


def make_recorded_rows(
    run: Run, window: RankWindow, base_ns: int, *, python: bool
) -> Iterator[ChromeTraceRow]:
    """Yield the streams, then the threads, each ordered by number."""
    table = run.table(window.tracks.rank, "events", _COLUMNS)
    if not python:
        table = table.filter(pc.invert(pc.equal(table.column("category").cast(pa.string()), _PYTHON)))
    events = _Events(table, window, base_ns)
    stream = pc.fill_null(table.column("stream"), _NO_STREAM).to_numpy()
    thread = table.column("thread").to_numpy()
    on_stream = stream != _NO_STREAM
    for number in np.unique(stream[on_stream & events.inside]).tolist():
        yield events.make_row(f"stream {number}", on_stream & (stream == number))
    for number in np.unique(thread[~on_stream & events.inside]).tolist():
        yield events.make_row(f"thread {number}", ~on_stream & (thread == number))


class _Events:
    """Columns of a rank's events; each distinct name is converted to JSON once."""

    def __init__(self, table: pa.Table, window: RankWindow, base_ns: int) -> None:
        start = table.column("start_ns").to_numpy()
        clock = window.tracks.clock
        begin, end = clock.common(start), clock.common(start + table.column("duration_ns").to_numpy())
        ends_inside = (end > window.begin_ns) | (begin >= window.begin_ns)
        self.inside: npt.NDArray[np.bool_] = (begin < window.end_ns) & ends_inside
        self._start = np.clip(begin, window.begin_ns, window.end_ns) - base_ns
        self._end = np.maximum(np.clip(end, window.begin_ns, window.end_ns) - base_ns, self._start)
        self._names, self._name = _encode_texts(table, "name")
        self._categories, self._category = _encode_texts(table, "category")
        self._arguments = {name: _read_numbers(table, name) for name in _ARGUMENTS}

    def make_row(self, title: str, mask: npt.NDArray[np.bool_]) -> ChromeTraceRow:
        """Return the events of one stream or thread as a row."""
        indices = np.flatnonzero(mask & self.inside)
        return ChromeTraceRow(
            title=title,
            start_ns=self._start[indices],
            end_ns=self._end[indices],
            name=lambda index: self._names[self._name[indices[index]]],
            category=lambda index: self._categories[self._category[indices[index]]],
            args=lambda index: self._encode_args(int(indices[index])),
        )

    def _encode_args(self, index: int) -> str:
        known = ((name, column[index]) for name, column in self._arguments.items())
        return "{" + ",".join(f'"{name}":{value}' for name, value in known if value != _NO_STREAM) + "}"


def _encode_texts(table: pa.Table, column: str) -> tuple[list[str], npt.NDArray[np.int32]]:
    combined = table.column(column).unify_dictionaries().combine_chunks()
    indices = combined.indices.to_numpy(zero_copy_only=False)
    return [encode_text(str(word)) for word in combined.dictionary.to_pylist()], indices


def _read_numbers(table: pa.Table, name: str) -> Int64s:
    found: Int64s = pc.fill_null(table.column(name), _NO_STREAM).to_numpy()
    return found
