"""Measure each rank's own busy time in a step, and its excess over the others.

    own = compute + copies + stalls of its host          longer = own - median own of the other ranks

Ranks that share collectives end a step together. If one of them is busy for longer, the others are delayed by
it, as wait, or as transfer if their compute hides the wait. The sum covers both and needs no common
clock.

On a CPU rank the main thread is the host, and all of its idle time is a stall. A device is idle whenever its
host is behind, which need not be caused by the rank: if all hosts are equally slow, the rank that arrives
last is idle, and the others spend the same time waiting for it. So idle time of a device counts only as far
as its host took longer than the other hosts for the same parts of the program (``host_ns`` of
:mod:`zprof.analysis.time.host_calls`). A rank that only started late, or was delayed by others, has none.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.collective_rows import Instances
from zprof.analysis.time.host_calls import HOST_NS

Table = npt.NDArray[np.float64]
_HELD_UP = ["exposed_wait_ns", "exposed_transfer_ns"]
#: Key of a launch that all ranks make, before launches of each kind are numbered in the step.
_LAUNCH = ["step", "kind", "group_size"]
#: Deviations (MAD) above which a piece of the program exceeds the jitter of a host: three standard
#: deviations.
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
        """Return, per step, the reduction of its longest rank without ``part`` of the chosen ranks."""
        less = self.own - np.where(chosen, np.clip(part, 0.0, None), 0.0)
        gained: Table = np.clip(self.own.max(axis=1) - less.max(axis=1), 0.0, None)
        return gained

    def beyond(self, chosen: "npt.NDArray[np.bool_]") -> Table:
        """Return for each step the longest chosen rank minus the longest of all others; at least 0."""
        longest, next_longest = self.own[:, chosen].max(axis=1), self.own[:, ~chosen].max(axis=1)
        beyond: Table = np.clip(longest - next_longest, 0.0, None)
        return beyond


def measure_own_time(analysis: RunAnalysis) -> OwnTime:
    """Return the own time in the steps that all ranks have; it is measured once per analysis."""
    return analysis.compute_once(_measure_own_time)


def _measure_own_time(analysis: RunAnalysis) -> OwnTime:
    rows = _whole_steps(analysis)
    rows["rest_ns"] = rows["idle_ns"] + rows["unexplained_ns"]
    if not (not analysis.host.empty and bool(analysis.host["on_device"].any())):
        rows["queued_ns"] = _look_up_queued(analysis, rows)
        return _make_own_time(rows.assign(own_ns=rows["wall_ns"] - rows[_HELD_UP].sum(axis=1)))
    stalls = _host_stalls(analysis, rows)
    known = stalls.notna().groupby(rows["step"]).transform("all")
    is_known = 2 * int(known.sum()) >= len(rows)
    rows["rest_ns"] = np.minimum(rows["rest_ns"], stalls) if is_known else 0.0
    rows["own_ns"] = rows[["compute_ns", "exposed_memcpy_ns", "rest_ns"]].sum(axis=1)
    return replace(_make_own_time(rows[known] if is_known else rows), is_host_known=is_known)


def measure_own_time_with_idle(analysis: RunAnalysis) -> OwnTime:
    """Return the own time including all idle time, whatever its cause: the total to explain."""
    rows = _whole_steps(analysis)
    rows["rest_ns"] = rows["idle_ns"] + rows["unexplained_ns"]
    return _make_own_time(rows.assign(own_ns=rows["wall_ns"] - rows[_HELD_UP].sum(axis=1)))


def _whole_steps(analysis: RunAnalysis) -> pd.DataFrame:
    """Return the steps that all ranks have, sorted by step and rank."""
    rows = analysis.steps
    whole = rows.groupby("step")["rank"].transform("nunique") == rows["rank"].nunique()
    rows = rows[whole].sort_values(["step", "rank"], kind="stable").reset_index(drop=True)
    return rows.assign(queued_ns=0.0)


def _look_up_queued(analysis: RunAnalysis, rows: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return how long the thread of each row's rank waited for a processor in its step; 0 if unknown."""
    if analysis.host.empty:
        return np.zeros(len(rows))
    queued = analysis.host.groupby(["step", "rank"])["queued_ns"].sum()
    wanted = pd.MultiIndex.from_arrays([rows["step"], rows["rank"]])
    return queued.reindex(wanted).fillna(0).to_numpy(np.float64)


