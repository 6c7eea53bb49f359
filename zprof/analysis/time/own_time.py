"""Measure each rank's own busy time in a step, and its excess over the others.

    own = compute + copies + stalls of its host          longer = own - median own of the other ranks

Ranks that share collectives end a step together. If one of them is busy for longer, the others are delayed by
it, as wait, or as transfer if their compute hides the wait. The sum covers both and needs no common
clock.

On a CPU rank the main thread is the host, and all of its idle time is a stall. A device is idle whenever its
host is behind, which need not be caused by the rank: if all hosts are equally slow, the rank that arrives
last is idle, and the others spend the same time waiting for it. A device's idle time therefore counts only to
the extent that its host took longer than the others for the same parts of the program (``host_ns`` of
:mod:`zprof.analysis.time.host_calls`). A rank that only started late, or was delayed by others, has none.
"""

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats, Groups, find_places
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.decomposition import Instances
from zprof.analysis.time.host_calls import HOST_NS

Table = npt.NDArray[np.float64]
#: A piece of the program counts as slower than host jitter beyond this many MADs (three standard deviations).
_JITTER_DEVIATIONS = 3 * 1.48


class OwnTime(Struct, frozen=True, kw_only=True):
    """Tables of steps by ``ranks``: own time, and its excess over the median of the others.

    ``numbers``: the step numbers. ``compute``, ``copies``, ``idle``: the parts of ``longer``, which sum
    approximately to it. ``queued``: the excess of the time in which a CPU rank's thread was ready but had no
    processor, which is in any of them; 0 if unknown. ``is_host_known`` is False if devices were idle and it
    is unknown whether their hosts differ; idle time is then in none of the tables.
    """

    ranks: tuple[int, ...]
    own: Table
    longer: Table
    compute: Table
    copies: Table
    idle: Table
    queued: Table
    numbers: tuple[int, ...] = ()
    is_host_known: bool = True

    @property
    def steps(self) -> int:
        """Number of steps that all ranks have."""
        return len(self.own)

    def without(self, part: Table, chosen: "npt.NDArray[np.bool_]") -> Table:
        """Return how much shorter each step's longest rank is without ``part`` of the chosen ranks."""
        less = self.own - np.where(chosen, np.clip(part, 0.0, None), 0.0)
        return np.clip(self.own.max(axis=1) - less.max(axis=1), 0.0, None)

    def beyond(self, chosen: "npt.NDArray[np.bool_]") -> Table:
        """Return for each step the longest chosen rank minus the longest of all others; at least 0."""
        longest, next_longest = self.own[:, chosen].max(axis=1), self.own[:, ~chosen].max(axis=1)
        return np.clip(longest - next_longest, 0.0, None)


def measure_own_time(analysis: RunAnalysis) -> OwnTime:
    """Return the own time in the steps that all ranks have; it is measured once per analysis."""
    return analysis.compute_once(_measure_own_time)


def _measure_own_time(analysis: RunAnalysis) -> OwnTime:
    rows = _whole_steps(analysis)
    host = analysis.host
    if not (len(host) and bool(host.bools("on_device").any())):
        return _make_own_time(rows.with_columns(queued_ns=_look_up_queued(host, rows)))
    stalls, steps = _host_stalls(analysis, rows), rows.group_by("step")
    known = steps.min(~np.isnan(stalls))[steps.codes]
    is_known = 2 * int(known.sum()) >= len(rows)
    rest_ns = np.minimum(rows.floats("rest_ns"), stalls) if is_known else np.zeros(len(rows))
    own_ns = rows.floats("compute_ns") + rows.floats("exposed_memcpy_ns") + rest_ns
    rows = rows.with_columns(rest_ns=rest_ns, own_ns=own_ns)
    return replace(_make_own_time(rows.at(known) if is_known else rows), is_host_known=is_known)


def measure_own_time_with_idle(analysis: RunAnalysis) -> OwnTime:
    """Return the own time including all idle time, whatever its cause: the total to explain."""
    return _make_own_time(_whole_steps(analysis))


def _whole_steps(analysis: RunAnalysis) -> Columns:
    """Return the steps that all ranks have, sorted by step and rank; own time includes all idle time."""
    rows, ranks = analysis.steps, analysis.steps.ints("rank")
    steps = rows.group_by("step")
    rows = rows.at((steps.count_distinct(ranks) == len(np.unique(ranks)))[steps.codes])
    rows = rows.at(np.lexsort((rows.ints("rank"), rows.ints("step"))))
    return rows.with_columns(
        stage=_find_stages(analysis, rows.ints("rank")),
        queued_ns=np.zeros(len(rows)),
        rest_ns=rows.ints("idle_ns") + rows.ints("unexplained_ns"),
        own_ns=rows.ints("wall_ns") - (rows.ints("exposed_wait_ns") + rows.ints("exposed_transfer_ns")),
    )


def _find_stages(analysis: RunAnalysis, ranks: Int64s) -> Int64s:
    """Return the pipeline stage of each rank, 0 without a pipeline."""
    mesh = analysis.time.mesh
    stages = mesh.number_stages() if mesh is not None else {}
    return np.array([stages.get(rank, 0) for rank in ranks.tolist()], dtype=np.int64)


