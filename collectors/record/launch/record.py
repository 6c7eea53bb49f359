"""Implement ``zprof record``: record a command in its Python children, or a script in this process."""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from msgspec.structs import replace

from zprof.base.errors import BadInput, Extra, require_extra
from zprof.base.formatting import format_next_step
from zprof.collectors.record.launch import in_process
from zprof.collectors.record.launch.rank_ends import (
    ProcessFollower,
    reserve_space,
    write_own_end,
    write_rank_ends,
)
from zprof.collectors.record.launch.session import (
    ProgramSettings,
    RecordedProcess,
    Session,
    make_child_environment,
    turn_on_flight_recorder,
)
from zprof.collectors.record.launch.torch_watch import call_after_import
from zprof.model.endings import describe_endings
from zprof.model.gaps import GapKind
from zprof.process.command import GRACE_S, CommandObserver, run_command
from zprof.process.identity import START, read_name_and_fields
from zprof.run.files import make_scratch_folder, open_scratch_folder, remove_leftovers
from zprof.run.manifest import RANK_NAME, RankManifest, read_rank_manifest, read_run_manifest
from zprof.run.output_path import check_output_path, find_write_error, lock_output, replace_run

PrintNote = Callable[[str], None]
#: Ranks that the note lists.
_MAX_LISTED = 8


def check_torch(command: Sequence[str]) -> None:
    """Check that a program which will run with this interpreter's packages has torch.

    Another environment's Python, or a program started by a shell script, may have its own torch.

    Raises:
        MissingPackage: the program cannot import torch.
    """
    if in_process.is_python_program(command) or _runs_here(command[0]):
        require_extra(Extra.RECORD, "record")


def _runs_here(program: str) -> bool:
    """Return True for this environment's Python, and for a launcher (torchrun) that is not installed."""
    found = shutil.which(program)
    if found is None:
        return "/" not in program
    path, interpreter = Path(found), Path(sys.executable)
    return path.name.startswith("python") and path.parent.resolve() == interpreter.parent.resolve()


def record_command(
    command: Sequence[str],
    settings: ProgramSettings,
    *,
    force: bool,
    enabled: bool,
    print_note: PrintNote,
    output: IO[bytes] | None = None,
    observer: CommandObserver | None = None,
    grace_s: float = GRACE_S,
    end_stuck_s: float = 0.0,
) -> int:
    """Run a command, record the training processes in it, and return its exit code.

    ``output`` gets the command's output while ``observer`` owns the terminal. ``grace_s`` is the time from an
    interrupt to SIGTERM, and from there to SIGKILL. ``end_stuck_s``: after all ranks were saved, the command
    is ended if none makes progress for this long; 0 for never.

    Raises:
        BadInput: the command cannot be run, or the run already exists.
    """
    if not enabled:
        return run_command(command, os.environ, grace_s=grace_s, print_note=print_note)
    run, start_ns = Path(settings.run), time.time_ns()
    settings = replace(settings, since_ns=start_ns)
    remove_leftovers()
    with open_scratch_folder("record") as folder:
        session = Session(folder)
        with replace_run(run, force=force):
            environment = make_child_environment(replace(settings, session=str(folder)))
            stuck_job, follower = StuckJob(run, end_stuck_s), ProcessFollower(folder)

            def look_at_job() -> bool:
                follower.start()
                reserve_space(run)
                return end_stuck_s > 0 and stuck_job.is_over()

            code = run_command(
                command,
                environment,
                output=output,
                observer=observer or WritingObserver(session, run, print_note),
                grace_s=grace_s,
                print_note=print_note,
                is_stuck=look_at_job,
            )
            seen = follower.stop()
            if settings.watch_s:
                _print_notes(lambda: finish_watch(run, code), print_note)
            _print_notes(lambda: write_rank_ends(run, folder, seen, code, start_ns), print_note)
        _print_notes(lambda: list_notes(session.notes(), run, start_ns), print_note)
    return code


def record_here(
    command: Sequence[str], settings: ProgramSettings, *, force: bool, enabled: bool, print_note: PrintNote
) -> Callable[[], int]:
    """Return a function that runs a script or a module in this process; its exceptions propagate.

    An existing run is not moved away: ranks of one job share the directory, and each replaces its own part.

    Raises:
        BadInput: the program cannot be run, or the run already exists.
    """
    in_process.check_program(command)
    if enabled:
        check_output_path(Path(settings.run), force=force, since_ns=get_launcher_start_ns())

    # Here zprof still reports errors; later, Python prints what the program raises.
    lock = ExitStack()
    if enabled and os.environ.get("RANK", "0") == "0":
        # The ranks of this job write the run together; their first rank holds the lock.
        lock.enter_context(lock_output(Path(settings.run)))
    remove_leftovers()
    folder = make_scratch_folder("record") if enabled else None

    def run_program() -> int:
        with lock:
            if folder is not None:
                _record_here(command, settings, folder, print_note)
            else:
                in_process.run_program(command)
        return 0

    return run_program


def _record_here(
    command: Sequence[str], settings: ProgramSettings, folder: Path, print_note: PrintNote
) -> None:
    start_ns, process_id = get_launcher_start_ns(), os.getpid()
    session = Session(folder)  # ranks may be forks of this process
    run = Path(settings.run)
    if settings.watch_s:
        settings = replace(settings, since_ns=start_ns)
        turn_on_flight_recorder(os.environ)
    process = RecordedProcess(settings, session, lambda rank, seconds: print_note(format_stall(run, seconds)))
    call_after_import(process.start)
    error: BaseException | None = None
    try:
        in_process.run_program(command)
    except BaseException as raised:
        error = raised
        process.note_end(raised)
        raise
    finally:
        process.finish()
        write_own_end(run, folder, error)
        if os.getpid() == process_id:  # a fork that ends with an exception gets here too
            if os.environ.get("RANK", "0") == "0":
                _print_notes(lambda: list_notes(session.notes(), Path(settings.run), start_ns), print_note)
            shutil.rmtree(folder, ignore_errors=True)


