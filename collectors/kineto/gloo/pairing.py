"""Pair the launches of a process group with their executions if the trace lost some executions.

The group's queue is in order, whatever the operator and the size, so all that is unknown is where executions
are missing. Between others of its kind, times tell: a worker starts an execution as soon as it is launched
and the worker is free, and before the wait for it returns; a missing execution leaves the workers idle for at
least the time of the shortest of its kind. The pairing that contradicts this least is chosen; executions that
fit another launch almost as well are left out.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zprof.collectors.kineto.gloo.launches import Execution, GlooKey, GlooLaunch

Floats = npt.NDArray[np.float64]

#: More missing executions than this are not located.
_MAX_MISSING = 16
#: An alternative counts as clearly worse from this multiple of the usual delay of an execution.
_CLEAR_FACTOR = 2.0
_USUAL_QUANTILE = 0.9
_IMPOSSIBLE = float("inf")


class _WorkerTimes(Struct, frozen=True, kw_only=True):
    """When the workers were free before an execution: the one that ran it, and the first of all."""

    own_free_ns: float
    first_free_ns: float


def locate_missing(
    launches: Sequence[GlooLaunch],
    wait_ends_ns: Sequence[int | None],
    executions: Sequence[Execution],
) -> list[int | None]:
    """Return the index of each execution's launch, None if another one fits almost as well.

    Args:
        launches: The launches of a queue by start; more than the executions.
        wait_ends_ns: The end of the wait for each launch, if known.
        executions: The executions by start.
    """
    missing = len(launches) - len(executions)
    if not executions or not 0 < missing <= _MAX_MISSING:
        return [None] * len(executions)
    workers, shortest_ns = _read_worker_times(executions), _sum_shortest(launches, executions)

    def contradiction_ns(at: int, skipped_before: int, skipped: int) -> float:
        """Return how much a pair contradicts the times if executions are missing right before it."""
        launch, execution, worker = launches[at + skipped], executions[at], workers[at]
        if execution.key != launch.key or execution.start_ns < launch.start_ns:
            return _IMPOSSIBLE
        wait_end_ns = wait_ends_ns[at + skipped]
        cost = max(0.0, execution.end_ns - wait_end_ns) if wait_end_ns is not None else 0.0
        if skipped == skipped_before:
            return cost + _delay_ns(launch, execution, worker)
        first_missing = launches[at + skipped_before]
        idle_ns = execution.start_ns - max(first_missing.start_ns, worker.first_free_ns)
        missing_ns = shortest_ns[at + skipped] - shortest_ns[at + skipped_before]
        return cost + max(0.0, float(missing_ns) - idle_ns)

    steps = [_list_steps(contradiction_ns, at, missing) for at in range(len(executions))]
    before = [steps[0][0]]
    for step in steps[1:]:
        before.append((before[-1][:, None] + step).min(axis=0))
    after = [np.zeros(missing + 1)]
    for step in reversed(steps[1:]):
        after.append((step + after[-1][None, :]).min(axis=1))
    costs = np.array(before) + np.array(after[::-1])
    skipped = costs.argmin(axis=1)
    if not np.isfinite(costs.min()):
        return [None] * len(executions)
    delays = [
        _delay_ns(launches[at + count], executions[at], workers[at])
        for at, (skipped_before, count) in enumerate(pairwise([0, *skipped.tolist()]))
        if count == skipped_before
    ]
    clear_ns = _CLEAR_FACTOR * float(np.quantile(delays, _USUAL_QUANTILE)) if delays else _IMPOSSIBLE
    is_clear = np.sort(costs, axis=1)[:, 1] > costs.min(axis=1) + clear_ns
    return [
        at + int(count) if clear else None
        for at, (count, clear) in enumerate(zip(skipped, is_clear, strict=True))
    ]


def _read_worker_times(executions: Sequence[Execution]) -> list[_WorkerTimes]:
    """Return the worker times of the executions of a queue, which are sorted by start."""
    free = {execution.thread: -_IMPOSSIBLE for execution in executions}
    times = []
    for execution in executions:
        own = free[execution.thread]
        times.append(_WorkerTimes(own_free_ns=own, first_free_ns=min(free.values())))
        free[execution.thread] = max(own, execution.end_ns)
    return times


def _list_steps(contradiction_ns: Callable[[int, int, int], float], at: int, missing: int) -> Floats:
    """Return what an execution contradicts, by the missing ones before the previous one and before it."""
    step = np.full((missing + 1, missing + 1), _IMPOSSIBLE)
    for skipped_before in range(missing + 1):
        for skipped in range(skipped_before, missing + 1):
            step[skipped_before, skipped] = contradiction_ns(at, skipped_before, skipped)
    return step


def _sum_shortest(launches: Sequence[GlooLaunch], executions: Sequence[Execution]) -> Floats:
    """Return the time that all launches before each one take at least: the shortest execution of each key."""
    shortest: dict[GlooKey, int] = {}
    for each in executions:
        shortest[each.key] = min(shortest.get(each.key, each.end_ns), each.end_ns - each.start_ns)
    return np.cumsum([0.0, *(float(shortest.get(launch.key, 0)) for launch in launches)])


def _delay_ns(launch: GlooLaunch, execution: Execution, worker: _WorkerTimes) -> float:
    return float(max(0.0, execution.start_ns - max(launch.start_ns, worker.own_free_ns)))
