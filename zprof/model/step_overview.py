"""Define one step of all ranks on one clock, as the HTML report draws it.

It is drawn beside the report and is not part of its schema; its sums are the ledger of that step.
"""

from enum import IntEnum

from msgspec import Struct

from zprof.model.mesh import GroupRole
from zprof.model.time import StepTime


class SliceKind(IntEnum):
    """What a slice of a lane is; WAIT, TRANSFER and COPY are the exposed terms of the ledger."""

    COMPUTE = 0
    WAIT = 1
    TRANSFER = 2
    HIDDEN = 3
    COPY = 4


class OverviewMessage(Struct, frozen=True, kw_only=True):
    """A collective or message of a rank; ``last_rank``: who arrived clearly last, None if unknown."""

    kind: str
    bytes: int | None
    start_ns: int
    length_ns: int
    last_rank: int | None


class OverviewLane(Struct, frozen=True, kw_only=True):
    """Slices in order of their starts, as columns of equal length, in ns since the start of the overview.

    ``group``: the process group; "" for the lane of compute and copies, and for exposed time that no
    recorded collective covers. ``messages``: index into the row's messages, -1 without one.
    """

    group: str
    role: GroupRole | None
    is_compute: bool
    kinds: tuple[int, ...]
    starts_ns: tuple[int, ...]
    lengths_ns: tuple[int, ...]
    messages: tuple[int, ...]


class OverviewRow(Struct, frozen=True, kw_only=True):
    """A rank's step. ``alike``: ranks without a row whose ledgers are close to this one.

    ``phases``: start and name of each phase of the program.
    """

    rank: int
    stage: int | None
    start_ns: int
    ledger: StepTime
    lanes: tuple[OverviewLane, ...]
    messages: tuple[OverviewMessage, ...]
    phases: tuple[tuple[int, str], ...]
    alike: tuple[int, ...] = ()


class WaitArrow(Struct, frozen=True, kw_only=True):
    """An exposed wait of ``rank`` from ``start_ns`` until ``last_rank`` arrived.

    ``other_ranks``: how many more ranks have exposed wait in the same collective.
    """

    rank: int
    last_rank: int
    other_ranks: int
    group: str
    kind: str
    start_ns: int
    arrival_ns: int
    exposed_wait_ns: int


class StepOverview(Struct, frozen=True, kw_only=True):
    """One step of all ranks.

    ``culprit``: the rank where most of the blamed wait began; ``victim``: the rank that waited most for it in
    this step; both are the first rows, and None if no wait is blamed on a rank. ``caused_wait_ns``: wait that
    the culprit caused, per waiting rank and step. ``resolution_ns``: slices of a kind that are closer
    together are merged; ``is_coarse``: it had to exceed a pixel of the widest zoom to bound the size.
    """

    step: int
    length_ns: int
    rows: tuple[OverviewRow, ...]
    arrows: tuple[WaitArrow, ...]
    culprit: int | None
    victim: int | None
    caused_wait_ns: int
    resolution_ns: int
    is_coarse: bool
