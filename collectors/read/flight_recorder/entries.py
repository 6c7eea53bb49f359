"""Read the entries of a flight-recorder dump as checked columns.

All entries are checked column by column, which takes a third of the time of one after the other. If a value
is wrong somewhere, each entry is checked alone, and those that are wrong are left out, with a gap.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType
from msgspec.structs import FieldInfo, fields

from zprof.base.errors import BadInput
from zprof.collectors.read.pickle_sandbox import format_name
from zprof.collectors.read.snapshot.columns import read_column
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

DUMP_AGAIN = "dump the flight recorder again; if it fails again, please report it"
#: torch's default is 2,000 entries.
_MAX_ENTRIES = 500_000
_MAX_TENSORS = 1 << 16
_MAX_LISTED = 3

_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Name = Annotated[str, Meta(max_length=4096)]
_Sizes = Annotated[
    list[Annotated[list[_Count], Meta(max_length=64)]],
    Meta(max_length=_MAX_TENSORS),
]
_Dtypes = Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=_MAX_TENSORS)]
#: The values of each key of an entry that is read (see ``_Entry``), oldest entry first.
Columns = dict[str, Sequence[Any]]


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
    """Return the columns of the valid entries, and how many others there are; None if that is not known.

    Raises:
        BadInput: it is no list of entries, or too long.
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
    """Return the value of a missing key; None, which is wrong, for a key that must not be missing."""
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
