"""Record a training run: open and close the collectors' windows at step boundaries, and write the run
directory.

    with zprof.record("zero3.zprof", model=model, optimizer=optimizer) as recording:
        for batch in batches:
            ...
            recording.step()

An error in a collector never reaches the training loop: it becomes a gap in the run.
"""

import atexit
import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from zprof.base.errors import Extra, require_extra

try:
    import torch
    from torch import nn
except ModuleNotFoundError:
    require_extra(Extra.RECORD, "zprof.record")
    raise  # torch is installed, but one of its dependencies is missing

from zprof.collectors.record.base import Collector, Columns, FaultGuard, WindowRows, first_line
from zprof.collectors.record.clock_pings import ClockPings
from zprof.collectors.record.devices.watch import Devices, DeviceWatch
from zprof.collectors.record.identity import (
    RankIdentity,
    describe_device,
    describe_environment,
    identify_rank,
    stop_outside_recordings,
)
from zprof.collectors.record.kineto import KinetoCollector
from zprof.collectors.record.logs import MarkLog, SampleLog
from zprof.collectors.record.memory.collector import MemoryCollector, Optimizers, as_sequence
from zprof.collectors.record.memory.out_of_memory import read_failed_allocation, take_census, was_logged
from zprof.collectors.record.schedule import MemoryMode, RecordingSchedule, ScheduledWindow
from zprof.collectors.record.training import detect_framework, detect_training
from zprof.collectors.record.windows import Collectors, WindowRecorder
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.run.manifest import PlannedSteps, RunManifest, StepLine
from zprof.run.writer import RankWriter
from zprof.version import __version__

Owners = tuple[nn.Module | None, Sequence[torch.optim.Optimizer]]
ENABLE_VARIABLE = "ZPROF"
#: Step number of the sample before the first step.
_BEFORE_FIRST_STEP = -1


def record(
    path: str | Path,
    *,
    model: nn.Module | None = None,
    optimizer: Optimizers = None,
    steps: RecordingSchedule | None = None,
    training: TrainingFacts | Callable[[], TrainingFacts] | None = None,
    memory_mode: str = MemoryMode.FULL,
) -> "Recorder":
    """Return a recorder for this rank; enter it on every rank, and call ``step()`` after each optimizer step.

    Args:
        path: The run directory. Every rank of the job passes the same path.
        model: The model that the program calls (the DDP or FSDP wrapper). Memory is labelled with its
            modules.
        optimizer: One optimizer or several; their states become the tenant ``optimizer_state``.
        steps: The steps to record, see ``zprof.steps``.
        training: Facts about the program; by default they are detected from the model. A function is called
            again after the first step, when the optimizer has its states.
        memory_mode: ``full``: every operator and allocation. ``light``: hooks only, at most 1 % overhead.

    ``ZPROF=0`` in the environment turns recording off without changing the program. If the program is also
    recorded from outside (``zprof record``), that recording stops.
    """
    mode = MemoryMode(memory_mode)
    stop_outside_recordings()
    collectors: Collectors = {
        ScheduledWindow.MEMORY: lambda: MemoryCollector(model, optimizer, mode),
        ScheduledWindow.TIME: KinetoCollector,
    }
    return Recorder(
        path,
        steps or RecordingSchedule(),
        training if callable(training) else lambda: training or detect_training(model, optimizer),
        collectors,
        memory_mode=mode,
        devices=DeviceWatch(),
        owners=lambda: (model, as_sequence(optimizer)),
    )


def _own_nothing() -> Owners:
    return None, ()


