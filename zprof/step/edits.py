"""Edit a measured step: each edit takes a graph and returns the changed step's graph."""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from zprof.analysis.intervals import Int64s, Intervals, covered, union
from zprof.step.structure import are_ordering_calls, find_main_stream
from zprof.step.tasks import (
    NONE,
    Bools,
    Floats,
    Graph,
    RankGraph,
    lower_median,
    mark_rows,
    own_work_ns,
    step_places,
)

#: Host time of a blocking call without a wait.
_CALL_NS = 5_000.0
#: Longer host time before a call is not attributed to the call.
_LONG_GAP_NS = 1_000_000.0
#: A rank's columns that edits may change, in addition to dependencies.
_EDITED = ("gap_ns", "call_ns", "blocks_on", "returns_ns", "stream", "work_ns", "lag_ns", "collective")


def changes_graph(graph: Graph, changed: Graph) -> bool:
    """Return True if an edit changed anything: a task, a dependency or a time."""
    return not (
        np.array_equal(graph.transfer_ns, changed.transfer_ns)
        and np.array_equal(graph.members, changed.members)
        and all(
            before.waits_on == after.waits_on
            and all(np.array_equal(getattr(before, name), getattr(after, name)) for name in _EDITED)
            for before, after in zip(graph.ranks, changed.ranks, strict=False)
        )
    )


def scale_transfers(graph: Graph, ratio_of_row: Mapping[int, float]) -> Graph:
    """Scale the transfer time of collectives, by row of the analysis' collectives."""
    transfer = graph.transfer_ns.copy()
    ranks = []
    for rank in graph.ranks:
        work = rank.work_ns.copy()
        for at in np.flatnonzero(rank.collective != NONE).tolist():
            ratio = ratio_of_row.get(int(rank.tasks.row[at]), 1.0)
            if ratio != 1.0:
                number = int(rank.collective[at])
                work[at] *= ratio
                transfer[number] = graph.transfer_ns[number] * ratio
        ranks.append(replace(rank, work_ns=work))
    return replace(graph, ranks=tuple(ranks), transfer_ns=transfer)


def shorten_collectives(graph: Graph, by_ns_of_row: Mapping[int, float]) -> Graph:
    """Shorten the transfer of collectives by a time in ns, by row of the analysis' collectives."""
    transfer = graph.transfer_ns.copy()
    ranks = []
    for rank in graph.ranks:
        work = rank.work_ns.copy()
        for at in np.flatnonzero(rank.collective != NONE).tolist():
            by = by_ns_of_row.get(int(rank.tasks.row[at]), 0.0)
            number = int(rank.collective[at])
            work[at] = max(0.0, work[at] - by)
            transfer[number] = max(0.0, min(float(transfer[number]), float(graph.transfer_ns[number]) - by))
        ranks.append(replace(rank, work_ns=work))
    return replace(graph, ranks=tuple(ranks), transfer_ns=transfer)


def drop_collectives(
    graph: Graph, rows: frozenset[int], *, keeps_hooks: bool = False, keeps_copies: bool = False
) -> Graph:
    """Remove collectives with all of their host and device work; tasks that waited for them continue.

    A collective's host work consists of the events that order it after other streams, a rate limiter's wait
    for free memory, the launch, and the time before each of these calls. The time before the first call
    belongs partly to the program: it is reduced by the typical time before a collective, or unchanged with
    ``keeps_hooks``. Copies into and out of the buffer are removed, too, or run on the compute stream with
    ``keeps_copies``.
    """
    members = graph.members.copy()
    ranks = []
    for rank in graph.ranks:
        dropped = mark_rows(rank, rows)
        np.subtract.at(members, rank.collective[dropped], 1)
        if dropped.any():
            ranks.append(_drop_from_rank(rank, dropped, keeps_hooks=keeps_hooks, keeps_copies=keeps_copies))
        else:
            ranks.append(rank)
    return replace(graph, ranks=tuple(ranks), members=members)


