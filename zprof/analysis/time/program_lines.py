"""Find the line of the user's program that fetched data, waited for the device, or called backward.

A recording of zprof has samples of the training thread's stack. A trace that was made with
``with_stack=True`` has an event for each Python call, which names where the function starts. Without either
there is no line.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from zprof.analysis.columns import Columns
from zprof.analysis.intervals import Int64s, Intervals, covered, intervals
from zprof.analysis.time.activity_from_events import read_host_activity
from zprof.analysis.time.host_calls import PYTHON_CATEGORY, filter_by_text, read_host_calls, read_loader_spans
from zprof.analysis.user_code import make_user_location, parse_profiler_call
from zprof.model.errors import BadInput
from zprof.model.findings import SourceLocation
from zprof.run.arrow_arrays import read_numbers
from zprof.run.reader import Run

#: A collective that is waited for this soon after a scalar was read was waited for by the read.
_READ_MARGIN_NS = 200_000
#: Share of a fetch that a function of the user takes, to be the place and not only pass by.
_MIN_SHARE = 0.5
#: Calls whose caller is looked up, the longest ones.
_MAX_SPANS = 200
#: Ranks that are searched for a line.
_MAX_RANKS = 4
_BACKWARD_FILES = ("torch/_tensor.py", "torch/autograd/__init__.py")
_BACKWARD = "backward"
_READ = "read"

_Frame = tuple[str, int, str]


def locate_loader(run: Run | None, ranks: Sequence[int] = ()) -> SourceLocation | None:
    """Return the line that takes the time of fetching a batch, else the line that asks for it."""
    return _locate(run, ranks, lambda run, rank, lines: lines.find_within(read_loader_spans(run, rank)))


def locate_device_waits(run: Run | None, ranks: Sequence[int] = ()) -> SourceLocation | None:
    """Return the line that waits for the device for the longest time."""
    return _locate(run, ranks, lambda run, rank, lines: lines.find_callers(read_host_calls(run, rank).sync))


def locate_reads(run: Run | None, ranks: Sequence[int] = ()) -> SourceLocation | None:
    """Return the line of a CPU rank that most often reads a scalar right before waiting for a collective."""
    return _locate(run, ranks, lambda run, rank, lines: lines.find_callers(_find_waiting_reads(run, rank)))


def locate_backward(run: Run | None, ranks: Sequence[int] = ()) -> SourceLocation | None:
    """Return the line that calls backward."""
    return _locate(run, ranks, lambda run, rank, lines: lines.find_backward())


def weigh_lines(run: Run, rank: int, spans: Intervals) -> Mapping[SourceLocation, float]:
    """Return the lines of a rank's program during the spans, each with its weight; empty without stacks.

    Raises:
        BadInput: a table is damaged.
    """
    lines = _read_lines(run, rank)
    return lines.weigh(spans) if lines.is_known else {}


def _locate(
    run: Run | None, ranks: Sequence[int], find: Callable[[Run, int, "_Lines"], SourceLocation | None]
) -> SourceLocation | None:
    """Return what ``find`` returns for the first rank with a line; None if the run has been moved away."""
    if run is None:
        return None
    try:
        for rank in (ranks or run.ranks)[:_MAX_RANKS]:
            if rank not in run.ranks or not run.has_table(rank, "events"):
                continue
            lines = _read_lines(run, rank)
            found = find(run, rank, lines) if lines.is_known else None
            if found is not None:
                return found
        return None
    except BadInput:
        return None


def _read_lines(run: Run, rank: int) -> "_Lines":
    is_sampled = run.has_table(rank, "host_sample") and run.has_table(rank, "host_stack")
    return _SampledLines(run, rank) if is_sampled else _TracedLines(run, rank)


def _find_waiting_reads(run: Run, rank: int) -> Intervals:
    read = read_host_calls(run, rank).read
    times = read_host_activity(run.table(rank, "events")).waits[:, 0]
    after = np.searchsorted(times, read[:, 1])
    is_close = np.append(times, np.iinfo(np.int64).max)[after] - read[:, 1] <= _READ_MARGIN_NS
    return read[is_close]


def choose_line(weights: Mapping[SourceLocation, float]) -> tuple[SourceLocation, float] | None:
    """Return the heaviest line of the heaviest function, and the weight of that function."""
    functions: defaultdict[tuple[str, str], float] = defaultdict(float)
    for location, weight in weights.items():
        functions[location.file, location.function] += weight
    if not functions:
        return None
    best = max(functions, key=functions.__getitem__)
    lines = (each for each in weights if (each.file, each.function) == best)
    return max(lines, key=weights.__getitem__), functions[best]


class _Lines(Protocol):
    """Lines of one rank's program."""

    @property
    def is_known(self) -> bool:
        """Return True if the recording shows any line of the user's program."""

    def find_within(self, spans: Intervals) -> SourceLocation | None:
        """Return the line on which most of the time of the spans is spent, else the one that called them."""

    def find_callers(self, spans: Intervals) -> SourceLocation | None:
        """Return the line that made most of these calls."""

    def find_backward(self) -> SourceLocation | None:
        """Return the line that calls backward."""

    def weigh(self, spans: Intervals) -> Mapping[SourceLocation, float]:
        """Return how much of the spans each line takes, in any unit."""


