"""Which messages of a run sharding sends, on the ranks and steps that are modelled.

Of each rank the group that moves most bytes by all_gather, else by reduce_scatter, else by all_reduce; of
that group the messages of a size that counts: no norm, no loss.  A thousand ranks say the same as some: the
slowest, the median one and some between are kept.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind

GATHER = CollectiveKind.ALL_GATHER.value
SCATTER = CollectiveKind.REDUCE_SCATTER.value
ALL_REDUCE = CollectiveKind.ALL_REDUCE.value
_MOST_RANKS, _MOST_STEPS = 8, 12
#: Messages of a rank that are played, in so many steps as have them: a model of many units needs fewer steps.
_MOST_MESSAGES, _LEAST_STEPS = 2_000, 4
#: Smaller ones than this share of the largest are no part of the model.
_COUNTS_RATIO = 1 / 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Rows of the collectives: those of the sharding, and the others, of the modelled ranks and steps.

    ``every``: those of the sharding on all ranks and in all steps.
    """

    sharding: pd.DataFrame
    others: pd.DataFrame
    every: pd.DataFrame
    group_size: int
    ranks: tuple[int, ...]
    steps: tuple[int, ...]


def messages_of(analysis: RunAnalysis) -> Messages | None:
    """The messages; None where sharding sends none."""
    rows = _with_phases(analysis)
    mine = _of_sharding(rows)
    if not mine.any():
        return None
    ranks, steps = _ranks(analysis), _steps(analysis, int(mine.sum()))
    kept = (rows["rank"].isin(ranks) & rows["step"].isin([steps[0] - 1, *steps])).to_numpy(bool)
    return Messages(
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


def _of_sharding(rows: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
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
        least = _COUNTS_RATIO * rows.loc[inside, "bytes"].max()
        found: np.ndarray[tuple[int], np.dtype[np.bool_]] = inside & (rows["bytes"] > least).to_numpy(bool)
        return found
    return np.zeros(len(rows), dtype=bool)


def _ranks(analysis: RunAnalysis) -> tuple[int, ...]:
    """The slowest, the median one and some between, where there are many."""
    busy = analysis.steps.groupby("rank")["compute_ns"].mean().sort_values()
    order = [int(str(rank)) for rank in busy.index]
    places = np.unique(np.linspace(0, len(order) - 1, min(len(order), _MOST_RANKS)).round().astype(int))
    return tuple(sorted({order[place] for place in places} | {order[len(order) // 2]}))


def _steps(analysis: RunAnalysis, messages: int) -> tuple[int, ...]:
    steps = sorted({int(step) for step in analysis.steps["step"].unique()})
    each = max(1, messages // max(1, len(analysis.steps)))
    return tuple(steps[-max(_LEAST_STEPS, min(_MOST_STEPS, _MOST_MESSAGES // each)) :])
