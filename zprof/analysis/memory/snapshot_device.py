"""Read one device of a snapshot: its history with the owner of each block, and its peak.

The history is brought into the form of a recording, so that one model analyses both.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns
from zprof.analysis.memory.attribution.assign import attribute_history
from zprof.analysis.memory.attribution.block_tenants import BlockTenants
from zprof.analysis.memory.attribution.frames import StackIndex
from zprof.analysis.memory.attribution.passes import BACKWARD, FORWARD, OPTIMIZER, AllocationPasses
from zprof.analysis.memory.history import (
    History,
    find_allocated_peak,
    find_live_blocks,
)
from zprof.analysis.memory.live_bytes import RankLives, compute_live_curve
from zprof.analysis.memory.roles import Blocks, Segments
from zprof.analysis.memory.tables import (
    Int,
    Timeline,
    list_annotated_phases,
    list_annotated_steps,
    make_empty_lives,
)
from zprof.model.memory import HistoryWindow, WindowKind
from zprof.model.training import Phase

_PHASES = {FORWARD: Phase.FORWARD, BACKWARD: Phase.BACKWARD, OPTIMIZER: Phase.OPTIMIZER}


class SnapshotDevice(Struct, frozen=True, kw_only=True):
    """One device of a snapshot; ``rows`` are the blocks that are live at the peak."""

    rank: int
    history: History
    names: BlockTenants
    lives: RankLives
    window: HistoryWindow
    stacks: StackIndex
    mark: Columns
    peak_ns: int
    peak_bytes: int
    rows: Int


def read_snapshot_device(rank: int, history: History, stacks: StackIndex, mark: Columns) -> SnapshotDevice:
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


def make_history_lives(
    history: History, names: BlockTenants, passes: AllocationPasses, steps: Sequence[tuple[int, int]] = ()
) -> RankLives:
    """Return the blocks of a history with one tenant each, over the time of the history.

    ``steps``: start and number of the steps that the program annotated.
    """
    blocks, count = history.blocks, len(history.blocks)
    subs = np.array([attribution.sub for attribution in names.attributions], dtype=object)
    nothing, row = np.full(count, None, dtype=object), np.arange(count, dtype=np.int64)
    times_ns, live_bytes = compute_live_curve(blocks.begin_ns, blocks.freed_ns, blocks.requested_bytes)
    return RankLives(
        blocks=Blocks(
            address=blocks.address,
            begin_ns=blocks.begin_ns,
            end_ns=blocks.freed_ns,
            bytes=blocks.requested_bytes,
            tenant=names.tenant,
            sub=subs[names.number],
            module=nothing,
            operator=nothing,
            phase=nothing,
            tracked=np.zeros(count, dtype=bool),
            open=np.zeros(count, dtype=bool),
            owner=row[:0],
        ),
        segments=Segments(
            block=row,
            begin_ns=blocks.begin_ns,
            end_ns=blocks.freed_ns,
            bytes=blocks.requested_bytes,
            tenant=names.tenant,
            sub=subs[names.number],
        ),
        storages=make_empty_lives(),
        timeline=make_timeline(history, passes, steps),
        times_ns=times_ns,
        live_bytes=live_bytes,
        has_allocator_events=True,
    )


def make_timeline(history: History, passes: AllocationPasses, steps: Sequence[tuple[int, int]]) -> Timeline:
    """Return the phases and steps of a history; steps without annotations are counted from 1."""
    optimizers = np.flatnonzero(passes.kind == OPTIMIZER)
    after = optimizers[optimizers + 1 < len(passes)] + 1
    begins = passes.first_ns[np.append(0, after)].tolist() if len(passes) else []
    return Timeline(
        begin_ns=history.begin_ns,
        end_ns=history.end_ns,
        steps=[(max(time_ns, history.begin_ns), number) for time_ns, number in steps]
        or [(begin, number) for number, begin in enumerate(begins, start=1)],
        step_ends=passes.last_ns[optimizers].tolist(),
        phases=[
            (start, _PHASES[kind].value)
            for start, kind in zip(passes.first_ns.tolist(), passes.kind.tolist(), strict=True)
        ],
    )


def describe_window(rank: int, passes: AllocationPasses, *, keeps_for_backward: bool) -> HistoryWindow:
    """Return what a history holds of a program's steps."""
    optimizers = np.flatnonzero(passes.kind == OPTIMIZER)
    backward = np.flatnonzero(passes.kind == BACKWARD)
    per_step = np.diff(np.searchsorted(backward, np.append(-1, optimizers)))
    per_step = per_step[per_step > 0]  # a second optimizer makes no second step
    if len(backward):
        kind = WindowKind.TRAINING
    elif len(optimizers):
        kind = WindowKind.OPTIMIZER
    elif bool((passes.kind == FORWARD).any()):
        kind = WindowKind.FORWARD if keeps_for_backward else WindowKind.INFERENCE
    else:
        kind = WindowKind.UNKNOWN
    return HistoryWindow(
        rank=rank,
        kind=kind,
        steps=len(per_step) if len(backward) else len(optimizers),
        micro_batches=int(np.median(per_step)) if len(per_step) else None,
    )