class _SampledLines(Struct, frozen=True, dict=True):
    """Lines from samples of the stack."""

    run: Run
    rank: int

    @property
    def is_known(self) -> bool:
        return len(self._times) > 0

    def find_within(self, spans: Intervals) -> SourceLocation | None:
        return self._vote(self._stacks[self._are_within(spans) & ~self._is_read], self._innermost)

    def find_callers(self, spans: Intervals) -> SourceLocation | None:
        """A read is noted right before its call."""
        reads = np.flatnonzero(self._is_read)
        place = np.searchsorted(self._times[reads], spans[:, 0], side="right") - 1
        found = reads[place[place >= 0]]
        chosen = self._are_within(spans) & ~self._is_read
        chosen[found[self._times[found] >= spans[place >= 0, 0] - _READ_MARGIN_NS]] = True
        return self._vote(self._stacks[chosen], self._innermost)

    def weigh(self, spans: Intervals) -> Mapping[SourceLocation, float]:
        return self._count_lines(self._stacks[self._are_within(spans) & ~self._is_read], self._innermost)

    def find_backward(self) -> SourceLocation | None:
        return self._vote(self._stacks[~self._is_read], self._caller_of_backward)

    @cached_property
    def _samples(self) -> Columns:
        samples = Columns.from_arrow(self.run.table(self.rank, "host_sample"))
        return samples.at(np.argsort(samples.ints("time_ns"), kind="stable"))

    @cached_property
    def _times(self) -> Int64s:
        return self._samples.ints("time_ns")

    @cached_property
    def _stacks(self) -> Int64s:
        return self._samples.ints("stack")

    @cached_property
    def _is_read(self) -> npt.NDArray[np.bool_]:
        return self._samples.texts("kind").equals(_READ)

    @cached_property
    def _frames(self) -> Mapping[int, Sequence[_Frame]]:
        """Frames of each stack, innermost first."""
        rows = self.run.table(self.rank, "host_stack").sort_by(
            [("stack", "ascending"), ("depth", "ascending")]
        )
        frames: dict[int, list[_Frame]] = {}
        columns = (rows.column(name).to_pylist() for name in ("stack", "file", "line", "function"))
        for stack, file, line, function in zip(*columns, strict=True):
            frames.setdefault(stack, []).append((file, line, function))
        return frames

    def _are_within(self, spans: Intervals) -> npt.NDArray[np.bool_]:
        return covered(spans, self._times, self._times + 1) > 0

    def _vote(
        self, stacks: Int64s, choose: Callable[[Sequence[_Frame]], SourceLocation | None]
    ) -> SourceLocation | None:
        """Return the most frequent line of the most frequent function."""
        best = choose_line(self._count_lines(stacks, choose))
        return best[0] if best is not None else None

    def _count_lines(
        self, stacks: Int64s, choose: Callable[[Sequence[_Frame]], SourceLocation | None]
    ) -> Counter[SourceLocation]:
        numbers, counts = np.unique(stacks, return_counts=True)
        votes: Counter[SourceLocation] = Counter()
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            location = choose(self._frames.get(number, ()))
            if location is not None:
                votes[location] += count
        return votes

    def _innermost(self, frames: Sequence[_Frame]) -> SourceLocation | None:
        folder = self.run.manifest.folder
        locations = (make_user_location(*frame, folder) for frame in frames)
        return next((location for location in locations if location is not None), None)

    def _caller_of_backward(self, frames: Sequence[_Frame]) -> SourceLocation | None:
        for depth, (file, _, function) in enumerate(frames):
            if function == _BACKWARD and file.replace("\\", "/").endswith(_BACKWARD_FILES):
                return self._innermost(frames[depth + 1 :])
        return None


