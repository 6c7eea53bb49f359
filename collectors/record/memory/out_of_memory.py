"""Tell whether an error is a failed allocation, and list what held the memory when it was raised.

In a memory window the log is complete, and the failure is only marked. Elsewhere the census lists the tensors
of all live Python objects (the frames of the traceback still hold theirs) and what autograd has saved for
their backward pass. It keeps no tensor.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from msgspec import Struct
from torch import nn

from zprof.collectors.record.base import Columns
from zprof.collectors.record.engines.deepspeed import find_engines, get_shard, iter_held_tensors
from zprof.collectors.record.memory.log import SAVED, MemoryLog, StorageRole
from zprof.collectors.record.memory.owners import BUFFER, GRADIENT, MASTER, OPTIMIZED, STATE, WEIGHT
from zprof.collectors.record.memory.phases import PhaseTracker
from zprof.collectors.record.memory.storages import (
    GATHERED,
    StorageTracker,
    find_live_tensors,
    find_nested_tensors,
    find_plain_tensors,
)
from zprof.collectors.record.memory.tables import (
    AllocationStacks,
    StorageRows,
    build_alloc_table,
    build_role_table,
)
from zprof.collectors.record.schedule import ScheduledWindow
from zprof.model.tenants import Tenant
from zprof.model.training import Phase

#: An operator's result that no other operator has saved yet; within a window the log uses the same words.
_OPERATOR_OUTPUT = StorageRole(Tenant.TEMPORARY_BUFFERS, "op_output", "census")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_CPU_REQUEST = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory.*?allocate (\d+) bytes", re.S
)
_DEVICE_REQUEST = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB|TiB)")
_DEVICE = re.compile(r"\bGPU (\d+)\b")
#: Maximum number of autograd nodes that are visited.
_MAX_NODES = 200_000
#: Suffix of the file that has a phase's own frames, innermost first.
_PHASE_FILES = (
    ("torch/optim/optimizer.py", Phase.OPTIMIZER),
    ("torch/autograd/graph.py", Phase.BACKWARD),
    ("torch/nn/modules/module.py", Phase.FORWARD),
)
_LOGGED = "_zprof_logged"


class FailedAllocation(Struct, frozen=True, kw_only=True):
    """A request that the allocator refused; the size is 0 if the message does not state it."""

    time_ns: int
    device: str
    requested_bytes: int


def read_failed_allocation(error: BaseException) -> FailedAllocation | None:
    """Return the failed request; None for any other error."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        match = _DEVICE_REQUEST.search(text)
        requested = int(float(match[1]) * _UNITS[match[2]]) if match else 0
        device = _DEVICE.search(text)
        name = f"cuda:{device[1]}" if device else "cuda:0"
    elif isinstance(error, RuntimeError) and (match := _CPU_REQUEST.search(text)):
        requested, name = int(match[1]), "cpu"
    else:
        return None
    return FailedAllocation(time_ns=time.time_ns(), device=name, requested_bytes=requested)


def mark_as_logged(error: BaseException) -> None:
    """Mark an error whose failed allocation has been logged in a window."""
    error.__dict__[_LOGGED] = True


def was_logged(error: BaseException) -> bool:
    """Return True if the failed allocation of this error has been logged in a window."""
    return _LOGGED in error.__dict__


def build_failure_marks(failures: Iterable[FailedAllocation]) -> dict[str, list[Any]]:
    """Return the rows of the table ``mark`` for failed allocations."""
    rows = [(failure.time_ns, "oom_request", failure.requested_bytes, failure.device) for failure in failures]
    return {name: [row[i] for row in rows] for i, name in enumerate(("time_ns", "kind", "number", "name"))}


