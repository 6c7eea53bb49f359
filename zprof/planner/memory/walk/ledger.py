"""The live bytes of a device, by what they are, and their highest moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from zprof.model.planning.plan import Term
from zprof.model.tenants import SHOWN, Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One kind of bytes: its tenant, what it is called there, and the assumption behind it."""

    tenant: Tenant
    sub: str
    assumption: str


class Ledger:
    """Bytes by slot.  What it held when most was live stays known, with the name of the moment."""

    def __init__(self) -> None:
        self._held: dict[Slot, int] = {}
        self._total = 0
        self._highest: Mapping[Slot, int] = {}
        self._highest_total = -1
        self._where = ""
        self.now = ""

    @property
    def where(self) -> str:
        """The name of the highest moment."""
        return self._where

    @property
    def peak_bytes(self) -> int:
        """All that was live then."""
        return max(self._highest_total, 0)

    def add(self, slot: Slot, size_bytes: int) -> None:
        """More of a slot, or less; that is a moment."""
        self.put({slot: self._held.get(slot, 0) + size_bytes})

    def put(self, sizes: Mapping[Slot, int]) -> None:
        """Slots have these bytes from now on, all of them at once; that is a moment."""
        for slot, size in sizes.items():
            self._total += size - self._held.get(slot, 0)
            self._held[slot] = size
        if self._total > self._highest_total:
            self._highest, self._highest_total = dict(self._held), self._total
            self._where = self.now

    def terms(self) -> tuple[Term, ...]:
        """What was live at the highest moment, in the order in which tenants are shown."""
        return tuple(
            Term(tenant=slot.tenant, sub=slot.sub, bytes=size, assumption=slot.assumption)
            for slot, size in sorted(self._highest.items(), key=lambda held: SHOWN.index(held[0].tenant))
            if size
        )
