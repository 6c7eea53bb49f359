"""What the host's events say about where a step is: forward, backward, optimizer, and which micro-batch.

Ranges of the program say it best: FSDP2's and FSDP1's hooks, DDP's forward, the recorder's marks of phases.
Below them, autograd: ``autograd::engine::evaluate_function`` encloses every node of a backward, also the
hooks that launch collectives from it; and what else a thread of autograd does is backward, too: hooks before
its first node gather, and no node encloses them.  What is outside of it, and is no optimizer, belongs to a
forward as soon as the program's thread runs operators there, or gathers.

A forward is recomputation where it runs on a thread of autograd, or where it passes only some of the units
that the forward before it passed: every micro-batch passes all of them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, subtract, union
from zprof.analysis.time.activity.view import EventView, Mask
from zprof.analysis.time.clocks.offsets import RankClock
from zprof.model.phases import Phase
from zprof.run.reader import Run

_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation")
_FSDP1 = r"FullyShardedDataParallel\._?"
_FORWARD = re.compile(
    rf"FSDP::(root_)?(pre|post)_forward\b.*|{_FSDP1}(root_)?(pre|post)_forward|DistributedDataParallel\.forward"
)
#: FSDP2 says which unit it is; only the beginning of a forward tells a new one.
_UNIT_FORWARD = re.compile(r"FSDP::(root_)?pre_forward\b.*\(.+\).*")
_BACKWARD = re.compile(
    rf"FSDP::(root_)?(pre|post)_backward.*|{_FSDP1}(pre|post)_backward_hook(_reshard_only)?"
)
_FORWARD_AHEAD = re.compile(rf"FSDP::forward_prefetch.*|{_FSDP1}pre_forward_prefetch")
_BACKWARD_AHEAD = re.compile(rf"FSDP::backward_prefetch.*|{_FSDP1}(pre|post)_backward_prefetch")
_OPTIMIZER = re.compile(r"Optimizer\.step#.*")
_STEP = re.compile(r"ProfilerStep#.*")
_LOADER = re.compile(r"enumerate\(DataLoader\)#.*")
_NODE = re.compile(r"autograd::engine::evaluate_function\b.*")
#: Of the operators, the training loop runs more than that.
_PROGRAM_RATIO = 0.05
_AUTOGRAD = re.compile(r"autograd::engine::evaluate_function\b.*|\w+Backward\d*|aten::\w*backward\w*")
_OPERATOR = re.compile(r"aten::\w+|c10d::\w*all_?gather\w*")


def _nothing() -> Intervals:
    return EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Spans of one rank's host, on the common clock.

    ``forward`` and ``backward`` are what the program itself calls so, ``ahead_*`` prefetches for these
    passes, ``autograd`` the nodes of backward passes, ``optimizer`` its steps.  ``recompute``: forwards that
    a backward repeats, as far as threads and units tell them; ``forward`` is without them.  ``operators``:
    what the program's thread runs outside of autograd and of the optimizer, gathers among it.
    Disjoint sets, except the named ones.
    """

    forward: Intervals = field(default_factory=_nothing)
    recompute: Intervals = field(default_factory=_nothing)
    backward: Intervals = field(default_factory=_nothing)
    ahead_forward: Intervals = field(default_factory=_nothing)
    ahead_backward: Intervals = field(default_factory=_nothing)
    autograd: Intervals = field(default_factory=_nothing)
    optimizer: Intervals = field(default_factory=_nothing)
    operators: Intervals = field(default_factory=_nothing)

    @property
    def in_backward(self) -> Intervals:
        """When a backward certainly ran, by what the program or autograd says."""
        return union(self.backward, self.autograd)


def read_evidence(run: Run, rank: int, clock: RankClock) -> Evidence:
    """From a rank's events and marks."""
    events = run.table(rank, "events", _COLUMNS)
    return evidence_of(events, run.frame(rank, "mark"), clock)