class _TracedLines(Struct, frozen=True, dict=True):
    """Functions from the Python calls of a trace."""

    run: Run
    rank: int

    @property
    def is_known(self) -> bool:
        return len(self._user_calls.locations) > 0

    def find_within(self, spans: Intervals) -> SourceLocation | None:
        calls = self._user_calls
        begin, end, number = calls.begin_ns, calls.end_ns, calls.number
        is_inside = covered(spans, begin, end) >= np.maximum(1, end - begin)
        times = np.bincount(number[is_inside], weights=(end - begin)[is_inside], minlength=1)
        total = float((spans[:, 1] - spans[:, 0]).sum())
        if len(times) and total and times.max() >= _MIN_SHARE * total:
            candidates = np.flatnonzero(times >= _MIN_SHARE * times.max()).tolist()
            mean_ns = {
                each: float(np.mean((end - begin)[is_inside & (number == each)])) for each in candidates
            }
            return calls.locations[min(mean_ns, key=mean_ns.__getitem__)]  # the innermost of nested ones
        return self.find_callers(spans)

    def find_callers(self, spans: Intervals) -> SourceLocation | None:
        return max(votes, key=votes.__getitem__) if (votes := self.weigh(spans)) else None

    def weigh(self, spans: Intervals) -> Mapping[SourceLocation, float]:
        """Return the time of the longest spans by the innermost function that holds them."""
        votes: Counter[int] = Counter()
        calls = self._user_calls
        longest = np.argsort(spans[:, 0] - spans[:, 1], kind="stable")[:_MAX_SPANS]
        for begin, end in spans[longest].tolist():
            holds = (calls.begin_ns <= begin) & (calls.end_ns >= end)
            if holds.any():
                innermost = np.flatnonzero(holds)[np.argmax(calls.begin_ns[holds])]
                votes[int(calls.number[innermost])] += end - begin + 1
        return {calls.locations[number]: weight for number, weight in votes.items()}

    def find_backward(self) -> SourceLocation | None:
        rows = filter_by_text(self._python_calls, "name", _is_backward_call)
        start, duration = (read_numbers(rows.column(name)) for name in ("start_ns", "duration_ns"))
        return self.find_callers(intervals(start, start + duration))

    @cached_property
    def _python_calls(self) -> pa.Table:
        rows = self.run.table(self.rank, "events", ("start_ns", "duration_ns", "category", "name"))
        return filter_by_text(rows, "category", PYTHON_CATEGORY.__eq__)

    @cached_property
    def _user_calls(self) -> "_UserCalls":
        folder = self.run.manifest.folder
        rows = filter_by_text(self._python_calls, "name", lambda name: parse_profiler_call(name, folder))
        start, duration = (read_numbers(rows.column(name)) for name in ("start_ns", "duration_ns"))
        names = rows.column("name").cast(pa.string()).to_pylist()
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        locations = [parse_profiler_call(name, folder) for name in numbers]
        return _UserCalls(
            begin_ns=start,
            end_ns=start + duration,
            number=np.array([numbers[name] for name in names], dtype=np.int64),
            locations=[location for location in locations if location is not None],
        )


class _UserCalls(Struct, frozen=True, kw_only=True):
    """Calls of the user's functions; ``number`` is the place of the function in ``locations``."""

    begin_ns: Int64s
    end_ns: Int64s
    number: Int64s
    locations: Sequence[SourceLocation]


def _is_backward_call(name: str) -> bool:
    return any(f"{file}(" in name for file in _BACKWARD_FILES) and name.endswith(f": {_BACKWARD}")
