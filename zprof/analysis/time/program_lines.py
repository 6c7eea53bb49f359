"""Find the line of the user's program that fetched data, waited for the device, or called backward.

Also find what a late or idle rank does: operators that it runs more often, and lines between operators.

A zprof recording has samples of the training thread's stack. A trace made with ``with_stack=True`` has an
event for each Python call, with the line where the function starts. Without either, no line is found.

Outermost operators are counted over each rank's steps. A line of the user's program is attributed to a late
rank if it is in more of its samples than of the other ranks'.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from zprof.analysis.columns import Columns, Mask
from zprof.analysis.intervals import EMPTY, Int64s, Intervals, covered, intervals, subtract, union
from zprof.analysis.time.activity import find_outermost, has_device_work, read_host_activity
from zprof.analysis.time.events import CALL_CATEGORIES, EventView, decode_events, is_operator
from zprof.analysis.time.host_calls import PYTHON_CATEGORY, filter_by_text, read_host_calls, read_loader_spans
from zprof.analysis.time.ledger import RankTracks
from zprof.base.errors import BadInput
from zprof.base.formatting import printable
from zprof.model.communication_kernels import is_collective_kernel
from zprof.model.findings import SourceLocation
from zprof.run.reader import Run
from zprof.run.table_reader import read_numbers
from zprof.run.user_code import make_user_location, parse_profiler_call

#: A wait for a collective this soon after a scalar read is attributed to the read.
_READ_MARGIN_NS = 200_000
#: Minimum share of a fetch spent in a user function to report it.
_MIN_SHARE = 0.5
#: Maximum number of calls (the longest) whose caller is looked up.
_MAX_SPANS = 200
#: Maximum number of ranks searched for a line.
_MAX_RANKS = 4
_BACKWARD_FILES = ("torch/_tensor.py", "torch/autograd/__init__.py")
_BACKWARD = "backward"
_READ = "read"

_Frame = tuple[str, int, str]
_OPERATORS, _KERNELS = "cpu_op", "kernel"
_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread")
#: Maximum number of ranks that a late rank is compared with, and that are searched for a line.
_MAX_OTHERS, _MAX_LINE_RANKS = 8, 4
#: An operator is extra if it runs this much more often, at least this often per step.
_MIN_COUNT_RATIO, _MIN_COUNT = 1.05, 0.1
#: Minimum share of a delay that extra operators must explain to be its reason.
_MIN_DELAY_RATIO = 0.3
_MAX_NAMED = 3
#: Minimum share of the total weight for a line to be reported.
_MIN_LINE_RATIO = 0.3
_FindSpans = Callable[[Run, RankTracks], Intervals]


def locate_loader(run: Run | None, ranks: Sequence[int] = ()) -> SourceLocation | None:
    """Return the line that spends the time fetching a batch, else the line that requests the batch."""
    return _locate(run, ranks, lambda run, rank, lines: lines.find_within(read_loader_spans(run, rank)))


def locate_device_waits(run: Run | None, ranks: Sequence[int] = ()) -> SourceLocation | None:
    """Return the line that waits longest for the device."""
    return _locate(run, ranks, lambda run, rank, lines: lines.find_callers(read_host_calls(run, rank).sync))


def locate_reads(run: Run | None, ranks: Sequence[int] = ()) -> SourceLocation | None:
    """Return the line of a CPU rank that most often reads a scalar right before waiting for a collective."""
    return _locate(run, ranks, lambda run, rank, lines: lines.find_callers(_find_waiting_reads(run, rank)))


def locate_backward(run: Run | None, ranks: Sequence[int] = ()) -> SourceLocation | None:
    """Return the line that calls backward."""
    return _locate(run, ranks, lambda run, rank, lines: lines.find_backward())


def weigh_lines(run: Run, rank: int, spans: Intervals) -> Mapping[SourceLocation, float]:
    """Return the program lines during the spans, each with its weight; empty without stacks.

    Raises:
        BadInput: a table is damaged.
    """
    lines = _read_lines(run, rank)
    return lines.weigh(spans) if lines.is_known else {}


def _locate(
    run: Run | None, ranks: Sequence[int], find: Callable[[Run, int, "_Lines"], SourceLocation | None]
) -> SourceLocation | None:
    """Return the result of ``find`` for the first rank with a line; None if the run's files are gone."""
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
    """Return the heaviest line of the heaviest function, and the function's weight."""
    functions: defaultdict[tuple[str, str], float] = defaultdict(float)
    for location, weight in weights.items():
        functions[location.file, location.function] += weight
    if not functions:
        return None
    best = max(functions, key=functions.__getitem__)
    lines = (each for each in weights if (each.file, each.function) == best)
    return max(lines, key=weights.__getitem__), functions[best]