def _drop_from_rank(rank: RankGraph, dropped: Bools, *, keeps_hooks: bool, keeps_copies: bool) -> RankGraph:
    first = _first_tasks_of_collectives(rank)
    inside = np.flatnonzero(rank.collective != NONE)
    gone = np.zeros(len(rank.gap_ns), dtype=np.bool_)
    for at in np.flatnonzero(dropped).tolist():
        gone[first[at] : at + 1] = True
    outs = rank.copy_out[dropped]
    kept_outs = rank.copy_out[(rank.collective != NONE) & ~dropped]
    gone[np.setdiff1d(outs[outs != NONE], kept_outs)] = True
    stream = rank.stream.copy()
    if keeps_copies:
        copies = np.concatenate((rank.copy_in[dropped], outs))
        gone[copies[copies != NONE]] = False
        stream[copies[copies != NONE]] = find_main_stream(rank.tasks, rank.collective != NONE)
    computes = (rank.collective == NONE) & (rank.stream != NONE)
    after_compute = np.concatenate(([False], computes[:-1]))
    starts = np.zeros(len(gone), dtype=np.bool_)
    starts[first[inside]] = True
    hook = _median_or_inf(rank.gap_ns[starts & after_compute])
    between = _median_or_inf(rank.gap_ns[computes & after_compute & ~starts])
    gap = np.where(gone & (rank.gap_ns < _LONG_GAP_NS), 0.0, rank.gap_ns)
    for at in np.unique(first[dropped]).tolist():
        if not at or not gone[at - 1]:
            gap[at] = rank.gap_ns[at] if keeps_hooks else max(0.0, rank.gap_ns[at] - hook)
    behind = np.flatnonzero(~gone & np.concatenate(([False], gone[:-1])))
    for at in behind.tolist():
        if starts[at] or computes[at]:
            gap[at] = min(gap[at], hook if starts[at] else between)
    return _pass_waits_on(
        replace(
            rank,
            stream=np.where(gone, NONE, stream),
            collective=np.where(gone, NONE, rank.collective),
            call_ns=np.where(gone, 0.0, rank.call_ns),
            gap_ns=gap,
            blocks_on=np.where(gone, NONE, rank.blocks_on),
        ),
        rank,
        gone,
    )


def _median_or_inf(times: Floats) -> float:
    return float(np.median(times)) if len(times) else np.inf


def _first_tasks_of_collectives(rank: RankGraph) -> Int64s:
    """Return, for each collective, its first task; for any other task, the task itself."""
    first = np.arange(len(rank.gap_ns))
    orders, copies = are_ordering_calls(rank.tasks).tolist(), rank.copy_in.tolist()
    for at in np.flatnonzero(rank.collective != NONE).tolist():
        begin = at
        while begin and (orders[begin - 1] or begin - 1 == copies[at]):
            begin -= 1
        first[at] = begin
    return first


def _pass_waits_on(changed: RankGraph, rank: RankGraph, gone: Bools) -> RankGraph:
    """Pass on the waits of dropped work: its waiters get the previous work, its own waits the next work.

    Copies run in order with their stream's compute. A gather that waited for a copy waited for its own
    buffer, which is also removed.
    """
    before: dict[int, int] = {}
    instead: dict[int, int] = {}
    inherited: dict[int, list[int]] = {}
    waits = list(rank.waits_on)
    streams, collectives, is_gone = rank.stream.tolist(), rank.collective.tolist(), gone.tolist()
    for task, stream in enumerate(streams):
        if stream == NONE:
            continue
        if not is_gone[task]:
            if stream in inherited:
                waits[task] = (*waits[task], *inherited.pop(stream))
            before[stream] = task
        elif collectives[task] == NONE:
            instead[task] = before.get(stream, NONE)
            inherited.setdefault(stream, []).extend(
                other for other in rank.waits_on[task] if not is_gone[other]
            )
    kept = tuple(
        tuple(
            new
            for other in task_waits
            if (new := instead.get(other, other)) != NONE and (new == other or collectives[task] != NONE)
        )
        if task_waits
        else ()
        for task, task_waits in enumerate(waits)
    )
    on = np.array([instead.get(other, other) for other in changed.blocks_on.tolist()], dtype=np.int64)
    return replace(changed, waits_on=kept, blocks_on=on)


