"""What the rules look at: where a block was made, and how its life lies in the passes of the step."""

from dataclasses import dataclass

import numpy as np

from zprof.analysis.memory.blocks.history import HeldBlocks
from zprof.analysis.memory.blocks.naming.frames import Origin
from zprof.analysis.memory.blocks.naming.passes import (
    BACKWARD,
    FORWARD,
    NONE,
    OPTIMIZER,
    Passes,
    next_other,
    passes_of,
)
from zprof.analysis.memory.rank.lives import FOREVER, Bool, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Columns over the blocks; every rule is a mask over them.

    made_in: the kind of pass that the block tells of (NONE: it tells nothing, or was there before).
    under_way: index of the pass that was under way at its birth, -1 before the first.
    stays: it was still live when the history ended.  in_open_pass: the history ends in that pass, so that
    the end of what stays is unknown.  outlives_pass: it was live after that pass's last allocation.
    sees_*: it was live when the next pass of that kind began.  optimizer_is_next: an optimizer pass comes
    before the next forward pass.  dies_in_backward: it ends in the backward pass that follows.
    outlives_recompute: it was live when the run of recomputed operators that made it was over.
    """

    origin: Int
    requested_bytes: Int
    made_in: Int
    under_way: Int
    passes: Passes
    stays: Bool
    before: Bool
    in_open_pass: Bool
    outlives_pass: Bool
    sees_forward: Bool
    sees_backward: Bool
    sees_optimizer: Bool
    optimizer_is_next: Bool
    dies_in_backward: Bool
    outlives_recompute: Bool

    def made_by(self, *origins: Origin) -> Bool:
        """Blocks of these origins."""
        return np.isin(self.origin, [int(origin) for origin in origins])


def features_of(blocks: HeldBlocks, origin: Int) -> Features:
    """Look at every block once."""
    passes, member = passes_of(blocks, origin)
    under_way = np.searchsorted(passes.first_ns, blocks.begin_ns, side="right") - 1
    under_way = np.where(blocks.before, -1, np.where(member >= 0, member, under_way))
    within, at, end = under_way >= 0, np.maximum(under_way, 0), blocks.freed_ns
    forward, backward, optimizer = (_next(passes, kind, at) for kind in (FORWARD, BACKWARD, OPTIMIZER))
    return Features(
        origin=origin,
        requested_bytes=blocks.requested_bytes,
        made_in=np.where(member >= 0, np.append(passes.kind, NONE)[at], NONE),
        under_way=under_way,
        passes=passes,
        stays=end == FOREVER,
        before=blocks.before,
        in_open_pass=within & (at == len(passes.kind) - 1),
        outlives_pass=within & (end > np.append(passes.last_ns, FOREVER)[at]),
        sees_forward=within & _reaches(end, forward),
        sees_backward=within & _reaches(end, backward),
        sees_optimizer=within & _reaches(end, optimizer),
        optimizer_is_next=within & (optimizer < forward),
        dies_in_backward=within & (end != FOREVER) & (end <= _end_of_backward(passes, at)),
        outlives_recompute=_outlives_recompute(blocks, origin, member),
    )


def _next(passes: Passes, kind: int, at: Int) -> Int:
    return passes.next_of(kind, at) if len(passes.kind) else np.full(len(at), FOREVER, dtype=np.int64)


def _reaches(end_ns: Int, time_ns: Int) -> Bool:
    """Whether a life goes on at a time that there is."""
    reached: Bool = (time_ns != FOREVER) & (end_ns > time_ns)
    return reached


def _end_of_backward(passes: Passes, at: Int) -> Int:
    """When the backward pass that follows each pass is over: the next pass begins; FOREVER while it runs."""
    if not len(passes.kind):
        return np.full(len(at), FOREVER, dtype=np.int64)
    own = np.append(np.flatnonzero(passes.kind == BACKWARD), len(passes.kind))
    following = own[np.searchsorted(own[:-1], at, side="right")]
    begins: Int = np.append(passes.first_ns, [FOREVER, FOREVER])[following + 1]
    return begins


def _outlives_recompute(blocks: HeldBlocks, origin: Int, member: Int) -> Bool:
    rows = (origin == Origin.RECOMPUTE) & (member >= 0)
    following = next_other(blocks, rows, member)
    outlives: Bool = rows & (following != FOREVER) & (blocks.freed_ns > following)
    return outlives
