"""Follows tensor storages from birth to death without keeping them alive.

A storage is known by the address of its StorageImpl, which lives as long as its Python object.  Each time
its (data pointer, size) changes, a new life (generation) begins: engines resize one storage to 0 and back.
"""

import time
import weakref
from typing import Any

import torch

from zprof.collectors.memory.log import MemoryLog, Role
from zprof.collectors.memory.phases import PhaseTracker
from zprof.model.tenants import Tenant

GATHERED = Role(Tenant.COMMUNICATION_BUFFERS, "gathered_param", "hook")


class Storage:
    """What is known of one storage now.  ``generation`` is -1 while it holds no bytes."""

    __slots__ = ("address", "bytes", "claimed", "generation", "holds_parameter", "reference")

    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self.generation = -1
        self.address = 0
        self.bytes = 0
        self.claimed: list[Role] = []
        self.holds_parameter = False


class _Reference(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("key",)
    key: int


class StorageTracker:
    """All storages that were seen and live, by the address of their StorageImpl."""

    def __init__(self, log: MemoryLog, phases: PhaseTracker) -> None:
        self._log = log
        self._phases = phases
        self._live: dict[int, Storage] = {}

    def see(self, tensor: torch.Tensor, operator: Any = None, *, before_window: bool = False) -> Storage:
        """Note a tensor's storage; ``operator`` is the one that allocated it, None where unknown."""
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # sparse and opaque tensors; those inside of them are seen themselves
            return Storage(None)
        entry = self._live.get(storage._cdata)
        if entry is None:
            entry = self._add(storage)
        if storage.nbytes() != entry.bytes or storage.data_ptr() != entry.address:
            self._begin_life(entry, storage, operator, before_window)
        return entry

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage was resized in place: its old bytes are gone, new ones may be there."""
        if storage.device.type == "meta":  # torch traces with such ones, and some refuse to be asked
            return
        entry = self._live.get(storage._cdata)
        if entry is None:
            entry = self._add(storage)
        if storage.nbytes() != entry.bytes or storage.data_ptr() != entry.address:
            self._begin_life(entry, storage, "storage.resize_", False)

    def claim(self, entry: Storage, role: Role, *, backdated: bool = True) -> None:
        """Give the storage's present life a role, once."""
        if entry.generation < 0 or role in entry.claimed:
            return
        entry.claimed.append(role)
        self._log.claim_rows.append((entry.generation, time.time_ns(), role, backdated))

    def clear(self) -> None:
        """Forget all storages; their deaths are no longer noted."""
        self._live.clear()

    def _add(self, storage: torch.UntypedStorage) -> Storage:
        key = storage._cdata
        reference = _Reference(storage, self._forget)
        reference.key = key
        return self._live.setdefault(key, Storage(reference))

    def _forget(self, reference: _Reference) -> None:
        entry = self._live.pop(reference.key, None)
        if entry is not None and entry.generation >= 0:
            self._log.died(entry.generation)

    def _begin_life(
        self, entry: Storage, storage: torch.UntypedStorage, operator: Any, before_window: bool
    ) -> None:
        if entry.generation >= 0:
            self._log.died(entry.generation)
        entry.bytes, entry.address = storage.nbytes(), storage.data_ptr()
        entry.generation, entry.claimed = -1, []
        if entry.bytes == 0 or entry.address == 0:  # nothing there, or a tensor without memory (meta)
            return
        entry.generation = generation = self._log.next_generation()
        phase, module = self._phases.locate()
        now_ns, foreign = time.time_ns(), not storage.resizable()
        self._log.birth_rows.append(
            (
                generation, now_ns, entry.address, entry.bytes, storage.device,
                operator, phase, module, before_window, foreign,
            )
        )  # fmt: skip
        if entry.holds_parameter:
            self.claim(entry, GATHERED)
