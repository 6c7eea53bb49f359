"""Finds, among allocations, the last one at an address before a time, and the first one after it."""

import numpy as np

from zprof.analysis.memory.rank.lives import Int


class AddressIndex:
    """Allocations by (address, begin); both are replaced by their rank, so that one int64 key sorts them."""

    def __init__(self, address: Int, begin_ns: Int) -> None:
        self._addresses: Int = np.unique(address)
        self._times: Int = np.unique(begin_ns)
        keys = self._keys(address, begin_ns)
        self._order: Int = np.argsort(keys, kind="stable").astype(np.int64)
        self._sorted: Int = keys[self._order]

    def last_until(self, address: Int, time_ns: Int) -> Int:
        """Row of the last allocation at each address that began at or before each time; -1 for none."""
        keys = self._keys(address, time_ns)
        return self._row(np.searchsorted(self._sorted, keys, side="right") - 1, keys)

    def first_after(self, address: Int, time_ns: Int) -> Int:
        """Row of the first allocation at each address that began after each time; -1 for none."""
        keys = self._keys(address, time_ns)
        return self._row(np.searchsorted(self._sorted, keys, side="right"), keys)

    def _keys(self, address: Int, time_ns: Int) -> Int:
        code = np.searchsorted(self._addresses, address).astype(np.int64)
        known = code < len(self._addresses)
        known[known] = self._addresses[code[known]] == address[known]
        rank = np.searchsorted(self._times, time_ns, side="right").astype(np.int64)
        keys: Int = np.where(known, code * (len(self._times) + 1) + rank, -1)
        return keys

    def _row(self, position: Int, keys: Int) -> Int:
        span = len(self._times) + 1
        inside = (position >= 0) & (position < len(self._sorted)) & (keys >= 0)
        found = np.full(len(keys), -1, dtype=np.int64)
        same = self._sorted[position[inside]] // span == keys[inside] // span
        rows = np.flatnonzero(inside)[same]
        found[rows] = self._order[position[rows]]
        return found
