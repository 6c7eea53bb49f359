"""Blocks whose end the history does not show, named as the same block of the step before.

A training step repeats itself.  Where the history ends within a pass (an out-of-memory error in the
backward), the n-th block of one size and stack in it is taken for the n-th of them in the last such pass that
ended.
"""

import numpy as np

from zprof.analysis.memory.blocks.history import HeldBlocks
from zprof.analysis.memory.blocks.naming.features import Features
from zprof.analysis.memory.rank.lives import Int


def twins_of(blocks: HeldBlocks, seen: Features) -> Int:
    """Row of the block of the step before, for each block of the open pass; -1 for all others."""
    twin = np.full(len(blocks), -1, dtype=np.int64)
    last = len(seen.passes.kind) - 1
    alike = np.flatnonzero(seen.passes.kind[:-1] == seen.passes.kind[-1:]) if last > 0 else np.zeros(0)
    if not len(alike):
        return twin
    now = np.flatnonzero(seen.under_way == last)
    then = np.flatnonzero(seen.under_way == int(alike[-1]))
    known = {key: row for key, row in zip(_keys(blocks, then), then.tolist(), strict=True)}
    twin[now] = [known.get(key, -1) for key in _keys(blocks, now)]
    return twin


def _keys(blocks: HeldBlocks, rows: Int) -> list[tuple[int, int, int]]:
    """(size, stack, how many of them came before) of each row, in the order of birth."""
    counts: dict[tuple[int, int], int] = {}
    keys: list[tuple[int, int, int]] = []
    sizes, stacks = blocks.requested_bytes[rows].tolist(), blocks.stack[rows].tolist()
    for size, stack in zip(sizes, stacks, strict=True):
        count = counts[size, stack] = counts.get((size, stack), -1) + 1
        keys.append((size, stack, count))
    return keys
