"""Fill in the collectives that a rank ran although the recording lost the event.

The call of such a collective is there: it launched no work, and lies between the calls of the collectives
before and after. The other ranks show when it ended. Its start is an estimate: not before its own launch and
stream allow, nor before the other ranks, and so late that the transfer takes no longer than usual. If no call
fits, nothing is filled in, and the other ranks wait for each other alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Groups
from zprof.step.tasks import NONE, RankTasks
from zprof.step.waits import find_pick_up


def merge_orders(orders: Iterable[Sequence[int]]) -> list[int] | None:
    """Return all numbers in an order that agrees with all of these, None if they contradict each other."""
    distinct = {tuple(order): None for order in orders if len(order)}
    if len(distinct) <= 1:
        return [number for order in distinct for number in order]
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for order in distinct:
        sorter.add(order[0])
        for before, after in pairwise(order):
            sorter.add(after, before)
    try:
        return list(sorter.static_order())
    except CycleError:
        return None


class _CollectiveTasks(Struct, kw_only=True):
    """A collective as the ranks show it; ``tasks``: its task on each of them, by the rank's place.

    ``signature``: collectives with the same one take about as long. ``row`` and ``kernel`` are of one rank.
    """

    group: str
    signature: tuple[str, str, int]
    is_complete: bool
    row: int
    kernel: str
    tasks: dict[int, int] = field(default_factory=dict)
    last_start_ns: float = -np.inf
    first_end_ns: float = np.inf


def fill_lost_members(tasks: Sequence[RankTasks], rows: Columns) -> list[RankTasks]:
    """Return the tasks of all ranks with the work of collectives that a rank lost.

    The row of such work is that of another rank.

    Args:
        tasks: The tasks of each rank.
        rows: The analysis' collectives.
    """
    collectives = _collect(tasks, rows)
    incomplete = {each.group for each in collectives.values() if not each.is_complete}
    instance, rank_of_row = rows.ints("instance"), rows.ints("rank")
    instances = Groups(instance)
    ranks_of = {
        int(instance[members[0]]): set(rank_of_row[members].tolist()) for members in instances.split()
    }
    usual_ns = _find_usual_transfers(collectives.values())
    filled = list(tasks)
    for group in sorted(incomplete):
        task_of = [
            {
                number: each.tasks[place]
                for number, each in collectives.items()
                if each.group == group and place in each.tasks
            }
            for place in range(len(tasks))
        ]
        order = merge_orders([sorted(mine, key=mine.__getitem__) for mine in task_of])
        for place, mine in enumerate(task_of):
            rank = tasks[place]
            lost = {number for number in order or () if rank.rank not in ranks_of[number]}
            if not mine or not lost:
                continue
            streams = rank.stream[list(mine.values())]
            stream = int(np.bincount(streams[streams >= 0]).argmax())
            for number, at in _find_calls(rank, order or (), mine, lost).items():
                seen = collectives[number]
                transfer_ns = usual_ns.get(seen.signature, np.inf)
                filled[place] = _add_work(filled[place], at, stream, seen, transfer_ns)
    return filled


def _collect(tasks: Sequence[RankTasks], rows: Columns) -> dict[int, _CollectiveTasks]:
    """Return the collectives of several ranks by instance."""
    instances, sizes, matched = (rows.ints(name).tolist() for name in ("instance", "bytes", "matched"))
    groups, kinds = rows.texts("group"), rows.texts("kind")
    found: dict[int, _CollectiveTasks] = {}
    for place, rank in enumerate(tasks):
        for at in np.flatnonzero(rank.row != NONE).tolist():
            row = int(rank.row[at])
            instance, group = instances[row], groups[row]
            if instance < 0:
                continue
            each = found.setdefault(
                instance,
                _CollectiveTasks(
                    group=group,
                    signature=(group, kinds[row], sizes[row]),
                    is_complete=bool(matched[row]),
                    row=row,
                    kernel=rank.kernel[at],
                ),
            )
            each.tasks[place] = at
            each.last_start_ns = max(each.last_start_ns, float(rank.work[at, 0]))
            each.first_end_ns = min(each.first_end_ns, float(rank.work[at, 1]))
    return found


def _find_usual_transfers(collectives: Iterable[_CollectiveTasks]) -> dict[tuple[str, str, int], float]:
    """Return the median time from the last start to the first end of complete collectives."""
    times: dict[tuple[str, str, int], list[float]] = {}
    for each in collectives:
        if each.is_complete:
            times.setdefault(each.signature, []).append(max(0.0, each.first_end_ns - each.last_start_ns))
    return {signature: float(np.median(found)) for signature, found in times.items()}


def _find_calls(
    rank: RankTasks, order: Sequence[int], task_of: Mapping[int, int], lost: AbstractSet[int]
) -> dict[int, int]:
    """Return the calls of a rank's lost collectives of a group.

    Between two calls that are known, there must be as many calls of that name without work as collectives
    are lost.
    """
    names = {rank.name[at] for at in task_of.values()}
    found: dict[int, int] = {}
    pending: list[int] = []
    before = NONE
    for number in (*order, NONE):
        if number in lost:
            pending.append(number)
        if number not in task_of and number != NONE:
            continue
        until = task_of.get(number, len(rank))
        if pending:
            calls = [
                at for at in range(before + 1, until) if rank.stream[at] == NONE and rank.name[at] in names
            ]
            found |= dict(zip(pending, calls, strict=True)) if len(calls) == len(pending) else {}
        pending, before = [], until
    return found


def _add_work(
    rank: RankTasks, at: int, stream: int, seen: _CollectiveTasks, usual_transfer_ns: float
) -> RankTasks:
    """Return the rank with this work at a call; unchanged if it cannot have ended with that of the others."""
    on_stream = np.flatnonzero(rank.stream == stream)
    earliest_ns = max(
        float(rank.call[at, 0]) + find_pick_up(rank),
        float(rank.work[on_stream[on_stream < at], 1].max(initial=-np.inf)),
    )
    end_ns = min(
        seen.first_end_ns, float(rank.work[on_stream[on_stream > at], 0].min(initial=seen.first_end_ns))
    )
    if end_ns <= earliest_ns:
        return rank
    start_ns = min(end_ns, max(earliest_ns, seen.last_start_ns, end_ns - usual_transfer_ns))
    work, streams, rows = rank.work.copy(), rank.stream.copy(), rank.row.copy()
    work[at], streams[at], rows[at] = (start_ns, end_ns), stream, seen.row
    kernel = rank.kernel.with_text(np.array([at]), seen.kernel)
    return replace(rank, work=work, stream=streams, row=rows, kernel=kernel)