class _Lines(Protocol):
    """Program lines of one rank."""

    @property
    def is_known(self) -> bool:
        """Return True if the recording shows any line of the user's program."""

    def find_within(self, spans: Intervals) -> SourceLocation | None:
        """Return the line with most of the spans' time, else the line that called them."""

    def find_callers(self, spans: Intervals) -> SourceLocation | None:
        """Return the line that made most of these calls."""

    def find_backward(self) -> SourceLocation | None:
        """Return the line that calls backward."""

    def weigh(self, spans: Intervals) -> Mapping[SourceLocation, float]:
        """Return each line's part of the spans, in any unit."""


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
        """A read is recorded right before its call."""
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
        """Return the longest spans' time by the innermost function that contains them."""
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
    """Calls of user functions; ``number``: position of the function in ``locations``."""

    begin_ns: Int64s
    end_ns: Int64s
    number: Int64s
    locations: Sequence[SourceLocation]


def _is_backward_call(name: str) -> bool:
    return any(f"{file}(" in name for file in _BACKWARD_FILES) and name.endswith(f": {_BACKWARD}")


class ExtraOperator(Struct, frozen=True, kw_only=True):
    """An operator that a rank runs more often: calls per step, there and in the median of the other ranks."""

    name: str
    count: float
    others_count: float


class LineShare(Struct, frozen=True, kw_only=True):
    """A program line, and its share of the examined time."""

    location: SourceLocation
    share: float


def name_place(location: SourceLocation) -> str:
    """Format a line, such as ``train.py:65 (main)``."""
    return printable(f"{location.file}:{location.line} ({location.function})")


def find_extra_operators(
    run: Run | None, tracks: Sequence[RankTracks], late: Sequence[int], delay_ns: float
) -> list[ExtraOperator]:
    """Return up to three operators that the first late rank runs more often, most time-consuming first.

    Empty if they explain too little of the delay per step, on the host and on the device, or if the run's
    files are gone.
    """
    mine = [each for each in tracks if each.rank in late[:1]]
    others = [each for each in tracks if each.rank not in late][:_MAX_OTHERS]
    if run is None or not mine or not others:
        return []
    try:
        found = [_compare_uses(run, mine[0], others, category) for category in (_OPERATORS, _KERNELS)]
    except BadInput:
        return []
    extra = found[0] or found[1]
    if max(sum(times.values()) for times in found) < _MIN_DELAY_RATIO * max(1.0, delay_ns):
        return []
    return sorted(extra, key=lambda each: -extra[each])[:_MAX_NAMED]


def _compare_uses(
    run: Run, mine: RankTracks, others: Sequence[RankTracks], category: str
) -> dict[ExtraOperator, float]:
    """Return the operators that ``mine`` runs more often, and their time per step."""
    uses, others_uses = _sum_uses(run, mine, category), [_sum_uses(run, each, category) for each in others]
    extra: dict[ExtraOperator, float] = {}
    for name, (count, duration_ns) in uses.items():
        typical = median([each[name][0] if name in each else 0.0 for each in others_uses])
        if count >= _MIN_COUNT_RATIO * typical and count - typical >= _MIN_COUNT:
            operator = ExtraOperator(name=name, count=count, others_count=typical)
            extra[operator] = (count - typical) * duration_ns / count
    return extra


