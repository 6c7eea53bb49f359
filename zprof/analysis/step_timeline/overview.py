"""Build one step of all ranks on one clock: who computes, who waits, and for whom.

Each rank is built like the step timeline of one rank; of many ranks only representatives are.
"""

from collections.abc import Sequence

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intersect, intervals, subtract, union
from zprof.analysis.step_timeline.build import build_step_model, find_step_span, find_tracks
from zprof.analysis.step_timeline.lane import LaneKind, LaneRole
from zprof.analysis.step_timeline.step_model import StepTimeline
from zprof.base.errors import MissingData
from zprof.model.collectives import is_unknown_size
from zprof.model.mesh import GroupRole
from zprof.model.step_overview import (
    OverviewLane,
    OverviewMessage,
    OverviewRow,
    SliceKind,
    StepOverview,
    WaitArrow,
)
from zprof.model.time import LEDGER_NAMES, StepTime, find_culprit, pick_rank_and_step

#: Maximum number of rows; ranks beyond are represented by one with a similar ledger.
MAX_ROWS = 16
MAX_ARROWS = 16
#: Waits shorter than this share of the longest get no arrow.
_MIN_ARROW_RATIO = 0.05
#: Maximum number of slices of all rows, about 16 bytes each in a page.
MAX_SLICES = 40_000
#: A slice narrower than a pixel of the widest zoom is not visible: pixels of a wide screen, times the zoom.
_WIDEST_PIXELS = 1_600 * 256
#: Ledgers that differ by less than this share of the step are alike; doubled until the rows are few enough.
_ALIKE_RATIO = 0.02


def build_step_overview(analysis: RunAnalysis) -> StepOverview | None:
    """Return the step that the timeline of the TUI shows first, of all ranks; None if nothing was timed."""
    picked = pick_rank_and_step(analysis.time)
    if picked is None or analysis.source is None:
        return None
    step = picked[1]
    ledgers = {entry.rank: entry for entry in analysis.time.steps if entry.step == step}
    waits = _select_waits(analysis.collectives, step)
    culprit, blame = find_culprit(analysis.time), analysis.time.blame
    blamed = () if blame is None else blame.per_rank
    caused_wait_ns = max(
        (each.exposed_wait_per_rank_ns for each in blamed if each.rank == culprit), default=0
    )
    victim = None if culprit is None else _find_victim(waits, culprit)
    if victim is None or culprit not in ledgers or victim not in ledgers:
        culprit = victim = None
    mesh = analysis.time.mesh
    stages = {} if mesh is None else mesh.number_stages()
    first = [rank for rank in (culprit, victim) if rank is not None]
    pipelines = () if mesh is None else mesh.list_groups(GroupRole.PIPELINE)
    near = {rank for group in pipelines if set(first) & set(group.ranks) for rank in group.ranks}
    alike = _group_alike(ledgers, stages, first, near)
    models = {}
    for rank in alike:
        try:
            models[rank] = build_step_model(analysis.source, analysis, rank, step)
        except MissingData:  # this rank has no interval of the step
            continue
    if not models:
        return None
    begins = {rank: find_step_span(find_tracks(analysis, rank), step)[0] for rank in models}
    origin = min(begins.values())
    length_ns = max(begins[rank] + model.length_ns for rank, model in models.items()) - origin
    resolution_ns, rows = _build_rows(analysis, models, begins, ledgers, stages, alike, length_ns)
    return StepOverview(
        step=step,
        length_ns=length_ns,
        rows=rows,
        arrows=_find_arrows(analysis.collectives, waits, set(models), victim, origin),
        culprit=culprit,
        victim=victim,
        caused_wait_ns=caused_wait_ns,
        resolution_ns=resolution_ns,
        is_coarse=resolution_ns > length_ns // _WIDEST_PIXELS,
    )


def _select_waits(rows: Columns, step: int) -> Columns:
    """Return the collectives of a step with exposed wait for a known rank, longest wait first."""
    is_known = (rows.ints("exposed_wait_ns") > 0) & (rows.ints("last_rank") >= 0)
    rows = rows.at(is_known & (rows.ints("step") == step))
    return rows.at(np.lexsort((rows.ints("start_ns"), -rows.ints("exposed_wait_ns"))))


def _find_victim(waits: Columns, culprit: int) -> int | None:
    """Return the rank with the most exposed wait for the culprit, or else for delays that began there."""
    rank = waits.ints("rank")
    for name in ("last_rank", "origin_rank"):
        mine = (waits.ints(name) == culprit) & (rank != culprit)
        if mine.any():
            total = np.bincount(rank[mine], weights=waits.ints("exposed_wait_ns")[mine])
            return int(np.argmax(total))
    return None


