"""Draw which ranks of a stuck job wait for which: alike ranks in one box, the cause first, arrows beside.

Boxes stand below each other, so that names wrap on any screen.  All arrows to a box share one lane, a
vertical line left of the boxes.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.formatting import format_ranges
from zprof.model.hang import (
    Hang,
    RankState,
    WaitingRanks,
    are_all_in,
    list_standings,
    name_cause,
    name_operation,
)
from zprof.reports.page import Code, WaitGraph, WaitLane, WaitRow

_MAX_BOXES, _MAX_WAITS = 16, 4
_MAX_RANKS_LENGTH = 60
#: Distance between lanes and of the last one from the boxes, in pixels.
_LANE_PX, _ARROW_PX = 13, 20
_CAPTION = "Each line leads from ranks that wait, up or down to the ranks that they wait for. "
_ALIKE = "Ranks that wait alike share a box."

#: An operation without its two ranks, which differ in each pair: kind, number, group.
_Label = tuple[str, int, str]


class _Fold(Struct, frozen=True):
    """The waits of the ranks of a box for the ranks of other boxes."""

    waits: tuple[WaitingRanks, ...]
    boxes: frozenset[int]


class _Box(Struct, frozen=True):
    """Alike ranks and their waits, by the boxes that they wait for."""

    ranks: tuple[int, ...]
    state: RankState
    is_cause: bool
    folds: tuple[_Fold, ...]


def build_wait_graph(hang: Hang, waits: Sequence[WaitingRanks], text: Code) -> WaitGraph | None:
    """Build the drawing of ``waits``; ``text``: the same in outputs that draw nothing."""
    boxes = _order_boxes(_fold_ranks(hang, waits))
    if not boxes:
        return None
    shown = boxes[:_MAX_BOXES]
    rows: list[tuple[WaitRow, frozenset[int]]] = []
    tops: list[int] = []
    for box in shown:
        tops.append(len(rows))
        rows += _list_rows(hang, box, boxes)
    spans = {}
    for number, top in enumerate(tops):
        waiting = [at for at, (_, awaited) in enumerate(rows) if number in awaited]
        if waiting:
            spans[number] = (min(top, *waiting), max(top, *waiting))
    lanes = _assign_lanes(spans)
    width = _ARROW_PX + _LANE_PX * (max(lanes.values(), default=-1) + 1)
    drawn = []
    for at, (row, awaited) in enumerate(rows):
        parts = [
            WaitLane(
                x=width - _ARROW_PX - _LANE_PX * lane,
                starts=at == spans[number][0],
                ends=at == spans[number][1],
                joins=number in awaited,
                arrives=at == tops[number],
                is_cause=shown[number].is_cause,
            )
            for number, lane in lanes.items()
            if spans[number][0] <= at <= spans[number][1]
        ]
        drawn.append(replace(row, lanes=tuple(sorted(parts, key=lambda part: part.is_cause))))
    left_out = len(boxes) - len(shown)
    is_folded = any(len(box.ranks) > 1 for box in shown)
    notes = [f"{_CAPTION}{_ALIKE if is_folded else ''}".strip()] if lanes else []
    notes += [f"And {left_out} more sets of ranks, further from the cause."] if left_out else []
    return WaitGraph(
        title="Who waits for whom, the cause first",
        width=width,
        rows=tuple(drawn),
        notes=tuple(notes),
        text=text,
    )


def _fold_ranks(hang: Hang, waits: Sequence[WaitingRanks]) -> list[_Box]:
    """Group ranks in the same state that wait in the same operations for ranks of the same groups."""
    ranks = sorted({rank for wait in waits for rank in (*wait.ranks, *wait.for_ranks)})
    causes = {culprit.rank for culprit in hang.culprits}
    states = {each.rank: each.state for each in list_standings(hang, ranks)}
    own: dict[int, list[int]] = {rank: [] for rank in ranks}
    for number, wait in enumerate(waits):
        for rank in wait.ranks:
            own[rank].append(number)
    labels = [_label_wait(hang, wait) for wait in waits]
    numbers = _renumber({rank: (states[rank], rank in causes) for rank in ranks})
    while True:
        awaited = [frozenset(numbers[rank] for rank in wait.for_ranks) for wait in waits]
        refined = _renumber(
            {
                rank: (numbers[rank], frozenset((labels[at], awaited[at]) for at in own[rank]))
                for rank in ranks
            }
        )
        if len(set(refined.values())) == len(set(numbers.values())):
            break
        numbers = refined
    members: dict[int, list[int]] = {}
    for rank in ranks:
        members.setdefault(numbers[rank], []).append(rank)
    boxes = []
    for number in range(len(members)):
        folds: dict[frozenset[int], list[int]] = {}
        for at in sorted({at for rank in members[number] for at in own[rank]}):
            folds.setdefault(awaited[at], []).append(at)
        first = members[number][0]
        boxes.append(
            _Box(
                tuple(members[number]),
                states[first],
                first in causes,
                tuple(_Fold(tuple(waits[at] for at in found), key) for key, found in folds.items()),
            )
        )
    return boxes


def _renumber(keys: Mapping[int, object]) -> dict[int, int]:
    """Return the number of each rank's key, from 0 in the order of the ranks."""
    numbers: dict[object, int] = {}
    return {rank: numbers.setdefault(key, len(numbers)) for rank, key in keys.items()}


