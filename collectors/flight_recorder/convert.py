"""Convert one flight-recorder dump, loaded as plain data, to the tables ``flight*`` of a run.

The dump is from a stranger. What is wrong with it as a whole is an error; a single wrong entry or group is
left out, with a gap. Pickle and JSON have the same keys; JSON has no frames, 0 for unknown times, and texts
for the numbers of ``pg_status``. Versions 2.x (torch 2.5 to 2.13) differ in keys that are not read or may be
missing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from zprof.collectors.flight_recorder.groups import GroupRow, list_groups
from zprof.collectors.pickle_sandbox import format_name
from zprof.collectors.snapshot.columns import Budget, Integers, factorize_texts, nullable_integers
from zprof.collectors.snapshot.stacks import StackTable
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap, GapKind

DUMP_AGAIN = "dump the flight recorder again; if it fails again, please report it"
#: torch's default is 2,000 entries.
_MAX_ENTRIES = 500_000
_MAX_STACK_ROWS = 5_000_000
_MAX_TENSORS = 1 << 16
_MAX_LISTED = 3
_MAJOR_VERSION = "2"
_UNKNOWN = -1
_KEYS = ("pg_config", "pg_status", "entries")

_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Name = Annotated[str, Meta(max_length=4096)]
_Sizes = Annotated[
    list[Annotated[list[_Count], Meta(max_length=64)]],
    Meta(max_length=_MAX_TENSORS),
]
_Dtypes = Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=_MAX_TENSORS)]


class FlightTables(Struct, frozen=True, kw_only=True):
    """Tables of one dump by name, what is wrong with it, and what it says of the job.

    ``group_ranks``: the ranks of each group that are known. ``backend``: of most entries, empty if unknown.
    """

    tables: Mapping[str, Mapping[str, Any]]
    gaps: tuple[Gap, ...]
    group_ranks: tuple[tuple[int, ...], ...]
    backend: str


class _JsonDump(Struct, kw_only=True):
    """The keys of a dump that are read."""

    version: Any = None
    pg_config: Any = None
    pg_status: Any = None
    entries: "list[_Entry] | None" = None


class _Entry(Struct, kw_only=True):
    """The keys of an entry that are read."""

    process_group: tuple[_Name, _Name]
    profiling_name: _Name
    collective_seq_id: _Count
    state: Literal["scheduled", "started", "completed"]
    record_id: _Count | None = None
    pg_id: _Count = 0
    p2p_seq_id: _Count = 0
    op_id: _Count = 0
    is_p2p: bool | None = None
    retired: bool = False
    input_sizes: _Sizes = []
    input_dtypes: _Dtypes = []
    output_sizes: _Sizes = []
    output_dtypes: _Dtypes = []
    time_created_ns: _Count | None = None
    time_discovered_started_ns: _Count | None = None
    time_discovered_completed_ns: _Count | None = None
    timeout_ms: _Count | None = None
    frames: Any = None


def load_json(content: bytes) -> object:
    """Return the data of a dump in JSON for ``convert_dump``; valid entries are checked while they are read.

    Raises:
        BadInput: it is damaged.
    """
    try:
        try:
            dump = msgspec.json.decode(content, type=_JsonDump)
        except msgspec.ValidationError:
            return msgspec.json.decode(content)  # tells the wrong entries from the others
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadInput(f"damaged JSON ({format_name(str(error))})", hint="copy the file again") from None
    except RecursionError:
        raise BadInput("JSON that is nested too deeply for a dump", hint=DUMP_AGAIN) from None
    return {key: getattr(dump, key) for key in dump.__struct_fields__ if getattr(dump, key) is not None}


def convert_dump(data: object) -> FlightTables:
    """Return the tables of a dump.

    Raises:
        BadInput: it is not a dump, or exceeds the limits.
    """
    if type(data) is not dict or not any(key in data for key in _KEYS):
        raise make_damaged_error("it has none of pg_config, pg_status and entries")
    gaps: list[Gap] = []
    _check_version(data.get("version"), gaps)
    entries = _read_entries(data.get("entries"), gaps)
    stack_numbers, stacks = _number_stacks(entries, gaps)
    group_names = {(entry.pg_id, *entry.process_group) for entry in entries}
    groups = list_groups(data.get("pg_config"), data.get("pg_status"), sorted(group_names), gaps)
    backends, operations = _split_names(entries)
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
    )


def make_damaged_error(what: str) -> BadInput:
    """Return the error for a dump that does not have torch's format."""
    return BadInput(f"not in the format of torch's flight recorder: {what}", hint=DUMP_AGAIN)


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


