"""Exposed gaps: stretches in which communication holds the rank up, and what holds it up in each."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Intervals
from zprof.tui.timeline.model import StepModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One of ``count`` gaps, with the place of the collective that most of it lies in; None where none is."""

    place: int
    count: int
    begin_ns: int
    end_ns: int
    collective: int | None

    @property
    def length_ns(self) -> int:
        """How long the rank was held up."""
        return self.end_ns - self.begin_ns


def gap_at(model: StepModel, begin_ns: float, end_ns: float) -> Gap | None:
    """The longest gap that lies at least in part in a stretch."""
    gaps = model.gaps
    touching = np.flatnonzero((gaps[:, 0] < end_ns) & (gaps[:, 1] > begin_ns))
    if not len(touching):
        return None
    inside = np.minimum(gaps[touching, 1], end_ns) - np.maximum(gaps[touching, 0], begin_ns)
    return gap_of(model, int(touching[np.argmax(inside)]))


def next_gap(gaps: Intervals, cursor_ns: int, by: int) -> int | None:
    """The place of the first gap behind the cursor, or with ``by`` -1 of the last one before it."""
    if by > 0:
        place = int(np.searchsorted(gaps[:, 0], cursor_ns, side="right"))
    else:
        place = int(np.searchsorted(gaps[:, 0], cursor_ns, side="left")) - 1
    return place if 0 <= place < len(gaps) else None


def longest_gap(gaps: Intervals) -> int | None:
    """The place of the longest gap."""
    return int(np.argmax(gaps[:, 1] - gaps[:, 0])) if len(gaps) else None


def gap_of(model: StepModel, place: int) -> Gap:
    """A gap by its place."""
    begin, end = (int(edge) for edge in model.gaps[place])
    return Gap(
        place=place,
        count=len(model.gaps),
        begin_ns=begin,
        end_ns=end,
        collective=_blocking(model.collectives, begin, end),
    )


def _blocking(collectives: pd.DataFrame, begin: int, end: int) -> int | None:
    """Of those that hold the rank up the one that most of the gap lies in."""
    start, stop = (collectives[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    inside = np.minimum(stop, end) - np.maximum(start, begin)
    exposed = (collectives["exposed_wait_ns"] + collectives["exposed_transfer_ns"]).to_numpy(np.int64)
    inside = np.where(exposed > 0, np.minimum(inside, exposed), -1)
    if not len(inside) or inside.max() <= 0:
        return None
    return int(np.argmax(inside))
