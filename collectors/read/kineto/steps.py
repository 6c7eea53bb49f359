"""Find the steps of a trace: the ranges written by ``prof.step()``, else the time between the ends of two
optimizer steps, else the entire trace as one step.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from zprof.base.formatting import shorten
from zprof.collectors.read.kineto.trace import ABSENT, Int64s, Trace
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

WHOLE_TRACE, BY_OPTIMIZER = "whole trace", "Optimizer.step"
#: torch's name of a step, and a common name in training loops; the first name present is used.
_STEP_NAMES = ("ProfilerStep", "Iteration")
_STEP = re.compile(rf"({'|'.join(_STEP_NAMES)})[ #:_-]{{0,3}}(\d{{1,15}})\s*")
_OPTIMIZER = re.compile(r"Optimizer\.step#.*")
#: Operators that are specific to optimizers; used if the trace lacks the optimizer's range.
_UPDATES = re.compile(r"aten::(_fused_(adamw?|sgd|adagrad)|_foreach_addcdiv)_")
_COLLECTIVE_CALL = re.compile(r"c10d::|nccl:|xccl:|gloo:|record_param_comms")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function\b.*|\w+Backward\d*")
#: Old traces have user annotations among the operators.
_HOST_CATEGORIES = frozenset({"user_annotation", "cpu_op"})
_DEVICE_ANNOTATION_CATEGORIES = frozenset({"gpu_user_annotation"})
_WORK_CATEGORIES = frozenset({"cpu_op", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset"})
_CALL_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver"})
_DEVICE_WORK_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
#: Events counted to compare the steps of a truncated file; a step with this share of the maximum is complete.
_COUNTED_CATEGORIES = (frozenset({"cpu_op"}), _CALL_CATEGORIES, _DEVICE_WORK_CATEGORIES)
_MIN_COMPLETE_RATIO = 0.99
_MAX_TEXT = 80
_BOOKKEEPING = frozenset({"Trace", ""})
#: Consecutive steps may overlap by the resolution of the clock.
_CLOCK_TOLERANCE_NS = 2_000


class StepMarks(Struct, frozen=True, kw_only=True):
    """The ``mark`` table of a trace, the numbers of its steps, and gaps about them."""

    columns: dict[str, Sequence[Any]]
    numbers: tuple[int, ...]
    gaps: tuple[Gap, ...]


class _MarkedStep(Struct, frozen=True, kw_only=True):
    number: int
    start_ns: int
    end_ns: int


def mark_steps(trace: Trace) -> StepMarks:
    """Return the starts and ends of the steps of ``trace``."""
    for categories, is_on_device in ((_HOST_CATEGORIES, False), (_DEVICE_ANNOTATION_CATEGORIES, True)):
        for name in _STEP_NAMES:
            found, other_thread_steps = _find_marked_steps(trace, name, categories)
            if found:
                steps = list(_drop_overlapping(_keep_longest(found)))
                dropped_count = len(found) - len(steps) + other_thread_steps
                steps, unused_gaps = _drop_unused_last_step(trace, steps)
                steps, incomplete_gaps = _drop_incomplete_steps(trace, steps)
                gaps = [*unused_gaps, *incomplete_gaps]
                if dropped_count:
                    gaps.append(make_gap("steps_overlapping", steps=dropped_count))
                if is_on_device:
                    gaps.append(make_gap("steps_of_device"))
                return _make_marks(name, steps, tuple(gaps))
    return _mark_by_optimizer(trace) or _mark_whole_trace(trace)


def _find_marked_steps(trace: Trace, name: str, categories: frozenset[str]) -> tuple[list[_MarkedStep], int]:
    """Return the steps of the thread with the most steps, by start, and the number of other steps."""
    matches = ((code, _STEP.fullmatch(text)) for code, text in enumerate(trace.name.texts))
    numbers = {code: int(match[2]) for code, match in matches if match and match[1] == name}
    named = np.isin(trace.name.codes, np.fromiter(numbers, np.int32, len(numbers)))
    rows = np.flatnonzero(named & trace.category.where(lambda category: category in categories))
    if not len(rows):
        return [], 0
    _, lanes, counts = np.unique(
        np.stack([trace.process[rows], trace.thread[rows]]), axis=1, return_inverse=True, return_counts=True
    )
    step_rows = rows[lanes.reshape(-1) == int(np.argmax(counts))]
    step_rows = step_rows[np.argsort(trace.start_ns[step_rows], kind="stable")]
    columns = (trace.name.codes, trace.start_ns, trace.duration_ns)
    steps = [
        _MarkedStep(number=numbers[code], start_ns=start_ns, end_ns=start_ns + duration_ns)
        for code, start_ns, duration_ns in zip(
            *(column[step_rows].tolist() for column in columns), strict=True
        )
    ]
    others = {numbers[int(trace.name.codes[row])] for row in rows} - {step.number for step in steps}
    return steps, len(others)


def _keep_longest(steps: Sequence[_MarkedStep]) -> list[_MarkedStep]:
    """Return the longest range of each step number."""
    longest: dict[int, _MarkedStep] = {}
    for step in steps:
        current = longest.setdefault(step.number, step)
        if step.end_ns - step.start_ns > current.end_ns - current.start_ns:
            longest[step.number] = step
    return sorted(longest.values(), key=lambda step: (step.start_ns, -step.end_ns))


def _drop_overlapping(steps: Sequence[_MarkedStep]) -> Iterator[_MarkedStep]:
    """Yield the steps that do not overlap an earlier one; trim overlaps of up to a clock tick."""
    end_ns = ABSENT
    for position, step in enumerate(steps):
        following = steps[position + 1].start_ns if position + 1 < len(steps) else step.end_ns
        is_within_tolerance = 0 < step.end_ns - following <= _CLOCK_TOLERANCE_NS < step.end_ns - step.start_ns
        last_ns = following if is_within_tolerance else step.end_ns
        if step.start_ns >= end_ns and last_ns > step.start_ns:
            yield _MarkedStep(number=step.number, start_ns=step.start_ns, end_ns=last_ns)
            end_ns = last_ns


def _drop_unused_last_step(
    trace: Trace, steps: list[_MarkedStep]
) -> tuple[list[_MarkedStep], tuple[Gap, ...]]:
    """Drop the last step if it has no work: the profiler was stopped right after it started."""
    if len(steps) < 2 or _has_work(trace, steps[-1]) or not _has_work(trace, steps[-2]):
        return steps, ()
    return steps[:-1], (make_gap("step_empty", number=steps[-1].number),)


def _drop_incomplete_steps(
    trace: Trace, steps: list[_MarkedStep]
) -> tuple[list[_MarkedStep], tuple[Gap, ...]]:
    """Drop the steps that a truncated file contains only in part.

    A file has the host's operators first, then device and driver events, thread by thread: the missing part
    may belong to any step. A step is complete if it has as many events as the fullest step, and if another
    step has as many. In any other step, apparent idle time may be missing events.
    """
    if not trace.report.cut_short or not steps:
        return steps, ()
    event_counts = np.array([_count_events_per_step(trace, kinds, steps) for kinds in _COUNTED_CATEGORIES])
    max_counts = event_counts.max(axis=1, keepdims=True)
    is_full = event_counts >= _MIN_COMPLETE_RATIO * max_counts
    is_complete = (is_full & (is_full.sum(axis=1, keepdims=True) > 1)).all(axis=0)
    if is_complete.all():
        return steps, ()
    dropped_numbers = ", ".join(
        str(step.number) for step, is_kept in zip(steps, is_complete, strict=True) if not is_kept
    )
    gap = make_gap("steps_incomplete", numbers=shorten(dropped_numbers, _MAX_TEXT))
    return [step for step, is_kept in zip(steps, is_complete, strict=True) if is_kept], (gap,)


def _count_events_per_step(trace: Trace, categories: frozenset[str], steps: Sequence[_MarkedStep]) -> Int64s:
    """Count the events of some categories in each step; device work counts in the step that launched it."""
    starts = np.array([step.start_ns for step in steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in steps], dtype=np.int64)
    rows = np.flatnonzero(trace.category.where(categories.__contains__))
    times = trace.start_ns[rows]
    if categories is _DEVICE_WORK_CATEGORIES:
        calls = np.flatnonzero(trace.category.where(_CALL_CATEGORIES.__contains__) & (trace.correlation > 0))
        calls = calls[np.isin(trace.correlation[calls], trace.correlation[rows])]
        times = trace.start_ns[calls]
    index = np.searchsorted(starts, times, side="right") - 1
    inside = (index >= 0) & (times < ends[np.maximum(index, 0)])
    return np.bincount(index[inside], minlength=len(steps)).astype(np.int64)


def _has_work(trace: Trace, step: _MarkedStep) -> bool:
    within = (trace.start_ns >= step.start_ns) & (trace.start_ns < step.end_ns)
    return bool((within & trace.category.where(lambda category: category in _WORK_CATEGORIES)).any())


def _mark_by_optimizer(trace: Trace) -> StepMarks | None:
    """Mark steps from the end of one optimizer step to the end of the next; None for fewer than two ends.

    The time before the first end may be an incomplete step, and includes the profiler's start.
    """
    ends = _find_optimizer_ends(trace, _OPTIMIZER)
    if len(ends) < 2:
        ends = _find_optimizer_ends(trace, _UPDATES)
    if len(ends) < 2:
        return None
    ends = _extend_over_collectives(trace, ends)
    steps = [
        _MarkedStep(number=number, start_ns=start, end_ns=end)
        for number, (start, end) in enumerate(itertools.pairwise(ends))
    ]
    steps, incomplete_gaps = _drop_incomplete_steps(trace, steps)
    gap = make_gap("steps_by_optimizer", updates=len(ends), steps=len(ends) - 1)
    return _make_marks(BY_OPTIMIZER, steps, (gap, *incomplete_gaps))


def _find_optimizer_ends(trace: Trace, pattern: re.Pattern[str]) -> list[int]:
    """Return the ends of optimizer steps. Optimizers (or groups) without a backward pass in between count as
    one.

    Without a recorded backward, a range whose name repeats starts the next step; a repeated operator does
    not.
    """
    host = trace.category.where(_HOST_CATEGORIES.__contains__)
    rows = np.flatnonzero(host & trace.name.where(lambda name: pattern.fullmatch(name) is not None))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    nodes = host & trace.name.where(lambda name: _BACKWARD.fullmatch(name) is not None)
    backward = np.sort(trace.start_ns[nodes])
    if pattern is _UPDATES and not len(backward):
        return []
    ends: list[int] = []
    names: set[str] = set()
    for row, backward_index in zip(
        rows.tolist(), np.searchsorted(backward, trace.start_ns[rows]), strict=True
    ):
        name, end = trace.name[row], int(trace.start_ns[row] + trace.duration_ns[row])
        previous_end_index = np.searchsorted(backward, ends[-1]) if ends else 0
        is_new_step = backward_index > previous_end_index if len(backward) else name in names
        if ends and not is_new_step:
            ends[-1] = max(ends[-1], end)
        else:
            ends.append(end)
            names.clear()
        names.add(name)
    return ends


def _extend_over_collectives(trace: Trace, ends: Sequence[int]) -> list[int]:
    """Extend the ends of optimizer steps over the collectives directly after them (new parameters)."""
    rows = np.flatnonzero(trace.category.where(_HOST_CATEGORIES.__contains__))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    is_collective = trace.name.where(lambda name: _COLLECTIVE_CALL.match(name) is not None)[rows]
    starts = trace.start_ns[rows]
    row_ends = starts + trace.duration_ns[rows]
    extended = []
    for end in ends:
        stop = first = int(np.searchsorted(starts, end))
        while stop < len(rows) and is_collective[stop]:
            stop += 1
        extended.append(max(end, int(row_ends[first:stop].max(initial=end))))
    return extended


def _mark_whole_trace(trace: Trace) -> StepMarks:
    """Mark the entire trace as one step; an empty trace has none."""
    # The first start and last end, excluding the events at time 0 that a failing profiler writes.
    is_work = ~trace.category.where(lambda category: category in _BOOKKEEPING)
    is_work &= (trace.start_ns > trace.header.base_ns) | (trace.duration_ns > 0)
    start_ns = end_ns = 0
    if is_work.any():
        ends: Int64s = trace.start_ns[is_work] + trace.duration_ns[is_work]
        start_ns, end_ns = int(trace.start_ns[is_work].min()), int(ends.max())
    steps = [_MarkedStep(number=0, start_ns=start_ns, end_ns=end_ns)] if end_ns > start_ns else []
    return _make_marks(WHOLE_TRACE, steps, (make_gap("whole_trace_is_step"),))


def _make_marks(name: str, steps: Sequence[_MarkedStep], gaps: tuple[Gap, ...]) -> StepMarks:
    columns: dict[str, Sequence[Any]] = {
        "time_ns": [time for step in steps for time in (step.start_ns, step.end_ns)],
        "kind": ["step_begin", "step_end"] * len(steps),
        "number": [step.number for step in steps for _ in range(2)],
        "name": [name] * (2 * len(steps)),
    }
    return StepMarks(columns=columns, numbers=tuple(step.number for step in steps), gaps=gaps)
