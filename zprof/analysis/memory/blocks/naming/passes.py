"""The passes of a training step, found from where its allocations were made, and each block's life in them.

A pass is a run of allocations of one kind: forward (a module's call), backward (on CUDA autograd's own thread
allocates without any Python frame; or a recompute) or optimizer.  What tells nothing does not end a pass.  No
time constants: only the order of allocations counts.
"""

from dataclasses import dataclass

import numpy as np

from zprof.analysis.memory.blocks.history import HeldBlocks
from zprof.analysis.memory.blocks.naming.frames import Origin
from zprof.analysis.memory.rank.lives import FOREVER, Bool, Int

NONE, FORWARD, BACKWARD, OPTIMIZER = 0, 1, 2, 3
_KINDS = {
    Origin.FORWARD: FORWARD,
    Origin.FORWARD_NAME: FORWARD,
    Origin.BARE: BACKWARD,
    Origin.BACKWARD: BACKWARD,
    Origin.BACKWARD_NAME: BACKWARD,
    Origin.RECOMPUTE: BACKWARD,
    Origin.OPTIMIZER: OPTIMIZER,
    Origin.OPTIMIZER_INIT: OPTIMIZER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """One entry a pass, in the order of time: its kind, and the times of its first and last allocation."""

    kind: Int
    first_ns: Int
    last_ns: Int

    def next_of(self, kind: int, index: Int) -> Int:
        """When the first pass of a kind after each of these passes begins; FOREVER where none does."""
        begins = np.append(self.first_ns, FOREVER)
        own = np.flatnonzero(self.kind == kind)
        at = np.searchsorted(own, index, side="right")
        following: Int = begins[np.append(own, len(self.kind))[at]]
        return following


def passes_of(blocks: HeldBlocks, origin: Int) -> tuple[Passes, Int]:
    """(passes, pass of each block); -1 for a block that tells no pass or was there before."""
    kind = _kinds(blocks, origin)
    rows = np.flatnonzero(kind != NONE)
    kinds = kind[rows]
    starts = np.flatnonzero(np.append(True, kinds[1:] != kinds[:-1])) if len(rows) else rows
    member = np.full(len(blocks), -1, dtype=np.int64)
    counted = np.zeros(len(rows), dtype=np.int64)
    counted[starts] = 1
    member[rows] = np.cumsum(counted) - 1
    ends = np.append(starts[1:], len(rows)) - 1 if len(rows) else starts
    return (
        Passes(
            kind=kinds[starts],
            first_ns=blocks.begin_ns[rows[starts]],
            last_ns=blocks.begin_ns[rows[ends]],
        ),
        member,
    )


def _kinds(blocks: HeldBlocks, origin: Int) -> Int:
    table = np.array([_KINDS.get(code, NONE) for code in Origin], dtype=np.int64)
    kind = table[origin]
    kind[blocks.before] = NONE
    # Without a forward pass before it, an allocation without a frame is only that.
    forward = np.flatnonzero(kind == FORWARD)
    first = int(forward[0]) if len(forward) else len(kind)
    kind[:first][kind[:first] == BACKWARD] = NONE
    return kind


def next_other(blocks: HeldBlocks, rows: Bool, member: Int) -> Int:
    """When the first block after each that tells a pass and is none of ``rows`` is made; else FOREVER."""
    others = blocks.begin_ns[np.flatnonzero((member >= 0) & ~rows)]
    following: Int = np.append(others, FOREVER)[np.searchsorted(others, blocks.begin_ns, side="right")]
    return following
