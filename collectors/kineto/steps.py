"""Find the steps of a trace: the ranges that ``prof.step()`` leaves, else the time between the ends of two
optimizer steps, else the whole trace as one step.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zprof.collectors.kineto.trace import ABSENT, Int64s, Trace
from zprof.model.formatting import shorten
from zprof.model.gaps import Gap, GapKind

WHOLE_TRACE, BY_OPTIMIZER = "whole trace", "Optimizer.step"
#: torch's name of a step, and a common name in loops that mark their own; the first that is present is used.
_STEP_NAMES = ("ProfilerStep", "Iteration")
_STEP = re.compile(rf"({'|'.join(_STEP_NAMES)})[ #:_-]{{0,3}}(\d{{1,15}})\s*")
_OPTIMIZER = re.compile(r"Optimizer\.step#.*")
#: Operators that hardly anything but an optimizer runs; used if the trace lacks the optimizer's range.
_UPDATES = re.compile(r"aten::(_fused_(adamw?|sgd|adagrad)|_foreach_addcdiv)_")
_COLLECTIVE_CALL = re.compile(r"c10d::|nccl:|gloo:|record_param_comms")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function\b.*|\w+Backward\d*")
#: Old traces have user annotations among the operators.
_HOST = frozenset({"user_annotation", "cpu_op"})
_DEVICE = frozenset({"gpu_user_annotation"})
_WORK = frozenset({"cpu_op", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})
_DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
#: Events counted to compare the steps of a truncated file; a step with this share of the most is complete.
_RECORDS = (frozenset({"cpu_op"}), _CALLS, _DEVICE_WORK)
_WHOLE_RATIO = 0.99
_MAX_TEXT = 80
_BOOKKEEPING = frozenset({"Trace", ""})
#: Consecutive steps may overlap by the resolution of the clock.
_CLOCK_TOLERANCE_NS = 2_000
_PROF_STEP_REMEDY = "call prof.step() at the end of each step (torch.profiler.profile(schedule=...))"
_REMEDY = "call prof.step() once at the end of each step, on one thread"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMarks:
    """The ``mark`` table of a trace, the numbers of its steps, and gaps about them."""

    columns: dict[str, Sequence[Any]]
    numbers: tuple[int, ...]
    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    number: int
    begin_ns: int
    end_ns: int


def mark_steps(trace: Trace) -> StepMarks:
    """Return the starts and ends of the steps of ``trace``."""
    for categories, of_device in ((_HOST, False), (_DEVICE, True)):
        for name in _STEP_NAMES:
            found, elsewhere = _find_marked_steps(trace, name, categories)
            if found:
                steps = list(_drop_overlapping(_keep_longest(found)))
                left_out = len(found) - len(steps) + elsewhere
                steps, unused = _drop_unused_last_step(trace, steps)
                steps, cut = _drop_incomplete_steps(trace, steps)
                return _make_marks(name, steps, (*unused, *cut, *_list_step_gaps(left_out, of_device)))
    return _mark_by_optimizer(trace) or _mark_whole_trace(trace)


def _find_marked_steps(trace: Trace, name: str, categories: frozenset[str]) -> tuple[list[_Step], int]:
    """Return the steps of the thread with the most, by start, and the count of those on other threads."""
    read = {code: _parse_step_number(text, name) for code, text in enumerate(trace.name.texts)}
    numbers = {code: number for code, number in read.items() if number is not None}
    named = np.isin(trace.name.codes, np.fromiter(numbers, np.int32, len(numbers)))
    rows = np.flatnonzero(named & trace.category.where(lambda category: category in categories))
    if not len(rows):
        return [], 0
    _, lane_of, counts = np.unique(
        np.stack([trace.process[rows], trace.thread[rows]]), axis=1, return_inverse=True, return_counts=True
    )
    chosen = rows[lane_of.reshape(-1) == int(np.argmax(counts))]
    chosen = chosen[np.argsort(trace.start_ns[chosen], kind="stable")]
    steps = [_make_step(trace, int(row), numbers[int(trace.name.codes[row])]) for row in chosen]
    others = {numbers[int(trace.name.codes[row])] for row in rows} - {step.number for step in steps}
    return steps, len(others)


def _parse_step_number(text: str, name: str) -> int | None:
    match = _STEP.fullmatch(text)
    return int(match[2]) if match and match[1] == name else None


def _make_step(trace: Trace, row: int, number: int) -> _Step:
    begin_ns = int(trace.start_ns[row])
    return _Step(number=number, begin_ns=begin_ns, end_ns=begin_ns + int(trace.duration_ns[row]))


def _keep_longest(steps: Sequence[_Step]) -> list[_Step]:
    """Return one step per number: its longest range."""
    best: dict[int, _Step] = {}
    for step in steps:
        kept = best.setdefault(step.number, step)
        if step.end_ns - step.begin_ns > kept.end_ns - kept.begin_ns:
            best[step.number] = step
    return sorted(best.values(), key=lambda step: (step.begin_ns, -step.end_ns))


def _drop_overlapping(steps: Sequence[_Step]) -> Iterator[_Step]:
    """Yield the steps that overlap no earlier one; steps that overlap by a clock tick are cut to fit."""
    end_ns = ABSENT
    for position, step in enumerate(steps):
        following = steps[position + 1].begin_ns if position + 1 < len(steps) else step.end_ns
        touching = 0 < step.end_ns - following <= _CLOCK_TOLERANCE_NS < step.end_ns - step.begin_ns
        last_ns = following if touching else step.end_ns
        if step.begin_ns >= end_ns and last_ns > step.begin_ns:
            yield _Step(number=step.number, begin_ns=step.begin_ns, end_ns=last_ns)
            end_ns = last_ns


def _drop_unused_last_step(trace: Trace, steps: list[_Step]) -> tuple[list[_Step], tuple[Gap, ...]]:
    """Drop the last step if it has no work: the profiler was stopped right after it started."""
    if len(steps) < 2 or _has_work(trace, steps[-1]) or not _has_work(trace, steps[-2]):
        return steps, ()
    reason = f"step {steps[-1].number} ended as soon as it had begun, with nothing in it: left out"
    return steps[:-1], (
        Gap(kind=GapKind.STEPS, what="steps", reason=reason, remedy="stop the profiler within prof.step()"),
    )


def _drop_incomplete_steps(trace: Trace, steps: list[_Step]) -> tuple[list[_Step], tuple[Gap, ...]]:
    """Drop the steps that a truncated file does not wholly contain.

    A file has the host's operators first, and then device and driver, thread by thread: the missing part may
    belong to any step. A step is complete if it has as many events as the fullest step, and if another step
    has as many too. Idle time in any other step may be time whose events the file lacks.
    """
    if not trace.report.cut_short or not steps:
        return steps, ()
    held = np.array([_count_events_per_step(trace, kinds, steps) for kinds in _RECORDS])
    most = held.max(axis=1, keepdims=True)
    alike = held >= _WHOLE_RATIO * most
    whole = (alike & (alike.sum(axis=1, keepdims=True) > 1)).all(axis=0)
    if whole.all():
        return steps, ()
    left_out = ", ".join(str(step.number) for step, good in zip(steps, whole, strict=True) if not good)
    gap = Gap(
        kind=GapKind.STEPS,
        what="steps",
        reason=f"the file ends early, and not all of step {shorten(left_out, _MAX_TEXT)} is in it: what the "
        "device did then is unknown, and the step is left out",
        remedy="copy the file again, or export the trace again",
    )
    return [step for step, good in zip(steps, whole, strict=True) if good], (gap,)


def _count_events_per_step(trace: Trace, categories: frozenset[str], steps: Sequence[_Step]) -> Int64s:
    """Count the events of some categories in each step; device work counts where it was launched."""
    begins = np.array([step.begin_ns for step in steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in steps], dtype=np.int64)
    rows = np.flatnonzero(trace.category.where(categories.__contains__))
    times = trace.start_ns[rows]
    if categories is _DEVICE_WORK:
        calls = np.flatnonzero(trace.category.where(_CALLS.__contains__) & (trace.correlation > 0))
        calls = calls[np.isin(trace.correlation[calls], trace.correlation[rows])]
        times = trace.start_ns[calls]
    index = np.searchsorted(begins, times, side="right") - 1
    inside = (index >= 0) & (times < ends[np.maximum(index, 0)])
    return np.bincount(index[inside], minlength=len(steps)).astype(np.int64)


def _has_work(trace: Trace, step: _Step) -> bool:
    within = (trace.start_ns >= step.begin_ns) & (trace.start_ns < step.end_ns)
    return bool((within & trace.category.where(lambda category: category in _WORK)).any())


def _list_step_gaps(left_out: int, of_device: bool) -> tuple[Gap, ...]:
    gaps = []
    if left_out:
        reason = f"{left_out} marked steps overlap others, come twice, or are on another thread: left out"
        gaps.append(Gap(kind=GapKind.STEPS, what="steps", reason=reason, remedy=_REMEDY))
    if of_device:
        reason = "only the device's copies of the steps are there: they begin and end with its work"
        gaps.append(
            Gap(kind=GapKind.STEPS, what="steps", reason=reason, remedy="profile ProfilerActivity.CPU too")
        )
    return tuple(gaps)


def _mark_by_optimizer(trace: Trace) -> StepMarks | None:
    """Mark steps from the end of one optimizer step to the end of the next; None for fewer than two ends.

    What precedes the first end may be an incomplete step, and includes the profiler's start.
    """
    ends = _find_optimizer_ends(trace, _OPTIMIZER)
    if len(ends) < 2:
        ends = _find_optimizer_ends(trace, _UPDATES)
    if len(ends) < 2:
        return None
    ends = _extend_over_collectives(trace, ends)
    steps = [
        _Step(number=number, begin_ns=begin, end_ns=end)
        for number, (begin, end) in enumerate(itertools.pairwise(ends))
    ]
    steps, cut = _drop_incomplete_steps(trace, steps)
    reason = (
        f"the trace marks no step: what lies between the ends of its {len(ends)} optimizer steps counts as "
        f"{len(ends) - 1}, and the rest is left out"
    )
    return _make_marks(
        BY_OPTIMIZER,
        steps,
        (Gap(kind=GapKind.STEPS, what="steps", reason=reason, remedy=_PROF_STEP_REMEDY), *cut),
    )


def _find_optimizer_ends(trace: Trace, pattern: re.Pattern[str]) -> list[int]:
    """Return when optimizer steps end. Optimizers (or parameter groups) with no backward in between are one.

    Without a recorded backward, a range whose name repeats starts the next step; a repeated operator does
    not.
    """
    host = trace.category.where(_HOST.__contains__)
    rows = np.flatnonzero(host & trace.name.where(lambda name: pattern.fullmatch(name) is not None))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    nodes = host & trace.name.where(lambda name: _BACKWARD.fullmatch(name) is not None)
    backward = np.sort(trace.start_ns[nodes])
    if pattern is _UPDATES and not len(backward):
        return []
    ends: list[int] = []
    names: set[str] = set()
    for row, before in zip(rows.tolist(), np.searchsorted(backward, trace.start_ns[rows]), strict=True):
        name, end = trace.name[row], int(trace.start_ns[row] + trace.duration_ns[row])
        since = np.searchsorted(backward, ends[-1]) if ends else 0
        again = before > since if len(backward) else name in names
        if ends and not again:
            ends[-1] = max(ends[-1], end)
        else:
            ends.append(end)
            names.clear()
        names.add(name)
    return ends


def _extend_over_collectives(trace: Trace, ends: Sequence[int]) -> list[int]:
    """Return the ends of optimizer steps, extended over the collectives right after them: new parameters."""
    rows = np.flatnonzero(trace.category.where(_HOST.__contains__))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    sends = trace.name.where(lambda name: _COLLECTIVE_CALL.match(name) is not None)[rows]
    begins = trace.start_ns[rows]
    until = begins + trace.duration_ns[rows]
    extended = []
    for end in ends:
        behind = first = int(np.searchsorted(begins, end))
        while behind < len(rows) and sends[behind]:
            behind += 1
        extended.append(max(end, int(until[first:behind].max(initial=end))))
    return extended


def _mark_whole_trace(trace: Trace) -> StepMarks:
    """Mark the whole trace as one step; an empty trace has none."""
    begin_ns, end_ns = _find_extent(trace)
    gap = Gap(
        kind=GapKind.STEPS,
        what="steps",
        reason="the trace marks no step: all of it counts as one",
        remedy=_PROF_STEP_REMEDY,
    )
    steps = [_Step(number=0, begin_ns=begin_ns, end_ns=end_ns)] if end_ns > begin_ns else []
    return _make_marks(WHOLE_TRACE, steps, (gap,))


def _find_extent(trace: Trace) -> tuple[int, int]:
    """Return the first start and last end, without the events at time 0 that a failing profiler leaves."""
    real = ~trace.category.where(lambda category: category in _BOOKKEEPING)
    real &= (trace.start_ns > trace.header.base_ns) | (trace.duration_ns > 0)
    if not real.any():
        return 0, 0
    ends: Int64s = trace.start_ns[real] + trace.duration_ns[real]
    return int(trace.start_ns[real].min()), int(ends.max())


def _make_marks(name: str, steps: Sequence[_Step], gaps: tuple[Gap, ...]) -> StepMarks:
    columns: dict[str, Sequence[Any]] = {
        "time_ns": [time for step in steps for time in (step.begin_ns, step.end_ns)],
        "kind": ["step_begin", "step_end"] * len(steps),
        "number": [step.number for step in steps for _ in range(2)],
        "name": [name] * (2 * len(steps)),
    }
    return StepMarks(columns=columns, numbers=tuple(step.number for step in steps), gaps=gaps)
