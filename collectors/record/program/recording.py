"""Record a program that does not use zprof, from its first parameter to the end of the schedule.

    arm -> (first parameter: init window) -> first step done: folder, init tables -> cycle known: Recorder

An error here ends the recording with a warning; it never reaches the program.

The window of memory before the first step does not start with the process: a process that never builds a
model (a launcher, a data-loader worker) has no cost, and a full model that is built before it is sharded is
recorded from its first parameter. The profiler's events stay in memory, so the window ends early at a limit.
"""

import atexit
import gc
import multiprocessing.util
import os
import sys
import threading
import weakref
from collections.abc import Callable, MutableMapping
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from torch.utils.weak import WeakIdKeyDictionary

from zprof.collectors.record.base import FaultGuard
from zprof.collectors.record.devices.watch import DeviceWatch
from zprof.collectors.record.engines.deepspeed import EngineSteps, is_called_by_engine
from zprof.collectors.record.identity import RECORDING_VARIABLE, OutsideRecording, identify_rank
from zprof.collectors.record.program.discovery import Optimizer, Trained, find_idle_optimizers, find_trained
from zprof.collectors.record.program.steps import OptimizerSteps, StepCycle
from zprof.collectors.record.schedule import MemoryMode, RecordingSchedule, ScheduledWindow
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts

if TYPE_CHECKING:
    from zprof.collectors.record.recorder import Recorder
    from zprof.collectors.record.watch.watcher import RankWatch, WatchPlan
    from zprof.collectors.record.windows import Collectors
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from zprof.collectors.record.base import Columns
from zprof.collectors.record.logs import MarkLog
from zprof.collectors.record.memory.collector import MemoryCollector
from zprof.collectors.record.torch_private import is_outside_modes

#: Steps to wait for an optimizer that exists but has not stepped yet.
MAX_STEPS_TO_WAIT = 6
MAX_ROWS = 1_000_000
MAX_SECONDS = 600.0
_CHECK_EVERY_S = 1.0
#: Step number of the window's marks, which precede the first step.
BEFORE_STEPS = -1


class RecordingPlan(Struct, frozen=True, kw_only=True):
    """Plan of a recording from outside. ``may_record`` is called once, with this process's rank.

    ``say`` is called with one line, the reason why nothing was recorded; ``set_writing`` before and after
    this rank writes a window.
    """

    path: Path
    schedule: RecordingSchedule
    memory_mode: MemoryMode = MemoryMode.FULL
    init: bool = True
    may_record: Callable[[int], bool] = lambda rank: True
    say: Callable[[str], None] = lambda note: None
    set_writing: Callable[[int, bool], None] = lambda rank, is_writing: None
    watch: "WatchPlan | None" = None


