"""Convert one flight-recorder dump, loaded as plain data, to the tables ``flight*`` of a run.

The dump is from a stranger. What is wrong with it as a whole is an error; a single wrong entry or group is
left out, with a gap. Pickle and JSON have the same keys; JSON has no frames, 0 for unknown times, and texts
for the numbers of ``pg_status``. Versions 2.x (torch 2.5 to 2.13) differ in keys that are not read or may be
missing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from zprof.collectors.flight_recorder.entries import (
    DUMP_AGAIN,
    Columns,
    make_damaged_error,
    read_entries,
)
from zprof.collectors.flight_recorder.groups import GroupRow, list_groups
from zprof.collectors.pickle_sandbox import format_name
from zprof.collectors.snapshot.columns import Budget, Integers, factorize_texts, nullable_integers
from zprof.collectors.snapshot.stacks import StackTable
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap, GapKind

_MAX_STACK_ROWS = 5_000_000
_MAJOR_VERSION = "2"
_UNKNOWN = -1
_KEYS = ("pg_config", "pg_status", "entries")


class FlightTables(Struct, frozen=True, kw_only=True):
    """Tables of one dump by name, what is wrong with it, and what it says of the job.

    ``group_ranks``: the ranks of each group that are known. ``backend``: of most entries, empty if unknown.
    ``entries_left_out``: entries that are not in torch's format; None if it is not known how many.
    """

    tables: Mapping[str, Mapping[str, Any]]
    gaps: tuple[Gap, ...]
    group_ranks: tuple[tuple[int, ...], ...]
    backend: str
    entries_left_out: int | None = 0


def convert_dump(data: object) -> FlightTables:
    """Return the tables of a dump.

    Raises:
        BadInput: it is not a dump, or exceeds the limits.
    """
    if type(data) is not dict or not any(key in data for key in _KEYS):
        raise make_damaged_error("it has none of pg_config, pg_status and entries")
    gaps: list[Gap] = []
    _check_version(data.get("version"), gaps)
    # JSON without any entries has no key for them.
    entries, left_out = read_entries(data.get("entries", []), gaps)
    stack_numbers, stacks = _number_stacks(entries["frames"], gaps)
    groups_of_entries = set(zip(entries["pg_id"], entries["process_group"], strict=True))
    group_names = [(number, *names) for number, names in sorted(groups_of_entries)]
    groups = list_groups(data.get("pg_config"), data.get("pg_status"), group_names, gaps)
    backends, operations = _split_names(entries["profiling_name"])
    tables = {
        "flight": _make_entry_columns(entries, backends, operations, stack_numbers),
        "flight_group": _make_group_columns(groups),
        "flight_stack": stacks.columns(),
    }
    return FlightTables(
        tables=tables,
        gaps=tuple(gaps),
        group_ranks=tuple(group.ranks for group in groups if group.ranks),
        backend=max(Counter(backends).items(), key=lambda item: item[1])[0] if backends else "",
        entries_left_out=left_out,
    )


def _check_version(version: object, gaps: list[Gap]) -> None:
    if type(version) is not str or version.split(".")[0] != _MAJOR_VERSION:
        said = format_name(version) if type(version) is str else "missing"
        gaps.append(
            _make_gap(
                "version of the dump",
                f"it is {said}, and only {_MAJOR_VERSION}.x is known",
                "check the operations against the program",
            )
        )


def _number_stacks(frames: Sequence[object], gaps: list[Gap]) -> tuple[Integers, StackTable]:
    """Return the number of each entry's stack, -1 if it has none, and the stacks."""
    stacks = StackTable(Budget(_MAX_STACK_ROWS))
    try:
        return stacks.numbers(frames, "an entry"), stacks
    except BadInput:
        pass
    # The frames of one entry are wrong: number each alone.
    numbers = np.full(len(frames), -1, dtype=np.int64)
    wrong = 0
    for index, stack in enumerate(frames):
        try:
            numbers[index] = stacks.numbers([stack], "an entry")[0]
        except BadInput:
            wrong += 1
    gaps.append(
        _make_gap(
            "stacks of the flight recorder",
            f"{wrong} of {len(frames)} stacks are not in torch's format or exceed the limits",
            DUMP_AGAIN,
        )
    )
    return numbers, stacks


def _split_names(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the backend and the operation of each entry: ``nccl:send 0->3`` has both."""
    backends: dict[str, str] = {}
    operations: dict[str, str] = {}
    for name in set(names):
        head, colon, tail = name.partition(":")
        backends[name], operations[name] = (head, tail) if colon else ("unknown", head)
    return list(map(backends.__getitem__, names)), list(map(operations.__getitem__, names))


def _make_entry_columns(
    entries: Columns, backends: list[str], operations: list[str], stack_numbers: Integers
) -> dict[str, Any]:
    ids = entries["record_id"]
    numbers: dict[str, Sequence[int]] = {
        "record_id": [index if number is None else number for index, number in enumerate(ids)],
        "group_id": entries["pg_id"],
        "sequence": entries["collective_seq_id"],
        "p2p_sequence": entries["p2p_seq_id"],
        "op_id": entries["op_id"],
        # A time of 0 is JSON's spelling of an unknown one.
        "created_ns": [time or _UNKNOWN for time in entries["time_created_ns"]],
        "started_ns": [time or _UNKNOWN for time in entries["time_discovered_started_ns"]],
        "completed_ns": [time or _UNKNOWN for time in entries["time_discovered_completed_ns"]],
        "timeout_ms": [_UNKNOWN if time is None else time for time in entries["timeout_ms"]],
    }
    texts: dict[str, Sequence[str]] = {
        "group": [names[0] for names in entries["process_group"]],
        "backend": backends,
        "operation": operations,
        "input_sizes": _format_sizes(entries["input_sizes"]),
        "input_dtypes": list(map(",".join, entries["input_dtypes"])),
        "output_sizes": _format_sizes(entries["output_sizes"]),
        "output_dtypes": list(map(",".join, entries["output_dtypes"])),
        "state": entries["state"],
    }
    return {
        **{name: nullable_integers(np.array(column, dtype=np.int64)) for name, column in numbers.items()},
        **{name: factorize_texts(column) for name, column in texts.items()},
        "is_p2p": [
            operation.startswith(("send ", "recv ")) if is_p2p is None else is_p2p
            for is_p2p, operation in zip(entries["is_p2p"], operations, strict=True)
        ],
        "is_retired": entries["retired"],
        "stack": nullable_integers(stack_numbers),
    }


def _format_sizes(sizes: Sequence[list[list[int]]]) -> list[str]:
    """Return the sizes as JSON; few are distinct."""
    encoded = list(map(msgspec.json.encode, sizes))
    texts = {text: text.decode() for text in set(encoded)}
    return list(map(texts.__getitem__, encoded))


def _make_group_columns(groups: Sequence[GroupRow]) -> dict[str, Any]:
    return {
        "group": [group.name for group in groups],
        "group_id": [group.group_id for group in groups],
        "description": [group.description for group in groups],
        "ranks": [",".join(map(str, group.ranks)) for group in groups],
        "last_enqueued": [group.last_enqueued for group in groups],
        "last_started": [group.last_started for group in groups],
        "last_completed": [group.last_completed for group in groups],
    }


def _make_gap(what: str, reason: str, remedy: str) -> Gap:
    return Gap(kind=GapKind.FILE, what=what, reason=reason, remedy=remedy)