def _label_wait(hang: Hang, wait: WaitingRanks) -> _Label:
    operation = hang.operations[wait.operations[0]]
    return (
        operation.operation.partition(" ")[0],
        operation.sequence,
        operation.description or operation.role or operation.group,
    )


def _order_boxes(boxes: Sequence[_Box]) -> list[_Box]:
    """Return the causes, then what waits for them, and so on; the boxes that folds name are renumbered."""
    waiting: dict[int, set[int]] = {}
    for number, box in enumerate(boxes):
        for fold in box.folds:
            for awaited in fold.boxes:
                waiting.setdefault(awaited, set()).add(number)
    distance = {number: 0 for number, box in enumerate(boxes) if box.is_cause}
    edge = list(distance)
    while edge:
        following = {each for number in edge for each in waiting.get(number, ())} - distance.keys()
        distance |= dict.fromkeys(following, max(distance.values()) + 1)
        edge = list(following)
    far = len(boxes)
    order = sorted(
        range(len(boxes)), key=lambda at: (distance.get(at, far), -len(boxes[at].ranks), boxes[at].ranks)
    )
    places = {number: place for place, number in enumerate(order)}
    return [
        replace(
            boxes[number],
            folds=tuple(
                replace(fold, boxes=frozenset(places[at] for at in fold.boxes))
                for fold in boxes[number].folds
            ),
        )
        for number in order
    ]


def _list_rows(hang: Hang, box: _Box, boxes: Sequence[_Box]) -> Iterator[tuple[WaitRow, frozenset[int]]]:
    """Yield the row that names a box, and one per set of boxes that it waits for, with their numbers."""
    mark = ""
    if box.is_cause:
        mark = name_cause(hang)
    elif not box.folds:
        mark = box.state.value
    yield WaitRow(text=_name(box.ranks), mark=mark, is_cause=box.is_cause), frozenset()
    for fold in box.folds[:_MAX_WAITS]:
        yield WaitRow(text=_describe_fold(hang, box, fold), is_wait=True), fold.boxes
    if len(box.folds) > _MAX_WAITS:
        yield WaitRow(text=f"and {len(box.folds) - _MAX_WAITS} more waits", is_wait=True), frozenset()


def _describe_fold(hang: Hang, box: _Box, fold: _Fold) -> str:
    """Return "wait for ranks 0-3 in all_reduce #12 of TP"; if not each rank waits for all, say so."""
    for_ranks = sorted({rank for wait in fold.waits for rank in wait.for_ranks})
    first = fold.waits[0]
    operation = hang.operations[first.operations[0]]
    if any(wait.ranks != box.ranks for wait in fold.waits):
        operation = replace(operation, operation=operation.operation.partition(" ")[0])
    more = len({_label_wait(hang, wait) for wait in fold.waits}) + len(first.operations) - 2
    where = f"in {name_operation(operation)}{f' and {more} more' if more else ''}"
    verb = "wait" if len(box.ranks) > 1 else "waits"
    if not for_ranks:
        known = "nobody: all are in it" if are_all_in(hang, first) else "for whom is not known"
        return f"{verb} {where}; {known}"
    is_same = all(set(wait.for_ranks) == set(for_ranks) for wait in fold.waits)
    if is_same or len(box.ranks) == 1:
        return f"{verb} for {_name(for_ranks)} {where}"
    return f"each waits for some of {_name(for_ranks)} {where}"


def _name(ranks: Sequence[int]) -> str:
    text = format_ranges(ranks)
    if len(text) > _MAX_RANKS_LENGTH:
        text = f"{text[:_MAX_RANKS_LENGTH].rpartition(',')[0]}, … ({len(ranks)} ranks)"
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {text}"


def _assign_lanes(spans: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Return a lane for each span of rows, 0 next to the boxes; short spans are further in."""
    taken: list[list[tuple[int, int]]] = []
    lanes = {}
    for number, (low, high) in sorted(spans.items(), key=lambda item: item[1][1] - item[1][0]):
        lane = next(
            (at for at, used in enumerate(taken) if all(high < start or end < low for start, end in used)),
            len(taken),
        )
        if lane == len(taken):
            taken.append([])
        taken[lane].append((low, high))
        lanes[number] = lane
    return lanes