def edit_ranks(graph: Graph, edit: Callable[[RankGraph], RankGraph]) -> Graph:
    """Apply an edit to each rank."""
    return replace(graph, ranks=tuple(edit(rank) for rank in graph.ranks))


def unblock_calls(graph: Graph, chosen: Callable[[RankGraph], Bools]) -> Graph:
    """Make the chosen calls return immediately instead of blocking on work."""

    def edit(rank: RankGraph) -> RankGraph:
        free = chosen(rank)
        return replace(
            rank,
            blocks_on=np.where(free, NONE, rank.blocks_on),
            call_ns=np.where(free, np.minimum(rank.call_ns, _CALL_NS), rank.call_ns),
        )

    return edit_ranks(graph, edit)


def delay_waits(graph: Graph, chosen: Callable[[RankGraph], Bools]) -> Graph:
    """Move the chosen waits to the next call that is not chosen, or to the end of the step."""

    def edit(rank: RankGraph) -> RankGraph:
        places, step = np.arange(len(rank.tasks)), step_places(rank)
        calls = np.flatnonzero(~chosen(rank) & ((rank.collective != NONE) | rank.tasks.blocks))
        following = np.append(calls, len(places))[np.searchsorted(calls, places)]
        following = np.minimum(following, np.searchsorted(step, step, side="right"))
        return reorder_tasks(rank, np.argsort(np.where(chosen(rank), following - 0.5, places), kind="stable"))

    return edit_ranks(graph, edit)


def scale_host(graph: Graph, ratio: float, chosen: Callable[[RankGraph], Bools]) -> Graph:
    """Scale the host time before and inside the chosen calls."""

    def edit(rank: RankGraph) -> RankGraph:
        factor = np.where(chosen(rank), ratio, 1.0)
        return replace(rank, gap_ns=rank.gap_ns * factor, call_ns=rank.call_ns * factor)

    return edit_ranks(graph, edit)


def even_out_ranks(graph: Graph, late: Sequence[int] | None = None) -> Graph:
    """Make ranks no slower than the median rank of their stage, task by task.

    If given, only the ``late`` ranks change. If ranks have different numbers of tasks, their sums over the
    window are compared instead.
    """
    ranks = list(graph.ranks)
    for places in graph.list_peers():
        peers = [graph.ranks[place] for place in places]
        alike = len({len(rank.tasks) for rank in peers}) == 1
        edited = _even_out_tasks(peers) if alike else _even_out_sums(peers)
        for place, rank in zip(places, edited, strict=True):
            if late is None or rank.tasks.rank in late:
                ranks[place] = rank
    return replace(graph, ranks=tuple(ranks))


def _even_out_tasks(peers: Sequence[RankGraph]) -> list[RankGraph]:
    gap = lower_median(np.array([rank.gap_ns for rank in peers]))
    call = lower_median(np.array([rank.call_ns for rank in peers]))
    work = lower_median(np.array([rank.work_ns for rank in peers]))
    return [
        replace(
            rank,
            gap_ns=np.minimum(rank.gap_ns, gap),
            call_ns=np.minimum(rank.call_ns, call),
            work_ns=np.where(rank.collective == NONE, np.minimum(rank.work_ns, work), rank.work_ns),
        )
        for rank in peers
    ]