def take_census(
    failure: FailedAllocation,
    error: BaseException,
    model: nn.Module | None,
    optimizers: Sequence[torch.optim.Optimizer],
    step: int,
) -> Mapping[str, Columns]:
    """Return the tables ``oom_alloc`` and ``oom_role``, and marks; ``step``: -1 if it is unknown."""
    log = MemoryLog()
    phases = PhaseTracker(log)
    census = _LiveTensorClaims(log, StorageTracker(log, phases))
    log.active = True
    census.claim_owned(model, optimizers)
    tensors = list(find_live_tensors(lambda error: log.record_missed("tensors", error)))
    census.claim(find_saved_tensors(tensors), SAVED)
    for tensor in tensors:
        census.claim([tensor], _OPERATOR_OUTPUT if tensor.grad_fn is not None else None)
    log.active = False
    rows = StorageRows(phases, census.module_names, AllocationStacks())
    rows.add(log.take_births())
    phase = find_phase(error.__traceback__)
    marks = [
        (failure.time_ns, "window_begin", step, str(ScheduledWindow.OUT_OF_MEMORY)),
        *([(failure.time_ns, "phase", 0, phase.value)] if phase else []),
        (failure.time_ns, "oom_request", failure.requested_bytes, failure.device),
        (time.time_ns(), "window_end", step, str(ScheduledWindow.OUT_OF_MEMORY)),
    ]
    alloc = build_alloc_table(rows.list_open(), ())
    # All of it was live when the allocation failed, before the census.
    alloc["allocated_ns"] = [failure.time_ns] * len(alloc["bytes"])
    claims, drops = log.take_claims()
    roles = build_role_table(claims, drops)
    roles["time_ns"] = [failure.time_ns] * len(roles["tenant"])
    names = ("time_ns", "kind", "number", "name")
    return {
        "oom_alloc": alloc,
        "oom_role": roles,
        "mark": {name: [mark[i] for mark in marks] for i, name in enumerate(names)},
    }


class _LiveTensorClaims:
    """Claim the storages of live tensors."""

    def __init__(self, log: MemoryLog, storages: StorageTracker) -> None:
        self._log, self._storages = log, storages
        self.module_names: dict[int, str] = {}

    def claim_owned(self, model: nn.Module | None, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Claim parameters, gradients and optimizer states.

        A parameter that requires a gradient but that no optimizer updates has been gathered from shards.
        """
        optimized = [
            tensor
            for optimizer in optimizers
            for group in optimizer.param_groups
            for tensor in group["params"]
        ]
        optimized_ids = {id(tensor) for tensor in optimized}
        own_ids: set[int] = set()
        has_gathered = False
        for name, module in model.named_modules() if model is not None else ():
            for parameter in module._parameters.values():
                if parameter is None:
                    continue
                if (shard := get_shard(parameter)) is not None:
                    self.claim([shard], WEIGHT, name)
                    self.claim([parameter], GATHERED, name)
                    continue
                gathered = bool(optimized) and parameter.requires_grad and id(parameter) not in optimized_ids
                has_gathered = has_gathered or gathered
                own_ids.add(id(parameter))
                self.claim([parameter], GATHERED if gathered else WEIGHT, name)
                self.claim([parameter.grad], GRADIENT, name)
            self.claim([b for b in module._buffers.values() if b is not None], BUFFER, name)
        for engine in find_engines(model):
            for role, tensor in iter_held_tensors(engine):
                self.claim([tensor], role)
        is_master = model is not None and not has_gathered
        self.claim(
            [tensor for tensor in optimized if id(tensor) not in own_ids], MASTER if is_master else OPTIMIZED
        )
        self.claim([tensor.grad for tensor in optimized], GRADIENT)
        for optimizer in optimizers:
            for state in list(optimizer.state.values()):
                self.claim(find_nested_tensors(state), STATE)

    def claim(
        self, tensors: Iterable[torch.Tensor | None], role: StorageRole | None, module: str = ""
    ) -> None:
        """Record tensors that exist already, with their owner if known."""
        for tensor in tensors:
            try:
                for plain in find_plain_tensors(tensor):
                    entry = self._storages.track(plain, before_window=True)
                    if role is not None:
                        self._storages.claim(entry, role)
                    if module and entry.generation >= 0:
                        self.module_names.setdefault(entry.generation, module)
            except Exception as error:  # a third-party subclass may raise on access
                self._log.record_missed("tensors", error)


def find_saved_tensors(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield what autograd has saved in the graphs of the tensors, except what is already freed."""
    pending = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen: set[Any] = set()
    while pending and len(seen) < _MAX_NODES:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        pending.extend(following for following, _ in node.next_functions if following is not None)
        for name in dir(node):
            if name.startswith("_saved_") or name == "saved_tensors":
                try:
                    value = getattr(node, name)
                except RuntimeError:  # the backward has freed it
                    continue
                yield from find_nested_tensors(value)


def find_phase(trace: TracebackType | None) -> Phase | None:
    """Return the phase in which the error was raised, from the innermost frame that shows it."""
    found = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        found = next((phase for suffix, phase in _PHASE_FILES if file.endswith(suffix)), found)
        trace = trace.tb_next
    return found
