"""Convert one flight-recorder dump, loaded as plain data, to the tables ``flight*`` of a run.

The dump is from a stranger. A defect of the whole dump is an error; a single wrong entry or group is left
out, with a gap. Pickle and JSON have the same keys; JSON has no frames, 0 for unknown times, and strings for
the numbers of ``pg_status``. Versions 2.x (torch 2.5 to 2.13) differ in keys that are not read or may be
missing.

For each process group, a dump has the name, the ranks, and its progress. ``pg_config`` is keyed by the name
of a group, ``pg_status`` by its number on the rank (``pg_id``). Only entries have both. A rank creates its
groups in the order of their numbers, so if there are as many names as numbers, and the entries agree, the two
are paired in order.

Entries are checked column by column, in a third of the time of checking them one by one. If any value is
wrong, each entry is checked separately, and wrong entries are left out, with a gap.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType
from msgspec.structs import FieldInfo, fields

from zprof.base.errors import BadInput
from zprof.collectors.read.pickle_sandbox import format_name
from zprof.collectors.read.snapshot.columns import (
    Budget,
    Integers,
    StackTable,
    TextNumbers,
    clean_text,
    nullable_integers,
    read_column,
)
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

_MAX_STACK_ROWS = 5_000_000
_MAJOR_VERSION = "2"
_UNKNOWN = -1
_KEYS = ("pg_config", "pg_status", "entries")
_MAX_GROUPS = 20_000
_MAX_RANK = (1 << 20) - 1
_MAX_RANKS_TEXT = 8 << 20
#: Ranks in all groups of a dump.
_MAX_MEMBERS = 4 << 20
_MAX_LISTED = 3
_MAX_NAME = 4096
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_NUMBER = re.compile(r"[0-9]{1,18}")
_BOUND = 1 << 63
_DUMP_AGAIN = "dump the flight recorder again"
_Ranks = list[Annotated[int, Meta(ge=0, le=_MAX_RANK)]]
DUMP_AGAIN = "dump the flight recorder again; if it fails again, please report it"
#: torch's default is 2,000 entries.
_MAX_ENTRIES = 500_000
_MAX_TENSORS = 1 << 16

_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Name = Annotated[str, Meta(max_length=4096)]
_Sizes = Annotated[
    list[Annotated[list[_Count], Meta(max_length=64)]],
    Meta(max_length=_MAX_TENSORS),
]
_Dtypes = Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=_MAX_TENSORS)]
#: The values of each key of an entry that is read (see ``_Entry``), oldest entry first.
Columns = dict[str, Sequence[Any]]


class FlightTables(Struct, frozen=True, kw_only=True):
    """Tables of one dump by name, its defects, and facts about the job.

    ``group_ranks``: the ranks of each group that are known. ``backend``: that of most entries; empty if
    unknown. ``entries_left_out``: number of entries that are not in torch's format; None if unknown.
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
    # The backend is the one with the highest sum of counts; empty if there is none.
    counts = np.bincount(names.codes, minlength=len(backends))
    total: Counter[str] = Counter()
    for name, count in zip(backends, counts.tolist(), strict=True):
        total[name] += count
    return FlightTables(
        tables=tables,
        gaps=tuple(gaps),
        group_ranks=tuple(group.ranks for group in groups if group.ranks),
        backend=max(total.items(), key=lambda item: item[1])[0] if total else "",
        entries_left_out=left_out,
    )


def _check_version(version: object, gaps: list[Gap]) -> None:
    if type(version) is not str or version.split(".")[0] != _MAJOR_VERSION:
        said = format_name(version) if type(version) is str else "missing"
        gaps.append(make_gap("dump_version_unknown", version=said, known=_MAJOR_VERSION))


def _number_stacks(frames: Sequence[object], gaps: list[Gap]) -> tuple[Integers, StackTable]:
    """Return the number of each entry's stack, -1 if it has none, and the stacks."""
    stacks = StackTable(Budget(_MAX_STACK_ROWS))
    try:
        return stacks.numbers(frames, "an entry"), stacks
    except BadInput:
        pass
    # The frames of one entry are wrong: number each entry separately.
    numbers = np.full(len(frames), -1, dtype=np.int64)
    wrong = 0
    for index, stack in enumerate(frames):
        try:
            numbers[index] = stacks.numbers([stack], "an entry")[0]
        except BadInput:
            wrong += 1
    gaps.append(make_gap("dump_stacks_damaged", damaged=wrong, stacks=len(frames)))
    return numbers, stacks


class _Numbered:
    """Values by number: few are distinct, so each result is computed once per distinct value."""

    def __init__(self, values: Sequence[Hashable]) -> None:
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        self.distinct: list[Any] = list(numbers)
        self.codes = np.fromiter(map(numbers.__getitem__, values), dtype=np.int32, count=len(values))

    def make_texts(self, make_text: Callable[[Any], str]) -> Any:
        """Return a column of strings computed from the values."""
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


