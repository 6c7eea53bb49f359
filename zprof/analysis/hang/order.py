"""Compare what the ranks of a group entered at the same place, with each other and with what is usual.

A training loop repeats: what was entered before in the same context tells what is expected now, and so which
of two ranks left the usual order.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from zprof.analysis.hang.operations import Job

#: Sequence numbers before a place that must agree with an earlier place for the two to have one context.
_MAX_CONTEXT = 4
_MIN_CONTEXT = 1
#: Earlier rounds that must show the same count before a rank is said to have left its usual order.
_MIN_ROUNDS = 2


class Divergence(Struct, frozen=True, kw_only=True):
    """The first place of a group at which its ranks entered different things.

    ``entered``: the number of the signature per rank. ``expected``: what the place usually holds; None if
    nothing tells. ``odd``: the ranks that entered something else. ``by_line``: the operations are equal, but
    the lines of the program differ, here and at every later place. ``is_skip``: the odd ranks entered what
    usually follows.
    """

    group: str
    sequence: int
    entered: Mapping[int, int]
    expected: int | None
    odd: tuple[int, ...]
    by_line: bool = False
    is_skip: bool = False


class _Places(Struct, frozen=True, kw_only=True):
    """All collectives of one group on all ranks, by sequence number: one value per rank and place."""

    sequences: Any
    ranks: Any
    signatures: Any
    lines: Any


def find_divergences(job: Job) -> tuple[Divergence, ...]:
    """Return the first place at which the ranks of a group differ, for each group in which they do."""
    found = []
    for group, places in _gather_places(job).items():
        divergence = _compare_operations(job, group, places) or _compare_lines(group, places)
        if divergence is not None:
            found.append(divergence)
    return tuple(found)


def _gather_places(job: Job) -> dict[str, _Places]:
    """Return the places of each group that several ranks are in."""
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
    """Return the first place with different operations, or with different sizes in one that cannot finish.

    An operation that has finished everywhere with different sizes is meant to have them.
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
        return _judge_place(group, places, sequence, places.signatures, by_line=False)
    return None


def _compare_lines(group: str, places: _Places) -> Divergence | None:
    """Return the place from which on the lines of the ranks differ everywhere, if they agreed before."""
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
    found = _judge_place(group, places, sequence, places.lines, by_line=True)
    return found if found.is_skip else None


def _judge_place(group: str, places: _Places, sequence: int, values: Any, *, by_line: bool) -> Divergence:
    here = places.sequences == sequence
    entered = dict(zip(places.ranks[here].tolist(), values[here].tolist(), strict=True))
    usual = _list_common(places, values, sequence)
    ((most, count), (_, second), *_) = Counter(entered.values()).most_common()
    expected: int | None = most
    if count == second or len(entered) == 2:  # no majority: what came here in earlier rounds
        expected = _expect(usual, sequence)
        if expected not in entered.values():
            expected = None
    odd = tuple(sorted(rank for rank, value in entered.items() if value != expected))
    return Divergence(
        group=group,
        sequence=sequence,
        entered=entered,
        expected=expected,
        odd=odd,
        by_line=by_line,
        is_skip=expected is not None
        and _is_shifted(places, values, sequence, odd, {**usual, sequence: expected}),
    )


def _is_shifted(
    places: _Places, values: Any, sequence: int, odd: tuple[int, ...], usual: Mapping[int, int | None]
) -> bool:
    """Return True if the odd ranks entered from here on what the others enter one place later."""
    later = places.sequences >= sequence
    is_odd = np.isin(places.ranks, odd)
    others = dict(
        zip(places.sequences[later & ~is_odd].tolist(), values[later & ~is_odd].tolist(), strict=True)
    )
    next_value = _expect(usual, sequence + 1)
    if sequence + 1 not in others and next_value is not None:
        others[sequence + 1] = next_value
    shifted = [
        others[place + 1] == value
        for place, value in zip(
            places.sequences[later & is_odd].tolist(), values[later & is_odd].tolist(), strict=True
        )
        if place + 1 in others
    ]
    return bool(shifted) and all(shifted)


def _list_common(places: _Places, values: Any, before: int) -> dict[int, int]:
    """Return the value that all ranks agree on, by sequence number, before a place."""
    earlier = places.sequences < before
    sequences, agreed = places.sequences[earlier], values[earlier]
    if not len(sequences):
        return {}
    starts = np.flatnonzero(np.diff(sequences, prepend=sequences[0] - 1))
    lowest, highest = np.minimum.reduceat(agreed, starts), np.maximum.reduceat(agreed, starts)
    equal = lowest == highest
    return dict(zip(sequences[starts][equal].tolist(), lowest[equal].tolist(), strict=True))


def _expect(usual: Mapping[int, int | None], sequence: int) -> int | None:
    """Return what followed an earlier place with the same context, the longest that occurs."""
    for length in range(_MAX_CONTEXT, _MIN_CONTEXT - 1, -1):
        context = [usual.get(sequence - back) for back in range(1, length + 1)]
        if None in context:
            continue
        for place in range(sequence - 1, sequence - 1 - len(usual), -1):
            if place in usual and all(
                usual.get(place - back) == value for back, value in enumerate(context, start=1)
            ):
                return usual[place]
    return None


def leaves_usual_order(job: Job, rank: int, entered: str, entered_sequence: int, skipped: str) -> bool:
    """Return True if a rank usually entered a collective of one group before this one of another group.

    ``entered`` and ``skipped`` are names of groups. The rounds between earlier occurrences of the same
    operation are counted: each had as many collectives of the skipped group, and the last has fewer.
    """
    history = job.flights[rank].history
    names = [group.name for group in history.groups]
    if entered not in names or skipped not in names:
        return False
    is_entered = history.group == names.index(entered)
    rows = np.flatnonzero(is_entered & (history.sequence == entered_sequence))
    if not len(rows):
        return False
    row = int(rows[-1])
    same = np.flatnonzero(is_entered & (history.signature == history.signature[row]))
    same = same[same <= row]
    counted = np.cumsum(history.group == names.index(skipped))
    rounds = np.diff(counted[same])
    return bool(len(rounds) > _MIN_ROUNDS and (rounds[:-1] == rounds[0]).all() and rounds[-1] < rounds[0])
