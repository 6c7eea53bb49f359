"""Compute beside a running collective is slower: it loses processors and memory bandwidth to it."""

import numpy as np
from numpy.typing import NDArray

_Times = NDArray[np.int64]


class Contention:
    """Knows the collectives that may still run.  ``slowdown``: factor on work done beside one."""

    def __init__(self, slowdown: float) -> None:
        self._slowdown = max(1.0, slowdown)
        self._running: list[tuple[_Times, _Times]] = []

    def add(self, begin: _Times, end: _Times) -> None:
        """A collective was scheduled."""
        if self._slowdown > 1.0:
            self._running.append((begin, end))

    def end_of(self, begin: _Times, work_ns: _Times) -> _Times:
        """When work of so many nanoseconds at full speed ends that begins at ``begin``."""
        self._running = [pair for pair in self._running if (pair[1] > begin).any()]
        if not self._running:
            return begin + work_ns
        starts = np.stack([pair[0] for pair in self._running])
        order = np.argsort(starts, axis=0, kind="stable")
        starts = np.take_along_axis(starts, order, axis=0)
        ends = np.take_along_axis(np.stack([pair[1] for pair in self._running]), order, axis=0)
        now, left = begin.copy(), work_ns.astype(np.float64)
        for first, last in zip(starts, ends, strict=True):
            alone = np.clip(first - now, 0, left)
            now, left = now + np.rint(alone).astype(np.int64), left - alone
            beside = np.clip(last - now, 0, np.rint(left * self._slowdown))
            now, left = now + beside.astype(np.int64), np.maximum(0.0, left - beside / self._slowdown)
        return now + np.rint(left).astype(np.int64)
