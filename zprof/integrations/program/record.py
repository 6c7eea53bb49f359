"""``zprof record``: a command recorded in its Python children, or a script recorded in this process."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from zprof.integrations.program import in_process
from zprof.integrations.program.begin import Here
from zprof.integrations.program.command import Beside, run_command
from zprof.integrations.program.end_tree import GRACE_S
from zprof.integrations.program.launcher import launched_ns
from zprof.integrations.program.notes import all_notes
from zprof.integrations.program.session import Session
from zprof.integrations.program.settings import ProgramSettings, child_environment
from zprof.integrations.program.torch_watch import watch
from zprof.run.target import check_room, cleared_target

Say = Callable[[str], None]


def record_command(
    command: Sequence[str],
    settings: ProgramSettings,
    *,
    force: bool,
    on: bool,
    say: Say,
    output: IO[bytes] | None = None,
    beside: Beside | None = None,
    grace_s: float = GRACE_S,
) -> int:
    """Run a command to its end and record what trains in it; its exit code.

    ``output`` gets what it writes, where ``beside`` has the terminal meanwhile.  After an interrupt it has
    ``grace_s`` until SIGTERM, and again until SIGKILL.

    Raises:
        BadInput: it cannot be run, or the run is there already.
    """
    if not on:
        return run_command(command, os.environ, grace_s=grace_s, say=say)
    run, began_ns = Path(settings.run), time.time_ns()
    with tempfile.TemporaryDirectory(prefix="zprof-record-") as folder:
        session = Session(Path(folder))
        with cleared_target(run, force=force):
            environment = child_environment(replace(settings, session=folder))
            code = run_command(command, environment, output=output, beside=beside, grace_s=grace_s, say=say)
        _say_all(lambda: all_notes(session.notes(), run, began_ns), say)
    return code


def record_here(
    command: Sequence[str], settings: ProgramSettings, *, force: bool, on: bool, say: Say
) -> Callable[[], int]:
    """What runs a script or a module in this process; what that raises comes out of it.

    A run that is there is not moved aside: ranks of one job share its place, and each replaces its own part.

    Raises:
        BadInput: it cannot be run, or the run is there already.
    """
    in_process.check(command)
    if on:
        check_room(Path(settings.run), force=force, since_ns=launched_ns())

    # Made while an error is still one of zprof: what the program raises is shown as Python does.
    folder = Path(tempfile.mkdtemp(prefix="zprof-record-")) if on else None

    def program() -> int:
        if folder is not None:
            _record(command, settings, folder, say)
        else:
            in_process.run_program(command)
        return 0

    return program


def _record(command: Sequence[str], settings: ProgramSettings, folder: Path, say: Say) -> None:
    began_ns, process_id = launched_ns(), os.getpid()
    session = Session(folder)  # ranks may be forks of this process
    here = Here(settings, session)
    watch(here.begin)
    try:
        in_process.run_program(command)
    finally:
        here.finish()
        if os.getpid() == process_id:  # a fork that ends with an exception comes here too
            if os.environ.get("RANK", "0") == "0":
                _say_all(lambda: all_notes(session.notes(), Path(settings.run), began_ns), say)
            shutil.rmtree(folder, ignore_errors=True)


def _say_all(notes: Callable[[], Iterable[str]], say: Say) -> None:
    """The program is over, and its end is its own: nobody who reads our notes, say, must not change that."""
    with suppress(Exception):
        for note in notes():
            say(note)