def _even_out_sums(peers: Sequence[RankGraph]) -> list[RankGraph]:
    """Even out ranks by their sums over the window, if tasks cannot be compared one by one."""
    work = [float(rank.work_ns[rank.collective == NONE].sum()) for rank in peers]
    host = [float(rank.gap_ns.sum() + rank.call_ns.sum()) for rank in peers]
    usual = sorted(work)[(len(work) - 1) // 2], sorted(host)[(len(host) - 1) // 2]
    edited = []
    for rank, own_work, own_host in zip(peers, work, host, strict=True):
        of_work, of_host = min(1.0, usual[0] / max(1.0, own_work)), min(1.0, usual[1] / max(1.0, own_host))
        edited.append(
            replace(
                rank,
                gap_ns=rank.gap_ns * of_host,
                call_ns=rank.call_ns * of_host,
                work_ns=np.where(rank.collective == NONE, rank.work_ns * of_work, rank.work_ns),
            )
        )
    return edited


def even_out_steps(graph: Graph, chosen: Bools) -> Graph:
    """Make the ranks' chosen steps no slower than the median rank's, by sums of host and device work.

    ``chosen``: an array of [rank, step].
    """
    host = _ratios_to_median(graph, [rank.gap_ns + rank.call_ns for rank in graph.ranks], chosen)
    work = _ratios_to_median(graph, [own_work_ns(rank) for rank in graph.ranks], chosen)
    ranks = [
        replace(
            rank,
            gap_ns=rank.gap_ns * of_host,
            call_ns=rank.call_ns * of_host,
            work_ns=np.where(rank.collective == NONE, rank.work_ns * of_work, rank.work_ns),
        )
        for rank, of_host, of_work in zip(graph.ranks, host, work, strict=True)
    ]
    return replace(graph, ranks=tuple(ranks))


def _ratios_to_median(graph: Graph, times: Sequence[Floats], chosen: Bools) -> list[Floats]:
    """Return each task's remaining share of time if chosen steps are no slower than the median rank's.

    Time is removed from tasks that are slower than on other ranks, because a host stall affects one call, not
    all calls. If the ranks' tasks in a step differ, all tasks lose time in proportion.
    """
    left = [np.ones(len(rank_times)) for rank_times in times]
    for peers in graph.list_peers():
        for step in np.flatnonzero(chosen[peers].any(axis=0)).tolist():
            places = [np.flatnonzero(step_places(graph.ranks[peer]) == step) for peer in peers]
            own = [times[peer][place] for peer, place in zip(peers, places, strict=True)]
            alike = len({len(rank_times) for rank_times in own}) == 1
            usual = lower_median(np.array(own)) if alike else 0.0
            sums = np.array([rank_times.sum() for rank_times in own])
            excess = sums - lower_median(sums[:, None])
            for index in np.flatnonzero(chosen[peers, step] & (excess > 0)).tolist():
                over = np.maximum(0.0, own[index] - usual)
                removed = over * min(1.0, excess[index] / max(1.0, over.sum()))
                left[peers[index]][places[index]] = 1.0 - removed / np.maximum(1.0, own[index])
    return left


def shorten_gaps(graph: Graph, by_ns: Mapping[int, Floats]) -> Graph:
    """Shorten the host time before each call, by rank."""
    return edit_ranks(
        graph,
        lambda rank: replace(rank, gap_ns=np.maximum(0.0, rank.gap_ns - by_ns[rank.tasks.rank])),
    )


def scale_work(graph: Graph, ratio: float | Callable[[RankGraph], Floats | float]) -> Graph:
    """Scale the device time of all work except collectives."""

    def edit(rank: RankGraph) -> RankGraph:
        chosen = ratio(rank) if callable(ratio) else ratio
        factor = np.where(rank.collective == NONE, chosen, 1.0)
        return replace(rank, work_ns=rank.work_ns * factor)

    return edit_ranks(graph, edit)


def scale_ranks(graph: Graph, ratios: Mapping[int, float]) -> Graph:
    """Scale the device time of the work of ranks, by rank; other ranks stay."""
    return scale_work(graph, lambda rank: ratios.get(rank.tasks.rank, 1.0))


def shorten_own_work(graph: Graph, by_ns: float | Mapping[int, float]) -> Graph:
    """Shorten the thread's own work on CPU ranks by this time per step, or by that of each rank.

    All of it is shortened in proportion.
    """

    def measure_ratio(rank: RankGraph) -> float:
        own_ns = float(rank.work_ns[rank.collective == NONE].sum()) / graph.steps
        less_ns = by_ns.get(rank.tasks.rank, 0.0) if isinstance(by_ns, Mapping) else by_ns
        return max(0.0, 1 - less_ns / max(1.0, own_ns))

    return scale_work(graph, measure_ratio)


def release_held(graph: Graph, gathers: frozenset[int]) -> Graph:
    """Let collectives start when their inputs are ready, regardless of unrelated compute kernels.

    ``gathers``: rows of gathers that wait only for the optimizer update. They depend on compute launched
    before the step's first such gather. Any other held collective depends on its copy in and the compute
    launched right before it.
    """

    def edit(rank: RankGraph) -> RankGraph:
        compute = find_main_stream(rank.tasks, rank.collective != NONE)
        computing = np.flatnonzero(rank.stream == compute)
        is_gather = mark_rows(rank, gathers)
        held = np.zeros(len(rank.tasks), dtype=np.bool_)
        held[list(rank.held)] = True
        waits = list(rank.waits_on)
        opening: dict[int, int] = {}
        for at in np.flatnonzero(is_gather | held).tolist():
            if is_gather[at]:
                needed: Collection[int] = range(opening.setdefault(int(rank.tasks.step[at]), at))
            else:
                needed = [*computing[: np.searchsorted(computing, at)][-1:].tolist(), int(rank.copy_in[at])]
            waits[at] = tuple(
                other for other in waits[at] if rank.stream[other] != compute or other in needed
            )
        return replace(rank, waits_on=tuple(waits), lag_ns=np.where(is_gather | held, 0.0, rank.lag_ns))

    return edit_ranks(graph, edit)


def launch_earlier(graph: Graph, rows: frozenset[int]) -> Graph:
    """Launch these collectives right after the collectives of the previous unit, within their step.

    Collectives without compute launched in between belong to one unit. A step's first unit is not moved. A
    moved collective loses its waits and its lag, which were due to its old position.
    """

    def edit(rank: RankGraph) -> RankGraph:
        mine = np.flatnonzero(mark_rows(rank, rows))
        if len(mine) < 2:
            return rank
        place = np.arange(len(rank.tasks), dtype=np.float64)
        compute = np.flatnonzero(rank.stream == find_main_stream(rank.tasks, rank.collective != NONE))
        unit = np.searchsorted(compute, mine)
        last_before = NONE
        for before, at, starts in zip(mine[:-1].tolist(), mine[1:].tolist(), np.diff(unit) > 0, strict=True):
            last_before = before if starts else last_before
            if last_before != NONE and rank.tasks.step[last_before] == rank.tasks.step[at]:
                place[at] = last_before + 0.5
        moved = np.isin(np.arange(len(place)), mine) & (place != np.arange(len(place)))
        waits = tuple(
            () if is_moved else each for is_moved, each in zip(moved.tolist(), rank.waits_on, strict=True)
        )
        freed = replace(rank, waits_on=waits, lag_ns=np.where(moved, 0.0, rank.lag_ns))
        return reorder_tasks(freed, np.argsort(place, kind="stable"))

    return edit_ranks(graph, edit)


def reorder_tasks(rank: RankGraph, order: Int64s) -> RankGraph:
    """Return the rank with its tasks in a different host order."""
    new_place = np.empty(len(order), dtype=np.int64)
    new_place[order] = np.arange(len(order))
    places, waits = new_place.tolist(), rank.waits_on
    return replace(
        rank,
        tasks=rank.tasks.at(order),
        gap_ns=rank.gap_ns[order],
        call_ns=rank.call_ns[order],
        blocks_on=_renumber_places(rank.blocks_on, order, new_place),
        returns_ns=rank.returns_ns[order],
        stream=rank.stream[order],
        work_ns=rank.work_ns[order],
        waits_on=tuple(
            tuple([places[other] for other in waits[at]]) if waits[at] else () for at in order.tolist()
        ),
        lag_ns=rank.lag_ns[order],
        collective=rank.collective[order],
        copy_in=_renumber_places(rank.copy_in, order, new_place),
        copy_out=_renumber_places(rank.copy_out, order, new_place),
    )


def _renumber_places(places: Int64s, order: Int64s, new_place: Int64s) -> Int64s:
    moved = places[order]
    return np.where(moved == NONE, NONE, new_place[np.maximum(moved, 0)])


def hide_under_next_step(
    graph: Graph,
    rows: frozenset[int],
    forward_ratio: float,
    *,
    slower: float,
    splits: float,
    latency_ns: float,
) -> Graph:
    """Overlap the gathers at the end of a step with the next forward pass, which waits for each as needed.

    ``forward_ratio``: the forward's share of a step's compute. A gather's duration determines when in the
    forward it is needed. ``slower``: relative slowdown of concurrent compute. ``splits``: additional gathers
    per step, because each unit has its own; each takes the link's latency and as much host time as the
    recorded gathers. Only the last step's first gather keeps its time: no forward pass follows.
    """

    def edit(rank: RankGraph) -> RankGraph:
        mine = mark_rows(rank, rows)
        waits = [tuple(other for other in each if not mine[other]) for each in rank.waits_on]
        on = np.where((rank.blocks_on != NONE) & mine[np.maximum(rank.blocks_on, 0)], NONE, rank.blocks_on)
        computes = (rank.collective == NONE) & (rank.stream != NONE)
        work, gap = rank.work_ns.copy(), rank.gap_ns.copy()
        host = np.concatenate(([0.0], np.cumsum(rank.gap_ns + rank.call_ns)))
        first = _first_tasks_of_collectives(rank)
        for step in range(graph.steps):
            gathers = np.flatnonzero(mine & (step_places(rank) == step))
            after = np.flatnonzero(computes & (step_places(rank) == step + 1))
            if not len(after):
                work[gathers[1:]] = 0.0
                continue
            if not len(gathers):
                continue
            work[gathers] += splits * latency_ns / len(gathers)
            gap[gathers[0]] += splits * float(np.median(host[gathers + 1] - host[first[gathers]]))
            done = np.cumsum(rank.work_ns[after])
            until = np.cumsum(work[gathers])
            needed = until / max(1.0, until[-1]) * forward_ratio * done[-1]
            own = rank.work_ns[after]
            work[after] += slower * np.clip(until[-1] - (done - own), 0.0, own)
            for gather, place in zip(
                gathers.tolist(), np.searchsorted(done, needed, side="right").tolist(), strict=True
            ):
                at = after[min(place, len(after) - 1)]
                waits[at] = (*waits[at], gather)
        return replace(rank, waits_on=tuple(waits), blocks_on=on, work_ns=work, gap_ns=gap)

    return edit_ranks(graph, edit)


def undo_slowdown(graph: Graph, factor: float) -> Graph:
    """Let compute that was slowed by ``factor`` through concurrent collectives run at full speed."""

    def ratio(rank: RankGraph) -> Floats:
        work, inside = rank.tasks.work, rank.collective != NONE
        ran = union(np.rint(work[inside]).astype(np.int64))
        done = np.nan_to_num(work)
        length = np.maximum(1.0, done[:, 1] - done[:, 0])
        beside = covered(ran, np.rint(done[:, 0]).astype(np.int64), np.rint(done[:, 1]).astype(np.int64))
        return 1.0 - beside / length * (1.0 - 1.0 / factor)

    return scale_work(graph, ratio)


def gap_time_within(rank: RankGraph, spans: Intervals, origin_ns: int) -> Floats:
    """Return the part of the host time before each call that is within ``spans``."""
    ends = rank.tasks.call[:, 0]
    begins = ends - rank.gap_ns
    moved = spans - origin_ns
    return covered(moved, np.rint(begins).astype(np.int64), np.rint(ends).astype(np.int64)).astype(np.float64)
