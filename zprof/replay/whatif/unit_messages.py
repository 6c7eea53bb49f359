"""Select the sharding traffic of a run, and detect the order of units from it.

Each rank's sharding group is the one that moves the most bytes by all_gather, else by reduce_scatter, else by
all_reduce. Small messages of that group (norms, losses) are dropped. Up to 9 ranks represent any number of
ranks: the median one and ranks spread evenly over the order of compute time, including the slowest.

A unit that is gathered first in the backward and reduced last is the root unit, which encloses the others.
Messages without a unit name are buckets: each counts as a unit, in the reverse order of the reductions.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.replay.schedule import ALL_REDUCE, GATHER, SCATTER, UnitSize

_MAX_RANKS, _MAX_STEPS = 8, 12
#: Limit on replayed messages per rank; it sets the number of steps, so many units mean fewer steps.
_MAX_MESSAGES, _MIN_STEPS = 2_000, 4
#: Messages below this share of the largest do not belong to the sharding.
_MIN_SIZE_RATIO = 1 / 1024
#: Names that engines give to the unit that encloses the others.
_ROOTS = frozenset({"root", "", "model", "module"})


class ShardingMessages(Struct, frozen=True, kw_only=True):
    """Collective rows of the modelled ranks and steps, split into sharding traffic and all others.

    ``all_sharding``: sharding rows of all ranks and steps. ``steps`` is empty if the modelled ranks share no
    step with sharding traffic.
    """

    sharding: pd.DataFrame
    others: pd.DataFrame
    all_sharding: pd.DataFrame
    group_size: int
    ranks: tuple[int, ...]
    steps: tuple[int, ...]


def select_messages(analysis: RunAnalysis) -> ShardingMessages | None:
    """Select the sharding traffic; None if there is none."""
    rows = _add_phases(analysis)
    is_sharding = _is_sharding(rows)
    if not is_sharding.any():
        return None
    # Ranks spread evenly over the order of compute time, including the slowest and the median.
    compute_ns = analysis.steps.groupby("rank")["compute_ns"].mean().sort_values()
    order = [int(str(rank)) for rank in compute_ns.index]
    indices = np.unique(np.linspace(0, len(order) - 1, min(len(order), _MAX_RANKS)).round().astype(int))
    ranks = tuple(sorted({order[index] for index in indices} | {order[len(order) // 2]}))
    steps = _select_steps(analysis, ranks, rows[is_sharding])
    before = [step - 1 for step in steps[:1]]
    is_modelled = (rows["rank"].isin(ranks) & rows["step"].isin([*before, *steps])).to_numpy(bool)
    return ShardingMessages(
        sharding=rows[is_sharding & is_modelled],
        others=rows[~is_sharding & is_modelled],
        all_sharding=rows[is_sharding],
        group_size=int(rows.loc[is_sharding, "group_size"].median()),
        ranks=ranks,
        steps=steps,
    )


def _add_phases(analysis: RunAnalysis) -> pd.DataFrame:
    rows = analysis.collectives
    rows = rows.assign(kind=rows["kind"].astype(str), group=rows["group"].astype(str))
    if not len(analysis.passes):
        return rows.assign(phase="unknown", micro_batch=np.nan)
    phases = analysis.passes.set_index("row")[["phase", "micro_batch"]]
    phases = phases[~phases.index.duplicated()]
    return rows.assign(
        phase=phases["phase"].reindex(rows.index).fillna("unknown").astype(str),
        micro_batch=phases["micro_batch"].reindex(rows.index),
    )


def _is_sharding(rows: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    has_peers = (rows["group_size"] > 1).to_numpy(bool)
    for kind in (GATHER, SCATTER, ALL_REDUCE):
        candidates = rows[has_peers & (rows["kind"] == kind).to_numpy(bool)]
        if not len(candidates) or candidates["bytes"].max() <= 0:
            continue
        if kind == ALL_REDUCE and candidates["bytes"].max() < 1024:
            continue
        moved = candidates.groupby(["rank", "group"], observed=True)["bytes"].sum()
        groups = {group for _, group in moved.groupby(level="rank").idxmax()}
        kinds = (GATHER, SCATTER) if kind != ALL_REDUCE else (ALL_REDUCE,)
        in_group = (
            has_peers & rows["group"].isin(groups).to_numpy(bool) & rows["kind"].isin(kinds).to_numpy(bool)
        )
        min_bytes = _MIN_SIZE_RATIO * rows.loc[in_group, "bytes"].max()
        found: np.ndarray[tuple[int], np.dtype[np.bool_]] = in_group & (rows["bytes"] > min_bytes).to_numpy(
            bool
        )
        return found
    return np.zeros(len(rows), dtype=bool)


def _select_steps(analysis: RunAnalysis, ranks: tuple[int, ...], sharding: pd.DataFrame) -> tuple[int, ...]:
    """Return the last steps that all of these ranks timed and in which one has sharding traffic.

    A marked step may have no traffic; none may be left.
    """
    timed, moved = (rows[rows["rank"].isin(ranks)] for rows in (analysis.steps, sharding))
    ranks_per_step = timed.groupby("step")["rank"].nunique()
    common = ranks_per_step.index[ranks_per_step == timed["rank"].nunique()]
    steps = sorted({int(step) for step in np.intersect1d(common, moved["step"])})
    messages_per_step = max(1, len(moved) // max(1, int(timed["step"].isin(steps).sum())))
    return tuple(steps[-max(_MIN_STEPS, min(_MAX_STEPS, _MAX_MESSAGES // messages_per_step)) :])


class UnitOrder(Struct, frozen=True, kw_only=True):
    """Units in forward order; ``backward`` lists the inner units in the order of their reductions.

    ``not_resharded``: units gathered for the forward only. ``gathers_before_passes``: gathers precede forward
    and backward (stage 3). ``has_unit_names``: messages have the name of their unit.
    """

    units: tuple[UnitSize, ...]
    backward: tuple[int, ...]
    not_resharded: frozenset[int]
    gathers_before_passes: bool
    has_gathers: bool
    has_unit_names: bool
    micro_batches: int
    reduce_each: bool


def detect_order(rows: pd.DataFrame) -> UnitOrder | None:
    """Detect the order of units from the sharding's messages; None if no step has a reduction."""
    step = _typical_step(rows)
    gathers, reduces = step[step["kind"] == GATHER], step[step["kind"] != GATHER]
    if reduces.empty:
        return None
    has_names = bool(reduces["unit"].notna().all())
    if not has_names:
        return _order_buckets(gathers, reduces)
    reduced = _unique_names(reduces["unit"])
    backward_gathers = gathers[gathers["phase"].isin(["backward", "recompute"])]
    forward_gathers = gathers[gathers["phase"] == "forward"]
    gathers_before = bool(len(backward_gathers)) or (
        bool(len(forward_gathers)) and bool(forward_gathers["at"].iloc[0] < reduces["at"].iloc[0])
    )
    forward = _unique_names((forward_gathers if gathers_before else gathers)["unit"]) or reduced[::-1]
    forward = _add_missing(forward, reduced)
    root = _find_root(
        forward,
        reduced,
        _unique_names(backward_gathers["unit"]),
        gathers_before and bool(len(backward_gathers)),
    )
    sizes = [_measure_unit(unit, gathers, reduces, encloses=unit == root) for unit in forward]
    count = max(1, max(Counter(reduces["unit"]).values()))
    batches = max(count, max(Counter(forward_gathers["unit"]).values(), default=1) if gathers_before else 1)
    return UnitOrder(
        units=tuple(sizes),
        backward=tuple(forward.index(unit) for unit in reduced if unit != root),
        not_resharded=frozenset(
            forward.index(unit)
            for unit in forward
            if gathers_before and unit not in set(backward_gathers["unit"])
        ),
        gathers_before_passes=gathers_before,
        has_gathers=bool(len(gathers)),
        has_unit_names=True,
        micro_batches=batches,
        reduce_each=count == batches,
    )


