"""Track storage lifetimes of fake tensors: bytes, start, end and tenant.

Time is an event counter. A backdated claim applies from allocation, other claims from their creation. The
claim with the highest precedence wins (``zprof.model.tenants.PRECEDENCE``); unclaimed bytes are temporary
buffers.

While a module runs, ``tap_storages`` fills the ledger from operator results, inputs and outputs of
collectives, and tensors saved by autograd. It runs on top of FakeTensorMode. ``UntypedStorage.resize_`` is
wrapped to detect storages resized in place. The program's pack hooks are wrapped too, because autograd keeps
their return values (activation checkpointing saves a unit's input that way).
"""

import bisect
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from msgspec import Struct, field
from torch.autograd.graph import saved_tensors_hooks

from zprof.collectors.record.torch_private import (
    TorchDispatchMode,
    current_graph_task_id,
    get_saving_functions,
    set_saving_functions,
)
from zprof.model.tenants import DISPLAY_ORDER, PRECEDENCE, Tenant

_PRECEDENCE = {tenant: rank for rank, tenant in enumerate(PRECEDENCE)}
_NEVER = 1 << 62
_COLLECTIVES = ("c10d", "_c10d_functional")
#: Maximum depth of the search for tensors in a pack hook's result.
_MAX_DEPTH = 3


class StorageLifetime(Struct, eq=False):
    """One lifetime of a storage at a constant size; ``claims`` maps each tenant to its start time."""

    bytes: int
    allocated_at: int
    freed_at: int = _NEVER
    claims: dict[Tenant, int] = field(default_factory=dict)

    def find_tenant_at(self, time: int) -> Tenant:
        """Return the tenant that owns the storage at a time."""
        active_claims = [tenant for tenant, since in self.claims.items() if since <= time]
        return min(active_claims, key=_PRECEDENCE.__getitem__, default=Tenant.TEMPORARY_BUFFERS)


class StoragePeak(Struct, frozen=True, kw_only=True):
    """Peak live bytes, and the ledger's ``location`` at that moment."""

    bytes: int
    time: int
    location: str


class StorageLedger:
    """Tracks storages from first use, without keeping them alive."""

    def __init__(self) -> None:
        self.time = 0
        self.live_bytes = 0
        self.location = ""
        #: Called once per storage that autograd saves for the backward pass.
        self.on_saved: Callable[[StorageLifetime], None] | None = None
        self.lifetimes: list[StorageLifetime] = []
        self._known: dict[int, _StorageReference] = {}
        self._gathered: set[int] = set()
        self._peak_start = 0
        self._peak = StoragePeak(bytes=0, time=0, location="")

    def reset_peak(self) -> None:
        """Restart the peak at the current live bytes, and drop freed storages."""
        self.time += 1
        self._peak_start = self.time
        self.lifetimes = [life for life in self.lifetimes if life.freed_at == _NEVER]
        self._peak = StoragePeak(bytes=self.live_bytes, time=self.time, location=self.location)

    @property
    def peak(self) -> StoragePeak:
        """Peak since :meth:`reset_peak`."""
        return self._peak

    def record_tensor(self, tensor: torch.Tensor) -> StorageLifetime:
        """Record a tensor's storage at its current size."""
        return self.record_storage(tensor.untyped_storage())

    def record_storage(self, storage: torch.UntypedStorage) -> StorageLifetime:
        """Record a storage; a changed size ends its lifetime and starts another."""
        entry = self._known.get(storage._cdata)
        size = storage.nbytes()
        if entry is not None and entry.life.bytes == size:
            return entry.life
        if entry is not None:
            self._end_lifetime(entry.life)
        else:
            entry = self._known[storage._cdata] = _StorageReference(storage, self._forget)
            entry.key = storage._cdata
        entry.life = self._start_lifetime(size)
        if entry.key in self._gathered:
            entry.life.claims[Tenant.COMMUNICATION_BUFFERS] = 0
        return entry.life

    def claim(self, tensor: torch.Tensor, tenant: Tenant, *, backdated: bool = True) -> None:
        """Assign the tensor's storage to a tenant, starting at its allocation or now."""
        life = self.record_tensor(tensor)
        if tenant in life.claims:
            return
        life.claims[tenant] = 0 if backdated else self.time
        if tenant is Tenant.ACTIVATIONS and self.on_saved is not None and len(life.claims) == 1:
            self.on_saved(life)

    def mark_gathered(self, tensor: torch.Tensor) -> None:
        """Mark the storage as a communication buffer, now and after resizes."""
        self.record_tensor(tensor).claims.setdefault(Tenant.COMMUNICATION_BUFFERS, 0)
        self._gathered.add(tensor.untyped_storage()._cdata)

    def claim_activations_since(self, time: int) -> None:
        """Claim all live, unclaimed storages allocated after ``time`` as activations."""
        for life in reversed(self.lifetimes):
            if life.allocated_at <= time:
                return
            if life.freed_at == _NEVER and not life.claims:
                life.claims[Tenant.ACTIVATIONS] = 0

    def measure_tenants_at(self, time: int) -> Mapping[Tenant, int]:
        """Return the bytes of each tenant at a time, in display order, without empty tenants."""
        sums = dict.fromkeys(DISPLAY_ORDER, 0)
        for life in self.lifetimes:
            if life.allocated_at <= time < life.freed_at:
                sums[life.find_tenant_at(time)] += life.bytes
        return {tenant: size for tenant, size in sums.items() if size}

    def measure_tenant_peak(self, tenant: Tenant, spans: Sequence[tuple[int, int]]) -> int:
        """Return a tenant's peak live bytes within the (start, end] spans."""
        changes = sorted(
            change
            for life in self.lifetimes
            if life.find_tenant_at(_NEVER) is tenant
            for change in ((life.allocated_at, life.bytes), (life.freed_at, -life.bytes))
        )
        times = [time for time, _ in changes]
        live = list(itertools.accumulate(size for _, size in changes))
        peak = 0
        for start, end in spans:
            inside = live[bisect.bisect_right(times, start) : bisect.bisect_right(times, end)]
            peak = max([peak, *inside])
        return peak

    def _start_lifetime(self, size: int) -> StorageLifetime:
        self.time += 1
        life = StorageLifetime(size, self.time)
        self.lifetimes.append(life)
        self.live_bytes += size
        if self._peak_start and self.live_bytes > self._peak.bytes:
            self._peak = StoragePeak(bytes=self.live_bytes, time=self.time, location=self.location)
        return life

    def _end_lifetime(self, life: StorageLifetime) -> None:
        self.time += 1
        life.freed_at = self.time
        self.live_bytes -= life.bytes

    def _forget(self, entry: "_StorageReference") -> None:
        if self._known.pop(entry.key, None) is not None:
            self._gathered.discard(entry.key)
            self._end_lifetime(entry.life)