def _group_alike(
    ledgers: dict[int, StepTime], stages: dict[int, int], first: Sequence[int], near: set[int]
) -> dict[int, tuple[int, ...]]:
    """Return the ranks with a row and the other ranks that each stands for.

    ``first`` get the first rows; ``near``: ranks that rather get a row than others with the same ledger.
    """
    others = sorted(ledgers.keys() - set(first))
    if len(ledgers) <= MAX_ROWS:
        return {rank: () for rank in (*first, *others)}
    order = [*first, *sorted(others, key=lambda rank: (rank not in near, rank))]
    terms = np.array(
        [[getattr(ledgers[rank], term) for term in LEDGER_NAMES] for rank in order], dtype=np.float64
    )
    terms /= max(1, max(entry.wall_ns for entry in ledgers.values()))
    stage = np.array([stages.get(rank, -1) for rank in order])
    ratio = _ALIKE_RATIO
    while True:
        leaders = list(range(len(first)))
        members: dict[int, list[int]] = {leader: [] for leader in leaders}
        for index in range(len(first), len(order)):
            distance = np.abs(terms[leaders] - terms[index]).max(axis=1)
            if ratio < 1:
                distance = np.where(stage[leaders] == stage[index], distance, np.inf)
            if len(leaders) and distance.min() <= ratio:
                members[leaders[int(np.argmin(distance))]].append(order[index])
            else:
                leaders.append(index)
                members[index] = []
        if len(leaders) <= MAX_ROWS:
            rows = sorted(leaders, key=lambda leader: (leader >= len(first) and order[leader] + 1, leader))
            return {order[leader]: tuple(sorted(members[leader])) for leader in rows}
        ratio *= 2


def _build_rows(
    analysis: RunAnalysis,
    models: dict[int, StepTimeline],
    begins: dict[int, int],
    ledgers: dict[int, StepTime],
    stages: dict[int, int],
    alike: dict[int, tuple[int, ...]],
    length_ns: int,
) -> tuple[int, tuple[OverviewRow, ...]]:
    """Return the resolution, doubled until the slices are few enough, and the rows."""
    origin, resolution_ns = min(begins.values()), length_ns // _WIDEST_PIXELS
    mesh = analysis.time.mesh
    roles = {} if mesh is None else {entry.group: entry.role for entry in mesh.groups}
    while True:
        rows = tuple(
            OverviewRow(
                rank=rank,
                stage=stages.get(rank),
                start_ns=begins[rank] - origin,
                ledger=ledgers[rank],
                lanes=_build_lanes(model, roles, begins[rank] - origin, resolution_ns),
                messages=_list_messages(model.collectives, begins[rank] - origin),
                phases=_list_phases(model, begins[rank] - origin),
                alike=alike[rank],
            )
            for rank, model in models.items()
        )
        if sum(len(lane.kinds) for row in rows for lane in row.lanes) <= MAX_SLICES:
            return resolution_ns, rows
        resolution_ns = max(1, 2 * resolution_ns)


def _build_lanes(
    model: StepTimeline, roles: dict[str, GroupRole], shift_ns: int, resolution_ns: int
) -> tuple[OverviewLane, ...]:
    """Return the lane of compute and copies, one of each group by its first message, and what is left."""
    wait, transfer = (_find_exposed(model, role) for role in (LaneRole.WAIT, LaneRole.TRANSFER))
    compute, copies = (_join_lanes(model, role) for role in (LaneRole.COMPUTE, LaneRole.MEMCPY))
    parts = [(SliceKind.COMPUTE, compute), (SliceKind.COPY, subtract(copies, union(compute, wait, transfer)))]
    lanes = [_make_lane("", None, _cut(parts), shift_ns, resolution_ns, is_compute=True)]
    groups, left = model.collectives.texts("group"), union(wait, transfer)
    starts, ends = model.collectives.ints("start_ns"), model.collectives.ints("end_ns")
    for code in dict.fromkeys(groups.codes.tolist()):
        mine = np.flatnonzero(groups.codes == code)
        name = groups[int(mine[0])]
        pieces = _split_messages(
            mine, starts[mine].clip(0), ends[mine].clip(max=model.length_ns), wait, transfer
        )
        lanes.append(_make_lane(name, roles.get(name), pieces, shift_ns, resolution_ns))
        left = subtract(left, intervals(starts[mine].clip(0), ends[mine].clip(max=model.length_ns)))
    rest = [(SliceKind.WAIT, intersect(wait, left)), (SliceKind.TRANSFER, intersect(transfer, left))]
    lanes.append(_make_lane("", None, _cut(rest), shift_ns, resolution_ns))
    return tuple(lane for lane in lanes if lane.kinds or lane.is_compute)


def _find_exposed(model: StepTimeline, role: LaneRole) -> Intervals:
    lanes = [lane for lane in model.lanes if lane.kind is LaneKind.COLLECTIVES and role in lane.covers]
    return union(*(lane.covers[role].spans for lane in lanes)) if lanes else EMPTY


def _join_lanes(model: StepTimeline, role: LaneRole) -> Intervals:
    covers = [lane.covers[role] for lane in model.lanes if role in lane.covers]
    return union(*(cover.spans for cover in covers)) if covers else EMPTY


def _cut(parts: Sequence[tuple[SliceKind, Intervals]]) -> Int64s:
    """Return disjoint intervals as rows of kind, start, end and no message, in order of their starts."""
    rows = [np.column_stack((np.full(len(s), kind), s, np.full(len(s), -1))) for kind, s in parts]
    table = np.concatenate(rows).astype(np.int64)
    return table[np.argsort(table[:, 1], kind="stable")]


