"""Follow every storage and every allocation of one window of steps.

Roles come from hooks and a dispatch mode, bytes from the allocator's own events; analysis joins them by
address and time. A fault in here ends the recording of memory and becomes a gap; training goes on.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import nn

from zprof.collectors.base import Columns, first_line
from zprof.collectors.memory.allocator_events import Allocation, AllocatorEvents, close_collective_scratch
from zprof.collectors.memory.collective_works import WorkPatch
from zprof.collectors.memory.cuda_history import CudaHistory, merge_history
from zprof.collectors.memory.dispatch_mode import OperatorTap, RandomStatePatch, ResizePatch
from zprof.collectors.memory.hooks import Hooks
from zprof.collectors.memory.light import OPERATORS_UNSEEN, SEEN_BY_HOOK, FirstStep, LightScans
from zprof.collectors.memory.log import MemoryLog
from zprof.collectors.memory.owners import OwnerScanner
from zprof.collectors.memory.phases import PhaseTracker
from zprof.collectors.memory.saved_tensors import PackWatch
from zprof.collectors.memory.storages import StorageTracker
from zprof.collectors.memory.tables import (
    AllocationStacks,
    build_alloc_table,
    build_mark_table,
    build_role_table,
)
from zprof.collectors.schedule import MemoryMode
from zprof.collectors.torch_private import enter_mode_below, leave_mode_anywhere
from zprof.model.gaps import Gap, GapKind

#: Allocations from this size on get a stack, which costs 0.3 us; smaller ones never rank among the largest.
STACK_FROM_BYTES = 4096

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None

WITHOUT_MODEL = Gap(
    kind=GapKind.MEMORY_PART,
    what="memory: parameters and an optimizer's master weights cannot be separated",
    reason="the model was not given: all that an optimizer optimizes counts as parameters",
    remedy="pass model=",
)


class MemoryCollector:
    """Records the window between ``start()`` and ``stop()``, both at a step boundary.

    Args:
        model: Its parameters, buffers and gradients get their tenants, and its modules name memory.
        optimizer: One or several, in a list or tuple; their states get their tenant. Without model or
            optimizer, tenants are missing from the result.
        mode: Full, or light: hooks only, see :mod:`zprof.collectors.memory.light`.
    """

    def __init__(
        self, model: nn.Module | None, optimizer: Optimizers, mode: MemoryMode = MemoryMode.FULL
    ) -> None:
        self.mode = mode
        light = mode is MemoryMode.LIGHT
        self._model = model
        self._log = MemoryLog()
        self._phases = PhaseTracker(self._log)
        self._storages = (
            StorageTracker(self._log, self._phases, otherwise=SEEN_BY_HOOK)
            if light
            else StorageTracker(self._log, self._phases, STACK_FROM_BYTES)
        )
        self._scanner = OwnerScanner(self._log, self._storages, model, _as_sequence(optimizer))
        packs = PackWatch(self._phases)
        scans = LightScans(self._scanner, self._storages, _as_sequence(optimizer)) if light else self._scanner
        self._hooks = Hooks(self._log, self._storages, self._phases, scans, packs)
        self._first_step = FirstStep(self._log, _as_sequence(optimizer), self._end_saving)
        self._tap = OperatorTap(self._log, self._storages, packs)
        self._resize = ResizePatch(self._log, self._storages)
        self._random = RandomStatePatch(self._log, self._storages)
        self._works = WorkPatch(self._log, self._hooks)
        self._allocator = AllocatorEvents()
        self._history = CudaHistory()
        self._allocations: list[Allocation] | None = None
        self._undo: list[Callable[[], None]] = []
        self._without_model = model is None

    def start(self) -> None:
        """Scan what is there, then start recording. After a fault nothing stays installed."""
        try:
            if self.mode is MemoryMode.FULL:
                self._begin("allocator events", self._allocator.start, self._allocator.stop)
                self._begin("allocator history", self._history.start, self._history.stop)
                self._begin("random state", self._random.install, self._random.remove)
                self._undo.append(self._works.wait_pending)
            self._log.active = True
            self._scanner.boundary(first=True)
            self._begin("storage resize", self._resize.install, self._resize.remove)
            self._begin("collectives", self._works.install, self._works.remove)
            self._undo.append(self._hooks.remove)
            self._hooks.install(self._model)
            if self.mode is MemoryMode.LIGHT:
                self._begin("first step", self._first_step.install, self._first_step.remove)
            else:
                enter_mode_below(self._tap)
                self._undo.append(self._leave_tap)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop, and restore the process: undo in reverse order, and go on if one of the actions fails."""
        if self._log.active:
            self._attempt("last scan", lambda: self._scanner.boundary(first=False))
        self._log.active = False
        while self._undo:
            self._attempt("clean-up", self._undo.pop())
        self._storages.clear()
        self._scanner.forget()
        self._model = None

    def adopt(self, model: nn.Module | None, optimizer: Optimizers) -> None:
        """Set model and optimizer within the window; scans from here on claim their memory."""
        self._scanner.adopt(model, _as_sequence(optimizer))
        self._without_model = model is None

    def registered(self, tensor: torch.Tensor, *, is_buffer: bool) -> None:
        """Claim a new parameter or buffer of one of the program's modules."""
        if self._log.active:
            self._scanner.registered(tensor, is_buffer=is_buffer)

    def rows(self) -> int:
        """Return the number of rows logged so far."""
        return len(self._log.birth_rows) + len(self._log.claim_rows)

    def mute(self) -> None:
        """Stop logging, on any thread; ``stop`` may only be called on the window's own thread."""
        self._log.active = False

    def abandon(self) -> None:
        """Remove everything that was installed and keep nothing, in a fork of the recording process."""
        self._log.active = False
        for undo in (
            self._leave_tap,
            self._first_step.remove,
            self._hooks.remove,
            self._works.remove,
            self._resize.remove,
            self._random.remove,
        ):
            self._attempt("clean-up", undo)
        self._attempt("clean-up", self._allocator.abandon)
        self._undo.clear()

    def tables(self) -> Mapping[str, Columns]:
        """Return the tables ``alloc``, ``stack``, ``role``, ``mark``, and on CUDA ``block``, ``segment``."""
        allocations = self._read_allocator()
        stacks = AllocationStacks()
        self._attempt("stacks", lambda: stacks.read(self._log.births()))
        tables = {
            "alloc": build_alloc_table(self._log, self._phases, self._scanner.module_of, allocations, stacks),
            "stack": stacks.table(),
            "role": build_role_table(self._log),
            "mark": build_mark_table(self._log),
        }
        return merge_history(tables, self._history.tables())

    def gaps(self) -> list[Gap]:
        """Return a gap for everything that could not be recorded."""
        self._read_allocator()
        trained = bool(self._log.phases)
        unknown = [WITHOUT_MODEL] if self._without_model and trained else []
        unseen = [OPERATORS_UNSEEN, *self._first_step.gaps()] if self.mode is MemoryMode.LIGHT else []
        return [*self._log.gaps, *unknown, *unseen, *self._history.gaps()]

    def _begin(self, what: str, install: Callable[[], None], remove: Callable[[], None]) -> None:
        self._undo.append(remove)
        self._attempt(what, install)

    def _attempt(self, what: str, action: Callable[[], None]) -> None:
        """Run an optional action; an exception becomes a gap."""
        try:
            action()
        except Exception as error:
            self._log.gaps.append(_make_fault_gap(what, error))

    def _end_saving(self) -> None:
        """Remove the saved-tensor hooks, and the wrappers that kept collectives from capturing them."""
        self._hooks.end_saving()
        self._works.remove()

    def _leave_tap(self) -> None:
        if not leave_mode_anywhere(self._tap):
            raise RuntimeError("the window ended on another thread than it began on: its mode stays there")

    def _read_allocator(self) -> list[Allocation]:
        if self._allocations is None:
            self._allocations = []
            try:
                self._allocations = self._allocator.read()
                close_collective_scratch(self._allocations, self._works.works, self._log.births())
            except Exception as error:
                self._log.gaps.append(_make_fault_gap("allocator events", error))
        return self._allocations


def _as_sequence(optimizer: Optimizers) -> Sequence[torch.optim.Optimizer]:
    if optimizer is None:
        return ()
    # An engine's own optimizer need not be one of torch's classes.
    return optimizer if isinstance(optimizer, list | tuple) else (cast("torch.optim.Optimizer", optimizer),)


def _make_fault_gap(what: str, error: BaseException) -> Gap:
    return Gap(
        kind=GapKind.MEMORY_PART,
        what=f"memory: {what}",
        reason=first_line(error),
        remedy="see the reason; the rest of the recording and training are not touched",
    )
