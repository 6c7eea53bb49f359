"""Compare what a group's ranks entered at the same position, with each other and with the usual order.

A training loop repeats, so earlier entries in the same context show what is expected now, and which of two
ranks left the usual order.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.hang.flight import OwnOrder
from zprof.analysis.hang.operations import Job

#: Number of preceding operations that must be equal for two positions to have the same context.
_MAX_CONTEXT = 4
_MIN_CONTEXT = 1
#: Operations of a rank that must repeat, if a whole round is longer; and how many are compared.
_LONG = 24
#: Maximum number of a round's operations that a rank may have left out.
_MAX_LEFT_OUT = 8
_MAX_LENGTH = 2048


class Divergence(Struct, frozen=True, kw_only=True):
    """The first position at which a group's ranks entered different operations.

    ``entered``: the signature number by rank. ``expected``: the usual signature number here; None if unknown.
    ``odd``: the ranks that entered something else. ``by_line``: the operations are equal, but the program
    lines differ, here and at every later position. ``is_skip``: the odd ranks entered the operation that
    usually follows. ``is_swapped``: the ranks entered the same two operations in a different order, or the
    odd ranks entered the operation that usually follows, but at a new line. ``is_sure``: no rank's own
    earlier rounds contradict this.
    """

    group: str
    sequence: int
    entered: Mapping[int, int]
    expected: int | None
    odd: tuple[int, ...]
    by_line: bool = False
    is_skip: bool = False
    is_swapped: bool = False
    is_sure: bool = True


class _Places(Struct, frozen=True, kw_only=True):
    """All collectives of one group, by sequence number: one value per rank and position."""

    sequences: Any
    ranks: Any
    signatures: Any
    lines: Any


def find_divergences(job: Job) -> tuple[Divergence, ...]:
    """Return the first position at which a group's ranks differ, for each group in which they do."""
    found = []
    for group, places in _gather_places(job).items():
        divergence = _compare_operations(job, group, places) or _compare_lines(group, places)
        if divergence is not None:
            found.append(divergence)
    return tuple(found)


def _gather_places(job: Job) -> dict[str, _Places]:
    """Return the positions of each group with several ranks."""
    parts: dict[str, list[tuple[Any, Any, Any, Any]]] = {}
    for flight in job.flights.values():
        history = flight.history
        for number in np.unique(history.group).tolist():
            rows = np.flatnonzero(history.group == number)
            sequences, first, counts = np.unique(
                history.sequence[rows], return_index=True, return_counts=True
            )
            rows = rows[first[counts == 1]]  # parts of one coalesced operation share their number
            parts.setdefault(history.groups[number].name, []).append(
                (
                    sequences[counts == 1],
                    np.full(len(rows), flight.rank, dtype=np.int64),
                    history.signature[rows],
                    history.location[rows],
                )
            )
    places = {}
    for group, arrays in parts.items():
        if len(arrays) > 1:
            sequences, ranks, signatures, lines = (np.concatenate(each) for each in zip(*arrays, strict=True))
            order = np.lexsort((ranks, sequences))
            places[group] = _Places(
                sequences=sequences[order],
                ranks=ranks[order],
                signatures=signatures[order],
                lines=lines[order],
            )
    return places


def _find_mixed(sequences: Any, values: Any) -> Any:
    """Return the sequence numbers at which ranks have different values, in order."""
    starts = np.flatnonzero(np.diff(sequences, prepend=sequences[0] - 1))
    lowest, highest = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return sequences[starts][lowest != highest]


def _compare_operations(job: Job, group: str, places: _Places) -> Divergence | None:
    """Return the first position with different operations, or with different sizes in an unfinished one.

    Different sizes are intended if the operation has finished everywhere.
    """
    finished = min(
        (progress[group].finished for progress in job.progress.values() if group in progress), default=0
    )
    uneven: set[str] = set()
    for sequence in _find_mixed(places.sequences, places.signatures).tolist():
        here = places.signatures[places.sequences == sequence]
        operations = {job.signatures.get(number)[0] for number in set(here.tolist())}
        if len(operations) == 1 and (sequence <= finished or operations & uneven):
            uneven |= operations
            continue
        own = _ask_own_order(job, group, sequence)
        found = _judge_place(group, places, sequence, places.signatures, own=own)
        if found.is_skip and all(enters_at_new_line(job, rank, group, sequence) for rank in found.odd):
            return replace(found, is_skip=False, is_swapped=True)
        return found
    return None


