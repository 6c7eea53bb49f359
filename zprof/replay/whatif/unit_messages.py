"""Select the sharding's messages of a run, and detect the order of units from them.

Each rank's sharding group is the one that moves the most bytes by all_gather, else by reduce_scatter, else by
all_reduce. Small messages of that group (norms, losses) are dropped. Up to 9 ranks represent any number of
ranks: the median one and ranks spread evenly over the order of compute time, including the slowest.

A unit that is gathered first in the backward and reduced last encloses the others (the root). Messages
without a unit name are buckets: each counts as a unit, in the reverse order of the reductions.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.replay.whatif.unit_passes import UnitSize

GATHER = CollectiveKind.ALL_GATHER.value
SCATTER = CollectiveKind.REDUCE_SCATTER.value
ALL_REDUCE = CollectiveKind.ALL_REDUCE.value
_MAX_RANKS, _MAX_STEPS = 8, 12
#: Limit on replayed messages per rank; it sets the number of steps, so many units mean fewer steps.
_MAX_MESSAGES, _MIN_STEPS = 2_000, 4
#: Messages below this share of the largest do not belong to the sharding.
_MIN_SIZE_RATIO = 1 / 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingMessages:
    """Collective rows of the modelled ranks and steps: those of the sharding, and all others.

    ``every``: rows of the sharding on all ranks and in all steps.
    """

    sharding: pd.DataFrame
    others: pd.DataFrame
    every: pd.DataFrame
    group_size: int
    ranks: tuple[int, ...]
    steps: tuple[int, ...]


def select_messages(analysis: RunAnalysis) -> ShardingMessages | None:
    """Select the sharding's messages; None if there are none."""
    rows = _with_phases(analysis)
    mine = _is_sharding(rows)
    if not mine.any():
        return None
    ranks, steps = _select_ranks(analysis), _select_steps(analysis, int(mine.sum()))
    kept = (rows["rank"].isin(ranks) & rows["step"].isin([steps[0] - 1, *steps])).to_numpy(bool)
    return ShardingMessages(
        sharding=rows[mine & kept],
        others=rows[~mine & kept],
        every=rows[mine],
        group_size=int(rows.loc[mine, "group_size"].median()),
        ranks=ranks,
        steps=steps,
    )


def _with_phases(analysis: RunAnalysis) -> pd.DataFrame:
    rows = analysis.collectives
    rows = rows.assign(kind=rows["kind"].astype(str), group=rows["group"].astype(str))
    if not len(analysis.passes):
        return rows.assign(phase="unknown", micro_batch=np.nan)
    said = analysis.passes.set_index("row")[["phase", "micro_batch"]]
    said = said[~said.index.duplicated()]
    return rows.assign(
        phase=said["phase"].reindex(rows.index).fillna("unknown").astype(str),
        micro_batch=said["micro_batch"].reindex(rows.index),
    )


