"""Store what the hooks record while the program trains: births, deaths and claims of storages, as tuples
appended by any thread.

``list.append`` and ``itertools.count`` are atomic under the GIL, so hooks need no lock. Nothing here
keeps a tensor or a storage alive.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from zprof.collectors.record.base import first_line
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.tenants import Tenant
from zprof.model.training import Phase

_T = TypeVar("_T")


class StorageRole(NamedTuple):
    """Owner of a storage, and the hook that identified it."""

    tenant: Tenant
    sub: str
    via: str


SAVED = StorageRole(Tenant.ACTIVATIONS, "saved", "saved")


class Birth(NamedTuple):
    """Start of a storage's lifetime: bytes were allocated, or first recorded (then ``operator`` is None).

    ``module`` is a module name in the forward pass, and the autograd node's sequence number in the backward
    pass. ``stack`` is the profiler's raw Python stack, not yet symbolized.
    """

    generation: int
    time_ns: int
    address: int
    bytes: int
    device: torch.device
    operator: Any
    phase: Phase
    module: str | int | None
    before_window: bool
    foreign: bool
    stack: Any = None


class MemoryLog:
    """Store all records of one window. The first error sets ``active`` to False."""

    def __init__(self) -> None:
        # Rows are plain tuples (births have the fields of Birth): a named tuple costs 0.5 µs.
        self.birth_rows: list[tuple[Any, ...]] = []
        self.deaths: list[tuple[int, int]] = []
        #: Generation, time, role, and whether the role applies from the birth on.
        self.claim_rows: list[tuple[int, int, StorageRole, bool]] = []
        self.drop_rows: list[tuple[int, int, Tenant]] = []
        self.phases: list[tuple[int, Phase]] = []
        self.gaps: list[Gap] = []
        #: Failed allocations, see ``out_of_memory``.
        self.failures: list[Any] = []
        self.active = False
        self._taken_phases = 0
        self.next_generation: Callable[[], int] = itertools.count().__next__
        self.next_work: Callable[[], int] = itertools.count().__next__

    def take_births(self) -> list[Birth]:
        """Return the births by time, and forget them."""
        return [Birth(*row) for row in _drain(self.birth_rows)]

    def take_deaths(self) -> dict[int, int]:
        """Return the time of each death by generation, and forget them."""
        return dict(_drain(self.deaths))

    def take_claims(self) -> tuple[list[tuple[int, int, StorageRole, bool]], list[tuple[int, int, Tenant]]]:
        """Return the claims and the ends of claims by time, and forget them."""
        return _drain(self.claim_rows), _drain(self.drop_rows)

    def take_failures(self) -> list[Any]:
        """Return the failed allocations by time, and forget them."""
        return _drain(self.failures)

    def take_phases(self) -> list[tuple[int, Phase]]:
        """Return the phases that have started since the last call; the log keeps them."""
        first, self._taken_phases = self._taken_phases, len(self.phases)
        return self.phases[first : self._taken_phases]

    def get_backward_start_ns(self) -> int | None:
        """Return the start of the current or last backward pass; None if there was none."""
        start_ns = None
        for time_ns, phase in reversed(self.phases):
            if phase in (Phase.BACKWARD, Phase.RECOMPUTE):
                start_ns = time_ns
            elif start_ns is not None:
                break
        return start_ns

    def record_death(self, generation: int) -> None:
        """Record the end of a storage's lifetime."""
        if self.active:
            self.deaths.append((generation, time.time_ns()))

    def record_missed(self, what: str, error: BaseException) -> None:
        """Record, once per kind, that something could not be read; the recording continues."""
        gap = make_gap("memory_part_failed", what=what, error=first_line(error))
        if all(other.what != gap.what for other in self.gaps):
            self.gaps.append(gap)

    def fail(self, what: str, error: BaseException) -> None:
        """Stop recording after an error in zprof: training continues, the rest of the window is unknown."""
        if not self.active:
            return
        self.active = False
        self.gaps.append(make_gap("memory_window_failed", what=what, error=first_line(error)))


def _drain(rows: list[_T]) -> list[_T]:
    """Return and remove the rows; other threads may append more at the same time."""
    count = len(rows)
    taken = rows[:count]
    del rows[:count]
    return taken
