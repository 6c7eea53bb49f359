"""Bring a history with its attributions into the form of a recording: one model analyses both."""

from collections.abc import Sequence

import numpy as np

from zprof.analysis.memory.attribution.block_tenants import BlockTenants
from zprof.analysis.memory.attribution.passes import BACKWARD, FORWARD, OPTIMIZER, AllocationPasses
from zprof.analysis.memory.history import History
from zprof.analysis.memory.join import Blocks
from zprof.analysis.memory.live_bytes import RankLives, compute_live_curve
from zprof.analysis.memory.roles import Segments
from zprof.analysis.memory.steps_and_phases import Timeline
from zprof.analysis.memory.tables import make_empty_lives
from zprof.model.memory_history import HistoryWindow, WindowKind
from zprof.model.training import Phase

_PHASES = {FORWARD: Phase.FORWARD, BACKWARD: Phase.BACKWARD, OPTIMIZER: Phase.OPTIMIZER}


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