def _make_own_time(rows: pd.DataFrame) -> OwnTime:
    ranks = np.unique(rows["rank"].to_numpy(np.int64))
    return OwnTime(
        ranks=tuple(ranks.tolist()),
        numbers=tuple(np.unique(rows["step"].to_numpy(np.int64)).tolist()),
        own=_make_table(rows["own_ns"], len(ranks)),
        longer=_longer_than_others(rows, "own_ns", len(ranks)),
        compute=_longer_than_others(rows, "compute_ns", len(ranks)),
        copies=_longer_than_others(rows, "exposed_memcpy_ns", len(ranks)),
        idle=_longer_than_others(rows, "rest_ns", len(ranks)),
        queued=_longer_than_others(rows, "queued_ns", len(ranks)),
    )


def _host_stalls(analysis: RunAnalysis, steps: pd.DataFrame) -> "pd.Series[float]":
    """Measure the excess of each host's time over the others, per row of ``steps``; NaN if unknown.

    Other hosts also pause invisibly (a full launch queue), so a shorter piece
    does not make up for a longer one. The result is the larger of two sums: the run of pieces in which the
    host falls behind most, and all pieces that are longer by more than jitter.
    """
    pieces = _host_pieces(analysis)
    if pieces is None or pieces.shape[1] < 2:  # one rank has no others
        return pd.Series(np.nan, index=steps.index)
    values = pieces.to_numpy(np.float64)
    behind = values - _median_of_others(values)
    jitter = _JITTER_DEVIATIONS * np.median(np.abs(behind - np.median(behind, axis=0)), axis=0)
    clear = pd.DataFrame(np.where(behind > jitter, behind, 0.0), index=pieces.index, columns=pieces.columns)
    numbers = pieces.index.to_numpy()
    names = np.unique(numbers)
    runs = pd.DataFrame(
        [_largest_run_sums(behind[numbers == name]) for name in names], index=names, columns=pieces.columns
    )
    stalls = clear.groupby(level=0).sum().combine(runs, np.maximum).stack()
    wanted = pd.MultiIndex.from_arrays([steps["step"], steps["rank"]])
    return pd.Series(stalls.reindex(wanted).to_numpy(np.float64), index=steps.index)


def _host_pieces(analysis: RunAnalysis) -> pd.DataFrame | None:
    """Return the host time between launches that all ranks make: by step, in program order; ranks as columns.

    None if launches were not recorded, or if ranks launched different numbers of collectives throughout.
    """
    rows = analysis.collectives
    ranks = sorted(analysis.steps["rank"].unique().tolist())
    if HOST_NS not in rows or not len(rows):
        return None
    rows = rows[rows[HOST_NS].notna() & rows["rank"].isin(ranks)]
    rows = rows.assign(kind=rows["kind"].astype(str), launch=rows["launch_start_ns"].astype("int64"))
    rows = rows.sort_values(["rank", "launch"], kind="stable")
    at = rows.groupby("rank")[HOST_NS].cumsum().astype("float64")
    which = rows.groupby(["rank", *_LAUNCH]).cumcount()
    table = rows.assign(at=at, which=which).pivot_table(
        index=[*_LAUNCH, "which"], columns="rank", values="at", aggfunc="first"
    )
    # if a rank lacks a launch, all later launches of that kind have too low a number
    table = table[table.notna().all(axis=1).groupby(level=_LAUNCH).transform("all")]
    if table.empty or table.shape[1] != len(ranks):
        return None
    table = table.iloc[np.argsort(table.median(axis=1).to_numpy(), kind="stable")]
    table = table.droplevel([name for name in table.index.names if name != "step"])
    return table.diff().fillna(table.iloc[[0]])


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
    median: Table = (lower + upper) / 2
    return median


def _largest_run_sums(values: Table) -> Table:
    """Return for each column the largest sum of consecutive values; at least 0."""
    sums = np.concatenate((np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)))
    largest: Table = (sums - np.minimum.accumulate(sums, axis=0)).max(axis=0)
    return largest


def _longer_than_others(rows: pd.DataFrame, column: str, ranks: int) -> Table:
    values = rows[column].to_numpy(np.float64)
    others = Instances(rows["step"].to_numpy(np.int64)).median_of_others(values)
    return _make_table(pd.Series(values - np.nan_to_num(others)), ranks)


def _make_table(values: "pd.Series[float]", ranks: int) -> Table:
    return np.asarray(values, dtype=np.float64).reshape(-1, max(1, ranks))