def _compare_lines(group: str, places: _Places) -> Divergence | None:
    """Return the position after which all program lines differ between ranks, if they agreed before."""
    known = places.lines >= 0
    sequences, lines = places.sequences[known], places.lines[known]
    if not len(sequences):
        return None
    counts = Counter(sequences.tolist())
    shared = np.asarray(sorted(each for each, count in counts.items() if count > 1), dtype=np.int64)
    mixed = np.isin(shared, _find_mixed(sequences, lines))
    if not mixed.any() or not mixed[-1]:
        return None
    agreeing = np.flatnonzero(~mixed)
    if not len(agreeing):
        return None  # rank-dependent lines from the start on
    sequence = int(shared[agreeing[-1] + 1])
    found = _judge_place(group, places, sequence, places.lines, own=None)
    return found if found.is_skip else None


def _ask_own_order(job: Job, group: str, sequence: int) -> dict[int, bool]:
    """Return, for each rank, whether it reached a group's position as in its own earlier rounds, if known."""
    fits = {}
    for rank, flight in job.flights.items():
        history = flight.history
        names = [each.name for each in history.groups]
        if group not in names or rank in job.unread:
            continue
        is_here = (history.group == names.index(group)) & (history.sequence == sequence)
        for place in history.place[is_here].tolist()[:1]:
            has_left = _has_left_order(history.own, names.index(group), place)
            if has_left is not None:
                fits[rank] = not has_left
    return fits


def _judge_place(
    group: str, places: _Places, sequence: int, values: Any, own: Mapping[int, bool] | None
) -> Divergence:
    """Judge which ranks are odd: by their own order (None: the values are lines), else by majority."""
    here = places.sequences == sequence
    entered = dict(zip(places.ranks[here].tolist(), values[here].tolist(), strict=True))
    usual = _list_common(places, values, sequence)
    ((most, count), (_, second), *_) = Counter(entered.values()).most_common()
    by_order = {entered[rank] for rank, fits in (own or {}).items() if fits}
    left = {entered[rank] for rank, fits in (own or {}).items() if not fits}
    has_majority = count > second and len(entered) > 2
    expected: int | None = most
    is_sure = True
    if len(by_order) == 1 and left and not by_order & left:
        (kept,) = by_order
        # A rank that repeats its round while the majority leaves it together is the odd one.
        expected, is_sure = (most, False) if has_majority and kept != most else (kept, True)
    elif not has_majority:  # what came here in earlier rounds
        expected = _expect(usual, sequence)
        if expected not in entered.values():
            expected = None
    odd = tuple(sorted(rank for rank, value in entered.items() if value != expected))
    is_skip = expected is not None and _is_shifted(
        places, values, sequence, odd, {**usual, sequence: expected}
    )
    return Divergence(
        group=group,
        sequence=sequence,
        entered=entered,
        expected=expected,
        odd=odd,
        by_line=own is None,
        is_skip=is_skip,
        is_swapped=not is_skip and _is_swapped(places, values, sequence),
        is_sure=is_sure,
    )


def _is_shifted(
    places: _Places, values: Any, sequence: int, odd: tuple[int, ...], usual: Mapping[int, int | None]
) -> bool:
    """Return True if the odd ranks are one operation ahead of the others from this position on."""
    later = places.sequences >= sequence
    is_odd = np.isin(places.ranks, odd)
    others = dict(
        zip(places.sequences[later & ~is_odd].tolist(), values[later & ~is_odd].tolist(), strict=True)
    )
    known: dict[int, int | None] = {**usual, **others}
    for place in range(sequence + 1, sequence + 3):  # enough to tell a skip from another order
        next_value = known[place] if place in known else _expect(known, place)
        if next_value is None:
            break
        known[place] = others[place] = next_value
    shifted = [
        others[place + 1] == value
        for place, value in zip(
            places.sequences[later & is_odd].tolist(), values[later & is_odd].tolist(), strict=True
        )
        if place + 1 in others
    ]
    return bool(shifted) and all(shifted)


def _is_swapped(places: _Places, values: Any, sequence: int) -> bool:
    """Return True if the ranks entered the same two operations in two different orders."""
    rows = [places.sequences == place for place in (sequence, sequence + 1)]
    first, then = (
        dict(zip(places.ranks[here].tolist(), values[here].tolist(), strict=True)) for here in rows
    )
    orders = {(value, then[rank]) for rank, value in first.items() if rank in then}
    return len(orders) == 2 and len(set(first.values())) == 2 and {each[::-1] for each in orders} == orders