def _look_up_queued(host: Columns, rows: Columns) -> Floats:
    """Return how long the thread of each row's rank waited for a processor in its step; 0 if unknown."""
    if not len(host):
        return np.zeros(len(rows))
    keys = host.group_by("step", "rank")
    known = (host.ints("step")[keys.first], host.ints("rank")[keys.first])
    places = find_places((rows.ints("step"), rows.ints("rank")), known)
    return np.append(keys.sum(host.floats("queued_ns")), 0.0)[places]


def _make_own_time(rows: Columns) -> OwnTime:
    ranks = np.unique(rows.ints("rank"))
    return OwnTime(
        ranks=tuple(ranks.tolist()),
        numbers=tuple(np.unique(rows.ints("step")).tolist()),
        own=_make_table(rows.floats("own_ns"), len(ranks)),
        longer=_longer_than_others(rows, "own_ns", len(ranks)),
        compute=_longer_than_others(rows, "compute_ns", len(ranks)),
        copies=_longer_than_others(rows, "exposed_memcpy_ns", len(ranks)),
        idle=_longer_than_others(rows, "rest_ns", len(ranks)),
        queued=_longer_than_others(rows, "queued_ns", len(ranks)),
    )


def _host_stalls(analysis: RunAnalysis, steps: Columns) -> Floats:
    """Measure the excess of each host's time over the others, per row of ``steps``; NaN if unknown.

    Other hosts also pause invisibly (a full launch queue), so a shorter piece
    does not make up for a longer one. The result is the larger of two sums: the run of pieces in which the
    host falls behind most, and all pieces that are longer by more than jitter.
    """
    pieces = _host_pieces(analysis)
    if pieces is None or len(pieces[2]) < 2:  # one rank has no others
        return np.full(len(steps), np.nan)
    times, piece_steps, ranks = pieces
    of_rank, behind = _find_stages(analysis, ranks), np.zeros_like(times)
    for stage in np.unique(of_rank):
        mine = of_rank == stage
        if mine.sum() > 1:
            behind[:, mine] = times[:, mine] - _median_of_others(times[:, mine])
    jitter = _JITTER_DEVIATIONS * np.median(np.abs(behind - np.median(behind, axis=0)), axis=0)
    clear = np.where(behind > jitter, behind, 0.0)
    stalls = []
    for rows in Groups(piece_steps).split():
        sums = np.concatenate((np.zeros((1, len(ranks))), np.cumsum(behind[rows], axis=0)))
        largest_run = (sums - np.minimum.accumulate(sums, axis=0)).max(axis=0)
        stalls.append(np.maximum(clear[rows].sum(axis=0), largest_run))
    names = np.unique(piece_steps)
    number, rank = np.repeat(names, len(ranks)), np.tile(ranks, len(names))
    places = find_places((steps.ints("step"), steps.ints("rank")), (number, rank))
    return np.append(np.concatenate(stalls), np.nan)[places]


def _host_pieces(analysis: RunAnalysis) -> tuple[Table, Int64s, Int64s] | None:
    """Return the host times in ns between launches that all ranks make, in program order (rows), by rank.

    Also return the step of each row, and the ranks (columns).
    None if launches were not recorded, or if ranks launched different numbers of collectives throughout.
    """
    rows, ranks = analysis.collectives, np.unique(analysis.steps.ints("rank"))
    if HOST_NS not in rows or not len(rows):
        return None
    rows = rows.at(rows.known(HOST_NS) & np.isin(rows.ints("rank"), ranks))
    rows = rows.at(np.lexsort((rows.ints("launch_start_ns"), rows.ints("rank"))))
    by_rank = rows.group_by("rank")
    if len(by_rank) != len(ranks) or not len(ranks):
        return None
    at = by_rank.cumsum(rows.ints(HOST_NS))
    # key of a launch that all ranks make, before launches of each kind are numbered in the step
    kinds = rows.group_by("step", "kind", "group_size")
    launches = Groups(
        kinds.codes, Groups(by_rank.codes, kinds.codes).cumsum(np.ones(len(rows), dtype=np.int64))
    )
    table = np.full((len(launches), len(ranks)), np.nan)
    table[launches.codes, by_rank.codes] = at
    # if a rank lacks a launch, all later launches of that kind have too low a number
    of_kind = Groups(kinds.codes[launches.first])
    kept = of_kind.min(~np.isnan(table).any(axis=1))[of_kind.codes]
    if not kept.any():
        return None
    table, step = table[kept], rows.ints("step")[launches.first][kept]
    order = np.argsort(np.median(table, axis=1), kind="stable")
    return np.diff(table[order], axis=0, prepend=0.0), step[order], ranks


def _median_of_others(values: Table) -> Table:
    """Return for each value the median of the other values of its row, from one sorted copy of the row."""
    count = values.shape[1] - 1
    order = np.argsort(values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(count + 1)[None, :], axis=1)
    lower, upper = (
        np.where(place <= at, ranked[:, at + 1, None], ranked[:, at, None])
        for at in ((count - 1) // 2, count // 2)
    )
    return (lower + upper) / 2


def _longer_than_others(rows: Columns, column: str, ranks: int) -> Table:
    values = rows.floats(column)
    peers = rows.group_by("step", "stage")
    others = Instances(peers.codes).median_of_others(values)
    is_staged = rows.ints("stage").any()
    return _make_table(values - np.where(np.isnan(others), values if is_staged else 0.0, others), ranks)


def _make_table(values: Floats, ranks: int) -> Table:
    return values.reshape(-1, max(1, ranks))