class _StorageReference(weakref.ref):  # type: ignore[type-arg]
    """Weak reference to a storage, keyed by its StorageImpl address."""

    __slots__ = ("key", "life")
    key: int
    life: StorageLifetime


def find_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in the arguments or results of an operator."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from find_tensors(item)
    elif isinstance(value, dict):
        yield from find_tensors(tuple(value.values()))


class _OperatorTap(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operator outputs and collective operands."""

    def __init__(self, ledger: StorageLedger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in find_tensors(result):
            self._ledger.record_tensor(tensor)
        if getattr(func, "namespace", "") in _COLLECTIVES:
            for tensor in find_tensors((args, kwargs)):
                # A tensor reduced in place already has an owner.
                is_unclaimed = not self._ledger.record_tensor(tensor).claims
                self._ledger.claim(tensor, Tenant.COMMUNICATION_BUFFERS, backdated=is_unclaimed)
        return result


@contextmanager
def tap_storages(ledger: StorageLedger) -> Iterator[None]:
    """Record all operators of this thread in ``ledger`` inside the context."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.UntypedStorage, "resize_", _make_resize_hook(ledger)))
        stack.enter_context(saved_tensors_hooks(_make_pack_hook(ledger), lambda tensor: tensor))
        saving = get_saving_functions()
        set_saving_functions(saving._replace(push=_make_push_hook(ledger, saving.push)))
        stack.callback(set_saving_functions, saving)
        stack.enter_context(_OperatorTap(ledger))
        yield


def _make_resize_hook(ledger: StorageLedger) -> Callable[[torch.UntypedStorage, int], Any]:
    original = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        ledger.record_storage(storage)
        return result

    return resize


def _make_pack_hook(ledger: StorageLedger) -> Callable[[torch.Tensor], torch.Tensor]:
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        ledger.claim(tensor, Tenant.ACTIVATIONS)
        return (
            tensor if tensor.is_leaf else tensor.detach()
        )  # detached, because the graph would form a reference cycle

    return pack


def _make_push_hook(ledger: StorageLedger, push: Callable[..., None]) -> Callable[..., None]:
    def push_wrapped(pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        def pack_and_claim(tensor: Any) -> Any:
            packed = pack(tensor)
            # Tensors saved by a recomputation are freed once used.
            if current_graph_task_id() == -1:
                for saved in _find_saved_tensors(packed, _MAX_DEPTH):
                    ledger.claim(saved, Tenant.ACTIVATIONS)
            return packed

        push(pack_and_claim, unpack)

    return push_wrapped


def _find_saved_tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    yield from find_tensors(value)
    if depth and hasattr(value, "__dict__") and not isinstance(value, torch.Tensor | type):
        for attribute in vars(value).values():
            yield from _find_saved_tensors(attribute, depth - 1)
