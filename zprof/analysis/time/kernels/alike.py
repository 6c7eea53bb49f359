"""Kernels that do the same work: the same name among the same neighbours.

A trace's table has no launch grids, and one name (a GEMM) runs on several shapes.  Clusters of durations
would take a kernel that is slowed down for a larger one.  A model's blocks launch the same kernels in
the same order, so those with the same three names before and after them do the same work in another block
or step.
"""

import numpy as np
import numpy.typing as npt

from zprof.analysis.intervals import Int64s

#: Names on each side: enough to tell a GEMM of the forward from one of the backward.
_NEIGHBOURS = 3
_Hashes = npt.NDArray[np.uint64]
_MIX = np.uint64(0x9E3779B97F4A7C15)


def alike(code: Int64s) -> Int64s:
    """A number for each kernel, the same for those that do the same work; ``code`` are names in order."""
    padding = np.full(_NEIGHBOURS, -1, dtype=np.int64)
    words = _mixed(np.concatenate((padding, code, padding)).astype(np.uint64))
    hashed = np.zeros(len(code), dtype=np.uint64)
    for offset in range(2 * _NEIGHBOURS + 1):
        hashed = _mixed(hashed ^ words[offset : offset + len(code)])
    return np.unique(hashed, return_inverse=True)[1].astype(np.int64)


def _mixed(values: _Hashes) -> _Hashes:
    """Spread over all bits: the finaliser of splitmix64."""
    values = (values + _MIX) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: _Hashes = values ^ (values >> np.uint64(31))
    return mixed


def medians(group: Int64s, values: Int64s, groups: int) -> npt.NDArray[np.float64]:
    """The median of the values of each group 0 ... groups - 1; NaN where it has none."""
    found = np.full(groups, np.nan)
    if not len(values):
        return found
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    some = np.flatnonzero(count)
    low, high = (values[order[first[some] + (count[some] + one - 1) // 2]] for one in (0, 1))
    found[some] = (low + high) / 2
    return found
