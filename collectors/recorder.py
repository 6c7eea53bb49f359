"""Records a training run: opens and closes the collectors' windows at step boundaries and writes the run.

    with zprof.record("zero3.zprof", model=model, optimizer=optimizer) as recording:
        for batch in batches:
            ...
            recording.step()

A fault of a collector never reaches the training loop: it becomes a gap in the run.
"""

import atexit
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import torch.distributed as dist
from torch import nn

from zprof.collectors.base import Collector
from zprof.collectors.clock import ClockPings
from zprof.collectors.environment import describe_device, describe_environment
from zprof.collectors.faults import FaultGuard
from zprof.collectors.kineto.collector import KinetoCollector
from zprof.collectors.marks import MarkLog
from zprof.collectors.memory.collector import MemoryCollector, Optimizers
from zprof.collectors.run_id import agree_on_run_id
from zprof.collectors.samples import SampleLog
from zprof.collectors.schedule import Schedule, Window
from zprof.collectors.training import detect_training
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.writer import RankWriter
from zprof.version import __version__

#: Makes the collector of a window when the window opens.
Collectors = Mapping[Window, Callable[[], Collector]]
OFF_SWITCH = "ZPROF"


def record(
    path: str | Path,
    *,
    model: nn.Module | None = None,
    optimizer: Optimizers = None,
    steps: Schedule | None = None,
    training: TrainingFacts | None = None,
) -> "Recorder":
    """A recorder for this rank; enter it on every rank, and call ``step()`` after each optimizer step.

    Args:
        path: The run directory.  Every rank of the job gives the same path.
        model: The model as it is called (the DDP or FSDP wrapper); names memory by module.
        optimizer: One or several; their states are told apart from other memory.
        steps: Which steps are recorded, see :func:`zprof.steps`.
        training: What the program knows of itself; what is not given is detected from the model.

    ``ZPROF=0`` in the environment turns recording off without a change of the program.
    """
    collectors: Collectors = {
        Window.MEMORY: lambda: MemoryCollector(model, optimizer),
        Window.TIME: KinetoCollector,
    }
    return Recorder(path, steps or Schedule(), lambda: training or detect_training(model), collectors)


class Recorder:
    """Records this rank's part of a run.  Use it through :func:`record`.

    Once the last scheduled step is over, the run is written and ``step()`` does nothing more.
    """

    def __init__(
        self,
        path: str | Path,
        schedule: Schedule,
        training: Callable[[], TrainingFacts],
        collectors: Collectors,
    ) -> None:
        self.path = Path(path)
        self._schedule, self._training, self._collectors = schedule, training, collectors
        self._marks, self._samples = MarkLog(), SampleLog()
        self._guard = FaultGuard()
        self._done: dict[Window, list[int]] = {Window.MEMORY: [], Window.TIME: []}
        self._window: Window | None = None
        self._collector: Collector | None = None
        self._writer: RankWriter | None = None
        self._pings: ClockPings | None = None
        self._step, self._step_begin_ns = 0, 0
        self._process_id = 0

    def __enter__(self) -> Self:
        if os.environ.get(OFF_SWITCH) != "0":
            self._guard.run("recorder start", self._open)
        if self._active:
            self._enter_step()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active:
            self._close("complete" if error is None else "failed")

    def step(self) -> None:
        """Say that a step (one optimizer step) is over."""
        if not self._active:
            return
        end_ns = self._marks.add("step_end", self._step)
        self._guard.run("step log", lambda: self._leave_step(end_ns))
        if self._schedule.window(self._step + 1) is not self._window:
            self._close_window()
        self._step += 1
        if self._step == self._schedule.total:
            self._close("complete")
        else:
            self._enter_step()

    def _open(self) -> None:
        rank, world_size = _rank_and_world_size()
        manifest = RunManifest(
            zprof_version=__version__,
            created_ns=time.time_ns(),
            world_size=world_size,
            backend=dist.get_backend() if dist.is_available() and dist.is_initialized() else "none",
            device=describe_device(),
            training=self._guard.run("training facts", self._training) or TrainingFacts(),
            environment=describe_environment(),
            run_id=agree_on_run_id(),
        )
        self._writer = RankWriter(self.path, rank, manifest)
        self._process_id = os.getpid()
        atexit.register(self._at_exit)
        self._pings = ClockPings(self._marks, schedule=str(self._schedule))

    def _enter_step(self) -> None:
        window = self._schedule.window(self._step)
        if window is not None and self._window is None:
            self._open_window(window)
        self._step_begin_ns = self._marks.add("step_begin", self._step)

    def _leave_step(self, end_ns: int) -> None:
        assert self._writer is not None
        self._samples.add(self._step)
        self._writer.step_done(self._step, self._step_begin_ns, end_ns)
        if self._window is not None:
            self._done[self._window].append(self._step)

    def _open_window(self, window: Window) -> None:
        self._window = window
        self._collector = self._guard.run(f"{window} collector", self._collectors[window])
        if self._collector is not None and not self._guard.succeeds(f"{window} start", self._collector.start):
            self._guard.run(f"{window} stop", self._collector.stop)
            self._collector = None
        if window is Window.TIME and self._pings is not None:
            self._pings.fire()
        self._marks.add("window_begin", self._step, str(window))

    def _close_window(self) -> None:
        if self._window is None:
            return
        window, collector = self._window, self._collector
        self._window = self._collector = None
        self._marks.add("window_end", self._step, str(window))
        if window is Window.TIME and self._pings is not None:
            self._pings.fire()
        if collector is not None and self._guard.succeeds(f"{window} stop", collector.stop):
            self._guard.run(f"{window} tables", lambda: self._write(collector))
        self._guard.run("run files", lambda: self._flush("partial"))

    def _write(self, collector: Collector) -> None:
        assert self._writer is not None
        self._guard.gaps.extend(collector.gaps())
        for name, columns in collector.tables().items():
            if name == "mark":
                self._marks.extend(columns)
            else:
                self._writer.write_table(name, columns)

    def _flush(self, status: str) -> None:
        assert self._writer is not None
        self._writer.write_table("mark", self._marks.columns())
        self._writer.write_table("samples", self._samples.columns())
        self._writer.finish(
            memory_steps=self._done[Window.MEMORY],
            time_steps=self._done[Window.TIME],
            gaps=self._guard.gaps + (self._pings.gaps() if self._pings else []),
            status=status,
        )

    @property
    def _active(self) -> bool:
        """Between entry and the last scheduled step, and not in a process forked from this one."""
        return self._process_id == os.getpid()

    def _at_exit(self) -> None:
        """The program ended within a window: a profiler that runs on would crash the interpreter's end."""
        if self._active:
            self._close("failed")

    def _close(self, status: str) -> None:
        self._process_id = 0
        atexit.unregister(self._at_exit)
        if self._step < self._schedule.total and self._pings is not None:
            self._guard.run("clock pings", self._pings.leave)
        self._close_window()
        self._collectors = {}  # they hold the model
        if self._step < self._schedule.total:
            self._guard.gaps.append(
                Gap(
                    what="recording cut short",
                    reason=f"the program ended after {self._step} of {self._schedule.total} scheduled steps",
                    remedy="let it run longer, or record fewer steps: zprof.steps(skip=…, memory=…, time=…)",
                )
            )
        self._guard.run("run files", lambda: self._flush(status))


def _rank_and_world_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
