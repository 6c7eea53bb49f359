"""One device of a snapshot: its history, the owners of its blocks, and where its live bytes are highest."""

from dataclasses import dataclass

import pandas as pd

from zprof.analysis.memory.blocks.history import History
from zprof.analysis.memory.blocks.instant import live_at
from zprof.analysis.memory.blocks.naming.named import Named, named
from zprof.analysis.memory.blocks.naming.stacks import Stacks
from zprof.analysis.memory.blocks.peaks import allocated_peak
from zprof.analysis.memory.rank.lives import Int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDevice:
    """``rows`` are the blocks that are live at the peak."""

    rank: int
    history: History
    names: Named
    stacks: Stacks
    mark: pd.DataFrame
    peak_ns: int
    peak_bytes: int
    rows: Int


def device_of(rank: int, history: History, stacks: Stacks, mark: pd.DataFrame | None) -> SnapshotDevice:
    """Name the blocks, find the peak."""
    peak_ns, peak_bytes = allocated_peak(history)
    empty = pd.DataFrame({"time_ns": [], "kind": [], "number": [], "name": []})
    return SnapshotDevice(
        rank=rank,
        history=history,
        names=named(history.blocks, stacks.origins(history.blocks.stack)),
        stacks=stacks,
        mark=empty if mark is None else mark,
        peak_ns=peak_ns,
        peak_bytes=peak_bytes,
        rows=live_at(history.blocks, peak_ns),
    )
