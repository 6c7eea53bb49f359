"""Run a job next to the live view: ``zprof tui RUN --live`` in a child process on this terminal.

The job runs as it would without the view, and its output goes to a log next to the run.  A pipe tells the
view that the job has ended, and closing the pipe tells the view to exit.  The view's exit code shows if the
user closed it (the job continues) or wants the job to end (its process group gets the signal that ctrl+c
would have sent).
"""

import json
import os
import signal
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from zprof.base.errors import BadInput, ZprofError
from zprof.base.formatting import printable
from zprof.cli import console
from zprof.cli.progress import steps_progress
from zprof.process.child import Child
from zprof.process.command import CommandObserver
from zprof.process.interrupts import accept_interrupt

_END_JOB = 130
_EXIT_TIMEOUT_S = 5.0
#: Restores a terminal after a killed view: leave the alternate screen, show the cursor, disable the mouse.
_RESET = "\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[0m"
_TERMINATING_SIGNALS = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))


def find_display_obstacle(environment: Mapping[str, str] | None = None) -> str:
    """Explain why the live view cannot be shown; empty if it can."""
    values = os.environ if environment is None else environment
    if not console.are_terminals(sys.stdin, sys.stdout, sys.stderr):
        return "there is no terminal"
    if values.get("TERM") == "dumb":
        return "this terminal cannot show a full-screen view"
    if "RANK" in values or "TORCHELASTIC_RUN_ID" in values:
        return "several ranks share this terminal"
    return ""


def should_show_live(requested: bool, run: Path) -> bool:
    """Return True if the view was requested and can be shown; print a note if it cannot be shown."""
    if not requested:
        return False
    obstacle = find_display_obstacle()
    if obstacle:
        console.print_note(
            f"zprof: --live ignored, {obstacle}; from another terminal: zprof tui {run} --live"
        )
    return not obstacle


class LiveView(CommandObserver):
    """A live view that runs from ``start`` until the user closes it or ``close`` is called.

    Args:
        run: The run that the job writes.
        log: The job's output, if it goes to a file.
        on_leave: Called once if the view ends before the job.
    """

    def __init__(self, run: Path, *, log: Path | None = None, on_leave: Callable[[], None]) -> None:
        self._command = [sys.executable, "-m", "zprof", "tui", str(run), "--live"]
        self._log, self._on_leave = log, on_leave
        self._view: Child | None = None
        self._pipe = -1
        self._terminal: list[Any] | None = None

    def start(self) -> None:
        """Show the view; if that fails, the job continues without it."""
        with suppress(termios.error, OSError, ValueError):
            self._terminal = termios.tcgetattr(sys.stdin.fileno())
        view_pipe, self._pipe = os.pipe()
        command = [*self._command, "--job", str(view_pipe)]
        command += ["--job-log", str(self._log)] if self._log else []
        try:
            self._view = Child(command, stdin=None, pass_fds=(view_pipe,))
        except OSError as error:
            console.print_note(f"zprof: cannot start the live view ({error.strerror})")
            self._on_leave()
        finally:
            os.close(view_pipe)

    def poll(self) -> None:
        """Check if the user has closed the view; call this regularly while the job runs."""
        if self._view is None or (code := self._view.poll()) is None:
            return
        self._restore_terminal()
        if code == _END_JOB:
            os.killpg(os.getpgrp(), signal.SIGINT)
            return
        self._on_leave()
        if code != 0:
            console.print_note(f"zprof: the live view ended with exit code {code}; the job continues")

    def handle_signal(self, number: int) -> None:
        """Close the view if ``number`` is a signal that ends the job."""
        if number in _TERMINATING_SIGNALS:
            self.close()

    def finish_job(self, code: int) -> None:
        """Tell the view that the job has ended, and wait until the user closes it."""
        if self._view is not None:
            with suppress(OSError):
                os.write(self._pipe, json.dumps({"code": code}).encode() + b"\n")
            try:
                self._view.wait()
            except KeyboardInterrupt:
                accept_interrupt()
                self.close()
            self._restore_terminal()

    def close(self) -> None:
        """Close the view if it is still running."""
        view, pipe, self._pipe = self._view, self._pipe, -1
        if pipe >= 0:
            os.close(pipe)
        if view is not None:
            view.wait(_EXIT_TIMEOUT_S)
            self._restore_terminal()

    def _restore_terminal(self) -> None:
        """Release the pipe and restore the terminal, which a killed view did not."""
        view, self._view = self._view, None
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if view is not None and view.end() not in (0, _END_JOB):
            with suppress(OSError, ValueError):
                sys.stderr.write(_RESET)
                sys.stderr.flush()
        if self._terminal is not None:
            with suppress(termios.error, OSError, ValueError):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._terminal)


@contextmanager
def live_progress(run: Path, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call regularly with the number of finished steps; it also polls the view.

    Raises:
        KeyboardInterrupt: From the yielded function, if the user ends the job in the view.
    """
    with ExitStack() as stack:
        bars: list[Callable[[int], None]] = []
        view = LiveView(run, on_leave=lambda: bars.append(stack.enter_context(steps_progress(title, total))))
        stack.callback(view.close)
        view.start()

        def report_step(steps: int) -> None:
            view.poll()
            for update_bar in bars:
                update_bar(steps)

        try:
            yield report_step
        except ZprofError as error:
            view.finish_job(error.exit_code)
            raise
        view.finish_job(0)


JOB_LOG = "job.log"
_TAIL_LINES, _TAIL_BYTES = 20, 16 << 10


@contextmanager
def open_job_log(run: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Yield a log file and its path; it is moved to ``RUN/job.log`` if the run exists at the end.

    Raises:
        BadInput: Nothing can be written next to the run.
    """
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=run.parent, prefix=f".{run.name}.", suffix=".log")
    except OSError as error:
        raise BadInput(
            f"{run.parent}: cannot be written ({error.strerror})", hint="choose another RUN"
        ) from None
    path = Path(name)
    with open(handle, "wb", buffering=0) as file:
        try:
            yield path, file
        finally:
            _move_log(path, run)


def _move_log(path: Path, run: Path) -> None:
    """Move the log into the run; remove it if the job wrote nothing."""
    from zprof.run.manifest import read_run_manifest

    try:
        if path.stat().st_size == 0:
            path.unlink()
            return
        read_run_manifest(run)
        os.replace(path, run / JOB_LOG)
        path = run / JOB_LOG
    except (BadInput, OSError):
        pass
    console.print_note(f"zprof: output of the program: {printable(path)}")


def print_log_tail(path: Path) -> None:
    """Print the last lines of the log to stderr, which usually tell why the program failed."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
        for line in lines[-_TAIL_LINES:]:
            console.print_note(f"  {printable(line)}")
