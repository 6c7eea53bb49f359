"""Write exposed communication, wait and peak memory by tenant into the training log, every N steps.

    from zprof.integrations.training_log import TrainingLog

    with TrainingLog("zprof-log", model=model, optimizer=optimizer, every=100, tensorboard=writer) as log:
        for batch in batches:
            ...
            log.step()

Every rank records a window of three steps: one for memory, two for time. A process at idle priority analyses
the window of all ranks; rank 0 writes the figures some steps later, at the last step of the window. A figure
that is unknown is absent, and a bound has its name: ``exposed_wait_ns`` and ``at_least``. Ranks whose folder
is not on rank 0's file system are missing: their waits, and those for them, are not known.
"""

import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

from msgspec import Struct
from torch import distributed as dist
from torch import nn

from zprof.base.errors import BadInput
from zprof.base.formatting import printable
from zprof.checks.baseline import read_baseline
from zprof.collectors.record.base import FaultGuard
from zprof.collectors.record.clock_pings import ClockPings
from zprof.collectors.record.memory.collector import Optimizers
from zprof.collectors.record.recorder import ENABLE_VARIABLE, Recorder, record
from zprof.collectors.record.schedule import RecordingSchedule
from zprof.model.baseline import Baseline
from zprof.model.quantities import Bound, Unit, Value
from zprof.model.training import TrainingFacts
from zprof.process.child import Child, start_idle
from zprof.run.live import LiveRun
from zprof.run.manifest import rank_folder

SCHEMA = "zprof.training_log/1"
LOG_NAME = "zprof.jsonl"
WINDOW = RecordingSchedule(skip=0, memory=1, time=2)
#: Windows of this rank that stay on disk: the last one, and the one that may still be analysed.
_MAX_WINDOWS = 2
#: How long the ranks may take to write a window, its analysis, and both at the end of training.
_RANKS_TIMEOUT_S, _ANALYSIS_TIMEOUT_S, _CLOSE_TIMEOUT_S = 30.0, 300.0, 120.0
_POLL_S = 0.05
_MAX_ERROR_BYTES = 1 << 16
_log = logging.getLogger("zprof")
_UNITS = {Unit.NS: ("_ns", "_ms", 1e6), Unit.BYTES: ("_bytes", "_mib", 1 << 20)}


class ScalarWriter(Protocol):
    """What a ``SummaryWriter`` of TensorBoard has."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Write one number."""


class LogEntry(Struct, frozen=True, kw_only=True):
    """The figures of one window. ``step``: its last step; ``missing_ranks`` are not in the figures."""

    step: int
    world_size: int
    missing_ranks: tuple[int, ...]
    figures: Mapping[str, Value]


def make_entry(step: int, baseline: Baseline) -> LogEntry:
    """Return the known figures of a window; times are means per step over the ranks.

    Memory is that of the rank with the highest peak: ``peak_bytes`` and ``peak_bytes/<tenant>``.
    """
    time_part, memory_part = baseline.time, baseline.memory
    figures: dict[str, Value] = {}
    if time_part is not None:
        figures = time_part.list_figures()
        exposed_ns = sum(time_part.exposed_ns) / len(time_part.exposed_ns)
        bound = Bound.AT_MOST if time_part.upper_bound else Bound.EXACT
        figures["exposed_ns"] = Value(exposed_ns, Unit.NS, bound=bound)
    if memory_part is not None:
        for key, value in memory_part.list_figures().items():
            figures[key if key == "peak_bytes" else f"peak_bytes/{key}"] = value
    missing = {rank for part in (time_part, memory_part) if part is not None for rank in part.missing_ranks}
    return LogEntry(
        step=step,
        world_size=baseline.conditions.world_size,
        missing_ranks=tuple(sorted(missing)),
        figures={name: value for name, value in figures.items() if value.number is not None},
    )


def write_jsonl(entry: LogEntry, path: Path) -> None:
    """Append the entry as one line of JSON."""
    tree = {
        "schema": SCHEMA,
        "step": entry.step,
        "world_size": entry.world_size,
        "missing_ranks": entry.missing_ranks,
        "figures": {name: round(value.number or 0) for name, value in entry.figures.items()},
        "bounds": {
            name: value.bound.value for name, value in entry.figures.items() if value.bound is not Bound.EXACT
        },
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(tree) + "\n")


def write_scalars(entry: LogEntry, writer: ScalarWriter) -> None:
    """Write the entry to TensorBoard, times in ms and sizes in MiB; the tag of a bound ends with its name."""
    for name, value in entry.figures.items():
        suffix, shown_suffix, scale = _UNITS[value.unit]
        bound = "" if value.bound is Bound.EXACT else f"_{value.bound.value}"
        tag = f"zprof/{name.replace(suffix, shown_suffix)}{bound}"
        writer.add_scalar(tag, (value.number or 0) / scale, entry.step)