def evidence_of(events: pa.Table, marks: pd.DataFrame, clock: RankClock) -> Evidence:
    """From the tables of one rank, each distinct name looked at once."""
    view = EventView(events, ("user_annotation", "cpu_op"))
    named, operators = view.category_is("user_annotation"), view.category_is("cpu_op")
    marked = _marked(marks, int(view.spans[:, 0].min(initial=np.iinfo(np.int64).max)))

    def spans(rows: Mask, pattern: re.Pattern[str]) -> Intervals:
        return clock.common(view.spans[view.name_is(rows, _is(pattern))])

    program = program_thread(view)
    nodes, backwards = view.name_is(operators | named, _is(_AUTOGRAD)), view.name_is(named, _is(_BACKWARD))
    forwards, optimizers = view.name_is(named, _is(_FORWARD)), view.name_is(named, _is(_OPTIMIZER))
    threads = _autograd_threads(view, forwards, nodes | backwards)
    repeated = forwards & np.isin(view.thread, threads)
    repeated |= _partial_forwards(view, forwards & ~repeated, nodes | backwards, optimizers)
    autograd = union(clock.common(view.spans[nodes | (operators & np.isin(view.thread, threads))]))
    optimizer = union(clock.common(view.spans[optimizers]), clock.common(marked[Phase.OPTIMIZER]))
    mine = operators & (view.thread == program)
    return Evidence(
        forward=_rows(clock.common(view.spans[forwards & ~repeated]), clock.common(marked[Phase.FORWARD])),
        recompute=_rows(clock.common(view.spans[repeated])),
        backward=_rows(clock.common(view.spans[backwards]), clock.common(marked[Phase.BACKWARD])),
        ahead_forward=spans(named, _FORWARD_AHEAD),
        ahead_backward=spans(named, _BACKWARD_AHEAD),
        autograd=autograd,
        optimizer=optimizer,
        operators=subtract(spans(mine, _OPERATOR), union(autograd, optimizer)),
    )


def _autograd_threads(view: EventView, forwards: Mask, backwards: Mask) -> Int64s:
    """Return the threads of backwards, without the program's own: a CPU rank runs backwards there too."""
    rows = np.flatnonzero(forwards)
    first = view.thread[rows[np.argsort(view.spans[rows, 0], kind="stable")][:1]]
    return np.setdiff1d(view.thread[backwards], [program_thread(view), *first.tolist()])


def _partial_forwards(view: EventView, forwards: Mask, backwards: Mask, optimizers: Mask) -> Mask:
    """Find forwards behind a backward that pass a part of the units of the forward before.

    A run of forwards ends where a backward or an optimizer step begins.  Behind an optimizer step there is
    nothing to recompute.
    """
    found = np.zeros(len(forwards), dtype=np.bool_)
    rows = np.flatnonzero(forwards)
    rows = rows[np.argsort(view.spans[rows, 0], kind="stable")]
    begins = view.spans[rows, 0]
    run = np.searchsorted(np.sort(view.spans[backwards | optimizers, 0]), begins)
    step = np.searchsorted(np.sort(view.spans[optimizers, 0]), begins)
    names, code = view.coded(rows)
    told = np.array([_UNIT_FORWARD.fullmatch(name) is not None for name in names], dtype=np.bool_)
    rows, run, step, code = (each[told[code]] for each in (rows, run, step, code))
    whole, of_step = frozenset[int](), -1
    for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(run)) + 1):
        if not len(part):
            continue
        units = frozenset(code[part].tolist())
        if units < whole and step[part[0]] == of_step:
            found[rows[part]] = True
        else:
            whole, of_step = units, step[part[0]]
    return found


def _is(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda name: pattern.fullmatch(name) is not None


def program_thread(view: EventView) -> int:
    """The thread of the training loop: it marks steps, else it runs the optimizer, else most operators.

    Where a thread of autograd recomputes, it runs more operators than the program's: of those without nodes
    of a backward the busiest one counts, unless they hardly run any (on a CPU one thread may run it all).
    """
    named, operators = view.category_is("user_annotation"), view.category_is("cpu_op")
    for pattern in (_STEP, _OPTIMIZER, _LOADER):
        chosen = view.name_is(named, _is(pattern))
        if chosen.any():
            return _busiest(view.thread[chosen])
    of_autograd = view.thread[view.name_is(operators, _is(_NODE))]
    without = operators & ~np.isin(view.thread, of_autograd)
    if without.sum() >= _PROGRAM_RATIO * operators.sum():
        operators = without
    return _busiest(view.thread[operators])


def _busiest(threads: Int64s) -> int:
    if not len(threads):
        return -1
    numbers, counts = np.unique(threads, return_counts=True)
    return int(numbers[np.argmax(counts)])


def _marked(marks: pd.DataFrame, begin_ns: int) -> dict[Phase, Intervals]:
    """From each mark of a phase to the next; a recomputation is part of its backward.

    Only those since the first event: a recorder may mark phases in its window for memory alone, and they say
    nothing of the steps that it timed.
    """
    rows = marks[(marks["kind"].astype(str) == "phase") & (marks["time_ns"] >= begin_ns)]
    rows = rows.sort_values("time_ns", kind="stable")
    times, names = rows["time_ns"].to_numpy(np.int64), rows["name"].astype(str).to_numpy()
    spans = np.column_stack((times[:-1], times[1:])) if len(times) > 1 else EMPTY
    names = np.where(names == Phase.RECOMPUTE.value, Phase.BACKWARD.value, names)[: len(spans)]
    return {phase: spans[names == phase.value] for phase in Phase}


def _rows(*sets: Intervals) -> Int64s:
    """All rows by begin; nested ones stay as they are."""
    rows = np.concatenate(sets)
    return rows[np.argsort(rows[:, 0], kind="stable")]
