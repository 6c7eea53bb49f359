"""Record every storage and every allocation of one window of steps.

Roles come from hooks and a dispatch mode, bytes from the allocator's own events; the analysis joins them by
address and time. An error here ends the recording of memory and becomes a gap; training continues.

Light mode records with hooks only, at most 1 % overhead; operators are not recorded. Saved tensors are
recorded for the first step of the window only (a saved tensor costs two calls into Python, and a step has
about a hundred). Gradients, states and gathered parameters are recorded in all steps, rescanning only what
may have changed.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from zprof.collectors.record.base import Columns, WindowRows, first_line
from zprof.collectors.record.memory.allocator_events import (
    AllocatorEvents,
    CudaHistory,
    close_collective_scratch,
    merge_history,
)
from zprof.collectors.record.memory.dispatch_mode import OperatorRecorder, ResizePatch, RngStatePatch
from zprof.collectors.record.memory.hooks import Hooks
from zprof.collectors.record.memory.log import Birth, MemoryLog
from zprof.collectors.record.memory.out_of_memory import build_failure_marks
from zprof.collectors.record.memory.owners import GRADIENT, WEIGHT, OwnerScanner
from zprof.collectors.record.memory.phases import PhaseTracker
from zprof.collectors.record.memory.saved_tensors import PackHookTracker
from zprof.collectors.record.memory.storages import StorageTracker, find_plain_tensors
from zprof.collectors.record.memory.tables import (
    AllocationStacks,
    StorageRows,
    build_alloc_table,
    build_mark_table,
    build_role_table,
)
from zprof.collectors.record.memory.work_lifetimes import CollectiveWork, WorkPatch
from zprof.collectors.record.schedule import MemoryMode
from zprof.collectors.record.torch_private import current_graph_task_id, enter_mode_below, remove_mode
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.training import Phase

#: Allocations of at least this size get a stack, which costs 0.3 us; smaller ones never rank among the
#: largest.
MIN_STACK_BYTES = 4096

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None

#: Placeholder operator of storages first recorded by a hook; some operator in the window allocated them.
UNKNOWN_OPERATOR = "(seen by a hook)"

_STEP_PHASES = (Phase.FORWARD, Phase.OPTIMIZER)


class MemoryCollector:
    """Record the window between ``start()`` and ``stop()``, which are both called at a step boundary.

    Args:
        model: Its parameters, buffers and gradients get their tenants; memory is labelled with its modules.
        optimizer: One optimizer, or a list or tuple of several; their states get their tenant. Without a
            model or an optimizer, tenants are missing from the result.
        mode: Full, or light (hooks only), see :mod:`zprof.collectors.record.memory.collector`.
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
            StorageTracker(self._log, self._phases, default_operator=UNKNOWN_OPERATOR)
            if light
            else StorageTracker(self._log, self._phases, MIN_STACK_BYTES)
        )
        self._scanner = OwnerScanner(self._log, self._storages, model, as_sequence(optimizer))
        pack_hooks = PackHookTracker(self._phases)
        scans = LightScans(self._scanner, self._storages, as_sequence(optimizer)) if light else self._scanner
        self._hooks = Hooks(self._log, self._storages, self._phases, scans, pack_hooks)
        self._first_step = FirstStepWatcher(
            self._log, as_sequence(optimizer), self._remove_saved_tensor_hooks
        )
        self._operator_recorder = OperatorRecorder(self._log, self._storages, pack_hooks)
        self._resize = ResizePatch(self._log, self._storages)
        self._random = RngStatePatch(self._log, self._storages)
        self._work_patch = WorkPatch(self._log, self._hooks)
        self._allocator = AllocatorEvents()
        self._history = CudaHistory()
        self._stacks = AllocationStacks()
        self._rows = StorageRows(self._phases, self._scanner.module_names, self._stacks)
        self._recent_births: list[list[Birth]] = []
        self._recent_works: list[CollectiveWork] = []
        self._events_are_read = False
        self._tables: Mapping[str, Columns] | None = None
        self._can_cut = True
        self._engine_watch = self._hooks.watch_engines(())
        self._undo: list[Callable[[], None]] = []
        self._without_model = model is None

    def start(self) -> None:
        """Scan existing tensors, then start recording. After an error, nothing stays installed."""
        try:
            if self.mode is MemoryMode.FULL:
                self._install("allocator events", self._allocator.start, self._allocator.stop)
                self._install("allocator history", self._history.start, self._history.stop)
                self._install("random state", self._random.install, self._random.remove)
                self._undo.append(self._work_patch.wait_pending)
            self._log.active = True
            self._scanner.scan_boundary(first=True)
            self._install("storage resize", self._resize.install, self._resize.remove)
            self._install("collectives", self._work_patch.install, self._work_patch.remove)
            self._undo.append(self._hooks.remove)
            self._hooks.install(self._model)
            self._engine_watch = self._hooks.watch_engines(self._scanner.engines)
            self._install("engines", self._engine_watch.install, self._engine_watch.remove)
            if self.mode is MemoryMode.LIGHT:
                self._install("first step", self._first_step.install, self._first_step.remove)
            else:
                enter_mode_below(self._operator_recorder)
                self._undo.append(self._remove_operator_recorder)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop, and restore the process: undo in reverse order, and continue if an action fails."""
        if self._log.active:
            self._attempt("last scan", lambda: self._scanner.scan_boundary(first=False))
        self._log.active = False
        while self._undo:
            self._attempt("clean-up", self._undo.pop())
        self._storages.clear()
        self._scanner.forget()
        self._model = None

    def cut(self) -> WindowRows | None:
        """Return what has ended in the steps since the last chunk, and what is live, at a step boundary.

        The profiler reads its events while a new session records; collectives must be complete before.
        """
        if not self._can_cut or not self._log.active:
            return None
        self._can_cut = False
        if self.mode is MemoryMode.FULL:
            self._work_patch.wait_pending()
            self._allocator.restart()
        self._can_cut = True
        complete = self._take_ended(is_last=False)
        self._phases.forget_modules()
        return WindowRows(
            complete=complete,
            open={"alloc": self._build_open_table(), "stack": self._stacks.table()},
            event_count=self._allocator.event_count,
        )

    def adopt(self, model: nn.Module | None, optimizer: Optimizers) -> None:
        """Set the model and optimizer within the window; later scans claim their memory."""
        self._scanner.adopt(model, as_sequence(optimizer))
        self._without_model = model is None

    def on_registered(self, tensor: torch.Tensor, *, is_buffer: bool) -> None:
        """Claim a new parameter or buffer of one of the program's modules."""
        if self._log.active:
            self._scanner.on_registered(tensor, is_buffer=is_buffer)

    def count_rows(self) -> int:
        """Return the number of rows logged so far."""
        return len(self._log.birth_rows) + len(self._log.claim_rows)

    def mute(self) -> None:
        """Stop logging, on any thread; ``stop`` may only be called on the window's own thread."""
        self._log.active = False

    def abandon(self) -> None:
        """Remove everything that was installed and discard the recording, in a fork of the process."""
        self._log.active = False
        for undo in (
            self._remove_operator_recorder,
            self._first_step.remove,
            self._engine_watch.remove,
            self._hooks.remove,
            self._work_patch.remove,
            self._resize.remove,
            self._random.remove,
        ):
            self._attempt("clean-up", undo)
        self._attempt("clean-up", self._allocator.abandon)
        self._undo.clear()

    def tables(self) -> Mapping[str, Columns]:
        """Return the tables ``alloc``, ``stack``, ``role``, ``mark``, and on CUDA ``block``, ``segment``,
        without the rows of chunks.
        """
        if self._tables is None:
            self._read_allocator()
            tables = self._take_ended(is_last=True)
            alloc = self._build_open_table()
            tables["alloc"] = {name: [*column, *alloc[name]] for name, column in tables["alloc"].items()}
            tables["stack"] = self._stacks.table()
            self._tables = merge_history(tables, self._history.tables())
        return self._tables

    def _take_ended(self, *, is_last: bool) -> dict[str, Columns]:
        """Return the rows that cannot change any more, and forget them.

        Blocks of collectives are closed one chunk late: their own free may be among the next events.
        """
        births = self._log.take_births()
        self._attempt("stacks", lambda: self._stacks.read(births))
        self._rows.add(births)
        self._recent_births = [*self._recent_births[-2:], births]
        known = [birth for chunk in self._recent_births for birth in chunk]
        new_works = self._work_patch.take_lifetimes()
        works = [*self._recent_works, *(new_works if is_last else ())]
        self._recent_works = new_works
        self._attempt(
            "allocator events", lambda: close_collective_scratch(self._allocator.list_open(), works, known)
        )
        storages, blocks = self._rows.take_ended(self._log.take_deaths()), self._allocator.take_closed()
        phases = build_mark_table(self._log.take_phases())
        failures = build_failure_marks(self._log.take_failures())
        return {
            "alloc": build_alloc_table(storages, blocks),
            "role": build_role_table(*self._log.take_claims()),
            "mark": {name: [*column, *failures[name]] for name, column in phases.items()},
        }

    def _build_open_table(self) -> Columns:
        return build_alloc_table(self._rows.list_open(), self._allocator.list_open())

    def gaps(self) -> list[Gap]:
        """Return a gap for everything that could not be recorded."""
        self._read_allocator()
        has_trained = bool(self._log.phases)
        model_gaps = [make_gap("model_not_given")] if self._without_model and has_trained else []
        if self.mode is not MemoryMode.LIGHT:
            return [*self._log.gaps, *model_gaps, *self._history.gaps()]
        light_mode_gaps = [make_gap("operators_not_recorded"), *self._first_step.gaps()]
        return [*self._log.gaps, *model_gaps, *light_mode_gaps, *self._history.gaps()]

    def _install(self, what: str, install: Callable[[], None], remove: Callable[[], None]) -> None:
        self._undo.append(remove)
        self._attempt(what, install)

    def _attempt(self, what: str, action: Callable[[], None]) -> None:
        """Run an optional action; an exception becomes a gap."""
        try:
            action()
        except Exception as error:
            self._log.gaps.append(make_gap("memory_part_failed", what=what, error=first_line(error)))

    def _remove_saved_tensor_hooks(self) -> None:
        """Remove the saved-tensor hooks, and the wrappers that kept collectives from capturing them."""
        self._hooks.remove_saved_tensor_hooks()
        self._work_patch.remove()

    def _remove_operator_recorder(self) -> None:
        if not remove_mode(self._operator_recorder):
            raise RuntimeError(
                "the window ended on a different thread than it started on; its mode stays on that thread"
            )

    def _read_allocator(self) -> None:
        if not self._events_are_read:
            self._events_are_read = True
            self._attempt("allocator events", self._allocator.read)