class GroupRow(Struct, frozen=True, kw_only=True):
    """One process group of a rank; ``ranks`` is empty, and a number None, if unknown."""

    name: str
    group_id: int | None = None
    description: str = ""
    ranks: tuple[int, ...] = ()
    last_enqueued: int | None = None
    last_started: int | None = None
    last_completed: int | None = None


def list_groups(
    config: object, status: object, in_entries: Sequence[tuple[int, str, str]], gaps: list[Gap]
) -> list[GroupRow]:
    """Return the groups of a dump.

    Args:
        config: ``pg_config``.
        status: ``pg_status``.
        in_entries: Number, name and description of each group that occurs in an entry.
        gaps: Defects are added to it.

    Raises:
        BadInput: it has too many groups, or is not in torch's format at all.
    """
    configs = _read_configs(config, gaps)
    statuses = _read_statuses(status, gaps)
    descriptions = {name: description for _, name, description in in_entries}
    numbers = _pair_numbers(list(configs), list(statuses), in_entries, gaps)
    names = dict.fromkeys([*configs, *descriptions])
    rows = []
    for name in names:
        number = numbers.get(name)
        description, ranks = configs.get(name, ("", ()))
        reached = statuses.get(number) if number is not None else None
        enqueued, started, completed = reached or (None, None, None)
        rows.append(
            GroupRow(
                name=clean_text(name),
                group_id=number,
                description=clean_text(description or descriptions.get(name, "")),
                ranks=ranks,
                last_enqueued=enqueued,
                last_started=started,
                last_completed=completed,
            )
        )
    return rows


