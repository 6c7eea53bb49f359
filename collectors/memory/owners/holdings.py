"""Ends the claims on memory that its holder let go: a ``.grad`` set to None, a deleted state or parameter.

A scan says what a holder holds now.  A life that no holder holds any more loses its tenant, though somebody
else may keep the tensor.  Only what a scan once found can be lost: a gradient that an engine moves about
before any scan belongs to the engine.
"""

import time
from collections.abc import Hashable, Iterable, Sequence

from zprof.collectors.memory.lives.log import MemoryLog
from zprof.collectors.memory.lives.storages import Storage
from zprof.model.tenants import Tenant

Life = tuple[Storage, int]


class Holdings:
    """Lives by their holders, for one tenant.  Holds no storage itself: an entry is a weak reference."""

    def __init__(self, log: MemoryLog, tenant: Tenant) -> None:
        self._log = log
        self._tenant = tenant
        self._held: dict[Hashable, Sequence[Life]] = {}
        self._holders: dict[int, int] = {}
        self._lost: set[int] = set()

    def has_lost(self, generation: int) -> bool:
        """Whether this life lost its tenant once: what claims it again does not do so from its birth on."""
        return generation in self._lost

    def holds(self, holder: Hashable, entries: Iterable[Storage]) -> None:
        """This is all that the holder holds now."""
        now = [(entry, entry.generation) for entry in entries if entry.generation >= 0]
        for _, generation in now:
            self._holders[generation] = self._holders.get(generation, 0) + 1
        for life in self._held.pop(holder, ()):
            self._release(*life)
        if now:
            self._held[holder] = now

    def release_all_but(self, holders: set[Hashable]) -> None:
        """Holders that are not among these are gone."""
        for holder in [holder for holder in self._held if holder not in holders]:
            self.holds(holder, ())

    def _release(self, entry: Storage, generation: int) -> None:
        left = self._holders.get(generation, 1) - 1
        if left:
            self._holders[generation] = left
            return
        self._holders.pop(generation, None)
        if entry() is None or entry.generation != generation:
            return  # the memory is gone, and the claim with it
        entry.claimed = [role for role in entry.claimed if role.tenant is not self._tenant]
        self._lost.add(generation)
        self._log.drop_rows.append((generation, time.time_ns(), self._tenant))
