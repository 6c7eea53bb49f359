"""Run a job next to the live view: ``zprof tui RUN --live`` in a child process on this terminal.

The job runs as it would without the view, and its output goes to a log next to the run.  A pipe tells the
view that the job has ended, and closing the pipe tells the view to exit.  The view's exit code says
whether the user left it (the job continues) or wants the job to end (its process group gets the signal that
ctrl+c would have sent).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from zprof.cli import console
from zprof.cli.progress import steps_progress
from zprof.model.errors import BadInput, ZprofError
from zprof.model.formatting import printable

_END_JOB = 130
_GO_S = 5.0
#: Leaves the alternate screen, shows the cursor, and disables the mouse, after a view that was killed.
_RESET = "\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[0m"
_DEADLY = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))


def find_display_obstacle(environment: Mapping[str, str] | None = None) -> str:
    """Return why the live view cannot be shown, or an empty string if it can."""
    values = os.environ if environment is None else environment
    if not console.are_terminals(sys.stdin, sys.stdout, sys.stderr):
        return "there is no terminal"
    if values.get("TERM") == "dumb":
        return "this terminal can show no screen"
    if "RANK" in values or "TORCHELASTIC_RUN_ID" in values:
        return "this is one of many ranks on a terminal"
    return ""


def should_show_live(asked: bool, run: Path) -> bool:
    """Return whether to show the view; if it was requested but cannot be shown, print a note that says
    why.
    """
    if not asked:
        return False
    why_not = find_display_obstacle()
    if why_not:
        console.note(f"zprof: --live is left out, {why_not}; from another terminal: zprof tui {run} --live")
    return not why_not


class LiveView:
    """A live view that runs from ``start`` until the user leaves it or ``close``.

    Args:
        run: The run that the job writes.
        log: The job's output, if that goes to a file.
        left: Called once if the view ends before the job.
    """

    def __init__(self, run: Path, *, log: Path | None = None, left: Callable[[], None]) -> None:
        self._command = [sys.executable, "-m", "zprof", "tui", str(run), "--live"]
        self._log, self._left = log, left
        self._view: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._terminal: list[Any] | None = None

    def start(self) -> None:
        """Show the view; if that fails, the job continues without it."""
        with suppress(termios.error, OSError, ValueError):
            self._terminal = termios.tcgetattr(sys.stdin.fileno())
        far, self._pipe = os.pipe()
        command = [*self._command, "--job", str(far)]
        command += ["--job-log", str(self._log)] if self._log else []
        try:
            self._view = subprocess.Popen(command, pass_fds=(far,))
        except OSError as error:
            console.note(f"zprof: no live view ({error.strerror})")
            self._left()
        finally:
            os.close(far)

    def look(self) -> None:
        """Check whether the user has left the view; call it as often as needed while the job runs."""
        if self._view is None or self._view.poll() is None:
            return
        code = self._view.returncode
        self._over()
        if code == _END_JOB:
            os.killpg(os.getpgrp(), signal.SIGINT)
            return
        self._left()
        if code != 0:
            console.note(f"zprof: the live view ended with exit code {code}; the job goes on")

    def signalled(self, number: int) -> None:
        """Handle a signal sent to the job: if the job is to end, close the view."""
        if number in _DEADLY:
            self.close()

    def job_over(self, code: int) -> None:
        """Tell the view that the job is over, and wait until the user leaves."""
        if self._view is not None:
            with suppress(OSError):
                os.write(self._pipe, json.dumps({"code": code}).encode() + b"\n")
            try:
                self._view.wait()
            except KeyboardInterrupt:
                self.close()
            self._over()

    def close(self) -> None:
        """Close the view if it still runs."""
        view, pipe, self._pipe = self._view, self._pipe, -1
        if pipe >= 0:
            os.close(pipe)
        if view is not None:
            try:
                view.wait(_GO_S)
            except subprocess.TimeoutExpired:
                view.kill()
                view.wait()
            self._over()

    def _over(self) -> None:
        """Restore the terminal, which a killed view did not."""
        view, self._view = self._view, None
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if view is not None and view.returncode not in (0, _END_JOB):
            with suppress(OSError, ValueError):
                sys.stderr.write(_RESET)
                sys.stderr.flush()
        if self._terminal is not None:
            with suppress(termios.error, OSError, ValueError):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._terminal)


@contextmanager
def live_progress(run: Path, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call often with the number of finished steps; it also checks the view.

    Raises:
        KeyboardInterrupt: from the yielded function, if the user ends the job in the view.
    """
    with ExitStack() as stack:
        bar: list[Callable[[int], None]] = []
        view = LiveView(run, left=lambda: bar.append(stack.enter_context(steps_progress(title, total))))
        stack.callback(view.close)
        view.start()

        def on_step(steps: int) -> None:
            view.look()
            for each in bar:
                each(steps)

        try:
            yield on_step
        except ZprofError as error:
            view.job_over(error.exit_code)
            raise
        view.job_over(0)


JOB_LOG = "job.log"
_TAIL_LINES, _TAIL_BYTES = 20, 16 << 10


@contextmanager
def job_log(run: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Yield a log file and its path; it becomes ``RUN/job.log``, or stays in place if there is no run.

    Raises:
        BadInput: nothing can be written next to the run.
    """
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=run.parent, prefix=f".{run.name}.", suffix=".log")
    except OSError as error:
        raise BadInput(
            f"{run.parent}: cannot be written ({error.strerror})", hint="name another RUN"
        ) from None
    path = Path(name)
    with open(handle, "wb", buffering=0) as file:
        try:
            yield path, file
        finally:
            _keep_log(path, run)


def _keep_log(path: Path, run: Path) -> None:
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
    console.note(f"zprof: what the program wrote: {printable(path)}")


def print_log_tail(path: Path) -> None:
    """Print the last lines of the log to stderr: they say why a program failed."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
        for line in lines[-_TAIL_LINES:]:
            console.note(f"  {printable(line)}")
