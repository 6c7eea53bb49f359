"""Save what is known of ranks that cannot save themselves: the GIL is held, the process stopped or killed.

Each rank's state file has its last progress, and what faulthandler wrote if the GIL is held. Another rank, or
the parent process at the end, writes both into the rank's folder. Does not need torch.

Read the text that faulthandler writes about all threads, for a process that holds the GIL for ever.

    Thread 0x00007f3c (most recent call first):
      File "/job/train.py", line 12 in spin
    Current thread 0x00007f3d [python] (most recent call first):
      ...

The main thread comes last. Python 3.11 to 3.13 differ in the thread's name only.
"""

import os
import re
import shutil
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.collectors.record.watch.shared_files import (
    RankState,
    list_ended,
    list_stalls,
    list_states,
    make_bare_manifest,
    read_state,
)
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.hang import ProcessState, RankProcess
from zprof.run.files import lock_folder, write_atomically
from zprof.run.manifest import (
    MANIFEST_NAME,
    RANK_NAME,
    STEPS_NAME,
    RankManifest,
    get_staged_path,
    rank_folder,
    read_last_end_ns,
    read_rank_manifest,
    read_run_manifest,
    to_json,
)

#: A rank whose watch has been silent for this many of its limits is saved by others. faulthandler writes
#: before that.
TEXT_AFTER_LIMITS, SAVE_AFTER_LIMITS = 1.5, 2.0
_MAX_LOCK_WAIT_S = 1.0
_STUCK, _RESUMED = "stuck", "resumed"
_PROC = Path("/proc")
_STATES = {
    "T": ProcessState.STOPPED,
    "t": ProcessState.TRACED,
    "Z": ProcessState.DEAD,
    "D": ProcessState.UNINTERRUPTIBLE,
}
_THREAD = re.compile(
    r"(?:Current thread|Thread) 0x([0-9a-fA-F]{1,16})(?: \[(.*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')
_MAX_THREADS, _MAX_FRAMES = 500, 200


def save_silent_ranks(run: Path, *, has_job_ended: bool = False) -> list[int]:
    """Save the ranks that are silent while others are stuck, and return them.

    ``has_job_ended``: no rank runs any more; those whose text was written are saved too.
    """
    is_stuck = bool(list_stalls(run))
    saved = []
    for state, text in _read_states(run):
        silent_ns = time.time_ns() - state.time_ns
        is_silent = silent_ns > SAVE_AFTER_LIMITS * state.limit_ns
        is_due = (text and has_job_ended) or (is_stuck and is_silent)
        if is_due and not is_saved(run, state):
            with suppress(OSError, BadInput):
                _save(run, state, text, silent_ns)
                saved += [state.rank] * is_saved(run, state)
    return saved


def list_stuck_states(run: Path) -> list[RankState]:
    """Return the states of all ranks of a job if each was saved and has not moved since; else nothing.

    A job that has not entered its first collective is still starting.
    """
    states = [state for state, _ in _read_states(run)]
    is_complete = bool(states) and len(states) == max(state.world_size for state in states)
    has_begun = any(state.has_begun for state in states)
    is_stuck = is_complete and has_begun and bool(list_stalls(run))
    return states if is_stuck and all(is_saved(run, state) for state in states) else []


def mark_ended_stalls(run: Path) -> None:
    """Mark the stalls of ranks that ended in them as ended: the job has ended without an error."""
    for rank in list_ended(run):
        with suppress(OSError, BadInput):
            manifest = read_rank_manifest(run, rank)
            marks, now_ns = _read_marks(run, manifest), time.time_ns()
            stalls = [time_ns for time_ns, kind in _list_stalls_of(marks) if kind == _STUCK]
            marks = _add_mark(marks, _RESUMED, now_ns, now_ns - max(stalls, default=now_ns))
            folder = rank_folder(run, rank)
            from zprof.run.writer import place_table, stage_table

            files = manifest.files | {"mark": stage_table(folder, "mark", marks)}
            write_atomically(folder / RANK_NAME, to_json(replace(manifest, files=files)).encode())
            place_table(folder, "mark")


def is_saved(run: Path, state: RankState) -> bool:
    """Return True if a rank was saved as stuck, by itself or by others, and has not moved since."""
    try:
        manifest = read_rank_manifest(run, state.rank)
        run_id = read_run_manifest(run).run_id
    except BadInput:
        return False
    if manifest.run_id != run_id or "flight_thread" not in manifest.files:
        return False
    stalls = _list_stalls_of(_read_marks(run, manifest))
    moved_ns = max(state.progress_ns, read_last_end_ns(rank_folder(run, state.rank) / STEPS_NAME) or 0)
    return bool(stalls) and stalls[-1][1] == _STUCK and stalls[-1][0] >= moved_ns


def _list_stalls_of(marks: dict[str, list[Any]]) -> list[tuple[int, str]]:
    """Return time and kind of the marks of a watch."""
    pairs = zip(marks["time_ns"], marks["kind"], strict=True)
    return [pair for pair in pairs if pair[1] in (_STUCK, _RESUMED)]


def _read_states(run: Path) -> list[tuple[RankState, str]]:
    """Return the state of each rank, and what faulthandler wrote."""
    states = []
    for rank, path in sorted(list_states(run).items()):
        found = read_state(path)
        if found is not None and found[0].rank == rank:
            states.append(found)
    return states


def _save(run: Path, state: RankState, text: str, silent_ns: int) -> None:
    """Save a rank that may go on at any moment, and then writes its folder itself.

    Raises:
        OSError: it cannot be written, or the rank writes now.
    """
    folder = rank_folder(run, state.rank)
    run.mkdir(parents=True, exist_ok=True)
    if not (run / MANIFEST_NAME).exists():
        content = to_json(make_bare_manifest(state.world_size, state.backend, state.run_id))
        write_atomically(run / MANIFEST_NAME, content.encode())
    temporary = run / f".{folder.name}.{os.getpid()}"
    temporary.mkdir()
    try:
        if folder.exists():
            with lock_folder(folder, _MAX_LOCK_WAIT_S) as is_locked:
                if is_locked:
                    _write_stall(
                        read_rank_manifest(run, state.rank), temporary, folder, state, text, silent_ns
                    )
        else:
            manifest = RankManifest(rank=state.rank, status="partial", host=state.host, run_id=state.run_id)
            _write_stall(manifest, temporary, temporary, state, text, silent_ns)
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_stall(
    manifest: RankManifest, temporary: Path, folder: Path, state: RankState, text: str, silent_ns: int
) -> None:
    """Write the tables of a stall into ``temporary``, the manifest into ``folder``, and move them there."""
    from zprof.run.schema import TABLES
    from zprof.run.writer import stage_table

    marks = _read_marks(folder.parent, manifest)
    tables: dict[str, Any] = {
        "flight": {column: [] for column in TABLES["flight"].names},
        "flight_group": {
            "group": [group.name for group in state.groups],
            "description": [group.description for group in state.groups],
            "ranks": [",".join(map(str, group.ranks)) for group in state.groups],
            "last_enqueued": [group.enqueued for group in state.groups],
            "last_completed": [group.completed for group in state.groups],
        },
        **make_thread_tables(parse_thread_text(text)),
        "mark": _add_mark(marks, _STUCK, state.time_ns + state.limit_ns, silent_ns),
    }
    files = {name: stage_table(temporary, name, columns) for name, columns in tables.items()}
    process = RankProcess(number=state.process, host=state.host, state=_find_process_state(state))
    manifest = replace(
        manifest,
        status="partial" if manifest.status == "recording" else manifest.status,
        files=manifest.files | files,
        gaps=(*manifest.gaps, _make_gap(state, process, bool(text))),
        process=process,
    )
    write_atomically(folder / RANK_NAME, to_json(manifest).encode())
    for name in tables:
        table = f"{name}.parquet"
        get_staged_path(temporary / table).rename(folder / table)


def _add_mark(marks: dict[str, list[Any]], kind: str, time_ns: int, stall_ns: int) -> dict[str, list[Any]]:
    """Return a rank's marks with one more."""
    mark = {"time_ns": time_ns, "kind": kind, "number": stall_ns, "name": ""}
    return {name: [*column, mark.get(name)] for name, column in marks.items()}


def _read_marks(run: Path, manifest: RankManifest) -> dict[str, list[Any]]:
    from zprof.run.schema import TABLES
    from zprof.run.table_reader import read_table

    if "mark" in manifest.files:
        path = rank_folder(run, manifest.rank) / "mark.parquet"
        with suppress(BadInput):
            return read_table(path, "mark", manifest.files["mark"], None).to_pydict()
    return {name: [] for name in TABLES["mark"].names}


def _make_gap(state: RankState, process: RankProcess, has_text: bool) -> Gap:
    if has_text:
        key, detail = "rank_held_up", "GIL held"
    elif process.state is ProcessState.ENDED:
        key, detail = "rank_silent", "its process has ended"
    elif process.state is not None:
        key, detail = "rank_silent", f"its process is {process.state.value}"
    elif process.host == socket.gethostname():
        key, detail = "rank_silent", "its process does not answer"
    else:
        key, detail = "rank_silent", "its process was not seen from here"
    return make_gap(key, rank=state.rank, detail=detail, process=process.number, host=process.host)


def _find_process_state(state: RankState) -> ProcessState | None:
    """Return what the system says of a rank's process; None if it runs, or is on another machine."""
    if state.host != socket.gethostname():
        return None
    try:
        stat = (_PROC / str(state.process) / "stat").read_text(errors="replace")
    except OSError:
        return ProcessState.ENDED
    return _STATES.get(stat.rpartition(")")[2].split()[0])


class Frame(Struct, frozen=True):
    """One Python frame."""

    file: str
    line: int
    function: str


class ThreadStack(Struct, frozen=True, kw_only=True):
    """Where a thread was, innermost frame first."""

    thread: int
    name: str = ""
    is_main: bool = False
    frames: tuple[Frame, ...] = ()


def parse_thread_text(text: str) -> Sequence[ThreadStack]:
    """Return the stacks of all threads; what is not in the format is left out."""
    found: list[tuple[int, str, list[Frame]]] = []
    for line in text.splitlines():
        if match := _THREAD.fullmatch(line):
            if len(found) == _MAX_THREADS:
                break
            found.append((int(match[1], 16) & (1 << 63) - 1, match[2] or "", []))
        elif found and (match := _FRAME.fullmatch(line)) and len(found[-1][2]) < _MAX_FRAMES:
            number = int(match[2]) if match[2].isdigit() else 0
            found[-1][2].append(Frame(match[1], number, match[3]))
    return [
        ThreadStack(thread=thread, name=name, is_main=position == len(found), frames=tuple(frames))
        for position, (thread, name, frames) in enumerate(found, 1)
        if frames
    ]


def make_thread_tables(
    threads: Sequence[ThreadStack], first_stack: int = 0
) -> dict[str, dict[str, list[object]]]:
    """Return the columns of ``flight_thread`` and ``flight_stack``; ``first_stack`` is the first number."""
    stacks: dict[tuple[Frame, ...], int] = {}
    for each in threads:
        stacks.setdefault(each.frames, first_stack + len(stacks))
    rows = [
        (number, depth, frame.file, frame.line, frame.function)
        for frames, number in stacks.items()
        for depth, frame in enumerate(frames)
    ]
    names = ("stack", "depth", "file", "line", "function")
    return {
        "flight_thread": {
            "thread": [each.thread for each in threads],
            "name": [each.name for each in threads],
            "is_main": [each.is_main for each in threads],
            "stack": [stacks[each.frames] for each in threads],
        },
        "flight_stack": {name: [row[index] for row in rows] for index, name in enumerate(names)},
    }
