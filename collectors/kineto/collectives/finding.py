"""Finds rows of a trace by name, and which row encloses an instant of a thread."""

from collections.abc import Callable, Collection

import numpy as np

from zprof.collectors.kineto.columns import Int64s, Mask, Trace


def rows_of(trace: Trace, categories: Collection[str], named: Callable[[str], bool]) -> Int64s:
    """Rows of some categories whose name answers yes, by start; each text that they have is asked once."""
    rows = np.flatnonzero(trace.category.where(lambda category: category in categories))
    codes = trace.name.codes[rows].astype(np.int64)
    found = rows[_answers(trace, codes, named)[codes]] if len(rows) else rows
    order = np.argsort(trace.start_ns[found], kind="stable")
    return found[order].astype(np.int64)


def _answers(trace: Trace, codes: Int64s, named: Callable[[str], bool]) -> Mask:
    answers = np.zeros(len(trace.name.texts), dtype=np.bool_)
    used = np.flatnonzero(np.bincount(codes, minlength=len(answers)))
    answers[used] = [named(trace.name.texts[code]) for code in used.tolist()]
    return answers


class Enclosing:
    """Intervals of threads, to be asked for the innermost one around an instant."""

    def __init__(self, trace: Trace, rows: Int64s) -> None:
        start, duration, thread = trace.start_ns[rows], trace.duration_ns[rows], trace.thread[rows]
        order = np.lexsort((-duration, start, thread))
        self._rows = rows[order]
        self._thread, self._start = thread[order], start[order]
        self._end = self._start + duration[order]
        self._outer = _outer(self._thread, self._start, self._end)

    def at(self, threads: Int64s, times_ns: Int64s) -> Int64s:
        """The row around each instant, or -1."""
        index = self._last_begun(threads, times_ns)
        while (closed := (index >= 0) & (self._end[index] < times_ns)).any() if len(self._rows) else False:
            index[closed] = self._outer[index[closed]]
        return np.where(index >= 0, self._rows[index], -1) if len(self._rows) else index

    def _last_begun(self, threads: Int64s, times_ns: Int64s) -> Int64s:
        """The last interval of the same thread that begins no later; intervals sort before instants."""
        count, asked = len(self._rows), len(times_ns)
        thread = np.concatenate((self._thread, threads))
        time = np.concatenate((self._start, times_ns))
        order = np.lexsort((np.arange(count + asked), time, thread))
        begun = np.maximum.accumulate(np.where(order < count, order, -1))
        index = np.empty(count + asked, dtype=np.int64)
        index[order] = begun
        index = index[count:]
        same = (index >= 0) & (self._thread[index] == threads) if count else np.zeros(asked, dtype=np.bool_)
        return np.where(same, index, -1)


def _outer(thread: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """The innermost interval that is open when another one of its thread begins, or -1."""
    outer, stack = [], list[tuple[int, int, int]]()
    for index, span in enumerate(zip(thread.tolist(), start.tolist(), end.tolist(), strict=True)):
        while stack and (stack[-1][1] != span[0] or stack[-1][2] <= span[1]):
            stack.pop()
        outer.append(stack[-1][0] if stack else -1)
        stack.append((index, span[0], span[2]))
    return np.array(outer, dtype=np.int64)