def _is_sharding(rows: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    several = (rows["group_size"] > 1).to_numpy(bool)
    for kind in (GATHER, SCATTER, ALL_REDUCE):
        mine = rows[several & (rows["kind"] == kind).to_numpy(bool)]
        if not len(mine) or mine["bytes"].max() <= 0:
            continue
        if kind == ALL_REDUCE and mine["bytes"].max() < 1024:
            continue
        moved = mine.groupby(["rank", "group"], observed=True)["bytes"].sum()
        groups = {group for _, group in moved.groupby(level="rank").idxmax()}
        kinds = (GATHER, SCATTER) if kind != ALL_REDUCE else (ALL_REDUCE,)
        inside = several & rows["group"].isin(groups).to_numpy(bool) & rows["kind"].isin(kinds).to_numpy(bool)
        least = _MIN_SIZE_RATIO * rows.loc[inside, "bytes"].max()
        found: np.ndarray[tuple[int], np.dtype[np.bool_]] = inside & (rows["bytes"] > least).to_numpy(bool)
        return found
    return np.zeros(len(rows), dtype=bool)


def _select_ranks(analysis: RunAnalysis) -> tuple[int, ...]:
    """Return ranks spread over the order of compute time, with the slowest and the median one."""
    busy = analysis.steps.groupby("rank")["compute_ns"].mean().sort_values()
    order = [int(str(rank)) for rank in busy.index]
    places = np.unique(np.linspace(0, len(order) - 1, min(len(order), _MAX_RANKS)).round().astype(int))
    return tuple(sorted({order[place] for place in places} | {order[len(order) // 2]}))


def _select_steps(analysis: RunAnalysis, messages: int) -> tuple[int, ...]:
    steps = sorted({int(step) for step in analysis.steps["step"].unique()})
    each = max(1, messages // max(1, len(analysis.steps)))
    return tuple(steps[-max(_MIN_STEPS, min(_MAX_STEPS, _MAX_MESSAGES // each)) :])


#: Names that engines give to the unit that encloses the others.
_ROOTS = frozenset({"root", "", "model", "module"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOrder:
    """Units in forward order; ``backward`` lists the inner ones in the order of their reductions.

    ``kept``: units gathered for the forward only. ``before``: gathers serve the passes (stage 3). ``named``:
    messages name their unit.
    """

    units: tuple[UnitSize, ...]
    backward: tuple[int, ...]
    kept: frozenset[int]
    before: bool
    gathers: bool
    named: bool
    micro_batches: int
    reduce_each: bool


def detect_order(rows: pd.DataFrame) -> UnitOrder | None:
    """Detect the order of units from the sharding's messages; None if no step has a reduction."""
    step = _typical_step(rows)
    gathers, reduces = step[step["kind"] == GATHER], step[step["kind"] != GATHER]
    if reduces.empty:
        return None
    named = bool(reduces["unit"].notna().all())
    if not named:
        return _order_buckets(gathers, reduces)
    reduced = _unique_names(reduces["unit"])
    into = gathers[gathers["phase"].isin(["backward", "recompute"])]
    ahead = gathers[gathers["phase"] == "forward"]
    before = bool(len(into)) or (bool(len(ahead)) and _starts_before(ahead, reduces))
    forward = _unique_names((ahead if before else gathers)["unit"]) or reduced[::-1]
    forward = _add_missing(forward, reduced)
    root = _find_root(forward, reduced, _unique_names(into["unit"]), before and bool(len(into)))
    sizes = [_measure_unit(unit, gathers, reduces, encloses=unit == root) for unit in forward]
    count = max(1, max(Counter(reduces["unit"]).values()))
    batches = max(count, max(Counter(ahead["unit"]).values(), default=1) if before else 1)
    return UnitOrder(
        units=tuple(sizes),
        backward=tuple(forward.index(unit) for unit in reduced if unit != root),
        kept=frozenset(forward.index(unit) for unit in forward if before and unit not in set(into["unit"])),
        before=before,
        gathers=bool(len(gathers)),
        named=True,
        micro_batches=batches,
        reduce_each=count == batches,
    )


def _typical_step(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the messages of a (rank, step) with the most common message count, in launch order."""
    reduces = rows[rows["kind"] != GATHER]
    chosen = rows if reduces.empty else rows[rows["step"].isin(reduces["step"])]
    counts = chosen.groupby(["rank", "step"]).size()
    usual = counts.mode().iloc[-1]
    rank, step = counts[counts == usual].index[-1]
    mine: pd.DataFrame = chosen[(chosen["rank"] == rank) & (chosen["step"] == step)]
    return mine.assign(at=launch_times_ns(mine)).sort_values("at", kind="stable")


def launch_times_ns(rows: pd.DataFrame) -> "pd.Series[int]":
    """Return each message's launch time, or its start if the launch was not recorded."""
    return rows["launch_start_ns"].fillna(rows["start_ns"]).astype("int64")


def _starts_before(gathers: pd.DataFrame, reduces: pd.DataFrame) -> bool:
    return bool(gathers["at"].iloc[0] < reduces["at"].iloc[0])


def _unique_names(names: "pd.Series[str]") -> list[str]:
    return list(dict.fromkeys(str(name) for name in names if isinstance(name, str)))


def _add_missing(forward: list[str], reduced: list[str]) -> list[str]:
    missing = [unit for unit in reversed(reduced) if unit not in forward]
    return [*forward, *missing]


def _find_root(forward: list[str], reduced: list[str], again: list[str], gathered: bool) -> str | None:
    first = forward[0]
    if len(forward) < 2 or first != reduced[-1]:
        return None
    if gathered and again:
        return first if again[0] == first else None
    return first if first in _ROOTS else None


def _measure_unit(unit: str, gathers: pd.DataFrame, reduces: pd.DataFrame, *, encloses: bool) -> UnitSize:
    reduced = reduces[reduces["unit"] == unit]
    pieces = reduced.groupby("micro_batch", dropna=False)["bytes"].sum() if len(reduced) else None
    reduce_bytes = float(pieces.max()) if pieces is not None else 0.0
    gathered = gathers.loc[gathers["unit"] == unit, "bytes"]
    return UnitSize(
        name=unit,
        gather_bytes=float(gathered.median()) if len(gathered) else reduce_bytes,
        reduce_bytes=reduce_bytes,
        encloses=encloses,
    )


def _order_buckets(gathers: pd.DataFrame, reduces: pd.DataFrame) -> UnitOrder | None:
    sizes = reduces["bytes"].astype(float).tolist()
    whole = float(gathers["bytes"].sum()) / sum(sizes) if len(gathers) else 1.0
    units = [
        UnitSize(name=f"bucket {number}", gather_bytes=size * whole, reduce_bytes=size)
        for number, size in enumerate(reversed(sizes))
    ]
    return UnitOrder(
        units=tuple(units),
        backward=tuple(reversed(range(len(units)))),
        kept=frozenset(),
        before=False,
        gathers=bool(len(gathers)),
        named=False,
        micro_batches=1,
        reduce_each=True,
    )


def unit_names(rows: pd.DataFrame) -> Sequence[str]:
    """Return the unit of each row; empty if the row has none."""
    return [name if isinstance(name, str) else "" for name in rows["unit"]]