def _split_messages(
    rows: Int64s, starts: Int64s, ends: Int64s, wait: Intervals, transfer: Intervals
) -> Int64s:
    """Return the pieces of a group's messages as rows of kind, start, end and message.

    ``rows``: their rows, sorted by start. Where messages overlap, the one that started last owns the piece,
    or else the one that ends last.
    """
    edges = np.unique(np.concatenate((starts, ends, wait.ravel(), transfer.ravel())))
    begin, end = edges[:-1], edges[1:]
    owner = np.searchsorted(starts, begin, side="right") - 1
    longest = np.maximum.accumulate(ends)
    last_of_longest = np.searchsorted(longest, longest)  # the message that reaches as far as any before
    owner = np.where((owner >= 0) & (ends[owner] <= begin), last_of_longest[owner], owner)
    inside = (owner >= 0) & (ends[owner] > begin)
    kind = np.full(len(begin), int(SliceKind.HIDDEN))
    for spans, value in ((wait, SliceKind.WAIT), (transfer, SliceKind.TRANSFER)):
        if len(spans):
            at = np.searchsorted(spans[:, 0], begin, side="right") - 1
            kind = np.where((at >= 0) & (spans[at, 1] > begin), int(value), kind)
    return np.column_stack((kind, begin, end, rows[owner]))[inside].astype(np.int64)


def _make_lane(
    group: str,
    role: GroupRole | None,
    table: Int64s,
    shift_ns: int,
    resolution_ns: int,
    *,
    is_compute: bool = False,
) -> OverviewLane:
    """Return a lane; slices of one kind and message that are closer than the resolution become one."""
    if len(table):
        same = (table[1:, [0, 3]] == table[:-1, [0, 3]]).all(axis=1)
        is_first = np.concatenate(([True], ~(same & (table[1:, 1] - table[:-1, 2] <= resolution_ns))))
        firsts = np.flatnonzero(is_first)
        lasts = np.append(firsts[1:], len(table)) - 1
        table = np.column_stack((table[firsts, :2], table[lasts, 2], table[firsts, 3]))
    kinds, starts, ends, messages = table.T
    return OverviewLane(
        group=group,
        role=role,
        is_compute=is_compute,
        kinds=tuple(kinds.tolist()),
        starts_ns=tuple((starts + shift_ns).tolist()),
        lengths_ns=tuple((ends - starts).tolist()),
        messages=tuple(messages.tolist()),
    )


def _list_messages(rows: Columns, shift_ns: int) -> tuple[OverviewMessage, ...]:
    return tuple(
        OverviewMessage(
            kind=kind,
            bytes=None if is_unknown_size(kind, size) else size,
            start_ns=start + shift_ns,
            length_ns=end - start,
            last_rank=last if last >= 0 else None,
        )
        for kind, size, start, end, last in zip(
            rows.texts("kind"),
            *(rows.ints(name).tolist() for name in ("bytes", "start_ns", "end_ns", "last_rank")),
            strict=True,
        )
    )


def _list_phases(model: StepTimeline, shift_ns: int) -> tuple[tuple[int, str], ...]:
    for lane in model.lanes:
        if lane.kind is LaneKind.PHASES:
            names = [lane.names[row] for row in lane.items.row.tolist()]
            return tuple(zip((lane.items.start_ns + shift_ns).tolist(), names, strict=True))
    return ()


def _find_arrows(
    rows: Columns, waits: Columns, shown: set[int], victim: int | None, origin: int
) -> tuple[WaitArrow, ...]:
    """Return an arrow of each collective with the longest waits, if both of its ends have a row.

    ``rows``: all collectives; ``waits``: those with a wait, longest first. The victim's wait is shown if it
    has one, else the longest.
    """
    rank, last = waits.ints("rank"), waits.ints("last_rank")
    instance = waits.ints("instance")
    preferred = np.lexsort((np.arange(len(waits)), rank != victim))
    exposed = waits.ints("exposed_wait_ns")
    is_usable = np.isin(rank, list(shown)) & np.isin(last, list(shown))
    is_usable &= exposed >= _MIN_ARROW_RATIO * exposed.max(initial=0)
    usable = preferred[is_usable[preferred]]
    firsts = usable[np.unique(instance[usable], return_index=True)[1]]
    arrows: list[WaitArrow] = []
    for at in firsts[np.argsort(-exposed[firsts], kind="stable")].tolist():
        arrival = (rows.ints("instance") == instance[at]) & (rows.ints("rank") == last[at])
        if len(arrows) == MAX_ARROWS or not arrival.any():
            continue
        arrows.append(
            WaitArrow(
                rank=int(rank[at]),
                last_rank=int(last[at]),
                other_ranks=int((instance == instance[at]).sum()) - 1,
                group=waits.texts("group")[at],
                kind=waits.texts("kind")[at],
                start_ns=int(waits.ints("start_ns")[at]) - origin,
                arrival_ns=int(rows.ints("start_ns")[arrival][0]) - origin,
                exposed_wait_ns=int(exposed[at]),
            )
        )
    return tuple(arrows)
