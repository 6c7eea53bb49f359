"""Convert one flight-recorder dump, loaded as plain data, to the tables ``flight*`` of a run.

The dump is from a stranger. What is wrong with it as a whole is an error; a single wrong entry or group is
left out, with a gap. Pickle and JSON have the same keys; JSON has no frames, 0 for unknown times, and texts
for the numbers of ``pg_status``. Versions 2.x (torch 2.5 to 2.13) differ in keys that are not read or may be
missing.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import itemgetter
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
from zprof.collectors.flight_recorder.groups import list_groups
from zprof.collectors.pickle_sandbox import format_name
from zprof.collectors.snapshot.columns import (
    Budget,
    Integers,
    TextNumbers,
    clean_text,
    nullable_integers,
)
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
    names = _Numbered(entries["profiling_name"])
    backends = [_split_name(name)[0] for name in names.distinct]
    tables = {
        "flight": _make_entry_columns(entries, names, stack_numbers),
        "flight_group": {
            "group": [group.name for group in groups],
            "group_id": [group.group_id for group in groups],
            "description": [group.description for group in groups],
            "ranks": [",".join(map(str, group.ranks)) for group in groups],
            "last_enqueued": [group.last_enqueued for group in groups],
            "last_started": [group.last_started for group in groups],
            "last_completed": [group.last_completed for group in groups],
        },
        "flight_stack": stacks.columns(),
    }
    return FlightTables(
        tables=tables,
        gaps=tuple(gaps),
        group_ranks=tuple(group.ranks for group in groups if group.ranks),
        backend=_find_most(backends, np.bincount(names.codes, minlength=len(backends))),
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


class _Numbered:
    """Values by number: few are distinct, and what is made of one is made once."""

    def __init__(self, values: Sequence[Hashable]) -> None:
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        self.distinct: list[Any] = list(numbers)
        self.codes = np.fromiter(map(numbers.__getitem__, values), dtype=np.int32, count=len(values))

    def make_texts(self, make_text: Callable[[Any], str]) -> Any:
        """Return the column of the texts that are made of the values."""
        numbering = TextNumbers()
        numbers = [numbering.number(clean_text(make_text(value))) for value in self.distinct]
        return numbering.column(np.array(numbers, dtype=np.int32)[self.codes])

    def make_flags(self, has_flag: Callable[[Any], bool]) -> Any:
        """Return a flag per row."""
        return np.array([has_flag(value) for value in self.distinct], dtype=np.bool_)[self.codes]


def _split_name(name: str) -> tuple[str, str]:
    """Return the backend and the operation: ``nccl:send 0->3`` has both."""
    head, colon, tail = name.partition(":")
    return (head, tail) if colon else ("unknown", head)


def _find_most(names: Sequence[str], counts: Integers) -> str:
    """Return the name with the highest sum of counts; empty if there is none."""
    total: Counter[str] = Counter()
    for name, count in zip(names, counts.tolist(), strict=True):
        total[name] += count
    return max(total.items(), key=lambda item: item[1])[0] if total else ""


def _make_entry_columns(entries: Columns, names: _Numbered, stack_numbers: Integers) -> dict[str, Any]:
    ids = entries["record_id"]
    numbers: dict[str, Sequence[int | None]] = {
        "record_id": [index if number is None else number for index, number in enumerate(ids)],
        "group_id": entries["pg_id"],
        "sequence": entries["collective_seq_id"],
        "p2p_sequence": entries["p2p_seq_id"],
        "op_id": entries["op_id"],
        "timeout_ms": _fill_unknown(entries["timeout_ms"]),
    }
    columns: dict[str, Any] = {
        name: nullable_integers(np.array(column, dtype=np.int64)) for name, column in numbers.items()
    }
    for state in ("created", "started", "completed"):
        key = "time_created_ns" if state == "created" else f"time_discovered_{state}_ns"
        times = np.array(_fill_unknown(entries[key]), dtype=np.int64)
        times[times == 0] = _UNKNOWN  # JSON's spelling
        columns[f"{state}_ns"] = nullable_integers(times)
    for side in ("input", "output"):
        sizes = _Numbered(list(map(msgspec.json.encode, entries[f"{side}_sizes"])))
        columns[f"{side}_sizes"] = sizes.make_texts(bytes.decode)
        columns[f"{side}_dtypes"] = _Numbered(list(map(",".join, entries[f"{side}_dtypes"]))).make_texts(str)
    is_p2p = entries["is_p2p"]
    if None in is_p2p:
        is_named = names.make_flags(lambda name: _split_name(name)[1].startswith(("send ", "recv ")))
        is_p2p = [named if said is None else said for named, said in zip(is_named, is_p2p, strict=True)]
    return {
        **columns,
        "group": _Numbered(entries["process_group"]).make_texts(itemgetter(0)),
        "backend": names.make_texts(lambda name: _split_name(name)[0]),
        "operation": names.make_texts(lambda name: _split_name(name)[1]),
        "state": _Numbered(entries["state"]).make_texts(str),
        "is_p2p": is_p2p,
        "is_retired": entries["retired"],
        "stack": nullable_integers(stack_numbers),
    }


def _fill_unknown(values: Sequence[int | None]) -> Sequence[int | None]:
    """Return the values with a negative one in place of None."""
    unknown = values.count(None)
    if unknown == len(values):
        return [_UNKNOWN] * unknown
    return [_UNKNOWN if value is None else value for value in values] if unknown else values


def _make_gap(what: str, reason: str, remedy: str) -> Gap:
    return Gap(kind=GapKind.FILE, what=what, reason=reason, remedy=remedy)
