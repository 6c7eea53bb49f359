"""Track the lives of storages on tensors without memory: bytes, start, end and tenant.

Time is a count of events. A backdated claim holds from the storage's birth, any other from the time of the
claim. The claim with the highest precedence wins (``zprof.model.tenants.PRECEDENCE``); unclaimed bytes are
temporary buffers.

The tap fills the ledger while a module runs, from results of operators, operands of collectives and tensors
saved by autograd. It runs on top of FakeTensorMode. Wrapping ``UntypedStorage.resize_`` shows storages that
are resized in place. Pack hooks that the program adds on top of the tap's are wrapped too, because their
return value is what is kept (activation checkpointing keeps a unit's input that way).
"""

import bisect
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.autograd.graph import saved_tensors_hooks

from zprof.collectors.torch_private import (
    TorchDispatchMode,
    current_graph_task_id,
    get_saving_functions,
    set_saving_functions,
)
from zprof.model.tenants import DISPLAY_ORDER, PRECEDENCE, Tenant

_PRECEDENCE = {tenant: rank for rank, tenant in enumerate(PRECEDENCE)}
_NEVER = 1 << 62


@dataclass(slots=True, eq=False)
class StorageLife:
    """A storage while its size is constant; ``claims`` maps each tenant to the start of its claim."""

    bytes: int
    born: int
    died: int = _NEVER
    claims: dict[Tenant, int] = field(default_factory=dict)

    def tenant_at(self, time: int) -> Tenant:
        """Return the tenant that owns the storage at a time."""
        held = [tenant for tenant, since in self.claims.items() if since <= time]
        return min(held, key=_PRECEDENCE.__getitem__, default=Tenant.TEMPORARY_BUFFERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Most bytes live at once; ``place`` is the ledger's place at that moment."""

    bytes: int
    time: int
    place: str


class StorageLedger:
    """Tracks storages from their first appearance, without keeping them alive."""

    def __init__(self) -> None:
        self.time = 0
        self.live_bytes = 0
        self.place = ""
        #: Called once for each life that autograd saves for the backward.
        self.on_saved: Callable[[StorageLife], None] | None = None
        self.lives: list[StorageLife] = []
        self._known: dict[int, _Entry] = {}
        self._gathered: set[int] = set()
        self._begun = 0
        self._peak = Peak(bytes=0, time=0, place="")

    def begin(self) -> None:
        """Restart the peak from the bytes that are live now, and forget ended lives."""
        self.time += 1
        self._begun = self.time
        self.lives = [life for life in self.lives if life.died == _NEVER]
        self._peak = Peak(bytes=self.live_bytes, time=self.time, place=self.place)

    @property
    def peak(self) -> Peak:
        """Peak since :meth:`begin`."""
        return self._peak

    def see(self, tensor: torch.Tensor) -> StorageLife:
        """Record a tensor's storage at its current size."""
        return self.sized(tensor.untyped_storage())

    def sized(self, storage: torch.UntypedStorage) -> StorageLife:
        """Record a storage; a changed size ends its life and starts another."""
        entry = self._known.get(storage._cdata)
        size = storage.nbytes()
        if entry is not None and entry.life.bytes == size:
            return entry.life
        if entry is not None:
            self._end(entry.life)
        else:
            entry = self._known[storage._cdata] = _Entry(storage, self._forget)
            entry.key = storage._cdata
        entry.life = self._birth(size)
        if entry.key in self._gathered:
            entry.life.claims[Tenant.COMMUNICATION_BUFFERS] = 0
        return entry.life

    def claim(self, tensor: torch.Tensor, tenant: Tenant, *, backdated: bool = True) -> None:
        """Assign the tensor's storage to a tenant, from its birth or from now on."""
        life = self.see(tensor)
        if tenant in life.claims:
            return
        life.claims[tenant] = 0 if backdated else self.time
        if tenant is Tenant.ACTIVATIONS and self.on_saved is not None and len(life.claims) == 1:
            self.on_saved(life)

    def gathers(self, tensor: torch.Tensor) -> None:
        """Mark the storage as a communication buffer, at its current and any later size."""
        self.see(tensor).claims.setdefault(Tenant.COMMUNICATION_BUFFERS, 0)
        self._gathered.add(tensor.untyped_storage()._cdata)

    def keep_since(self, time: int) -> None:
        """Claim storages as activations that were born after ``time``, are live and have no claim."""
        for life in reversed(self.lives):
            if life.born <= time:
                return
            if life.died == _NEVER and not life.claims:
                life.claims[Tenant.ACTIVATIONS] = 0

    def tenants_at(self, time: int) -> Mapping[Tenant, int]:
        """Return the bytes of each tenant at a time, in display order, without empty tenants."""
        sums = dict.fromkeys(DISPLAY_ORDER, 0)
        for life in self.lives:
            if life.born <= time < life.died:
                sums[life.tenant_at(time)] += life.bytes
        return {tenant: size for tenant, size in sums.items() if size}

    def most_of(self, tenant: Tenant, stretches: Sequence[tuple[int, int]]) -> int:
        """Return a tenant's most live bytes within spans, each after its first and up to its last time."""
        changes = sorted(
            change
            for life in self.lives
            if life.tenant_at(_NEVER) is tenant
            for change in ((life.born, life.bytes), (life.died, -life.bytes))
        )
        times = [time for time, _ in changes]
        live = list(itertools.accumulate(size for _, size in changes))
        most = 0
        for first, last in stretches:
            inside = live[bisect.bisect_right(times, first) : bisect.bisect_right(times, last)]
            most = max([most, *inside])
        return most

    def _birth(self, size: int) -> StorageLife:
        self.time += 1
        life = StorageLife(size, self.time)
        self.lives.append(life)
        self.live_bytes += size
        if self._begun and self.live_bytes > self._peak.bytes:
            self._peak = Peak(bytes=self.live_bytes, time=self.time, place=self.place)
        return life

    def _end(self, life: StorageLife) -> None:
        self.time += 1
        life.died = self.time
        self.live_bytes -= life.bytes

    def _forget(self, entry: "_Entry") -> None:
        if self._known.pop(entry.key, None) is not None:
            self._gathered.discard(entry.key)
            self._end(entry.life)


class _Entry(weakref.ref):  # type: ignore[type-arg]
    """A storage's current life, by the address of its StorageImpl, which lives as long as its object."""

    __slots__ = ("key", "life")
    key: int
    life: StorageLife


def find_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in the arguments or results of an operator."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from find_tensors(item)
    elif isinstance(value, dict):
        yield from find_tensors(tuple(value.values()))


_COLLECTIVES = ("c10d", "_c10d_functional")
#: Maximum depth of a tensor in the object that a pack hook returns.
_MAX_DEPTH = 3


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator that allocates or moves bytes."""

    def __init__(self, ledger: StorageLedger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in find_tensors(result):
            self._ledger.see(tensor)
        if getattr(func, "namespace", "") in _COLLECTIVES:
            for tensor in find_tensors((args, kwargs)):
                # A tensor that is reduced in place had an owner before.
                unclaimed = not self._ledger.see(tensor).claims
                self._ledger.claim(tensor, Tenant.COMMUNICATION_BUFFERS, backdated=unclaimed)
        return result


@contextmanager
def tap_storages(ledger: StorageLedger) -> Iterator[None]:
    """Record everything that runs on this thread in the ledger while the context is open."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.UntypedStorage, "resize_", _resize(ledger)))
        stack.enter_context(saved_tensors_hooks(_pack(ledger), lambda tensor: tensor))
        saving = get_saving_functions()
        set_saving_functions(saving._replace(push=_push(ledger, saving.push)))
        stack.callback(set_saving_functions, saving)
        stack.enter_context(_Operators(ledger))
        yield


def _resize(ledger: StorageLedger) -> Callable[[torch.UntypedStorage, int], Any]:
    original = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        ledger.sized(storage)
        return result

    return resize


def _pack(ledger: StorageLedger) -> Callable[[torch.Tensor], torch.Tensor]:
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        ledger.claim(tensor, Tenant.ACTIVATIONS)
        return tensor if tensor.is_leaf else tensor.detach()  # with its graph it would keep itself alive

    return pack


def _push(ledger: StorageLedger, push: Callable[..., None]) -> Callable[..., None]:
    def push_watched(pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        push(_watch_pack(ledger, pack), unpack)

    return push_watched


def _watch_pack(ledger: StorageLedger, pack: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def watched(tensor: Any) -> Any:
        kept = pack(tensor)
        # A recomputation's saved tensors are freed as soon as they are used.
        if current_graph_task_id() == -1:
            for each in _kept_tensors(kept, _MAX_DEPTH):
                ledger.claim(each, Tenant.ACTIVATIONS)
        return kept

    return watched


def _kept_tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    yield from find_tensors(value)
    if depth and hasattr(value, "__dict__") and not isinstance(value, torch.Tensor | type):
        for held in vars(value).values():
            yield from _kept_tensors(held, depth - 1)