def _read_entries(value: object, gaps: list[Gap]) -> list[_Entry]:
    """Return the valid entries, oldest first; JSON without any entries has no key for them."""
    if value is None:
        return []
    if type(value) is not list and type(value) is not tuple:
        raise make_damaged_error(f"entries is {type(value).__name__}, not a list")
    if len(value) > _MAX_ENTRIES:
        raise BadInput(
            f"{len(value)} entries, at most {_MAX_ENTRIES}",
            hint="set a smaller TORCH_FR_BUFFER_SIZE, and dump it again",
        )
    try:
        entries = msgspec.convert(value, list[_Entry])  # returns those of load_json
    except (msgspec.ValidationError, UnicodeError, RecursionError):
        entries = _read_valid_entries(value, gaps)
    if all(entry.record_id is not None for entry in entries):
        entries.sort(key=lambda entry: entry.record_id or 0)
    return entries


def _read_valid_entries(rows: Sequence[object], gaps: list[Gap]) -> list[_Entry]:
    """Return the entries that are valid, with one gap for the others."""
    entries: list[_Entry] = []
    reasons: list[str] = []
    for row in rows:
        try:
            entries.append(msgspec.convert(row, _Entry))
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            reasons.append(format_name(str(error)))
    examples = "; ".join(list(dict.fromkeys(reasons))[:_MAX_LISTED])
    gaps.append(
        _make_gap(
            "operations of the flight recorder",
            f"{len(reasons)} of {len(rows)} entries are not in torch's format ({examples})",
            DUMP_AGAIN,
        )
    )
    return entries


def _number_stacks(entries: Sequence[_Entry], gaps: list[Gap]) -> tuple[Integers, StackTable]:
    """Return the number of each entry's stack, -1 if it has none, and the stacks."""
    stacks = StackTable(Budget(_MAX_STACK_ROWS))
    frames = [entry.frames for entry in entries]
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


def _split_names(entries: Sequence[_Entry]) -> tuple[list[str], list[str]]:
    """Return the backend and the operation of each entry: ``nccl:send 0->3`` has both."""
    parts = {name: name.partition(":") for name in {entry.profiling_name for entry in entries}}
    split = {
        name: (head, tail) if colon else ("unknown", head) for name, (head, colon, tail) in parts.items()
    }
    pairs = [split[entry.profiling_name] for entry in entries]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _make_entry_columns(
    entries: Sequence[_Entry], backends: list[str], operations: list[str], stack_numbers: Integers
) -> dict[str, Any]:
    encode = msgspec.json.encode
    numbers: dict[str, list[int]] = {
        "record_id": [
            index if entry.record_id is None else entry.record_id for index, entry in enumerate(entries)
        ],
        "group_id": [entry.pg_id for entry in entries],
        "sequence": [entry.collective_seq_id for entry in entries],
        "p2p_sequence": [entry.p2p_seq_id for entry in entries],
        "op_id": [entry.op_id for entry in entries],
        # A time of 0 is JSON's spelling of an unknown one.
        "created_ns": [entry.time_created_ns or _UNKNOWN for entry in entries],
        "started_ns": [entry.time_discovered_started_ns or _UNKNOWN for entry in entries],
        "completed_ns": [entry.time_discovered_completed_ns or _UNKNOWN for entry in entries],
        "timeout_ms": [_UNKNOWN if entry.timeout_ms is None else entry.timeout_ms for entry in entries],
    }
    texts: dict[str, list[str]] = {
        "group": [entry.process_group[0] for entry in entries],
        "backend": backends,
        "operation": operations,
        "input_sizes": [encode(entry.input_sizes).decode() for entry in entries],
        "input_dtypes": [",".join(entry.input_dtypes) for entry in entries],
        "output_sizes": [encode(entry.output_sizes).decode() for entry in entries],
        "output_dtypes": [",".join(entry.output_dtypes) for entry in entries],
        "state": [entry.state for entry in entries],
    }
    return {
        **{name: nullable_integers(np.array(column, dtype=np.int64)) for name, column in numbers.items()},
        **{name: factorize_texts(column) for name, column in texts.items()},
        "is_p2p": [
            operation.startswith(("send ", "recv ")) if entry.is_p2p is None else entry.is_p2p
            for entry, operation in zip(entries, operations, strict=True)
        ],
        "is_retired": [entry.retired for entry in entries],
        "stack": nullable_integers(stack_numbers),
    }


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