def _read_configs(value: object, gaps: list[Gap]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return description and ranks of the groups by name; gloo's single group without name and ranks is
    omitted.
    """
    configs: dict[str, tuple[str, tuple[int, ...]]] = {}
    wrong: list[str] = []
    members = 0
    for name, facts in _check_dict(value, "pg_config").items():
        if type(name) is not str or len(name) > _MAX_NAME or type(facts) is not dict:
            wrong.append(f"a group {format_name(name) if type(name) is str else type(name).__name__}")
            continue
        description = facts.get("desc", "")
        if type(description) is not str or len(description) > _MAX_NAME:
            wrong.append(f"the description of {format_name(name)}")
            description = ""
        ranks = _read_ranks(facts.get("ranks"))
        members += len(ranks or ())
        if members > _MAX_MEMBERS:
            raise BadInput(f"its groups have more than {_MAX_MEMBERS} ranks", hint=_DUMP_AGAIN)
        if ranks is None:
            wrong.append(f"the ranks of {format_name(name)}")
        if name or ranks:
            configs[name] = description, ranks or ()
    _add_gap(wrong, "pg_config", gaps)
    return configs


def _read_ranks(value: object) -> tuple[int, ...] | None:
    """Return the ranks of a group, "[0, 1, 2]"; None if they are not in this format."""
    if type(value) is not str or len(value) > _MAX_RANKS_TEXT:
        return None
    try:
        ranks = tuple(msgspec.json.decode(value, type=_Ranks))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return ranks if len(set(ranks)) == len(ranks) else None


def _read_statuses(value: object, gaps: list[Gap]) -> dict[int, tuple[int | None, int | None, int | None]]:
    """Return the last enqueued, started and completed collective of each group, by its number on the rank."""
    statuses: dict[int, tuple[int | None, int | None, int | None]] = {}
    wrong: list[str] = []
    for key, facts in _check_dict(value, "pg_status").items():
        number = _read_integer(key)
        if number is None or number < 0 or type(facts) is not dict:
            wrong.append(
                f"a group {format_name(str(key)) if type(key) in (str, int) else type(key).__name__}"
            )
            continue
        enqueued, started, completed = [
            _read_integer(facts.get(f"last_{state}_collective"))
            for state in ("enqueued", "started", "completed")
        ]
        if enqueued is None or completed is None:
            wrong.append(f"the numbers of group {number}")
        # Without TORCH_NCCL_ENABLE_TIMING starts are never recorded: -1 means unknown.
        started = None if started is None or started < 0 else started
        statuses[number] = enqueued, started, completed
    _add_gap(wrong, "pg_status", gaps)
    return statuses


def _read_integer(value: object) -> int | None:
    """Return a number, which JSON writes as a string; None if it is not a number or does not fit into 64
    bits.
    """
    if type(value) is str and _INTEGER.fullmatch(value):
        value = int(value)
    return value if type(value) is int and -1 <= value < _BOUND else None


def _check_dict(value: object, key: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if type(value) is not dict:
        raise BadInput(f"{key} is {type(value).__name__}, not a dict", hint=_DUMP_AGAIN)
    if len(value) > _MAX_GROUPS:
        raise BadInput(f"{key} has {len(value)} groups, at most {_MAX_GROUPS}", hint=_DUMP_AGAIN)
    return value


def _pair_numbers(
    names: Sequence[str],
    numbers: Sequence[int],
    in_entries: Sequence[tuple[int, str, str]],
    gaps: list[Gap],
) -> dict[str, int]:
    """Return the known number of each group: from its entries, else from the order of all groups."""
    known: dict[str, int] = {}
    ambiguous: set[str] = set()
    for number, name, _ in in_entries:
        if known.setdefault(name, number) != number:
            ambiguous.add(name)
    owners: dict[int, str] = {}
    for name, number in known.items():
        if (other := owners.setdefault(number, name)) != name:
            ambiguous |= {name, other}
    for name in ambiguous:
        del known[name]
    is_numeric = all(_NUMBER.fullmatch(name) for name in names)
    ordered: dict[str, int] = {}
    if is_numeric and len(names) == len(numbers):
        ordered = dict(zip(sorted(names, key=int), sorted(numbers), strict=True))
    contradictions = [name for name, number in known.items() if ordered.get(name, number) != number]
    if ambiguous or contradictions:
        shown = [*sorted(ambiguous), *contradictions][:_MAX_LISTED]
        gaps.append(make_gap("dump_groups_contradict", groups=[format_name(name) for name in shown]))
        return known
    pairs = ordered | known
    unpaired = [name for name in names if name not in pairs]
    if unpaired and numbers:
        shown = [format_name(name) for name in unpaired[:_MAX_LISTED]]
        gaps.append(make_gap("dump_groups_unpaired", names=len(names), numbers=len(numbers), groups=shown))
    return pairs


def _add_gap(wrong: Sequence[str], key: str, gaps: list[Gap]) -> None:
    if wrong:
        more = ["..."] if len(wrong) > _MAX_LISTED else []
        gaps.append(make_gap("dump_groups_damaged", key=key, damaged=[*wrong[:_MAX_LISTED], *more]))


class _JsonDump(Struct, kw_only=True):
    """The keys of a dump that are read."""

    version: Any = None
    pg_config: Any = None
    pg_status: Any = None
    entries: "list[_Entry] | UnsetType | None" = UNSET


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


_FIELDS = fields(_Entry)
_GET_VALUES = itemgetter(*[field.name for field in _FIELDS])


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
    return {key: getattr(dump, key) for key in dump.__struct_fields__ if getattr(dump, key) is not UNSET}


def read_entries(value: object, gaps: list[Gap]) -> tuple[Columns, int | None]:
    """Return the columns of the valid entries, and the number of invalid ones (None if unknown).

    Raises:
        BadInput: it is not a list of entries, or it is too long.
    """
    if value is not None and type(value) is not list and type(value) is not tuple:
        raise make_damaged_error(f"entries is {type(value).__name__}, not a list")
    rows: Sequence[Any] = () if value is None else value
    if len(rows) > _MAX_ENTRIES:
        raise BadInput(
            f"{len(rows)} entries, at most {_MAX_ENTRIES}",
            hint="set a smaller TORCH_FR_BUFFER_SIZE, and dump it again",
        )
    try:
        columns = _read_columns(rows)
    except (msgspec.ValidationError, UnicodeError, RecursionError):
        columns = _split_entries(_read_valid_entries(rows, gaps))
    if value is None:
        gaps.append(make_gap("dump_without_entries"))
        return columns, None
    numbers = columns["record_id"]
    if None not in numbers and list(numbers) != sorted(numbers):
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        columns = {name: [values[place] for place in order] for name, values in columns.items()}
    return columns, len(rows) - len(numbers)


def make_damaged_error(what: str) -> BadInput:
    """Return the error for a dump that does not have torch's format."""
    return BadInput(f"not in the format of torch's flight recorder: {what}", hint=DUMP_AGAIN)


def _read_columns(rows: Sequence[Any]) -> Columns:
    """Return the columns of all entries; those of ``load_json`` are checked already.

    Raises:
        ValidationError, UnicodeError, RecursionError: an entry is wrong.
    """
    kinds = set(map(type, rows))
    if kinds <= {_Entry}:
        return _split_entries(rows)
    if kinds != {dict}:
        raise msgspec.ValidationError("an entry is no dict")
    try:
        columns: Iterable[Sequence[Any]] = zip(*map(_GET_VALUES, rows), strict=True)  # one visit of each row
    except KeyError:
        columns = [read_column(rows, field.name, _get_default(field)) for field in _FIELDS]
    return {
        field.name: values if field.type is Any else msgspec.convert(values, list[field.type])  # type: ignore[name-defined]
        for field, values in zip(_FIELDS, columns, strict=True)
    }


def _get_default(field: FieldInfo) -> Any:
    """Return the value of a missing key; None, which fails the check, for a mandatory key."""
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return None if field.default is NODEFAULT else field.default


def _split_entries(entries: Sequence[_Entry]) -> Columns:
    return {field.name: list(map(attrgetter(field.name), entries)) for field in _FIELDS}


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
    gaps.append(make_gap("dump_entries_damaged", damaged=len(reasons), entries=len(rows), examples=examples))
    return entries