def _sum_uses(run: Run, tracks: RankTracks, category: str) -> Mapping[str, tuple[float, float]]:
    """Return each operator's calls and time per step."""
    view, rows = _select_outermost(run, tracks, category)
    names, codes = view.coded(np.flatnonzero(rows))
    counts = np.bincount(codes, minlength=len(names))
    times = np.bincount(codes, weights=view.spans[rows, 1] - view.spans[rows, 0], minlength=len(names))
    steps = max(1, len(tracks.host_steps))
    return {
        name: (count / steps, duration / steps)
        for name, count, duration in zip(names, counts.tolist(), times.tolist(), strict=True)
    }


def _select_outermost(run: Run, tracks: RankTracks, category: str) -> tuple[EventView, Mask]:
    """Return a category's events, and a mask of the outermost events in the steps."""
    view = EventView(run.table(tracks.rank, "events", _COLUMNS), {category})
    in_steps = tracks.host_steps.step_at(tracks.clock.common(view.spans[:, 0])) >= 0
    if category == _KERNELS:
        return view, in_steps & ~view.match_names(in_steps, is_collective_kernel)
    operators = view.match_names(in_steps, is_operator)
    rows = np.zeros(len(operators), dtype=np.bool_)
    for thread in np.unique(view.thread[operators]).tolist():
        rows |= find_outermost(view, operators & (view.thread == thread))
    return view, rows


def locate_extra_operators(
    run: Run | None, tracks: Sequence[RankTracks], late: Sequence[int], extra: Sequence[ExtraOperator]
) -> SourceLocation | None:
    """Return the line from which a late rank runs most of its extra operators; None if unknown."""
    names = {each.name for each in extra}

    def find_spans(run: Run, each: RankTracks) -> Intervals:
        view, rows = _select_outermost(run, each, _OPERATORS)
        return view.spans[view.match_names(rows, names.__contains__)]

    found = _find_line(run, tracks, late, find_spans)
    return found.location if found is not None else None


def locate_idle(run: Run | None, tracks: Sequence[RankTracks], late: Sequence[int] = ()) -> LineShare | None:
    """Return the line on which hosts spend most of the time outside operators, calls and waits.

    With ``late`` ranks, return the line on which they spend more of this time than the others.
    """
    return _find_line(run, tracks, late, _find_idle_spans)


def _find_idle_spans(run: Run, tracks: RankTracks) -> Intervals:
    """Return when the host is outside operators, calls, batches and waits, on the rank's own clock."""
    events = decode_events(run.table(tracks.rank, "events", _COLUMNS))
    view = EventView(events, CALL_CATEGORIES | {_OPERATORS})
    operators = view.match_categories(_OPERATORS)
    busy = view.spans[~operators | view.match_names(operators, is_operator)]
    waits = EMPTY if has_device_work(events) else union(tracks.waiting, tracks.moving)
    loading = read_loader_spans(run, tracks.rank)
    steps = tracks.clock.local(tracks.host_steps.spans)
    return subtract(union(steps), union(busy, loading, tracks.clock.local(waits)))


def _find_line(
    run: Run | None, tracks: Sequence[RankTracks], late: Sequence[int], find_spans: _FindSpans
) -> LineShare | None:
    chosen = [each for each in tracks if each.rank in late or not late][:_MAX_LINE_RANKS]
    others = [each for each in tracks if late and each.rank not in late][:_MAX_LINE_RANKS]
    if run is None or not chosen:
        return None
    try:
        weights, usual = (_average_weights(run, ranks, find_spans) for ranks in (chosen, others))
    except BadInput:
        return None
    more = {line: weight - usual.get(line, 0.0) for line, weight in weights.items()}
    more = {line: weight for line, weight in more.items() if weight > 0}
    best, total = choose_line(more), sum(more.values())
    if best is None or best[1] < _MIN_LINE_RATIO * total:
        return None
    return LineShare(location=best[0], share=best[1] / total)


def _average_weights(
    run: Run, ranks: Sequence[RankTracks], find_spans: _FindSpans
) -> dict[SourceLocation, float]:
    """Return each line's mean weight over ranks."""
    weights: defaultdict[SourceLocation, float] = defaultdict(float)
    for each in ranks:
        for line, weight in weigh_lines(run, each.rank, find_spans(run, each)).items():
            weights[line] += weight / len(ranks)
    return weights