class Recorder:
    """Record this rank's part of a run. Use it through :func:`record`.

    After the last scheduled step the run is written and ``step()`` does nothing.
    """

    def __init__(
        self,
        path: str | Path,
        schedule: RecordingSchedule,
        training: Callable[[], TrainingFacts],
        collectors: Collectors,
        *,
        memory_mode: MemoryMode = MemoryMode.FULL,
        identity: Callable[[], RankIdentity] = identify_rank,
        devices: Devices | None = None,
        set_writing: Callable[[bool], None] = lambda is_writing: None,
        owners: Callable[[], Owners] | None = None,
        more_gaps: Callable[[], list[Gap]] = list,
    ) -> None:
        self.path = Path(path)
        self._schedule, self._training, self._identity = schedule, training, identity
        self._memory_mode = memory_mode
        self._owners = owners or _own_nothing
        self._marks, self._samples = MarkLog(), SampleLog()
        self._devices = devices or Devices()
        self._set_writing, self._more_gaps = set_writing, more_gaps
        self._guard = FaultGuard()
        self._windows = WindowRecorder(collectors, self._marks, self._guard)
        self._writer: RankWriter | None = None
        self._manifest: RunManifest | None = None
        self._step, self._step_start_ns = 0, 0
        self._skipped_steps: list[int] = []
        self._process_id = 0

    def __enter__(self) -> Self:
        if os.environ.get(ENABLE_VARIABLE) != "0" and self.open():
            self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._writer is not None:
            self.save_failure(error, *self._owners())
        self._owners = _own_nothing
        self.close("complete" if error is None else "failed")

    def open(self) -> bool:
        """Create this rank's folder. Return False, with a warning, if that failed."""
        return self._guard.succeeds("recorder start", self._open)

    def get_failure_reason(self) -> str:
        """Return the reason of the last failure."""
        return self._guard.gaps[-1].reason if self._guard.gaps else "unknown"

    def begin(self, first_step: int = 0, earlier_pings: ClockPings | None = None) -> None:
        """Start the first recorded step. The schedule's ``skip`` counts from step 0.

        ``earlier_pings``: of an earlier recording of this process; their process group is used again.
        """
        self._step = first_step
        self._schedule = replace(self._schedule, skip=max(self._schedule.skip, first_step))
        self._windows.pings = (
            earlier_pings.continue_in(self._marks)
            if earlier_pings
            else ClockPings(self._marks, schedule=str(self._schedule))
        )
        self._guard.run("counters", lambda: self._samples.add(_BEFORE_FIRST_STEP))
        if first_step:
            self._guard.run("training facts", self._update_manifest)
        self._enter_step()

    def step(self, *, skipped: bool = False) -> None:
        """Mark the end of a step (one optimizer step); ``skipped``: the loss scale overflowed, no update."""
        if not self.active:
            return
        end_ns = self._marks.add_step_mark("step_end", self._step)
        if skipped:
            self._skipped_steps.append(self._step)
        self._guard.run("step log", lambda: self._leave_step(end_ns))
        self._guard.run("device counters", self._devices.step)
        if self._schedule.window(self._step + 1) is not self._windows.current:
            self._close_window()
        else:
            # Write the rows of the open window so far: memory stays bounded, and a kill loses little.
            chunk = self._windows.cut()
            if chunk is not None:
                self._guard.run(f"{self._windows.current} tables", lambda: self._write_chunk(chunk))
                self._guard.run("run files", lambda: self._flush("partial"))
                self._windows.align()
        self._step += 1
        if self._step == self._schedule.total:
            self._close("complete")
        else:
            self._enter_step()

    def add(self, tables: Mapping[str, Columns], gaps: list[Gap]) -> None:
        """Write tables that were recorded outside this recorder's windows; marks are added to its own."""
        self._guard.gaps.extend(gaps)
        self._guard.run("tables", lambda: self._write(tables))
        self._guard.run("run files", lambda: self._flush("partial"))

    def save_failure(
        self, error: BaseException, model: nn.Module | None, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Record the error that ended the program and, if an allocation failed, what held the memory.

        The tensors must still exist. Can be called after the recording has ended.
        """
        self._guard.run("program's error", lambda: self._save_failure(error, model, optimizers))

    def _save_failure(
        self, error: BaseException, model: nn.Module | None, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        failure = read_failed_allocation(error)
        if failure is None and not self.active:
            return  # the recording was complete
        step = self._step if self.active else None
        is_interrupt, name = isinstance(error, KeyboardInterrupt), type(error).__name__
        self._guard.gaps.append(
            make_gap(
                "program_failed_after_steps" if step is None else "program_failed",
                step=step,
                detail="Ctrl-C" if is_interrupt else name,
                error="an interrupt" if is_interrupt else f"{name}: {first_line(error)}",
            )
        )
        if failure is not None and not was_logged(error):
            self._write(take_census(failure, error, model, optimizers, -1 if step is None else step))
        if not self.active:
            self._flush("failed")

    def save_stall(
        self, kind: str, stall_ns: int, tables: Mapping[str, Columns], gaps: Sequence[Gap]
    ) -> bool:
        """Add the mark of a stall and replace its tables, from any thread, also after the recording.

        Return True if the run on disk has them. Memory is limited to what was already recorded: a stalled
        program is not touched.
        """
        if kind:
            self._marks.add(kind, stall_ns)
        if tables and not self._windows.recorded_steps[ScheduledWindow.MEMORY]:
            gaps = [*gaps, make_gap("no_memory_at_stall")]
        new_gaps = [gap for gap in gaps if gap not in self._guard.gaps]
        self._guard.gaps.extend(new_gaps)
        return self._guard.succeeds("stall", lambda: self._write_stall(tables, new_gaps))

    def _write_stall(self, tables: Mapping[str, Columns], gaps: Sequence[Gap]) -> None:
        assert self._writer is not None
        for name, columns in {**tables, "mark": self._marks.columns()}.items():
            self._writer.write_table(name, columns)
        self._writer.publish(gaps)

    def close(self, status: str, *, steps: int = 0) -> None:
        """End the recording, if it has not ended. ``steps`` is the number of steps that the program
        has run.
        """
        if self.active:
            self._step = max(self._step, steps)
            self._close(status)

    @property
    def pings(self) -> ClockPings | None:
        """The pings that align the clocks of the ranks; None before the first recorded step."""
        return self._windows.pings

    @property
    def active(self) -> bool:
        """True from entry to the last scheduled step, and False in a fork of the process."""
        return self._process_id == os.getpid()

    def abandon(self) -> None:
        """Remove everything that was installed, in a fork of the recording process."""
        self._windows.abandon()

    def _open(self) -> None:
        identity = self._identity()
        facts = self._guard.run("training facts", self._read_training)
        if facts is None:
            self._training = TrainingFacts
        self._manifest = RunManifest(
            zprof_version=__version__,
            created_ns=time.time_ns(),
            world_size=identity.world_size,
            backend=identity.backend,
            device=describe_device(),
            training=facts or TrainingFacts(),
            environment=describe_environment(),
            run_id=identity.run_id,
            planned=_make_planned_steps(self._schedule),
            folder=self._guard.run("working folder", os.getcwd) or "",
        )
        self._writer = RankWriter(self.path, identity.rank, self._manifest)
        self._process_id = os.getpid()
        atexit.register(self._at_exit)
        self._guard.run("device counters", self._devices.start)

    def _enter_step(self) -> None:
        window = self._schedule.window(self._step)
        if window is not None and self._windows.current is None:
            self._windows.open(window, self._step)
        self._step_start_ns = self._marks.add_step_mark("step_begin", self._step)

    def _leave_step(self, end_ns: int) -> None:
        assert self._writer is not None
        counters = self._guard.run("counters", lambda: self._samples.add(self._step)) or {}
        self._writer.step_done(
            StepLine(
                step=self._step,
                begin_ns=self._step_start_ns,
                end_ns=end_ns,
                window=str(self._windows.current or ""),
                **counters,
            )
        )
        self._windows.step_done(self._step)
        if self._step == 0:
            self._update_manifest()

    def _read_training(self) -> TrainingFacts:
        """Return the training facts, with the framework whose loop calls the recorder, if there is one."""
        facts = self._training()
        if facts.framework is not None:
            return facts
        known = self._manifest.training.framework if self._manifest is not None else None
        return replace(facts, framework=known or detect_framework())

    def _update_manifest(self) -> None:
        """Update the manifest: the ZeRO formulas need the optimizer states, which exist after the
        first step.
        """
        assert self._writer is not None
        assert self._manifest is not None
        updated = replace(
            self._manifest, training=self._read_training(), planned=_make_planned_steps(self._schedule)
        )
        if updated != self._manifest:
            self._manifest = updated
            self._writer.describe(updated)

    def _write_chunk(self, chunk: WindowRows) -> None:
        assert self._writer is not None
        for name, columns in chunk.complete.items():
            if name == "mark":
                self._marks.extend(columns)
            else:
                self._writer.append(name, columns)
        for name, columns in chunk.open.items():
            self._writer.replace_tail(name, columns)

    def _close_window(self) -> None:
        if self._windows.current is None:
            return
        self._guard.run("progress", lambda: self._set_writing(True))
        window, collector = self._windows.current, self._windows.close(self._step)
        if collector is not None:
            self._guard.run(f"{window} tables", lambda: self._collect(collector))
        self._guard.run("run files", lambda: self._flush("partial"))
        self._guard.run("memory", _return_free_memory)
        self._guard.run("progress", lambda: self._set_writing(False))

    def _collect(self, collector: Collector) -> None:
        self._guard.gaps.extend(collector.gaps())
        self._write(collector.tables())

    def _write(self, tables: Mapping[str, Columns]) -> None:
        assert self._writer is not None
        for name, columns in tables.items():
            if name == "mark":
                self._marks.extend(columns)
            elif name in self._writer.list_unmerged():
                self._writer.merge_parts(name, columns)
            else:
                self._writer.write_table(name, columns)

    def _flush(self, status: str) -> None:
        assert self._writer is not None
        pings = self._windows.pings
        self._writer.write_table("mark", self._marks.columns())
        self._writer.write_table("samples", self._samples.columns())
        self._guard.run("device counters", self._write_devices)
        self._writer.finish(
            memory_steps=self._windows.recorded_steps[ScheduledWindow.MEMORY],
            time_steps=self._windows.recorded_steps[ScheduledWindow.TIME],
            gaps=[
                *self._guard.gaps,
                *(pings.gaps() if pings else []),
                *self._devices.gaps(),
                *([make_gap("updates_skipped", steps=self._skipped_steps)] if self._skipped_steps else []),
                *self._more_gaps(),
            ],
            status=status,
            memory_mode=str(self._memory_mode)
            if self._windows.recorded_steps[ScheduledWindow.MEMORY]
            else "",
        )

    def _write_devices(self) -> None:
        assert self._writer is not None
        if (columns := self._devices.columns()) is not None:
            self._writer.write_table("device", columns)

    def _at_exit(self) -> None:
        """Close a window that is open at exit: a running profiler would crash the interpreter's shutdown."""
        self.close("failed")

    def _close(self, status: str) -> None:
        self._process_id = 0
        atexit.unregister(self._at_exit)
        if self._step < self._schedule.total and self._windows.pings is not None:
            self._guard.run("clock pings", self._windows.pings.leave)
        self._close_window()
        self._windows.drop_factories()
        self._training = TrainingFacts  # it referenced the model
        self._guard.run("device counters", self._devices.stop)
        if self._step < self._schedule.total:
            self._guard.gaps.append(
                make_gap("recording_cut_short", steps=self._step, scheduled=self._schedule.total)
            )
        self._guard.run("run files", lambda: self._flush(status))


def _return_free_memory() -> None:
    """Give the memory that a window used back to the system; glibc would keep it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _make_planned_steps(schedule: RecordingSchedule) -> PlannedSteps:
    return PlannedSteps(skip=schedule.skip, memory=schedule.memory, time=schedule.time)
