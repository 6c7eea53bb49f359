"""Record memory from the first parameter that a program registers to the end of its first step.

The window does not start with the process: a process that never builds a model (a launcher, a data-loader
worker) has no cost, and a full model that is built before it is sharded is recorded from its first parameter.
The profiler's events stay in memory, so the window ends early at a limit.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from zprof.collectors.base import Columns, FaultGuard
from zprof.collectors.logs import MarkLog
from zprof.collectors.memory.collector import MemoryCollector
from zprof.collectors.program.discovery import Trained
from zprof.collectors.schedule import ScheduledWindow
from zprof.collectors.torch_private import is_outside_modes
from zprof.model.gaps import Gap, GapKind

MAX_ROWS = 1_000_000
MAX_SECONDS = 600.0
_CHECK_EVERY_S = 1.0
#: Step number of the window's marks, which precede the first step.
BEFORE_STEPS = -1


class InitWindow:
    """Record the init window, armed at the start of a program; every error in it becomes a gap."""

    def __init__(self, *, max_rows: int = MAX_ROWS, max_seconds: float = MAX_SECONDS) -> None:
        self._max_rows, self._max_seconds = max_rows, max_seconds
        self._guard = FaultGuard()
        self._marks = MarkLog()
        self._collector: MemoryCollector | None = None
        self._tables: dict[str, Columns] = {}
        self._handles: list[Any] = []
        self._thread = 0
        self._limit_message = ""
        self._closed = threading.Event()

    def arm(self) -> None:
        """Install the hooks that start the window at the first parameter."""
        parameter = torch_module.register_module_parameter_registration_hook
        buffer = torch_module.register_module_buffer_registration_hook
        self._handles.append(parameter(self._make_hook(is_buffer=False)))
        self._handles.append(buffer(self._make_hook(is_buffer=True)))

    def set_trained(self, trained: Trained) -> None:
        """Set the trained models and optimizers, before the first optimizer steps."""
        collector = self._collector
        if collector is not None:
            self._guard.run("init window", lambda: collector.adopt(trained.model(), trained.optimizers))

    def check(self) -> None:
        """End the window if it exceeds its limit; called where no operator runs."""
        if self._limit_message and threading.get_ident() == self._thread:
            self.close()

    def close(self) -> None:
        """End the window and keep its tables."""
        self._closed.set()
        while self._handles:
            self._guard.run("init window", self._handles.pop().remove)
        collector, self._collector = self._collector, None
        if collector is None:
            return
        self._marks.add("window_end", BEFORE_STEPS, ScheduledWindow.INIT)
        if self._guard.succeeds("init window", collector.stop):
            self._guard.run("init window", lambda: self._store(collector))

    def abandon(self) -> None:
        """Remove everything that was installed, in a fork of the recording process."""
        self._closed.set()
        collector, self._collector = self._collector, None
        for handle in self._handles:
            handle.remove()
        if collector is not None:
            collector.abandon()

    def tables(self) -> Mapping[str, Columns]:
        """Return ``init_alloc`` and ``init_role``, after ``close``; empty if nothing was recorded."""
        return self._tables

    def marks(self) -> Columns:
        """Return the window's own marks."""
        return self._marks.columns()

    def gaps(self) -> list[Gap]:
        """Return a gap for everything that could not be recorded."""
        gaps = list(self._guard.gaps)
        if self._limit_message:
            gaps.append(
                Gap(
                    kind=GapKind.MEMORY_PART,
                    what="memory before the first step",
                    reason=f"the first step came too late: recording ended after {self._limit_message}",
                    remedy="the recorded part is valid; --no-init disables this window",
                )
            )
        elif not self._marks.time_ns:
            gaps.append(
                Gap(
                    kind=GapKind.MEMORY_PART,
                    what="memory before the first step",
                    reason="no module registered a parameter where zprof could record it",
                    remedy="none for programs that train tensors outside modules",
                )
            )
        return gaps

    def _make_hook(self, *, is_buffer: bool) -> Callable[..., None]:
        def on_registered(module: nn.Module, name: str, tensor: torch.Tensor | None) -> None:
            if tensor is not None and not torch.compiler.is_compiling():
                self._guard.run("init window", lambda: self._on_registered(tensor, is_buffer))

        return on_registered

    def _on_registered(self, tensor: torch.Tensor, is_buffer: bool) -> None:
        if not self._thread and not self._closed.is_set() and is_outside_modes():
            self._thread = threading.get_ident()
            collector = MemoryCollector(None, None)
            collector.start()
            self._collector = collector
            self._marks.add("window_begin", BEFORE_STEPS, ScheduledWindow.INIT)
            threading.Thread(
                target=self._watch_limit, args=(collector,), name="zprof-init", daemon=True
            ).start()
        self.check()
        if self._collector is not None and not self._limit_message:
            self._collector.on_registered(tensor, is_buffer=is_buffer)

    def _watch_limit(self, collector: MemoryCollector) -> None:
        """Watch the limit on a separate thread, which can only mute; the window's thread must end
        the window.
        """
        started_s = time.monotonic()
        while not self._closed.wait(_CHECK_EVERY_S):
            row_count, seconds = collector.count_rows(), time.monotonic() - started_s
            if row_count > self._max_rows or seconds > self._max_seconds:
                self._limit_message = f"{row_count} rows in {seconds:.0f} s"
                collector.mute()
                self._handles.append(torch_module.register_module_forward_pre_hook(self._before_forward))
                return

    def _before_forward(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.check()

    def _store(self, collector: MemoryCollector) -> None:
        tables = collector.tables()
        no_stacks = [None] * len(
            tables["alloc"]["stack"]
        )  # the table ``stack`` belongs to the memory window only
        alloc = {**tables["alloc"], "stack": no_stacks}
        self._tables = {"init_alloc": alloc, "init_role": tables["role"]}
        self._marks.extend(tables["mark"])
        self._guard.gaps.extend(collector.gaps())