def open_tensorboard(folder: Path) -> ScalarWriter | None:
    """Return TensorBoard's writer for a folder; None, with one line in the log, if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        _log.warning("zprof: no TensorBoard here, only %s is written: pip install tensorboard", LOG_NAME)
        return None
    writer: ScalarWriter = SummaryWriter(str(folder))
    return writer


class _Window(Struct):
    """A window of all ranks, from its last step until its figures are written."""

    path: Path
    step: int
    run: LiveRun
    deadline_s: float
    analysis: tuple[Child, IO[bytes]] | None = None

    def stop_analysis(self) -> None:
        """End its analysis, if there is one; it may be started again."""
        if self.analysis is not None:
            child, errors = self.analysis
            child.end()
            errors.close()
            self.analysis = None


class TrainingLog:
    """Record and log a window every ``every`` steps; enter it and call ``step()`` on every rank.

    Args:
        folder: Where ``zprof.jsonl`` is appended, and windows are kept until they are analysed. The same on
            every rank.
        model: The model that the program calls; memory is labelled with its modules.
        optimizer: One optimizer or several.
        every: Steps from one window to the next. The first window starts after as many.
        tensorboard: A ``SummaryWriter``, or the folder of a new one.
        training: Facts about the program, see :func:`zprof.record`.

    An error never reaches the training loop: it is logged as a warning. ``ZPROF=0`` turns the log off.

    Raises:
        BadInput: ``every`` is too small for a window.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: nn.Module | None = None,
        optimizer: Optimizers = None,
        every: int = 100,
        tensorboard: ScalarWriter | str | Path | None = None,
        training: TrainingFacts | Callable[[], TrainingFacts] | None = None,
    ) -> None:
        if every <= WINDOW.total:
            raise BadInput(
                f"TrainingLog: every={every} is too small: a window has {WINDOW.total} steps",
                hint="use 100 or more, so that steps without a window decide the pace",
            )
        self._folder, self._every, self._training = Path(folder), every, training
        self._model, self._optimizer, self._tensorboard = model, optimizer, tensorboard
        self._guard = FaultGuard()
        self._recorder: Recorder | None = None
        self._pings: ClockPings | None = None
        self._step, self._rank = 0, 0
        self._recorded: deque[Path] = deque()
        self._pending: deque[_Window] = deque()
        self._is_on = os.environ.get(ENABLE_VARIABLE) != "0"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self) -> None:
        """Mark the end of an optimizer step."""
        if self._is_on:
            self._guard.run("training log", self._leave_step)

    def close(self) -> None:
        """Write the figures of windows that are complete; waits for their analysis."""
        if self._is_on:
            self._is_on = False
            self._guard.run("training log", self._close)

    def _leave_step(self) -> None:
        if self._recorder is not None:
            self._recorder.step()
            if not self._recorder.active:
                self._end_window(self._recorder)
        self._step += 1
        if self._recorder is None and self._step % self._every == 0:
            self._start_window()
        self._poll()

    def _start_window(self) -> None:
        self._rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        path = self._folder / "windows" / f"step-{self._step:08d}.zprof"
        path.parent.mkdir(parents=True, exist_ok=True)
        recorder = record(
            path, model=self._model, optimizer=self._optimizer, steps=WINDOW, training=self._training
        )
        if recorder.open():
            recorder.begin(self._step, self._pings)
            self._recorder, self._pings = recorder, recorder.pings
            self._recorded.append(path)

    def _end_window(self, recorder: Recorder) -> None:
        self._recorder = None
        while len(self._recorded) > _MAX_WINDOWS:
            shutil.rmtree(rank_folder(self._recorded.popleft(), self._rank), ignore_errors=True)
        if self._rank == 0:
            deadline_s = time.monotonic() + _RANKS_TIMEOUT_S
            self._pending.append(
                _Window(
                    path=recorder.path, step=self._step, run=LiveRun(recorder.path), deadline_s=deadline_s
                )
            )

    def _poll(self) -> None:
        """Start the analysis of the oldest window once all ranks have written it; write its figures."""
        if not self._pending:
            return
        window = self._pending[0]
        if window.analysis is None:
            if window.run.look().finished or time.monotonic() > window.deadline_s:
                window.analysis = _start_analysis(window.path, is_idle=self._is_on)
                window.deadline_s = time.monotonic() + _ANALYSIS_TIMEOUT_S
            return
        child, errors = window.analysis
        if child.poll() is None and time.monotonic() < window.deadline_s:
            return
        self._pending.popleft()
        try:
            if child.end() != 0:
                raise RuntimeError(_read_last_line(errors) or "the analysis took too long")
            self._write(make_entry(window.step, read_baseline(_figures_path(window.path))))
        finally:
            errors.close()
            shutil.rmtree(window.path, ignore_errors=True)
            _figures_path(window.path).unlink(missing_ok=True)

    def _write(self, entry: LogEntry) -> None:
        write_jsonl(entry, self._folder / LOG_NAME)
        if isinstance(self._tensorboard, str | Path):
            self._tensorboard = open_tensorboard(Path(self._tensorboard))
        if self._tensorboard is not None:
            write_scalars(entry, self._tensorboard)

    def _close(self) -> None:
        if self._recorder is not None:
            self._recorder.close("failed")  # an incomplete window is not logged
        for window in self._pending:
            window.stop_analysis()  # no training is disturbed any more: at idle priority it may never end
        deadline_s = time.monotonic() + _CLOSE_TIMEOUT_S
        while self._pending and time.monotonic() < deadline_s:
            self._guard.run("training log", self._poll)
            time.sleep(_POLL_S)
        for window in self._pending:
            window.stop_analysis()
        if self._rank == 0:
            shutil.rmtree(self._folder / "windows", ignore_errors=True)
        self._model = self._optimizer = self._training = None


def _figures_path(window: Path) -> Path:
    return window.with_suffix(".json")


def _start_analysis(window: Path, *, is_idle: bool) -> tuple[Child, IO[bytes]]:
    """Start to write the window's figures to a file; its last line on the other file says why it failed."""
    figures = str(_figures_path(window))
    command = [sys.executable, "-m", "zprof", "baseline", "save", str(window), "-o", figures, "--force"]
    errors = tempfile.TemporaryFile()  # noqa: SIM115, closed when the figures are read
    if is_idle:
        return start_idle(command, errors, errors), errors
    return Child(command, stdout=errors, stderr=errors), errors


def _read_last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read(_MAX_ERROR_BYTES).decode(errors="replace").splitlines()
    return printable(lines[-1]) if lines else ""
