"""Hold what the hooks record while the program trains: births, deaths and claims of storages, as tuples that
any thread appends.

``list.append`` and ``itertools.count`` are atomic under the GIL, so that no hook takes a lock. Nothing here
keeps a tensor or a storage alive.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from zprof.collectors.base import first_line
from zprof.model.gaps import Gap, GapKind
from zprof.model.tenants import Tenant
from zprof.model.training import Phase


class Role(NamedTuple):
    """Owner of a storage, and the hook that identified it."""

    tenant: Tenant
    sub: str
    via: str


SAVED = Role(Tenant.ACTIVATIONS, "saved", "saved")


class Birth(NamedTuple):
    """Start of a storage's life: bytes were allocated, or first seen (then ``operator`` is None).

    ``module`` is a module name in the forward pass, and the autograd node's sequence number in the backward.
    ``stack`` is the profiler's raw Python stack, not yet symbolized.
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


class Claim(NamedTuple):
    """A role given to a storage's life. ``backdated`` claims hold from its birth on."""

    generation: int
    time_ns: int
    role: Role
    backdated: bool


class MemoryLog:
    """All records of one window. ``active`` is set to False by the first fault."""

    def __init__(self) -> None:
        # Rows are the fields of Birth and Claim as plain tuples: a named tuple costs half a microsecond.
        self.birth_rows: list[tuple[Any, ...]] = []
        self.deaths: list[tuple[int, int]] = []
        self.claim_rows: list[tuple[Any, ...]] = []
        self.drop_rows: list[tuple[int, int, Tenant]] = []
        self.phases: list[tuple[int, Phase]] = []
        self.gaps: list[Gap] = []
        self.active = False
        self.next_generation: Callable[[], int] = itertools.count().__next__
        self.next_work: Callable[[], int] = itertools.count().__next__

    def births(self) -> list[Birth]:
        """Return the births by time."""
        return [Birth(*row) for row in self.birth_rows]

    def claims(self) -> list[Claim]:
        """Return the claims by time."""
        return [Claim(*row) for row in self.claim_rows]

    def backward_began_ns(self) -> int | None:
        """Return when the current or last backward started; None if there was none."""
        began_ns = None
        for time_ns, phase in reversed(self.phases):
            if phase in (Phase.BACKWARD, Phase.RECOMPUTE):
                began_ns = time_ns
            elif began_ns is not None:
                break
        return began_ns

    def died(self, generation: int) -> None:
        """Record that a storage's life is over."""
        if self.active:
            self.deaths.append((generation, time.time_ns()))

    def miss(self, what: str, error: BaseException) -> None:
        """Record once per kind that something could not be read; the recording goes on."""
        what = f"memory: {what}"
        if all(gap.what != what for gap in self.gaps):
            remedy = "see the reason; the rest of the recording and training are not touched"
            self.gaps.append(
                Gap(kind=GapKind.MEMORY_PART, what=what, reason=first_line(error), remedy=remedy)
            )

    def fail(self, what: str, error: BaseException) -> None:
        """Stop recording after a fault of zprof: training goes on, the rest of the window is unknown."""
        if not self.active:
            return
        self.active = False
        self.gaps.append(
            Gap(
                kind=GapKind.MEMORY_PART,
                what=f"memory of this window ({what})",
                reason=first_line(error),
                remedy="please report this; training was not touched",
            )
        )
