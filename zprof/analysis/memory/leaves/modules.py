"""What each module, with all modules inside of it, allocated in the window.

A block counts for the module that allocated it and for each one around that.  Per level of nesting the
blocks' begins and ends are sorted by (module, time) once; a running sum within each module then gives the
most that was live of it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.memory.rank.lives import Int
from zprof.analysis.memory.rank.rank_lives import RankLives
from zprof.model.memory import ModulePeak

#: Modules that a report shows of each rank: those with the largest peaks.
MOST = 50
#: Deeper names count for the module at this level.
_MAX_DEPTH = 32
_NOBODY = -1


@dataclass(frozen=True, slots=True)
class _Tree:
    """All modules and those around them.  ``levels[d]`` is the one at depth d around each name, or -1."""

    names: list[str]
    levels: list[Int]


def module_peaks(rank: int, lives: RankLives, peak_ns: int) -> tuple[ModulePeak, ...]:
    """The modules with the largest peaks, largest first; none where no block has a module's name."""
    rows = _allocated_here(lives)
    codes, names = _names(lives.blocks.module[rows])
    if not len(names):
        return ()
    begin, end, size = (column[rows] for column in _columns(lives))
    tree = _tree(names)
    order = np.argsort(np.concatenate([end, begin]), kind="stable")  # at one time frees come first
    changes = np.concatenate([-size, size])[order]
    block = np.concatenate([np.arange(len(rows))] * 2)[order]
    at_peak = np.where((begin <= peak_ns) & (end > peak_ns), size, 0)
    peaks = np.zeros(len(tree.names), dtype=np.int64)
    held = np.zeros(len(tree.names), dtype=np.int64)
    for level in tree.levels:
        module = level[codes]
        _raise(peaks, module[block], changes)
        inside = module >= 0
        np.add.at(held, module[inside], at_peak[inside])
    return _largest(rank, tree.names, peaks, held)


def _allocated_here(lives: RankLives) -> Int:
    """Blocks that a module allocated within the window."""
    blocks, window = lives.blocks, lives.timeline
    inside = (blocks.begin_ns > window.begin_ns) & (blocks.begin_ns <= window.end_ns)
    rows: Int = np.flatnonzero(inside & (blocks.end_ns > blocks.begin_ns)).astype(np.int64)
    named = np.fromiter((name is not None for name in blocks.module[rows]), dtype=bool, count=len(rows))
    found: Int = rows[named]
    return found


def _columns(lives: RankLives) -> tuple[Int, Int, Int]:
    return lives.blocks.begin_ns, lives.blocks.end_ns, lives.blocks.bytes


def _names(modules: npt.NDArray[np.object_]) -> tuple[Int, list[str]]:
    codes, names = pd.factorize(modules)
    return codes.astype(np.int64), [str(name) for name in names]


def _tree(names: list[str]) -> _Tree:
    index: dict[str, int] = {}
    paths = [[index.setdefault(around, len(index)) for around in _around(name)] for name in names]
    depth = max(len(path) for path in paths)
    levels = [
        np.array([path[level] if level < len(path) else _NOBODY for path in paths], dtype=np.int64)
        for level in range(depth)
    ]
    return _Tree(list(index), levels)


def _around(name: str) -> list[str]:
    """The root, then each module around ``name``, then itself."""
    parts = name.split(".")[:_MAX_DEPTH] if name else []
    return ["", *(".".join(parts[: count + 1]) for count in range(len(parts)))]


def _raise(peaks: Int, module: Int, changes: Int) -> None:
    """Set each module's peak from the changes of its live bytes, which are in the order of time."""
    order = np.argsort(module, kind="stable")
    order = order[int(np.searchsorted(module[order], 0)) :]
    groups = module[order]
    if not len(groups):
        return
    running = np.cumsum(changes[order], dtype=np.int64)  # what began also ends, so each group ends at 0
    first = np.flatnonzero(np.diff(groups, prepend=_NOBODY))
    peaks[groups[first]] = np.maximum.reduceat(running, first)


def _largest(rank: int, names: list[str], peaks: Int, held: Int) -> tuple[ModulePeak, ...]:
    order = sorted(range(len(names)), key=lambda module: (-int(peaks[module]), names[module]))[:MOST]
    return tuple(
        ModulePeak(
            rank=rank,
            module=names[module],
            peak_bytes=int(peaks[module]),
            at_rank_peak_bytes=int(held[module]),
        )
        for module in order
    )
