"""Read one device of a snapshot: its history with the owner of each block, and its peak."""

import pandas as pd
from msgspec import Struct

from zprof.analysis.memory.attribution.assign import attribute_history
from zprof.analysis.memory.attribution.block_tenants import BlockTenants
from zprof.analysis.memory.attribution.frames import StackIndex
from zprof.analysis.memory.history import (
    History,
    find_allocated_peak,
    find_live_blocks,
)
from zprof.analysis.memory.history_lives import describe_window, make_history_lives
from zprof.analysis.memory.live_bytes import RankLives
from zprof.analysis.memory.steps_and_phases import (
    list_annotated_phases,
    list_annotated_steps,
)
from zprof.analysis.memory.tables import Int
from zprof.model.memory_history import HistoryWindow


class SnapshotDevice(Struct, frozen=True, kw_only=True):
    """One device of a snapshot; ``rows`` are the blocks that are live at the peak."""

    rank: int
    history: History
    names: BlockTenants
    lives: RankLives
    window: HistoryWindow
    stacks: StackIndex
    mark: pd.DataFrame
    peak_ns: int
    peak_bytes: int
    rows: Int


def read_snapshot_device(
    rank: int, history: History, stacks: StackIndex, mark: pd.DataFrame
) -> SnapshotDevice:
    """Assign a tenant to every block, and find the peak."""
    peak_ns, peak_bytes = find_allocated_peak(history)
    found = attribute_history(history.blocks, stacks, list_annotated_phases(mark))
    return SnapshotDevice(
        rank=rank,
        history=history,
        names=found.names,
        lives=make_history_lives(history, found.names, found.passes, list_annotated_steps(mark)),
        window=describe_window(rank, found.passes, keeps_for_backward=found.keeps_for_backward),
        stacks=stacks,
        mark=mark,
        peak_ns=peak_ns,
        peak_bytes=peak_bytes,
        rows=find_live_blocks(history.blocks, peak_ns),
    )
