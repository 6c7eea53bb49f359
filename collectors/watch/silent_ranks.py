"""Save what is known of ranks that cannot save themselves: the GIL is held, the process stopped or killed.

Each rank's state file has its last progress, and what faulthandler wrote if the GIL is held. Another rank, or
the parent process at the end, writes both into the rank's folder. Does not need torch.
"""

import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from zprof.collectors.watch.shared_files import RankState, list_stalls, list_states, read_state
from zprof.collectors.watch.thread_text import make_thread_tables, parse_thread_text
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap, GapKind
from zprof.run.atomic_files import write_atomically
from zprof.run.manifest import (
    RANK_NAME,
    RankManifest,
    TableFile,
    rank_folder,
    read_rank_manifest,
    read_run_manifest,
    to_json,
)

#: A rank whose watch has been silent for this many of its limits is saved by others. faulthandler writes
#: before that.
TEXT_AFTER_LIMITS, SAVE_AFTER_LIMITS = 1.5, 2.0
_PROC = Path("/proc")
_STATES = {
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "dead",
    "D": "in an uninterruptible system call",
}


def save_silent_ranks(run: Path, *, has_job_ended: bool = False) -> list[int]:
    """Save the ranks that are silent while others are stuck, and return them.

    ``has_job_ended``: no rank runs any more; those whose text was written are saved too.
    """
    try:
        run_id = read_run_manifest(run).run_id
    except BadInput:
        run_id = ""  # no rank has written anything
    is_stuck = bool(list_stalls(run))
    saved = []
    for rank, path in sorted(list_states(run).items()):
        found = read_state(path)
        if found is None or found[0].rank != rank:
            continue
        state, text = found
        silent_ns = time.time_ns() - state.time_ns
        is_silent = silent_ns > SAVE_AFTER_LIMITS * state.limit_ns
        is_due = (text and has_job_ended) or (is_stuck and is_silent)
        if is_due and not _is_saved(run, rank, run_id):
            with suppress(OSError, BadInput):
                _save(run, state, text, silent_ns)
                saved.append(rank)
    return saved


def _is_saved(run: Path, rank: int, run_id: str) -> bool:
    """Return True if a stall of the rank that has not ended is saved already, by itself or by others."""
    try:
        manifest = read_rank_manifest(run, rank)
    except BadInput:
        return False
    if manifest.run_id != run_id or "flight_thread" not in manifest.files:
        return False
    kinds = [kind for kind in _read_marks(run, manifest)["kind"] if kind in ("stuck", "resumed")]
    return kinds[-1:] == ["stuck"]


def _save(run: Path, state: RankState, text: str, silent_ns: int) -> None:
    from zprof.collectors.watch.run_files import make_bare_manifest
    from zprof.run.manifest import MANIFEST_NAME
    from zprof.run.schema import TABLES
    from zprof.run.writer import place_table, stage_table

    folder = rank_folder(run, state.rank)
    folder.mkdir(parents=True, exist_ok=True)
    if not (run / MANIFEST_NAME).exists():
        content = to_json(make_bare_manifest(state.world_size, state.backend, state.run_id))
        write_atomically(run / MANIFEST_NAME, content.encode())
    try:
        manifest = read_rank_manifest(run, state.rank)
    except BadInput:
        manifest = RankManifest(rank=state.rank, status="partial", host=state.host, run_id=state.run_id)
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
    }
    tables["mark"] = _add_mark(run, manifest, state.time_ns + state.limit_ns, silent_ns)
    files: dict[str, TableFile] = {
        name: stage_table(folder, name, columns) for name, columns in tables.items()
    }
    manifest = replace(
        manifest,
        status="partial" if manifest.status == "recording" else manifest.status,
        files=manifest.files | files,
        gaps=(*manifest.gaps, _make_gap(state, bool(text))),
    )
    write_atomically(folder / RANK_NAME, to_json(manifest).encode())
    for name in tables:
        place_table(folder, name)


def _add_mark(run: Path, manifest: RankManifest, time_ns: int, stall_ns: int) -> dict[str, list[Any]]:
    """Return the rank's marks with one more: that it is stuck."""
    mark = {"time_ns": time_ns, "kind": "stuck", "number": stall_ns, "name": ""}
    marks = _read_marks(run, manifest)
    return {name: [*column, mark.get(name)] for name, column in marks.items()}


def _read_marks(run: Path, manifest: RankManifest) -> dict[str, list[Any]]:
    from zprof.run.schema import TABLES
    from zprof.run.table_reader import read_table

    if "mark" in manifest.files:
        path = rank_folder(run, manifest.rank) / "mark.parquet"
        with suppress(BadInput):
            columns: dict[str, list[Any]] = read_table(path, "mark", manifest.files["mark"], None).to_pydict()
            return columns
    return {name: [] for name in TABLES["mark"].names}


def _make_gap(state: RankState, has_text: bool) -> Gap:
    condition = "its Python threads were held up (the GIL was not released)" if has_text else ""
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="flight recorder",
        rank=state.rank,
        detail="GIL held" if has_text else _find_process_state(state),
        reason=f"the rank could not save itself: {condition or _find_process_state(state)}; its progress is "
        "that of the last look before",
        remedy="look at the process with py-spy dump or gdb while it hangs",
    )


def _find_process_state(state: RankState) -> str:
    """Return what the system says of a rank's process, if it is on this machine."""
    if state.host != socket.gethostname():
        return "its process was not seen from here"
    try:
        stat = (_PROC / str(state.process) / "stat").read_text(errors="replace")
    except OSError:
        return "its process has ended"
    letter = stat.rpartition(")")[2].split()[0]
    name = _STATES.get(letter)
    return f"its process is {name}" if name else "its process does not answer"
