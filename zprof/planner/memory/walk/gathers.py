"""Which units' parameters are here (stage 3; arXiv 1910.02054, section 7.2.2).

A unit is gathered when it is needed, and so many ahead of it in the order of the pass; it is given back when
its pass is over.  The paper counts the states alone; what is gathered at a time is the working set beside
them.

gloo copies a tensor when a gather is launched, and while it runs; those behind it wait in a queue.
"""

from collections import deque
from collections.abc import Sequence

from zprof.model.planning.job import Job, Unit
from zprof.planner.memory.walk.backend import GATHERS_AT_ONCE, copied_bytes
from zprof.planner.memory.walk.layout import flat_tensors
from zprof.planner.memory.walk.ledger import Ledger
from zprof.planner.memory.walk.slots import GATHERED, SCRATCH


class Gathers:
    """Gathered units; below stage 3 all parameters are here at all times, and nothing happens."""

    def __init__(self, job: Job, stage: int, ledger: Ledger) -> None:
        self._job = job
        self._ledger = ledger
        self._shards = stage >= 3
        self._here: dict[str, int] = {}
        self._running: deque[tuple[str, int]] = deque()

    def need(self, order: Sequence[Unit], index: int) -> None:
        """A unit is needed now: it is fetched, and those ahead of it; then it is waited for."""
        if not self._shards:
            return
        for unit in order[index : index + 1 + self._job.overlap.prefetch]:
            self._gather(unit)
        self._wait(order[index])

    def release(self, unit: Unit) -> None:
        """Give a unit's memory back."""
        self._wait(unit)
        self._ledger.add(GATHERED, -self._here.pop(unit.name, 0))

    def release_all(self) -> None:
        """Give all back."""
        while self._running:
            self._settle()
        self._ledger.add(GATHERED, -sum(self._here.values()))
        self._here.clear()

    def _gather(self, unit: Unit) -> None:
        if unit.name in self._here:
            return
        for elements in flat_tensors(unit, self._job):
            size = elements * self._job.element_bytes.gathered
            self._here[unit.name] = self._here.get(unit.name, 0) + size
            self._ledger.add(GATHERED, size)
            copied = copied_bytes(self._job, size)
            self._ledger.add(SCRATCH, copied)
            self._running.append((unit.name, copied))
            while len(self._running) > GATHERS_AT_ONCE:
                self._settle()

    def _wait(self, unit: Unit) -> None:
        """Collectives run in the order of their launch."""
        while any(name == unit.name for name, _ in self._running):
            self._settle()

    def _settle(self) -> None:
        _, copied = self._running.popleft()
        self._ledger.add(SCRATCH, -copied)