def _list_common(places: _Places, values: Any, before: int) -> dict[int, int]:
    """Return the value that all ranks agree on, by sequence number, before a position."""
    earlier = places.sequences < before
    sequences, agreed = places.sequences[earlier], values[earlier]
    if not len(sequences):
        return {}
    starts = np.flatnonzero(np.diff(sequences, prepend=sequences[0] - 1))
    lowest, highest = np.minimum.reduceat(agreed, starts), np.maximum.reduceat(agreed, starts)
    equal = lowest == highest
    return dict(zip(sequences[starts][equal].tolist(), lowest[equal].tolist(), strict=True))


def _expect(usual: Mapping[int, int | None], sequence: int) -> int | None:
    """Return what always followed the same context earlier, for the longest context that occurs."""
    for length in range(_MAX_CONTEXT, _MIN_CONTEXT - 1, -1):
        context = [usual.get(sequence - back) for back in range(1, length + 1)]
        if None in context:
            continue
        followed = {
            value
            for place, value in usual.items()
            if place < sequence
            and all(usual.get(place - back) == each for back, each in enumerate(context, start=1))
        }
        if followed:
            return followed.pop() if len(followed) == 1 else None
    return None


def leaves_own_order(job: Job, rank: int, entered_order: int, skipped: str) -> bool:
    """Return True if a rank left the order of its earlier rounds since its last operation in a group.

    ``entered_order``: position of its current operation in its own order. ``skipped``: the name of the group
    in which others wait for it.
    """
    if rank in job.unread:
        return False
    history = job.flights[rank].history
    names = [group.name for group in history.groups]
    place = int(np.searchsorted(history.own.order, entered_order))
    if skipped not in names or place >= len(history.own.order):
        return False
    return _has_left_order(history.own, names.index(skipped), place) is True


def enters_at_new_line(job: Job, rank: int, group: str, sequence: int) -> bool:
    """Return True if a rank entered an operation at a program line where it never did so before.

    A rank that skips an operation enters the next one at its usual line.
    """
    history = job.flights[rank].history
    names = [each.name for each in history.groups]
    if group not in names:
        return False
    is_group = history.group == names.index(group)
    here = np.flatnonzero(is_group & (history.sequence == sequence))
    if len(here) != 1 or history.location[here[0]] < 0:
        return False
    is_earlier = is_group & (history.sequence < sequence) & (history.location >= 0)
    lines = history.location[is_earlier & (history.signature == history.signature[here[0]])]
    return len(lines) > 0 and not bool((lines == history.location[here[0]]).any())


def _has_left_order(own: OwnOrder, group: int, place: int) -> bool | None:
    """Return True if a rank skipped an operation of a group that it repeats, since its last one there.

    None if unknown, or if the rank entered nothing in the group before.
    """
    before = np.flatnonzero(own.group[:place] == group)
    if not len(before):
        return None
    is_usual = None
    for each in range(int(before[-1]) + 1, place + 1):
        earlier = find_earlier(own.token, each)
        if earlier is not None:
            is_usual = bool(own.token[earlier] == own.token[each]) and is_usual is not False
            if own.token[earlier] != own.token[each] and _leaves_out(own, group, earlier, each, place):
                return True
    return False if is_usual else None


def _leaves_out(own: OwnOrder, group: int, earlier: int, start: int, end: int) -> bool:
    """Return True if ``start`` to ``end`` is what followed ``earlier``, minus a few of the group's
    operations.

    A rank that continues with new operations may have reached the end of a loop.
    """
    actual = own.token[start : end + 1]
    return any(
        np.array_equal(own.token[earlier + count : earlier + count + len(actual)], actual)
        and (own.group[earlier : earlier + count] == group).any()
        for count in range(1, min(_MAX_LEFT_OUT, start - earlier - len(actual)) + 1)
    )


def find_earlier(tokens: Any, place: int) -> int | None:
    """Return the last earlier position preceded by the same operations as ``place``, as many as possible.

    None if less than a whole round (or a long part of it) is equal, or if other such positions were followed
    by something else.
    """
    ends = np.flatnonzero(tokens[: max(place - 1, 0)] == tokens[place - 1]) + 1 if place else np.zeros(0, int)
    length = 1
    while len(ends) and length < _MAX_LENGTH:
        longer = ends[ends > length]
        longer = longer[tokens[longer - 1 - length] == tokens[place - 1 - length]]
        if not len(longer):
            break
        ends, length = longer, length + 1
    if not len(ends) or length < min(place - int(ends[-1]), _LONG):
        return None
    return int(ends[-1]) if (tokens[ends] == tokens[ends[-1]]).all() else None
