"""Build the rows of one rank in the exported trace: the chosen window, measured times, recorded events."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zprof.analysis.columns import Columns, Texts
from zprof.analysis.intervals import Intervals, intersect, intervals, union
from zprof.analysis.time.ledger import RankTracks
from zprof.analysis.time.steps import StepWindows
from zprof.base.errors import BadInput, MissingData
from zprof.integrations.perfetto.chrome_trace import (
    ChromeTraceRow,
    encode_arguments,
    encode_text,
    make_spans_row,
)
from zprof.run.reader import Run

_CATEGORY = encode_text("zprof")
_TIMES = ("wait_ns", "transfer_ns", "exposed_wait_ns", "exposed_transfer_ns", "hidden_ns")
_COLUMNS = (
    "start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation", "external_id", "bytes",
)  # fmt: skip
_ARGUMENTS = ("correlation", "external_id", "bytes")
_PYTHON = "python_function"


class ExportChoice(Struct, frozen=True, kw_only=True):
    """Part of a run to export; None: all. ``python``: include Python stack frames."""

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
    """Return the window of a rank; None if it has none of the chosen steps."""
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
    """Format numbers as ``0, 1, 2``: at most the first 8 and the last."""
    ordered = sorted(numbers)
    return ", ".join(map(str, ordered[:8])) + (f", ... {ordered[-1]}" if len(ordered) > 8 else "")


def make_measured_rows(window: RankWindow, collectives: Columns, base_ns: int) -> Iterator[ChromeTraceRow]:
    """Yield the rows of steps and exposed times; :func:`make_collectives_row` makes the collectives row."""
    steps = window.steps
    labels = [
        (encode_text(f"step {number}"), encode_arguments({"step": int(number)})) for number in steps.number
    ]
    yield make_spans_row("steps", steps.spans - base_ns, labels, _CATEGORY)
    yield _make_exposed_row("exposed wait", window.tracks.waiting, window, collectives, base_ns)
    yield _make_exposed_row("exposed transfer", window.tracks.moving, window, collectives, base_ns)


def make_collectives_row(collectives: Columns, base_ns: int) -> ChromeTraceRow:
    """Return the row of all the rank's collectives, with wait and transfer times as arguments."""
    spans = intervals(collectives.ints("start_ns"), collectives.ints("end_ns")) - base_ns
    labels = [(encode_text(row["kind"]), _encode_collective(row)) for row in collectives.list_rows()]
    return make_spans_row("collectives", spans, labels, _CATEGORY)


def select_collectives(collectives: Columns, window: RankWindow) -> Columns:
    """Return the collectives launched by the window's rank in the chosen steps."""
    is_own = collectives.ints("rank") == window.tracks.rank
    return collectives.at(is_own & np.isin(collectives.ints("step"), window.steps.number))


def _make_exposed_row(
    title: str, spans: Intervals, window: RankWindow, collectives: Columns, base_ns: int
) -> ChromeTraceRow:
    """Return a row split at each step, so the slices of a step sum to its value in the report."""
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


def _find_running_kinds(spans: Intervals, collectives: Columns) -> list[str]:
    """Return the kind of collective running at the start of each span; of several, the first to start."""
    ordered = collectives.at(np.argsort(collectives.ints("start_ns")))
    start, end, kinds = ordered.ints("start_ns"), ordered.ints("end_ns"), ordered.texts("kind")
    latest_end = np.maximum.accumulate(end) if len(end) else end
    running = []
    for begin in spans[:, 0].tolist():
        index = int(np.searchsorted(latest_end, begin, side="right"))
        running.append(kinds[index] if index < len(kinds) and start[index] <= begin else "collective")
    return running


def _encode_collective(row: Mapping[str, Any]) -> str:
    values: dict[str, str | int | float] = {
        "group": row["group"],
        "sequence": row["sequence"],
        "dtype": row["dtype"],
        "bytes": row["bytes"],
    }
    if row["unit"] is not None:
        values["unit"] = row["unit"]
    values |= {name.replace("_ns", "_us"): row[name] / 1000 for name in _TIMES}
    if row["last_rank"] >= 0:
        values["last_rank"] = row["last_rank"]
    values["matched"] = "yes" if row["matched"] else "no"
    return encode_arguments(values)


def make_recorded_rows(
    run: Run, window: RankWindow, base_ns: int, *, python: bool
) -> Iterator[ChromeTraceRow]:
    """Yield the streams, then the threads, each ordered by number."""
    table = Columns.from_arrow(run.table(window.tracks.rank, "events", _COLUMNS))
    if not python:
        table = table.at(~table.texts("category").equals(_PYTHON))
    events = _Events(table, window, base_ns)
    stream, thread, on_stream = table.ints("stream"), table.ints("thread"), table.known("stream")
    for number in np.unique(stream[on_stream & events.inside]).tolist():
        yield events.make_row(f"stream {number}", on_stream & (stream == number))
    for number in np.unique(thread[~on_stream & events.inside]).tolist():
        yield events.make_row(f"thread {number}", ~on_stream & (thread == number))


class _Events:
    """Columns of a rank's events; each distinct name is converted to JSON once."""

    def __init__(self, table: Columns, window: RankWindow, base_ns: int) -> None:
        start, clock = table.ints("start_ns"), window.tracks.clock
        begin, end = clock.common(start), clock.common(start + table.ints("duration_ns"))
        ends_inside = (end > window.begin_ns) | (begin >= window.begin_ns)
        self.inside: npt.NDArray[np.bool_] = (begin < window.end_ns) & ends_inside
        self._start = np.clip(begin, window.begin_ns, window.end_ns) - base_ns
        self._end = np.maximum(np.clip(end, window.begin_ns, window.end_ns) - base_ns, self._start)
        self._names = _encode_words(table.texts("name"))
        self._categories = _encode_words(table.texts("category"))
        self._arguments = {name: (table.ints(name), table.known(name)) for name in _ARGUMENTS}

    def make_row(self, title: str, mask: npt.NDArray[np.bool_]) -> ChromeTraceRow:
        """Return the events of one stream or thread as a row."""
        indices = np.flatnonzero(mask & self.inside)
        return ChromeTraceRow(
            title=title,
            start_ns=self._start[indices],
            end_ns=self._end[indices],
            name=lambda index: self._names[indices[index]],
            category=lambda index: self._categories[indices[index]],
            args=lambda index: self._encode_args(int(indices[index])),
        )

    def _encode_args(self, index: int) -> str:
        known = [
            (name, values[index]) for name, (values, is_known) in self._arguments.items() if is_known[index]
        ]
        return "{" + ",".join(f'"{name}":{value}' for name, value in known) + "}"


def _encode_words(texts: Texts) -> Texts:
    """Return the strings as JSON, converting each distinct string once."""
    return Texts([encode_text(word) for word in texts.words], texts.codes)
