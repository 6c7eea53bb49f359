"""Compare what two snapshots or two ranks hold at their peaks, by owner and place of allocation.

A place is matched by file name, line, function and operator; if code was moved, by its order in the function.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from zprof.model.memory import Allocation, GroupChange, Memory, RankMemory

#: Owner, kind of group, file name and function, line, operator.
_Key = tuple[str, str, str, str, int, str]
_MERGED, _BEFORE, _PLACE = "merged", "before", "place"


class _Side(Struct):
    """The bytes and blocks of one place in one snapshot, and its frame."""

    where: str
    bytes: int = 0
    blocks: int = 0


def compare_groups(a: Memory, b: Memory) -> tuple[GroupChange, ...]:
    """Return the changes of all groups, largest first, of either sign; empty unless both are snapshots."""
    ranks = _find_largest_rank(a), _find_largest_rank(b)
    if not all(rank and memory.is_history(rank.rank) for rank, memory in zip(ranks, (a, b), strict=True)):
        return ()
    sides = (
        [entry for entry in memory.top if rank and entry.rank == rank.rank]
        for rank, memory in zip(ranks, (a, b), strict=True)
    )
    return list_group_changes(*sides)


def find_group_phases(a: Memory, b: Memory) -> tuple[str, str]:
    """Return the phases of the two peaks whose groups are compared; empty if unknown."""
    ranks = _find_largest_rank(a), _find_largest_rank(b)
    before, after = (rank.peak_phase if rank else "" for rank in ranks)
    return before, after


def _find_largest_rank(memory: Memory) -> RankMemory | None:
    return max(memory.per_rank, key=lambda entry: (entry.peak_bytes, -entry.rank), default=None)


def list_group_changes(a: Sequence[Allocation], b: Sequence[Allocation]) -> tuple[GroupChange, ...]:
    """Return the changes of all groups of two ranks of snapshots, largest first, of either sign."""
    before, after = _sum_places(a), _sum_places(b)
    # Rename places of ``a`` whose line ``b`` lacks, if both have as many such places in that function.
    moved: dict[tuple[str, ...], tuple[list[_Key], list[_Key]]] = {}
    for index, (own, other) in enumerate(((before, after), (after, before))):
        for key in sorted(key for key in own if key not in other and key[2] == _PLACE):
            moved.setdefault((*key[:4], key[5]), ([], []))[index].append(key)
    for old, new in moved.values():
        if len(old) == len(new):
            for old_key, new_key in zip(old, new, strict=True):
                before[new_key] = before.pop(old_key)
    changes = (_make_change(key, before.get(key), after.get(key)) for key in {**after, **before})
    return tuple(sorted(changes, key=_rank_change))


def _rank_change(change: GroupChange) -> tuple[int, int, str, str, str]:
    """Return the sort key: the largest change first, and of equal ones the growth."""
    delta = change.delta_bytes
    return (-abs(delta), -delta, change.tenant, change.where, change.operator)


def _sum_places(groups: Iterable[Allocation]) -> dict[_Key, _Side]:
    sides: dict[_Key, _Side] = {}
    for entry in groups:
        side = sides.setdefault(_make_key(entry), _Side(entry.where))
        side.bytes += entry.held_bytes
        side.blocks += entry.count
    return sides


def _make_key(entry: Allocation) -> _Key:
    if entry.groups > 1:
        return (entry.tenant, "", _MERGED, "", 0, "")
    if entry.before:
        return (entry.tenant, entry.sub, _BEFORE, "", 0, "")
    location, _, function = entry.where.partition(" ")
    path, _, line = location.rpartition(":")
    name = path.replace("\\", "/").rpartition("/")[2]
    number = int(line) if line.isascii() and line.isdigit() and len(line) < 10 else 0
    return (entry.tenant, entry.sub, _PLACE, f"{name} {function}", number, entry.operator)


def _make_change(key: _Key, a: _Side | None, b: _Side | None) -> GroupChange:
    tenant, sub, kind, _, _, operator = key
    shown = b or a
    return GroupChange(
        tenant=tenant,
        sub=sub,
        where=shown.where if shown else "",
        operator=operator,
        a_bytes=a.bytes if a else 0,
        b_bytes=b.bytes if b else 0,
        a_blocks=a.blocks if a else 0,
        b_blocks=b.blocks if b else 0,
        before_history=kind == _BEFORE,
        merged=kind == _MERGED,
    )