def _typical_step(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the messages of a (rank, step) with the most common message count, in launch order."""
    reduces = rows[rows["kind"] != GATHER]
    chosen = rows if reduces.empty else rows[rows["step"].isin(reduces["step"])]
    counts = chosen.groupby(["rank", "step"]).size()
    typical_count = counts.mode().iloc[-1]
    rank, step = counts[counts == typical_count].index[-1]
    messages: pd.DataFrame = chosen[(chosen["rank"] == rank) & (chosen["step"] == step)]
    return messages.assign(at=launch_times_ns(messages)).sort_values("at", kind="stable")


def launch_times_ns(rows: pd.DataFrame) -> "pd.Series[int]":
    """Return each message's launch time, or its start if the launch was not recorded."""
    return rows["launch_start_ns"].fillna(rows["start_ns"]).astype("int64")


def _unique_names(names: "pd.Series[str]") -> list[str]:
    return list(dict.fromkeys(str(name) for name in names if isinstance(name, str)))


def _add_missing(forward: list[str], reduced: list[str]) -> list[str]:
    missing = [unit for unit in reversed(reduced) if unit not in forward]
    return [*forward, *missing]


def _find_root(
    forward: list[str], reduced: list[str], backward_gathered: list[str], has_backward_gathers: bool
) -> str | None:
    first = forward[0]
    if len(forward) < 2 or first != reduced[-1]:
        return None
    if has_backward_gathers and backward_gathered:
        return first if backward_gathered[0] == first else None
    return first if first in _ROOTS else None


def _measure_unit(unit: str, gathers: pd.DataFrame, reduces: pd.DataFrame, *, encloses: bool) -> UnitSize:
    reduced = reduces[reduces["unit"] == unit]
    bytes_per_micro_batch = (
        reduced.groupby("micro_batch", dropna=False)["bytes"].sum() if len(reduced) else None
    )
    reduce_bytes = float(bytes_per_micro_batch.max()) if bytes_per_micro_batch is not None else 0.0
    gathered = gathers.loc[gathers["unit"] == unit, "bytes"]
    return UnitSize(
        name=unit,
        gather_bytes=float(gathered.median()) if len(gathered) else reduce_bytes,
        reduce_bytes=reduce_bytes,
        encloses=encloses,
    )


def _order_buckets(gathers: pd.DataFrame, reduces: pd.DataFrame) -> UnitOrder | None:
    by_micro_batch = _list_bucket_sizes(reduces)
    sizes, micro_batches = by_micro_batch[0], len(by_micro_batch)
    gather_to_reduce_ratio = float(gathers["bytes"].sum()) / sum(sizes) if len(gathers) else 1.0
    units = [
        UnitSize(name=f"bucket {number}", gather_bytes=size * gather_to_reduce_ratio, reduce_bytes=size)
        for number, size in enumerate(reversed(sizes))
    ]
    return UnitOrder(
        units=tuple(units),
        backward=tuple(reversed(range(len(units)))),
        not_resharded=frozenset(),
        gathers_before_passes=False,
        has_gathers=bool(len(gathers)),
        has_unit_names=False,
        micro_batches=micro_batches,
        reduce_each=True,
    )


def _list_bucket_sizes(reduces: pd.DataFrame) -> list[list[float]]:
    """Return the bucket sizes of each micro-batch that reduces, if they are equal, else those of the step."""
    sizes = reduces["bytes"].astype(float)
    if reduces["micro_batch"].notna().all():
        batches = [batch.tolist() for _, batch in sizes.groupby(reduces["micro_batch"])]
        if all(batch == batches[0] for batch in batches):
            return batches
    return [sizes.tolist()]


def list_unit_names(rows: pd.DataFrame) -> Sequence[str]:
    """Return the unit name of each row; empty if it has none."""
    return [name if isinstance(name, str) else "" for name in rows["unit"]]