def _print_notes(notes: Callable[[], Iterable[str]], print_note: PrintNote) -> None:
    """Print the notes; a failure to do so must not change how the program ends."""
    with suppress(Exception):
        for note in notes():
            print_note(note)


def list_notes(session_notes: Iterable[str], run: Path, start_ns: int) -> Iterator[str]:
    """Yield the notes of the recorded processes, and the outcome of a recording started at ``start_ns``.

    An older run at ``run`` is ignored.
    """
    session_notes = list(session_notes)
    yield from session_notes
    rank = _find_first_rank(run, start_ns)
    if rank is None:
        if not session_notes:
            yield "nothing was recorded: no torch optimizer has stepped"
        return
    reasons = [gap.reason for gap in rank.gaps if gap.kind is GapKind.RECORDING_CUT_SHORT]
    if rank.status in ("recording", "partial"):
        reasons = [_find_end(run) or f"rank {rank.rank} was terminated before it could write the rest"]
    for reason in reasons:
        yield f"{run} is incomplete: {reason}"
    yield f"wrote {run}; {format_next_step(run)}"


def _find_end(run: Path) -> str:
    """Return why a rank could not write the rest: a full disk, or the first rank that ended; empty if
    unknown.
    """
    if reason := find_write_error(run):
        return f"{run} cannot be written: {reason}"
    from zprof.run.endings import find_endings
    from zprof.run.reader import Run

    return describe_endings(find_endings(Run(run)))


def _find_first_rank(run: Path, start_ns: int) -> RankManifest | None:
    try:
        manifest = read_run_manifest(run)
        if manifest.created_ns < start_ns:
            return None
        folders = sorted(path.parent.name for path in run.glob(f"rank[0-9]*/{RANK_NAME}"))
        ranks = [read_rank_manifest(run, int(name.removeprefix("rank"))) for name in folders]
    except (BadInput, ValueError):
        return None
    return next((rank for rank in ranks if rank.run_id == manifest.run_id), None)


def get_launcher_start_ns() -> int:
    """Return the start time of torchrun if it started this process, else now; no other rank is older."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return time.time_ns()
    try:
        ticks = int(read_name_and_fields(os.getppid())[1][START])
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time_ns()
    age_s = uptime_s - ticks / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - int(age_s * 1e9)


class WritingObserver(CommandObserver):
    """Prints one note while the ranks of a command write; it never owns the terminal."""

    def __init__(self, session: Session, run: Path, print_note: Callable[[str], None]) -> None:
        self._session, self._run, self._print_note = session, run, print_note
        self._seen: Collection[int] = ()
        self._has_noted = False

    def poll(self) -> None:
        """Print the note if a rank was writing at the last poll already; called about once a second."""
        if stalls := self._session.take_stalls():
            self._print_note(format_stall(self._run, max(stalls)))
        writing = self._session.list_writing_ranks()
        slow = [rank for rank in writing if rank in self._seen]
        self._seen = writing
        if slow and not self._has_noted:
            self._has_noted = True
            listed = ", ".join(map(str, slow[:_MAX_LISTED]))
            more = f" and {len(slow) - _MAX_LISTED} more" if len(slow) > _MAX_LISTED else ""
            ranks = f"rank{'s' if len(slow) > 1 else ''} {listed}{more}"
            self._print_note(f"writing the recording of {ranks}; training waits for it")


def format_stall(run: Path, seconds: float) -> str:
    """Return the line for the user while the program still runs."""
    return f"no progress for {seconds:.0f} s: saved to {run}; zprof diagnose {shlex.quote(str(run))}"


class StuckJob:
    """Decides when to end a stuck job: no rank has made progress for ``end_s`` since all of them were
    saved.
    """

    def __init__(self, run: Path, end_s: float) -> None:
        self._run, self._end_s = run, end_s
        self._progress: tuple[tuple[int, int], ...] = ()
        self._since_s = 0.0

    def is_over(self) -> bool:
        """Return True if the job must be ended now; called about once a second."""
        from zprof.collectors.record.watch.silent_ranks import list_stuck_states

        try:
            states = list_stuck_states(self._run)
        except Exception:  # whatever is wrong with the files, a job that may be healthy goes on
            states = []
        progress = tuple((state.rank, state.progress_ns) for state in states)
        if not progress or progress != self._progress:
            self._progress, self._since_s = progress, time.monotonic()
            return False
        return time.monotonic() - self._since_s >= self._end_s


def finish_watch(run: Path, code: int) -> Iterator[str]:
    """Save the ranks that left no stall of their own, remove the files of the watch, and yield notes.

    ``code``: exit code of the program; if it is 0, a rank that ended where it had been saved was not stuck.
    """
    from zprof.collectors.record.watch.shared_files import remove_watch_folder
    from zprof.collectors.record.watch.silent_ranks import mark_ended_stalls, save_silent_ranks

    saved: list[int] = []
    with suppress(Exception):  # whatever happens here, the program has ended as it did
        if code == 0:
            mark_ended_stalls(run)
        else:
            saved = save_silent_ranks(run, has_job_ended=True)
    remove_watch_folder(run)
    if saved:
        ranks = ", ".join(map(str, saved))
        yield f"rank {ranks} could not save itself: its last progress was saved to {run}"
