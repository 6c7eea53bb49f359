"""List the process groups of a flight-recorder dump: their names, ranks, and how far each one got.

``pg_config`` is keyed by the name of a group, ``pg_status`` by its number on the rank (``pg_id``). Only
entries have both. A rank creates its groups in the order of their numbers, so with as many names as numbers
the two pair in order, if the entries agree.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from zprof.collectors.pickle_sandbox import format_name
from zprof.collectors.snapshot.columns import clean_text
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap, GapKind

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


class GroupRow(Struct, frozen=True, kw_only=True):
    """One process group of a rank; ``ranks`` is empty, and a number None, if unknown."""

    name: str
    group_id: int | None = None
    description: str = ""
    ranks: tuple[int, ...] = ()
    last_enqueued: int | None = None
    last_started: int | None = None
    last_completed: int | None = None


class _Status(Struct, frozen=True, kw_only=True):
    enqueued: int | None
    started: int | None
    completed: int | None


class _Config(Struct, frozen=True, kw_only=True):
    description: str
    ranks: tuple[int, ...]


def list_groups(
    config: object, status: object, in_entries: Sequence[tuple[int, str, str]], gaps: list[Gap]
) -> list[GroupRow]:
    """Return the groups of a dump.

    Args:
        config: ``pg_config``.
        status: ``pg_status``.
        in_entries: The number, name and description of each group that an entry is in.
        gaps: What is wrong is added to it.

    Raises:
        BadInput: it has too many groups, or is not in torch's format at all.
    """
    configs = _read_configs(config, gaps)
    statuses = _read_statuses(status, gaps)
    descriptions = {name: description for _, name, description in in_entries}
    numbers = _pair_numbers(list(configs), list(statuses), in_entries, gaps)
    names = dict.fromkeys([*configs, *descriptions])
    return [
        _make_row(name, numbers.get(name), configs.get(name), descriptions.get(name, ""), statuses)
        for name in names
    ]


def _make_row(
    name: str, number: int | None, config: _Config | None, description: str, statuses: dict[int, _Status]
) -> GroupRow:
    status = statuses.get(number) if number is not None else None
    return GroupRow(
        name=clean_text(name),
        group_id=number,
        description=clean_text(config.description if config and config.description else description),
        ranks=config.ranks if config else (),
        last_enqueued=status.enqueued if status else None,
        last_started=status.started if status else None,
        last_completed=status.completed if status else None,
    )


def _read_configs(value: object, gaps: list[Gap]) -> dict[str, _Config]:
    """Return the groups by name; gloo's one group without name and ranks is none."""
    configs: dict[str, _Config] = {}
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
            configs[name] = _Config(description=description, ranks=ranks or ())
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


def _read_statuses(value: object, gaps: list[Gap]) -> dict[int, _Status]:
    """Return how far each group got, by its number on the rank."""
    statuses: dict[int, _Status] = {}
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
        # Without TORCH_NCCL_ENABLE_TIMING no start is ever noticed: -1 is unknown.
        started = None if started is None or started < 0 else started
        statuses[number] = _Status(enqueued=enqueued, started=started, completed=completed)
    _add_gap(wrong, "pg_status", gaps)
    return statuses


def _read_integer(value: object) -> int | None:
    """Return a number, which JSON spells as a text; None if it is none or does not fit into 64 bits."""
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
    """Return the number of each group that is known: from its entries, else from the order of all."""
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
        listed = ", ".join(format_name(name) for name in [*sorted(ambiguous), *contradictions][:_MAX_LISTED])
        reason = f"the numbers of the groups do not fit their names in the entries ({listed})"
        gaps.append(_make_progress_gap(reason))
        return known
    pairs = ordered | known
    unpaired = [name for name in names if name not in pairs]
    if unpaired and numbers:
        listed = ", ".join(map(format_name, unpaired[:_MAX_LISTED]))
        reason = (
            f"it has {len(names)} names and {len(numbers)} numbers of groups, which do not pair ({listed})"
        )
        gaps.append(_make_progress_gap(reason))
    return pairs


def _make_progress_gap(reason: str) -> Gap:
    return Gap(kind=GapKind.FILE, what="progress of process groups", reason=reason, remedy=_DUMP_AGAIN)


def _add_gap(wrong: Sequence[str], key: str, gaps: list[Gap]) -> None:
    if wrong:
        more = ", ..." if len(wrong) > _MAX_LISTED else ""
        gaps.append(
            Gap(
                kind=GapKind.FILE,
                what=f"process groups ({key})",
                reason=f"not in torch's format: {', '.join(wrong[:_MAX_LISTED])}{more}",
                remedy=_DUMP_AGAIN,
            )
        )
