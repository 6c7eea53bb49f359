"""Track tensor storages from birth to death without keeping them alive, and find the plain tensors that hold
bytes (inside DTensor and other subclasses, and in optimizer states).

A storage is identified by the address of its StorageImpl, which lives as long as its Python object. Each time
its (data pointer, size) changes, a new lifetime (generation) starts: engines resize a storage to 0 and back.
This runs for every operator: looking up a known storage costs 0.3 us, a thousand times per step.
"""

import gc
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from zprof.collectors.record.memory.log import MemoryLog, StorageRole
from zprof.collectors.record.memory.phases import PhaseTracker
from zprof.collectors.record.torch_private import FakeTensor, gather_stack, skip_in_compiler
from zprof.model.tenants import Tenant

GATHERED = StorageRole(Tenant.COMMUNICATION_BUFFERS, "gathered_param", "hook")

_now_ns = time.time_ns

#: Value of ``min_stack_bytes`` that disables stacks.
NO_STACKS = sys.maxsize
#: Types whose tensors hold their own bytes.
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_MAX_DEPTH = 4


class Storage(weakref.ref):  # type: ignore[type-arg]
    """State of one storage. ``generation`` is -1 while it holds no bytes."""

    __slots__ = ("address", "bytes", "claimed", "generation", "holds_parameter", "key")
    address: int
    bytes: int
    claimed: list[StorageRole]
    generation: int
    holds_parameter: bool
    key: int


class StorageTracker:
    """Track all recorded live storages, by the address of their StorageImpl.

    ``min_stack_bytes``: minimum size at which an operator's allocation is recorded with its Python stack.
    ``default_operator``: recorded if the operator is unknown; None if the storage may be older than the
    window.
    """

    def __init__(
        self,
        log: MemoryLog,
        phases: PhaseTracker,
        min_stack_bytes: int = NO_STACKS,
        default_operator: str | None = None,
    ) -> None:
        self._log = log
        self._phases = phases
        self._min_stack_bytes = min_stack_bytes
        self._default_operator = default_operator
        self.live: dict[int, Storage] = {}

    def track(self, tensor: torch.Tensor, operator: Any = None, *, before_window: bool = False) -> Storage:
        """Record a tensor's storage. ``operator`` is the one that allocated it, None if unknown."""
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # sparse and opaque tensors; their inner tensors are tracked separately
            return _clear_storage(Storage(tensor))
        entry = self.live.get(storage._cdata)
        if entry is None or storage.nbytes() != entry.bytes or storage.data_ptr() != entry.address:
            return self._start_lifetime(entry or self._add(storage), storage, operator, before_window)
        return entry

    def on_resize(self, storage: torch.UntypedStorage) -> None:
        """Record an in-place resize: the old bytes are freed, new ones may be allocated."""
        if storage.device.type == "meta":  # torch traces with these, and some raise on access
            return
        entry = self.live.get(storage._cdata) or self._add(storage)
        if storage.nbytes() != entry.bytes or storage.data_ptr() != entry.address:
            self._start_lifetime(entry, storage, "storage.resize_", False)

    def claim(self, entry: Storage, role: StorageRole, *, backdated: bool = True) -> None:
        """Assign a role to the storage's current lifetime, once."""
        if entry.generation < 0 or role in entry.claimed:
            return
        entry.claimed.append(role)
        self._log.claim_rows.append((entry.generation, _now_ns(), role, backdated))

    def clear(self) -> None:
        """Drop all storages; their deaths are no longer recorded."""
        self.live.clear()

    def _add(self, storage: torch.UntypedStorage) -> Storage:
        entry = _clear_storage(Storage(storage, self._on_freed))
        entry.key = key = storage._cdata
        return self.live.setdefault(key, entry)

    def _on_freed(self, entry: Storage) -> None:
        log = self._log
        if self.live.pop(entry.key, None) is not None and entry.generation >= 0 and log.active:
            log.deaths.append((entry.generation, _now_ns()))

    def _start_lifetime(
        self, entry: Storage, storage: torch.UntypedStorage, operator: Any, before_window: bool
    ) -> Storage:
        log = self._log
        if entry.generation >= 0:
            log.record_death(entry.generation)
            entry.generation, entry.claimed = -1, []
        try:
            entry.bytes, entry.address = size, address = storage.nbytes(), storage.data_ptr()
        except RuntimeError:  # torch's zero tensors have a size but no data
            entry.bytes, entry.address = size, address = 0, 0
        if size == 0 or address == 0:  # empty, or a tensor without memory (meta)
            return entry
        entry.generation = generation = log.next_generation()
        phase, module = self._phases.locate()
        stack = None
        if size >= self._min_stack_bytes and operator is not None:
            # Code objects and positions only, no frames: 0.3 us, and nothing is kept alive.
            stack = gather_stack(True, False, False)
        if operator is None and not before_window:
            operator = self._default_operator
        log.birth_rows.append(
            (
                generation, _now_ns(), address, size, storage.device,
                operator, phase, module, before_window, not storage.resizable(), stack,
            )
        )  # fmt: skip
        if entry.holds_parameter:
            self.claim(entry, GATHERED)
        return entry


skip_in_compiler(
    StorageTracker._on_freed.__code__
)  # it runs wherever a storage is freed, including compiled code


def find_plain_tensors(value: Any) -> Sequence[torch.Tensor]:
    """Return the tensor itself, or the inner ones of a wrapper subclass; empty if it has no memory."""
    if type(value) in PLAIN:
        return (
            (value,)
            if value.layout is torch.strided
            else ((value._indices(), value._values()) if value.layout is torch.sparse_coo else ())
        )
    if not isinstance(value, torch.Tensor):
        return ()  # parts of a subclass may not be tensors: DTensor has a device mesh
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is not None:
        return [plain for name in flatten()[0] for plain in find_plain_tensors(getattr(value, name))]
    if isinstance(value, FakeTensor) or value.layout is not torch.strided:
        return ()
    return (value,)


def _clear_storage(entry: Storage) -> Storage:
    entry.generation, entry.address, entry.bytes = -1, 0, 0
    entry.claimed, entry.holds_parameter = [], False
    return entry


def find_nested_tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the plain tensors in nested dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield from find_plain_tensors(value)
    elif depth < _MAX_DEPTH and isinstance(value, dict):
        for item in list(value.values()):
            # Avoids a generator for plain tensors: hundreds of tensors of optimizer state are read after each
            # optimizer step.
            yield from (
                find_plain_tensors(item) if type(item) in PLAIN else find_nested_tensors(item, depth + 1)
            )
    elif depth < _MAX_DEPTH and isinstance(value, list | tuple):
        for item in value:
            yield from find_nested_tensors(item, depth + 1)


def find_live_tensors(on_error: Callable[[Exception], None]) -> Iterable[torch.Tensor]:
    """Yield every plain tensor that a Python object of this process holds.

    ``on_error`` is called with the error of each subclass that raises on access.
    """
    for value in gc.get_objects():
        # type(), not isinstance(): access to its ``__class__`` would materialize a lazy proxy.
        if issubclass(type(value), torch.Tensor):
            try:
                tensors = find_plain_tensors(value)
            except Exception as error:  # a third-party subclass may raise on access
                on_error(error)
            else:
                yield from tensors