class ProgramRecording(OutsideRecording):
    """Record a program from outside.

    Create it after torch has been imported and before the program creates an optimizer.
    """

    def __init__(self, plan: RecordingPlan) -> None:
        self._plan = plan
        self._guard = FaultGuard()
        self._cycle = StepCycle()
        self._steps = OptimizerSteps(
            lambda optimizer: self._guard.run("program recording", lambda: self._add_optimizer(optimizer)),
            self._after_step,
            self._after_backward,
        )
        self._engine_steps = EngineSteps(
            lambda _engine: self._guard.run("program recording", self._set_init_trained),
            self._after_step,
        )
        self._init = InitWindow() if plan.init and plan.memory_mode is MemoryMode.FULL else None
        self._devices = (
            DeviceWatch()
        )  # from the start, because a group's first collective precedes the windows
        #: Whether an engine steps the optimizer, by optimizer.
        self._stepped_optimizers: MutableMapping[object, bool] = WeakIdKeyDictionary()
        self._recorder: Recorder | None = None
        self._watch: RankWatch | None = None
        self._has_started = False
        self._steps_to_wait = MAX_STEPS_TO_WAIT
        self._backwards = self._backwards_of_step = 0
        self._process_id = 0
        self._is_fork = False
        self._previous_hook = sys.excepthook
        self._owner_id, self._has_stood_down = 0, False

    def arm(self) -> None:
        """Start recording the program."""
        self._process_id = self._owner_id = os.getpid()
        os.environ[RECORDING_VARIABLE] = str(self._process_id)
        self._guard.run("program recording", self._steps.install)
        if self._init is not None:
            self._guard.run("init window", self._init.arm)
        self._guard.run("device counters", self._devices.start)
        self._guard.run("watch for stalls", self._start_watch)
        atexit.register(self.finish)
        self._previous_hook = sys.excepthook
        sys.excepthook = self._on_error
        on_fork = weakref.WeakMethod(self._on_fork)
        os.register_at_fork(after_in_child=lambda: (call := on_fork()) and call())

    def finish(self) -> None:
        """Write the remaining tables and remove everything, at the program's exit."""
        if self._process_id == os.getpid():
            self._stop()

    def _on_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Save what held the memory while the frames of the traceback still hold it; then go on as before."""
        try:
            if self._owner_id == os.getpid() and threading.current_thread() is threading.main_thread():
                self._guard.run("program's error", lambda: self._save_failure(error))
        finally:
            self._previous_hook(kind, error, trace)

    def _save_failure(self, error: BaseException) -> None:
        """Write the failure of the program, also if it comes before the first step or after the last one."""
        if isinstance(error, SystemExit) or self._has_stood_down:
            return
        from zprof.collectors.record.memory.out_of_memory import read_failed_allocation

        recorder = self._recorder
        if recorder is None and self._process_id == os.getpid() and read_failed_allocation(error) is not None:
            recorder = self._recorder = self._create_recorder()
        if recorder is not None:
            trained = self._find_trained()
            recorder.save_failure(error, trained.model(), trained.optimizers)

    def stand_down(self) -> None:
        """Stop recording, because the program records itself."""
        self._plan.say("the program records itself with zprof.record(); only that recording is kept")
        self._has_stood_down = True
        if self._watch is not None:
            self._watch.stop()
        self._stop()

    def _start_watch(self) -> None:
        if self._plan.watch is not None:
            from zprof.collectors.record.watch.watcher import RankWatch

            self._watch = RankWatch(self._plan.watch)
            self._watch.start()

    def _add_optimizer(self, optimizer: Optimizer) -> None:
        if optimizer in self._stepped_optimizers:
            return
        self._stepped_optimizers[optimizer] = is_called_by_engine()
        if self._stepped_optimizers[optimizer]:
            self._engine_steps.install()
        else:
            self._set_init_trained()

    def _after_step(self, optimizer: object, skipped: bool) -> None:
        if self._stepped_optimizers.get(optimizer):
            return
        if self._process_id == os.getpid() and not self._guard.succeeds(
            "program recording", lambda: self._handle_step(optimizer, skipped=skipped)
        ):
            self._guard.run("program recording", self._stop)

    def _set_init_trained(self) -> None:
        """Tell the init window what is trained, before the first step."""
        if self._recorder is None and self._init is not None:
            self._init.set_trained(self._find_trained())

    def _after_backward(self, accumulates: bool) -> None:
        self._backwards += accumulates
        self._engine_steps.install()
        if self._init is not None:
            self._guard.run("init window", self._init.check)

    def _handle_step(self, optimizer: object, *, skipped: bool) -> None:
        is_step_end = self._cycle.record_step(optimizer)
        if is_step_end:
            self._backwards_of_step, self._backwards = self._backwards, 0
        recorder = self._recorder = self._recorder or self._create_recorder()
        if recorder is None:
            self._stop()
        elif self._has_started and is_step_end:
            recorder.step(skipped=skipped)
        elif self._cycle.has_repeated and is_step_end and not self._must_wait():
            self._cycle.freeze_order()
            self._has_started = True
            if (trained := self._find_trained()).by_size:
                models = [type(model).__name__ for model in trained.models]
                recorder.add({}, [make_gap("model_by_size", models=models)])
            recorder.begin(
                self._cycle.step_count
            )  # last, so that slow work here is not part of a recorded step
        if recorder is not None and not recorder.active:
            self._stop()

    def _create_recorder(self) -> "Recorder | None":
        """Create the recorder after the first step and write earlier tables; None to record nothing."""
        from zprof.collectors.record.recorder import Recorder

        if self._init is not None:
            self._init.close()
        identity = identify_rank()
        if not self._plan.may_record(identity.rank):
            return None
        if self._watch is not None:  # a rank that hangs before its first step cannot ask the others
            identity = replace(identity, run_id=self._watch.agree_on_run_id(identity.run_id))
        recorder = Recorder(
            self._plan.path,
            self._plan.schedule,
            self._detect_facts,
            self._make_collectors(),
            memory_mode=self._plan.memory_mode,
            identity=lambda: identity,
            devices=self._devices,
            set_writing=lambda is_writing: self._plan.set_writing(identity.rank, is_writing),
            more_gaps=self._list_step_gaps,
        )
        with nullcontext() if self._watch is None else self._watch.hold_writes():
            has_opened = recorder.open()
            if has_opened and self._watch is not None:
                self._watch.attach(recorder)
        if not has_opened:
            self._plan.say(f"nothing was recorded as rank {identity.rank}: {recorder.get_failure_reason()}")
            return None
        atexit.unregister(self.finish)
        atexit.register(self.finish)  # to run before the recorder's own handler, which has less information
        if self._is_fork:
            multiprocessing.util.Finalize(
                None, self.finish, exitpriority=0
            )  # a fork exits without atexit handlers
            recorder.add({}, [make_gap("init_of_fork")])
        if self._init is not None:
            recorder.add({**self._init.tables(), "mark": self._init.marks()}, self._init.gaps())
        self._init = None
        return recorder

    def _make_collectors(self) -> "Collectors":
        from zprof.collectors.record.kineto import KinetoCollector
        from zprof.collectors.record.memory.collector import MemoryCollector

        def make_memory_collector() -> MemoryCollector:
            trained = self._find_trained()
            return MemoryCollector(trained.model(), trained.optimizers, self._plan.memory_mode)

        return {ScheduledWindow.MEMORY: make_memory_collector, ScheduledWindow.TIME: KinetoCollector}

    def _detect_facts(self) -> TrainingFacts:
        from zprof.collectors.record.training import detect_training

        trained = self._find_trained()
        # Several optimizers have backwards of their own: those are not micro-batches of one.
        is_one = len(self._stepped_optimizers) == 1
        micro_batches = max(1, self._backwards_of_step) if is_one else 1
        return detect_training(trained.model(), trained.optimizers, micro_batches=micro_batches)

    def _find_trained(self) -> Trained:
        """Find the trained objects anew each time: a stored reference would keep them alive."""
        return find_trained(self._list_stepped())

    def _list_stepped(self) -> list[Optimizer]:
        return [each for each in self._stepped_optimizers if isinstance(each, Optimizer)]

    def _must_wait(self) -> bool:
        """Return True if an optimizer that may belong to the cycle has not stepped yet.

        Garbage is collected first: on some ranks it may contain optimizers, on others not.
        """
        self._steps_to_wait -= 1
        if any(self._stepped_optimizers.values()) or self._steps_to_wait <= 0:
            return False
        if not find_idle_optimizers(self._list_stepped()):
            return False
        gc.collect()
        return bool(find_idle_optimizers(self._list_stepped()))

    def _list_step_gaps(self) -> list[Gap]:
        skip = self._plan.schedule.skip
        uncertain, replaced = (
            [step for step in steps if step >= skip]
            for steps in (self._cycle.uncertain_steps, self._cycle.replaced_steps)
        )
        gaps = [make_gap("step_ends_uncertain", steps=uncertain)] if uncertain else []
        if replaced:
            gaps.append(make_gap("optimizer_replaced", steps=replaced, last=replaced[-1]))
        return gaps

    def _stop(self) -> None:
        self._process_id = 0
        os.environ.pop(RECORDING_VARIABLE, None)
        atexit.unregister(self.finish)
        self._guard.run("program recording", self._steps.remove)
        self._guard.run("program recording", self._engine_steps.remove)
        if self._init is not None:
            self._init.close()
        recorder = self._recorder
        if recorder is not None and recorder.active:
            recorder.add({}, self._guard.gaps)
            recorder.close("failed", steps=self._cycle.step_count)
        self._guard.run("device counters", self._devices.stop)

    def _on_fork(self) -> None:
        """Do not touch the parent's recording; if the parent has not stepped, record this process as a new
        one.

        A launcher that forks its ranks (from a notebook) imports torch but never trains.
        """
        if not self._process_id:
            return
        if self._init is not None:
            self._init.abandon()
            self._init = None
        if self._recorder is not None:
            self._steps.remove()
            self._engine_steps.remove()
            self._recorder.abandon()
            return
        self._process_id = self._owner_id = os.getpid()
        os.environ[RECORDING_VARIABLE] = str(self._process_id)
        self._is_fork = True
        self._devices = DeviceWatch()  # the parent's thread does not exist in this process
        self._guard.run("watch for stalls", self._start_watch)


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
            gaps.append(make_gap("init_too_long", limit=self._limit_message))
        elif not self._marks.time_ns:
            gaps.append(make_gap("init_without_parameters"))
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