def as_sequence(optimizer: Optimizers) -> Sequence[torch.optim.Optimizer]:
    """Return the optimizers as a sequence."""
    if optimizer is None:
        return ()
    # An engine's own optimizer need not be one of torch's classes.
    return optimizer if isinstance(optimizer, list | tuple) else (cast("torch.optim.Optimizer", optimizer),)


class LightScans:
    """Scan within a step, limited to what may have changed."""

    def __init__(
        self, scanner: OwnerScanner, storages: StorageTracker, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Count the existing states of ``optimizers``, which the scan at the window's start claims."""
        self._scanner, self._storages = scanner, storages
        self._sizes = {id(optimizer): _count_states(optimizer) for optimizer in optimizers}
        self.empty_parameters = scanner.empty_parameters

    def begin_forward(self) -> None:
        """Do nothing: a dropped gradient ends with its storage, and the window's last scan covers
        the rest.
        """

    def on_module_called(self, module: nn.Module) -> None:
        """Scan the module only if a parameter has moved to another storage since the window's first scan."""
        for parameter in module._parameters.values():
            if parameter is not None:
                # The key of the parameter's storage; -1 if it has no storage of its own (DTensor).
                entry = self._storages.live.get(
                    parameter.untyped_storage()._cdata if type(parameter) is nn.Parameter else -1
                )
                if entry is None or WEIGHT not in entry.claimed:
                    self._scanner.on_module_called(module)
                    return

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Claim gradients that no hook recorded: reduced, copied or reshaped ones."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    for gradient in find_plain_tensors(parameter.grad):
                        entry = self._storages.track(gradient)
                        if not entry.claimed:
                            self._storages.claim(entry, GRADIENT)

    def after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Claim the states if their number has changed; the scan at the window's end covers all."""
        size = _count_states(optimizer)
        if self._sizes.get(id(optimizer)) != size:
            self._sizes[id(optimizer)] = size
            self._scanner.after_optimizer(optimizer)

    def claim_engine_tensors(self) -> None:
        """Claim what the engines hold; only new storages cost more than a look-up."""
        self._scanner.claim_engine_tensors()

    def claim_buckets(self) -> None:
        """Claim the buckets that the engines allocated in the backward pass."""
        self._scanner.claim_buckets()


def _count_states(optimizer: torch.optim.Optimizer) -> int:
    states: Any = getattr(optimizer, "state", None)  # an engine's own optimizer need not have one
    return sum(len(state) for state in states.values() if isinstance(state, dict)) if states else 0


class FirstStepWatcher:
    """Call ``on_done`` once, after the first step of all optimizers in the window."""

    def __init__(
        self, log: MemoryLog, optimizers: Sequence[torch.optim.Optimizer], on_done: Callable[[], None]
    ) -> None:
        self._log, self._on_done = log, on_done
        self._expected = {id(optimizer) for optimizer in optimizers}
        self._stepped: set[int] = set()
        self._thread = 0
        self._handle: Any = None
        self._end_phase_index: int | None = None

    def install(self) -> None:
        """Start waiting for the optimizers' steps on the calling thread."""
        self._thread = threading.get_ident()
        self._handle = register_optimizer_step_post_hook(self._step_done)

    def remove(self) -> None:
        """Stop waiting."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def gaps(self) -> list[Gap]:
        """Return a gap if the window has steps after the first, whose saved tensors are not recorded."""
        later_phases = [] if self._end_phase_index is None else self._log.phases[self._end_phase_index :]
        # A compiled model has no forward hooks; its optimizer's step still shows that a step ran.
        has_later_step = any(phase in _STEP_PHASES for _, phase in later_phases)
        return [make_gap("saved_tensors_of_first_step")] if has_later_step else []

    def _step_done(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Call ``on_done`` when all optimizers have stepped, or one has stepped twice.

        Do nothing within a backward pass (a per-parameter optimizer may step there) or on another thread:
        saved-tensor hooks belong to the thread, and the autograd engine restores its own set of them.
        """
        is_second_step = id(optimizer) in self._stepped
        self._stepped.add(id(optimizer))
        if not (is_second_step or self._expected <= self._stepped):
            return
        if current_graph_task_id() == -1 and threading.get_ident() == self._thread:
            self.remove()
            self._end_phase_index = len(self._log.phases)
            try:
                self._on_done()
            except Exception as error:  # an error in zprof must never reach the training loop
                self._log.fail("end of the first step", error)
