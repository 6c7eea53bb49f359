"""What the first collective of each NCCL group takes of the device, outside torch's allocator.

NCCL makes its communicator there: half a gigabyte and more for each group.  So the memory of the process is
read before and after that call.  The methods of ``ProcessGroup`` are wrapped for that from the start of the
recording, and given back after the first step in which no new group was seen.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from zprof.collectors.collectives import COLLECTIVE_METHODS
from zprof.collectors.devices.rows import Reason
from zprof.collectors.faults import first_line
from zprof.collectors.kineto.collectives.groups import ranks_name
from zprof.model.gaps import Gap

#: Takes a sample of a device, reason and group; False: there is nothing to sample with.
Read = Callable[[int, Reason, str], bool]
_MOST_DEPTH = 3


class GroupWatch:
    """Wraps the collectives while installed."""

    def __init__(self, read: Read, methods_of: type | None = None) -> None:
        self._read = read
        self._home = methods_of or _process_group()
        self._wrappers: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self._seen: set[str] = set()
        self._names: dict[str, str] = {}
        self._seen_before = 0
        self._process_id = os.getpid()
        self._active = False
        self._gaps: list[Gap] = []

    def install(self) -> None:
        """Put the wrappers in place, where torch was built with distributed."""
        if self._home is None:
            return
        self._active = True
        for name in (*COLLECTIVE_METHODS, "barrier"):
            original = self._home.__dict__.get(name)
            if original is not None:
                self._wrappers[name] = (original, self._wrap(original))
                setattr(self._home, name, self._wrappers[name][1])

    def step(self) -> None:
        """A step is over: without a new group in it, no more are waited for."""
        if self._active and len(self._seen) == self._seen_before:
            self._active = False
        self._seen_before = len(self._seen)
        if not self._active:
            self.remove()

    def remove(self) -> None:
        """Give the methods back; one that somebody wrapped after us stays until that is gone."""
        self._active = False
        for name, (original, wrapper) in list(self._wrappers.items()):
            if self._home.__dict__.get(name) is wrapper:
                setattr(self._home, name, original)
                del self._wrappers[name]

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        has_tensors = original.__name__ != "barrier"

        @functools.wraps(original)
        def launch(group: Any, *args: Any, **kwargs: Any) -> Any:
            index = self._before(group, args if has_tensors else None) if self._active else None
            result = original(group, *args, **kwargs)
            if index is not None:
                self._after(group, index)
            return result

        return launch

    def _before(self, group: Any, args: tuple[Any, ...] | None) -> int | None:
        """The device to watch, once sampled; None where this call is not the first of an NCCL group."""
        try:
            return None if group.group_name in self._seen else self._first(group, args)
        except Exception as error:  # not the program's fault or business; without rows nothing is claimed
            self._fail(error)
            return None

    def _after(self, group: Any, index: int) -> None:
        try:
            self._read(index, Reason.AFTER_GROUP, self._names[group.group_name])
        except Exception as error:
            self._fail(error)

    def gaps(self) -> list[Gap]:
        """What kept first collectives from being watched."""
        return list(self._gaps)

    def _fail(self, error: Exception) -> None:
        self._active = False
        self._gaps.append(
            Gap(
                what="device memory of process groups",
                reason=f"first collectives were no longer watched: {first_line(error)}",
                remedy="please report this; training was not touched",
            )
        )

    def _first(self, group: Any, args: tuple[Any, ...] | None) -> int | None:
        if self._process_id != os.getpid():  # a fork: it is not recorded
            self._active = False
            return None
        index = _device_index(args)
        if index is None:
            return None  # on the host: another backend's
        self._seen.add(group.group_name)
        if "nccl" not in str(dist.get_backend_config(group)):
            return None
        self._names[group.group_name] = name = self._name(group)
        self._active = self._read(index, Reason.BEFORE_GROUP, name)
        return index if self._active else None

    def _name(self, group: Any) -> str:
        """The sorted ranks; a second group of the same ranks has its own name behind them."""
        ranks = ranks_name(dist.get_process_group_ranks(group))
        return f"{ranks}#{group.group_name}" if ranks in self._names.values() else ranks


def _process_group() -> Any:
    return torch._C._distributed_c10d.ProcessGroup if dist.is_available() else None


def _device_index(args: tuple[Any, ...] | None) -> int | None:
    """Of the first tensor, where it is on a GPU; without tensors (a barrier) the current device."""
    if args is None:
        return torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    found: Any = args
    for _ in range(_MOST_DEPTH):
        if isinstance(found, list | tuple) and found:
            found = found[0]
    if isinstance(found, torch.Tensor) and found.is_cuda:
        return found.device.index
    return None
