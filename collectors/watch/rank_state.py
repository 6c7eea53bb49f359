"""Read what a rank has at this moment, from any thread: its flight recorder, its process groups, the Python
stacks of all threads.
"""

import json
import pickle
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from zprof.collectors.base import Columns, first_line
from zprof.collectors.torch_private import (
    ProcessGroupFacts,
    dump_flight_recorder,
    dump_flight_status,
    list_process_groups,
)
from zprof.collectors.watch.shared_files import GroupProgress
from zprof.collectors.watch.thread_text import Frame, ThreadStack, make_thread_tables
from zprof.model.gaps import Gap, GapKind

#: Start of the names of zprof's own threads.
_OWN_THREADS = "zprof-"
_MAX_FRAMES = 200
#: Also changes when an operation ends with an error, after which gloo's program may be where it was.
_COMPLETED = re.compile(rb'"last_completed_collective":"-?\d+"')


def read_progress() -> bytes:
    """Return a text that changes whenever a rank has entered a collective, about 5 us.

    NCCL's host enters collectives long before they are executed, so their ends count too.
    """
    nccl, others = dump_flight_status()
    return nccl + _COMPLETED.sub(b"", others)


def list_group_progress() -> tuple[GroupProgress, ...]:
    """Return the process groups with their global ranks, and how far each one got."""
    nccl, others = dump_flight_status()
    numbers: dict[int, Any] = {}
    for text in (others, nccl):
        numbers |= {
            int(number): facts
            for number, facts in ((json.loads(text).get("pg_status") if text else None) or {}).items()
        }
    groups = list_process_groups()
    ordered = sorted(numbers)
    is_complete = len(ordered) == len(groups)
    progress = []
    for index, group in enumerate(groups):
        facts: Mapping[str, str] = numbers[ordered[index]] if is_complete else {}
        enqueued, completed = (facts.get(f"last_{state}_collective") for state in ("enqueued", "completed"))
        progress.append(
            GroupProgress(
                name=group.name,
                description=group.description,
                ranks=group.ranks,
                enqueued=None if enqueued is None else int(enqueued),
                completed=None if completed is None else int(completed),
            )
        )
    return tuple(progress)


def read_tables(stacks: Sequence[ThreadStack]) -> tuple[dict[str, Columns], list[Gap]]:
    """Return the tables ``flight``, ``flight_group``, ``flight_stack`` and ``flight_thread``, and gaps.

    ``stacks``: where the threads are or were.
    """
    tables, gaps = _read_flight_tables()
    numbers = tables["flight_stack"]["stack"]
    threads = make_thread_tables(stacks, 1 + max(numbers, default=-1))
    tables["flight_thread"] = threads["flight_thread"]
    tables["flight_stack"] = {
        name: [*tables["flight_stack"][name], *column] for name, column in threads["flight_stack"].items()
    }
    return tables, gaps


def read_threads() -> list[ThreadStack]:
    """Return where all threads of the process are, without zprof's own."""
    names = {each.ident: each.name for each in threading.enumerate()}
    main = threading.main_thread().ident
    return [
        ThreadStack(
            thread=ident, name=names.get(ident, ""), is_main=ident == main, frames=_read_frames(frame)
        )
        for ident, frame in sys._current_frames().items()
        if not names.get(ident, "").startswith(_OWN_THREADS)
    ]


def make_group_columns(groups: Sequence[GroupProgress]) -> Columns:
    """Return the table ``flight_group`` of a rank whose flight recorder cannot be read."""
    return {
        "group": [group.name for group in groups],
        "description": [group.description for group in groups],
        "ranks": [",".join(map(str, group.ranks)) for group in groups],
        "last_enqueued": [group.enqueued for group in groups],
        "last_completed": [group.completed for group in groups],
    }


def _read_flight_tables() -> tuple[dict[str, Columns], list[Gap]]:
    """Return the tables of the flight recorder; without one, the groups alone."""
    from zprof.collectors.flight_recorder.convert import convert_dump

    try:
        groups = list_process_groups()
        content = dump_flight_recorder()
        if content is None:
            raise ValueError("this torch has no flight recorder for the backend")
        dump = _describe_groups(pickle.loads(content), groups)
        converted = convert_dump(dump)
    except Exception as error:
        gap = Gap(
            kind=GapKind.COLLECTIVES,
            what="flight recorder",
            reason=first_line(error),
            remedy="use torch 2.8 or newer, and set TORCH_FR_BUFFER_SIZE=2000 (zprof doctor)",
        )
        from zprof.run.schema import TABLES

        empty: dict[str, Columns] = {
            name: {column: [] for column in TABLES[name].names} for name in ("flight", "flight_stack")
        }
        return {**empty, "flight_group": make_group_columns(list_group_progress())}, [gap]
    tables: dict[str, Columns] = {
        str(name): {column: _as_list(values) for column, values in columns.items()}
        for name, columns in converted.tables.items()
    }
    return tables, list(converted.gaps)


def _describe_groups(dump: dict[str, Any], groups: Sequence[ProcessGroupFacts]) -> dict[str, Any]:
    """Return a dump with the groups of ``torch.distributed``: gloo writes neither their names nor ranks.

    gloo's numbers in ``pg_status`` count sends and receives too, those of its entries do not.
    """
    config = {
        group.name: {
            "name": group.name,
            "desc": group.description,
            "ranks": "[" + ", ".join(map(str, group.ranks)) + "]",
        }
        for group in groups
    }
    status = {int(number): dict(facts) for number, facts in (dump.get("pg_status") or {}).items()}
    entries = dump.get("entries") or ()
    for number, (enqueued, retired) in _find_last_sequences(entries).items():
        if number in status:
            status[number]["last_enqueued_collective"] = enqueued
            status[number]["last_completed_collective"] = retired
    # Whether the numbers of the dump count the groups of ``torch.distributed``.
    if all(
        (entry["pg_id"] < len(groups) and groups[entry["pg_id"]].name == entry["process_group"][0])
        for entry in entries
    ):
        # A group has a status from its first operation on.
        unused = {f"last_{state}_collective": -1 for state in ("enqueued", "started", "completed")}
        status = {number: status.get(number, unused) for number in range(len(groups))} | status
    return {**dump, "pg_config": config, "pg_status": status}


def _find_last_sequences(entries: Sequence[Mapping[str, Any]]) -> dict[int, tuple[int, int]]:
    """Return the last collective of each of gloo's groups that was entered, and that has ended."""
    last: dict[int, tuple[int, int]] = {}
    for entry in entries:
        if not str(entry.get("profiling_name", "")).startswith("gloo:") or entry.get("is_p2p"):
            continue
        enqueued, retired = last.get(entry["pg_id"], (-1, -1))
        sequence = int(entry["collective_seq_id"])
        if entry.get("retired"):
            retired = max(retired, sequence)
        last[entry["pg_id"]] = max(enqueued, sequence), retired
    return last


def _read_frames(frame: FrameType | None) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    while frame is not None and len(frames) < _MAX_FRAMES:
        frames.append(Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(frames)


def _as_list(values: Any) -> list[Any]:
    """Return a column as a list: of Arrow, of numpy, or a list already."""
    convert = getattr(values, "to_pylist", None) or getattr(values, "tolist", None)
    return list(values) if convert is None else list(convert())
