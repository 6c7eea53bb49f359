"""Implement ``zprof record``: record a command in its Python children, or a script in this process."""

import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from zprof.integrations.program import in_process
from zprof.integrations.program.command import GRACE_S, CommandWatcher, run_command
from zprof.integrations.program.session import ProgramSettings, RecordedProcess, Session, child_environment
from zprof.integrations.program.torch_watch import watch
from zprof.model.errors import BadInput
from zprof.model.gaps import GapKind
from zprof.run.manifest import RANK_NAME, RankManifest, read_rank_manifest, read_run_manifest
from zprof.run.output_path import check_output_path, replace_run

Say = Callable[[str], None]


def record_command(
    command: Sequence[str],
    settings: ProgramSettings,
    *,
    force: bool,
    on: bool,
    say: Say,
    output: IO[bytes] | None = None,
    beside: CommandWatcher | None = None,
    grace_s: float = GRACE_S,
) -> int:
    """Run a command to its end, record the training in it, and return its exit code.

    ``output`` gets the command's output while ``beside`` owns the terminal. After an interrupt, the command
    has ``grace_s`` until SIGTERM and again until SIGKILL.

    Raises:
        BadInput: it cannot be run, or the run exists already.
    """
    if not on:
        return run_command(command, os.environ, grace_s=grace_s, say=say)
    run, began_ns = Path(settings.run), time.time_ns()
    with tempfile.TemporaryDirectory(prefix="zprof-record-") as folder:
        session = Session(Path(folder))
        with replace_run(run, force=force):
            environment = child_environment(replace(settings, session=folder))
            code = run_command(command, environment, output=output, beside=beside, grace_s=grace_s, say=say)
        _say_notes(lambda: list_notes(session.notes(), run, began_ns), say)
    return code


def record_here(
    command: Sequence[str], settings: ProgramSettings, *, force: bool, on: bool, say: Say
) -> Callable[[], int]:
    """Return a function that runs a script or a module in this process; its exceptions propagate.

    An existing run is not moved aside: ranks of one job share the directory, and each replaces its own part.

    Raises:
        BadInput: it cannot be run, or the run exists already.
    """
    in_process.check_program(command)
    if on:
        check_output_path(Path(settings.run), force=force, since_ns=launcher_start_ns())

    # Created here, where an error is still reported by zprof: Python itself shows what the program raises.
    folder = Path(tempfile.mkdtemp(prefix="zprof-record-")) if on else None

    def program() -> int:
        if folder is not None:
            _record_here(command, settings, folder, say)
        else:
            in_process.run_program(command)
        return 0

    return program


def _record_here(command: Sequence[str], settings: ProgramSettings, folder: Path, say: Say) -> None:
    began_ns, process_id = launcher_start_ns(), os.getpid()
    session = Session(folder)  # ranks may be forks of this process
    here = RecordedProcess(settings, session)
    watch(here.begin)
    try:
        in_process.run_program(command)
    finally:
        here.finish()
        if os.getpid() == process_id:  # a fork that ends with an exception gets here too
            if os.environ.get("RANK", "0") == "0":
                _say_notes(lambda: list_notes(session.notes(), Path(settings.run), began_ns), say)
            shutil.rmtree(folder, ignore_errors=True)


def _say_notes(notes: Callable[[], Iterable[str]], say: Say) -> None:
    """Print the notes; a failure to do so must not change how the program ends."""
    with suppress(Exception):
        for note in notes():
            say(note)


def list_notes(told: Iterable[str], run: Path, began_ns: int) -> Iterator[str]:
    """Yield the notes of the recorded processes, and the outcome of a recording started at ``began_ns``.

    An older run at ``run`` is ignored.
    """
    told = list(told)
    yield from told
    rank = _first_rank(run, began_ns)
    if rank is None:
        if not told:
            yield "nothing was recorded: no optimizer of torch has stepped"
        return
    reasons = [gap.reason for gap in rank.gaps if gap.kind is GapKind.RECORDING_CUT_SHORT]
    if rank.status in ("recording", "partial"):
        reasons = [f"rank {rank.rank} was ended before it could write the rest"]
    for reason in reasons:
        yield f"{run} is cut short: {reason}"
    yield f"wrote {run}; zprof report {shlex.quote(str(run))}"


def _first_rank(run: Path, began_ns: int) -> RankManifest | None:
    try:
        manifest = read_run_manifest(run)
        if manifest.created_ns < began_ns:
            return None
        folders = sorted(path.parent.name for path in run.glob(f"rank[0-9]*/{RANK_NAME}"))
        ranks = [read_rank_manifest(run, int(name.removeprefix("rank"))) for name in folders]
    except (BadInput, ValueError):
        return None
    return next((rank for rank in ranks if rank.run_id == manifest.run_id), None)


_START_FIELD = 19  # field 22 of proc_pid_stat(5), counted after the name in parentheses
_PROC = Path("/proc")


def launcher_start_ns() -> int:
    """Return the start of torchrun if it started this process, else now: no other rank can be older."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return time.time_ns()
    try:
        stat = (_PROC / str(os.getppid()) / "stat").read_text()
        ticks = int(stat.rpartition(")")[2].split()[_START_FIELD])
        up_s = float((_PROC / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time_ns()
    age_s = up_s - ticks / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - int(age_s * 1e9)
