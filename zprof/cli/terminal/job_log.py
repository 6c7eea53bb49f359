"""Where the output of a job goes while a view has its terminal: beside the run, and into it at the end."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from zprof.cli.terminal import console
from zprof.model.errors import BadInput
from zprof.model.printable import printable

JOB_LOG = "job.log"
_TAIL_LINES, _TAIL_BYTES = 20, 16 << 10


@contextmanager
def job_log(run: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A file to write to, and its path; it becomes ``RUN/job.log``, or stays where there is no run.

    Raises:
        BadInput: nothing can be written beside the run.
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
            _keep(path, run)


def _keep(path: Path, run: Path) -> None:
    """Where the job said nothing there is nothing to keep."""
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


def say_end_of(path: Path) -> None:
    """The last lines on stderr: why a program failed stands there."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
        for line in lines[-_TAIL_LINES:]:
            console.note(f"  {printable(line)}")
