"""Reconstruct block lifetimes: match frees to allocations, by address.

A block that is freed in the trace but not allocated in it existed before the history started; so did a block
in use at the end that is not allocated in the trace. Lifetimes are therefore exact from the first entry on,
even if a ring buffer of limited length has lost earlier entries.
"""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.collectors.snapshot.columns import Flags, Integers
from zprof.collectors.snapshot.segments import FinalBlocks
from zprof.collectors.snapshot.trace import DeviceTrace, TraceAction

#: No event: the block is still in use, or existed before the first entry.
NO_EVENT = -1
#: The free was requested before the first entry.
BEFORE_TRACE = -2

_BLOCK_ACTIONS = (TraceAction.ALLOC, TraceAction.FREE_REQUESTED, TraceAction.FREE_COMPLETED)


class BlockLifetimes(Struct, frozen=True, kw_only=True):
    """One row per block lifetime; values are indices of trace entries.

    ``entry``: the allocation, or, if that is not in the trace (``before``), the first event of the block;
    ``NO_EVENT`` if only the segments list it; then ``final_block`` is its index in the segments.
    ``requested``: free_requested. ``completed``: free_completed.

    ``overlaps``: allocations at an address whose previous lifetime does not end in the trace.
    ``missing_in_segments``, ``resized``: blocks in use according to the trace that are missing in the
    segments, or have another size there. ``has_no_requests``, ``has_no_completions``: True if the trace lacks
    this kind of entry.
    """

    entry: Integers
    before: Flags
    requested: Integers
    completed: Integers
    final_block: Integers
    overlaps: int
    missing_in_segments: int = 0
    resized: int = 0
    has_no_requests: bool = False
    has_no_completions: bool = False


def match_lifetimes(trace: DeviceTrace, blocks: FinalBlocks) -> BlockLifetimes:
    """Return the lifetimes of all blocks in the trace or in the segments at the end."""
    lifetimes, is_open = _match_entries(trace)
    return _close_open_lifetimes(_join_final_blocks(lifetimes, is_open, trace, blocks), trace)


def _match_entries(trace: DeviceTrace) -> tuple[BlockLifetimes, Flags]:
    """Return the lifetimes in the trace, and which of them are open after its last entry.

    At each address, a lifetime starts with an allocation, with the first entry, or with the first entry after
    a free_completed. A further free_requested within a lifetime changes nothing.
    """
    entries = np.flatnonzero(np.isin(trace.action, _BLOCK_ACTIONS))
    entries = entries[np.argsort(trace.address[entries], kind="stable")]
    action, address = trace.action[entries], trace.address[entries]
    is_first = np.append(True, address[1:] != address[:-1])[: len(address)]
    after_completion = np.append(True, action[:-1] == TraceAction.FREE_COMPLETED)[: len(address)]
    is_start = is_first | after_completion | (action == TraceAction.ALLOC)
    start = np.flatnonzero(is_start)
    row = np.cumsum(is_start) - 1
    last = np.append(start[1:] - 1, len(entries) - 1)[: len(start)]
    requested, completed = (np.full(len(start), NO_EVENT, dtype=np.int64) for _ in range(2))
    requests = np.flatnonzero(action == TraceAction.FREE_REQUESTED)[::-1]
    requested[row[requests]] = entries[requests]  # the one written last is the first in the trace
    is_complete = action[last] == TraceAction.FREE_COMPLETED
    completed[is_complete] = entries[last[is_complete]]
    is_last = np.append(is_first[start[1:]], True)[: len(start)]
    is_overlapped = ~is_complete & ~is_last
    if not trace.has_action(TraceAction.FREE_COMPLETED):
        is_overlapped &= requested == NO_EVENT
    next_entry = np.append(entries[start[1:]], NO_EVENT)[: len(start)]
    completed[is_overlapped] = next_entry[is_overlapped]
    requested = np.where(is_overlapped & (requested == NO_EVENT), next_entry, requested)
    order = np.argsort(entries[start], kind="stable")
    lifetimes = BlockLifetimes(
        entry=entries[start][order],
        before=(action[start] != TraceAction.ALLOC)[order],
        requested=requested[order],
        completed=completed[order],
        final_block=np.full(len(start), NO_EVENT, dtype=np.int64),
        overlaps=int(is_overlapped.sum()),
    )
    return lifetimes, (is_last & ~is_complete)[order]


def _join_final_blocks(
    lifetimes: BlockLifetimes, is_open: Flags, trace: DeviceTrace, blocks: FinalBlocks
) -> BlockLifetimes:
    """Join the blocks in use at the end to the open lifetimes; others were allocated before the trace."""
    open_rows = np.flatnonzero(is_open)
    rest = dict(zip(trace.address[lifetimes.entry[open_rows]].tolist(), open_rows.tolist(), strict=True))
    found = np.array([rest.pop(address, NO_EVENT) for address in blocks.address.tolist()], dtype=np.int64)
    numbers = np.arange(len(found), dtype=np.int64)
    is_new = found == NO_EVENT
    final_block = lifetimes.final_block.copy()
    final_block[found[~is_new]] = numbers[~is_new]
    sizes = trace.size[lifetimes.entry[found[~is_new]]]
    nothing = np.full(int(is_new.sum()), NO_EVENT, dtype=np.int64)
    return replace(
        lifetimes,
        entry=np.append(lifetimes.entry, nothing),
        before=np.append(lifetimes.before, np.ones(len(nothing), dtype=np.bool_)),
        requested=np.append(
            lifetimes.requested, np.where(blocks.awaiting[is_new], BEFORE_TRACE, NO_EVENT).astype(np.int64)
        ),
        completed=np.append(lifetimes.completed, nothing),
        final_block=np.append(final_block, numbers[is_new]),
        resized=int((sizes != blocks.requested[~is_new]).sum()),
    )


def _close_open_lifetimes(lifetimes: BlockLifetimes, trace: DeviceTrace) -> BlockLifetimes:
    """End the lifetimes that stay open because one kind of entry was not recorded.

    A completed free implies a requested free. If that entry is missing for a block allocated in the trace,
    the trace has no free_requested entries, and both events are assumed to be simultaneous; otherwise the
    block was freed before the history. The reverse applies to a trace without free_completed entries, except
    for blocks that the segments list as awaiting their free.
    """
    requested, completed = lifetimes.requested.copy(), lifetimes.completed.copy()
    missing_request = (completed >= 0) & (requested == NO_EVENT)
    has_no_requests = bool((missing_request & ~lifetimes.before).any())
    requested[missing_request] = completed[missing_request] if has_no_requests else BEFORE_TRACE
    has_no_completions = False
    is_unlisted = lifetimes.final_block == NO_EVENT
    if not trace.has_action(TraceAction.FREE_COMPLETED):
        missing_completion = (requested >= 0) & (completed == NO_EVENT) & is_unlisted
        has_no_completions = bool(missing_completion.any())
        completed[missing_completion] = requested[missing_completion]
    return replace(
        lifetimes,
        requested=requested,
        completed=completed,
        missing_in_segments=int(((completed == NO_EVENT) & is_unlisted).sum()),
        has_no_requests=has_no_requests,
        has_no_completions=has_no_completions,
    )
