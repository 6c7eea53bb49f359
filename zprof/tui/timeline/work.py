"""Lanes of streams, threads and collectives: their events, and how much of what is in each instant."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.intervals import Int64s, Intervals, clip, intersect, subtract, union
from zprof.tui.timeline.cover import Cover, Role, cover_of
from zprof.tui.timeline.items import Kind, items_of
from zprof.tui.timeline.lane import Lane, LaneKind

_WORDS = {Role.COMPUTE: "compute", Role.MEMCPY: "copies", Role.UNEXPLAINED: "comm?"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exposed:
    """When communication held the rank up in the step: before and after the last rank came."""

    waiting: Intervals
    moving: Intervals

    @property
    def all(self) -> Intervals:
        """Both."""
        return union(self.waiting, self.moving)


def work_lane(
    *,
    kind: LaneKind,
    number: int,
    spans: Intervals,
    row: Int64s,
    kinds: npt.NDArray[np.int8],
    exposed: Exposed,
    is_main: bool,
    on_device: bool,
    length_ns: int,
) -> Lane | None:
    """The lane of a stream or thread; None where it only has annotations."""
    carries = is_main and not on_device

    def of(*wanted: Kind) -> Intervals:
        return clip(spans[np.isin(kinds, [int(one) for one in wanted])], 0, length_ns)

    if kind is LaneKind.STREAM:
        parts = _stream_parts(
            of(Kind.COMPUTE), of(Kind.COPY), of(Kind.COLLECTIVE), of(Kind.NAMELESS), exposed
        )
    elif carries:
        own = (of(Kind.COMPUTE), of(Kind.COPY), of(Kind.WAIT))
        parts = _main_parts(*own, of(Kind.HOST, Kind.COMPUTE, Kind.COPY, Kind.WAIT), exposed)
    else:
        parts = _thread_parts(of(Kind.COLLECTIVE), of(Kind.HOST, Kind.COMPUTE, Kind.COPY), exposed)
    covers = {role: cover_of(part) for role, part in parts.items() if len(part)}
    if not covers:
        return None
    shows_idle = carries or (kind is LaneKind.STREAM and Role.COMPUTE in covers)
    return Lane(
        key=f"{kind.value} {number}",
        label=_label(kind, number, covers, is_main=is_main, on_device=on_device),
        title=f"{kind.value} {number}{' (main)' if is_main and kind is LaneKind.THREAD else ''}",
        kind=kind,
        covers=covers,
        items=items_of(spans[:, 0], spans[:, 1], row, kinds),
        shows_idle=shows_idle,
    )


def collective_lane(collectives: pd.DataFrame, ran: Intervals, exposed: Exposed) -> Lane | None:
    """All collectives of the rank: waiting, moving, hidden; None where nothing communicates."""
    parts = {
        Role.TRANSFER: exposed.moving,
        Role.WAIT: exposed.waiting,
        Role.HIDDEN: subtract(ran, exposed.all),
    }
    covers = {role: cover_of(part) for role, part in parts.items() if len(part)}
    if not covers:
        return None
    start, end = (collectives[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    kinds = np.full(len(start), Kind.COLLECTIVE, dtype=np.int8)
    return Lane(
        key="collectives",
        label="collectives",
        title="all collectives of this rank",
        kind=LaneKind.COLLECTIVES,
        covers=covers,
        items=items_of(start, end, np.arange(len(start)), kinds),
    )


def _stream_parts(
    compute: Intervals, copies: Intervals, collective: Intervals, nameless: Intervals, exposed: Exposed
) -> dict[Role, Intervals]:
    return {
        Role.COMPUTE: compute,
        Role.TRANSFER: intersect(collective, exposed.moving),
        Role.WAIT: intersect(collective, exposed.waiting),
        Role.HIDDEN: subtract(collective, exposed.all),
        Role.MEMCPY: copies,
        Role.UNEXPLAINED: subtract(nameless, exposed.all),
    }


def _main_parts(
    compute: Intervals, copies: Intervals, waits: Intervals, busy: Intervals, exposed: Exposed
) -> dict[Role, Intervals]:
    """A rank that computes on its CPU: the terms of its ledger, and what is none of them."""
    computes = subtract(compute, union(waits, copies))
    known = union(computes, exposed.all)
    copied = subtract(copies, union(waits, known))
    return {
        Role.COMPUTE: computes,
        Role.TRANSFER: exposed.moving,
        Role.WAIT: exposed.waiting,
        Role.MEMCPY: copied,
        Role.HOST: subtract(busy, union(known, copied)),
    }


def _thread_parts(collective: Intervals, busy: Intervals, exposed: Exposed) -> dict[Role, Intervals]:
    return {
        Role.TRANSFER: intersect(collective, exposed.moving),
        Role.WAIT: intersect(collective, exposed.waiting),
        Role.HIDDEN: subtract(collective, exposed.all),
        Role.HOST: subtract(busy, collective),
    }


def _label(
    kind: LaneKind, number: int, covers: Mapping[Role, Cover], *, is_main: bool, on_device: bool
) -> str:
    """``s7 compute``, ``main``, ``t16144 comm``: what most of it is."""
    if kind is LaneKind.THREAD and is_main:
        return "cpu main" if on_device else "main thread"
    most = max(covers, key=lambda role: covers[role].length_ns)
    if kind is LaneKind.STREAM:
        return f"s{number} {_WORDS.get(most, 'comm')}"
    return f"t{number}" if most is Role.HOST else f"t{number} comm"
