"""Poll the state shown in the live view: the run directory, the job, its log, and the report.

The report is computed in a separate process with idle priority.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from msgspec import Struct, field

from zprof.base.formatting import printable
from zprof.process.child import Child, start_idle
from zprof.run.files import open_plain
from zprof.run.live import LiveRun, LiveState


class JobState(Struct, frozen=True, kw_only=True):
    """The job started together with the view. ``code``: its exit code, None while it runs.

    ``is_own``: False if the view only watches a run of another process.
    """

    is_own: bool = False
    code: int | None = None

    @property
    def runs(self) -> bool:
        """Return True if the view's own job is still running."""
        return self.is_own and self.code is None


class LiveReport(Struct, frozen=True, kw_only=True):
    """Report on the data recorded so far, as JSON; empty until a window is complete.

    ``busy``: a new measurement is running. ``problem``: why there is no report.
    """

    tree: Mapping[str, Any] = field(default_factory=dict)
    busy: bool = False
    problem: str = ""


class LiveSnapshot(Struct, frozen=True, kw_only=True):
    """State of the run, its report, the job, and the last log lines."""

    state: LiveState
    measured: LiveReport = field(default_factory=LiveReport)
    job: JobState = field(default_factory=JobState)
    log: tuple[str, ...] = ()


_MAX_BYTES = 256 << 20
_MAX_MESSAGE = 300
#: Starts a measurement with stdout and stderr redirected to these files.
StartProcess = Callable[[Sequence[str], IO[bytes], IO[bytes]], Child]


class ReportPoller:
    """Compute the report again whenever the ranks have written new tables."""

    def __init__(self, run: Path, start: StartProcess = start_idle) -> None:
        self._command = (sys.executable, "-m", "zprof", "report", str(run), "-f", "json")
        self._start = start
        #: Process of a running measurement, and its output and error files.
        self._running: tuple[Child, IO[bytes], IO[bytes]] | None = None
        self._previous_tables, self._measured_tables = 0, 0
        self.now = LiveReport()

    def look(self, state: LiveState) -> LiveReport:
        """Return the latest report; start a measurement if there are new tables, unchanged for one poll."""
        if self._running is not None and self._running[0].poll() is not None:
            self._collect(*self._running)
        is_stable, self._previous_tables = state.tables == self._previous_tables, state.tables
        is_new = state.tables != self._measured_tables
        if (
            self._running is None
            and is_stable
            and is_new
            and any(rank.manifest.memory_steps or rank.manifest.time_steps for rank in state.ranks)
        ):
            self._start_measurement(state.tables)
        return self.now

    def close(self) -> None:
        """Kill a running measurement."""
        if self._running is not None:
            process, output, errors = self._running
            process.end()
            output.close()
            errors.close()
            self._running = None

    def _start_measurement(self, tables: int) -> None:
        self._measured_tables = tables
        output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115, closed at the end
        try:
            self._running = self._start(self._command, output, errors), output, errors
        except OSError as error:
            self.now = LiveReport(tree=self.now.tree, problem=str(error.strerror))
            return
        self.now = LiveReport(tree=self.now.tree, busy=True)

    def _collect(self, process: Child, output: IO[bytes], errors: IO[bytes]) -> None:
        tree = _read_tree(output) if process.end() == 0 else None
        problem = _read_last_line(errors) if tree is None else ""
        self.now = LiveReport(tree=self.now.tree if tree is None else tree, problem=problem)
        output.close()
        errors.close()
        self._running = None


def _read_tree(output: IO[bytes]) -> dict[str, object] | None:
    output.seek(0)
    content = output.read(_MAX_BYTES + 1)
    try:
        tree = json.loads(content) if len(content) <= _MAX_BYTES else None
    except ValueError:
        return None
    return tree if isinstance(tree, dict) else None


def _read_last_line(errors: IO[bytes]) -> str:
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - 4096))
    lines = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return printable(lines[-1] if lines else "no error message")[:_MAX_MESSAGE]


class Watcher:
    """Poll a run; may be called from any thread, one call at a time.

    Args:
        run: The run directory; it may not exist yet.
        job: Read end of a pipe from the command that runs the job, if any.
        log: The file with the job's output, if any.
        measuring: Computes the report; replaced in tests.
    """

    def __init__(
        self,
        run: Path,
        *,
        job: int | None = None,
        log: Path | None = None,
        measuring: ReportPoller | None = None,
    ) -> None:
        self.path = run
        self._run, self._measuring = LiveRun(run), measuring or ReportPoller(run)
        self._job, self._log = JobPipe(job), LogTail(log)

    @property
    def hung_up(self) -> bool:
        """Return True if the command that started the view closed its pipe, so the view must exit."""
        return self._job.hung_up

    def look(self) -> LiveSnapshot:
        """Return a snapshot of the current state."""
        # Read the job first, to get its last output together with its exit code.
        job = self._job.look()
        state = self._run.look()
        return LiveSnapshot(state=state, measured=self._measuring.look(state), job=job, log=self._log.look())

    def close(self) -> None:
        """Kill a running measurement."""
        self._measuring.close()


_TAIL_BYTES = 16 << 10
_MAX_LINES = 100
_MAX_COLUMNS = 400


class JobPipe:
    """The view's end of the pipe from the job command; without a handle there is no job."""

    def __init__(self, handle: int | None) -> None:
        self._handle = handle
        self._received = b""
        self.now = JobState(is_own=handle is not None)
        self.hung_up = False
        if handle is not None:
            os.set_blocking(handle, False)

    def look(self) -> JobState:
        """Return the job's state; set ``hung_up`` once the pipe is closed."""
        if self._handle is None or self.hung_up:
            return self.now
        with suppress(BlockingIOError):
            content = os.read(self._handle, _TAIL_BYTES)
            self.hung_up = not content
            self._received = (self._received + content)[-_TAIL_BYTES:]
        if self.now.code is None and b"\n" in self._received:
            self.now = JobState(is_own=True, code=_parse_code(self._received.split(b"\n")[0]))
        return self.now


def _parse_code(line: bytes) -> int:
    try:
        return int(json.loads(line)["code"])
    except (ValueError, KeyError, TypeError):
        return -1


class LogTail:
    """The last lines of a growing file, shown as plain text."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._size = -1
        self.now: tuple[str, ...] = ()

    def look(self) -> tuple[str, ...]:
        """Return the last lines."""
        if self._path is None:
            return self.now
        with suppress(OSError), open_plain(self._path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != self._size:
                file.seek(max(0, size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
                self._size = size
                lines = [_clean_line(line) for line in text.split("\n")[-_MAX_LINES:]]
                self.now = tuple(line for line in lines if line.strip())
        return self.now


def _clean_line(line: str) -> str:
    """Return the final text of a line, because progress bars overwrite it with carriage returns."""
    parts = [part for part in line.split("\r") if part]
    return printable(parts[-1][:_MAX_COLUMNS]) if parts else ""
