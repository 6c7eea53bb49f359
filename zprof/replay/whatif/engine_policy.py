"""Detect how the engine of a run schedules its messages: prefetch, reductions in flight, waits."""

import numpy as np
import pandas as pd

from zprof.replay.schedule import GATHER, UNLIMITED, EnginePolicy
from zprof.replay.whatif.unit_messages import UnitOrder

#: Reductions in flight if the run does not show them (the reference engine's default from stage 2 on).
DEFAULT_IN_FLIGHT = 2
_IMMEDIATE_NS = 20_000
#: If more than this share of the gathers' time is exposed, they overlap with nothing.
_EXPOSED_RATIO = 0.9


def detect_policy(rows: pd.DataFrame, order: UnitOrder, stage: int | None) -> EnginePolicy:
    """Return the policy shown by the order of launches and waits; ``stage`` is the run's own, or None."""
    detected_stage = _detect_stage(rows, order) if stage is None else stage
    reduces = rows[rows["kind"] != GATHER]
    limit = _detect_in_flight(reduces)
    return EnginePolicy(
        stage=detected_stage,
        prefetch=_detect_prefetch(rows, order)
        if order.gathers_before_passes and not _awaits_gathers_immediately(rows)
        else 0,
        keep=_detect_kept_units(order),
        overlap_reduce=not _awaits_reductions_immediately(reduces),
        overlap_gather=order.gathers_before_passes or not _awaits_gathers_before_end(rows),
        in_flight=limit,
    )


def _detect_stage(rows: pd.DataFrame, order: UnitOrder) -> int:
    if order.gathers_before_passes:
        return 3
    return 2 if order.has_gathers else 0


def _detect_kept_units(order: UnitOrder) -> str:
    inner = {index for index, unit in enumerate(order.units) if not unit.encloses}
    if not order.not_resharded:
        return "none"
    return "all" if inner <= order.not_resharded and len(inner) > 1 else "last"


def _detect_prefetch(rows: pd.DataFrame, order: UnitOrder) -> int:
    """Return the number of prefetched gathers in the backward, as a median over steps."""
    enclosing = {unit.name for unit in order.units if unit.encloses}
    depths = []
    for _, step in rows.groupby(["rank", "step"]):
        step = step[step["micro_batch"].isna() | (step["micro_batch"] == 0)].sort_values("at", kind="stable")
        gathers = step[(step["kind"] == GATHER) & (step["phase"] != "forward")]
        names, launched = gathers["unit"].tolist(), gathers["at"].to_numpy(np.int64)
        reduces = step[step["kind"] != GATHER]
        ahead = [
            int((launched < at).sum()) - names.index(name) - 1
            for name, at in zip(reduces["unit"], reduces["at"], strict=True)
            if name in names and name not in enclosing
        ]
        if len(names) > 1 and ahead:
            depths.append(max(0, *ahead))
        elif not names:
            depths.append(_detect_forward_prefetch(step))
    return round(float(np.median(depths))) if depths else 1


def _awaits_gathers_immediately(rows: pd.DataFrame) -> bool:
    """Return True if almost every gather is awaited right after its launch, as in FSDP2 on CPU ranks."""
    gathers = rows[(rows["kind"] == GATHER) & rows["wait_start_ns"].notna() & rows["launch_end_ns"].notna()]
    if gathers.empty:
        return False
    gap = (gathers["wait_start_ns"] - gathers["launch_end_ns"]).astype("float64")
    return float((gap < 10 * _IMMEDIATE_NS).mean()) > _EXPOSED_RATIO


def _detect_forward_prefetch(step: pd.DataFrame) -> int:
    """Return the number of gathers launched before the first wait, excluding the first gather."""
    gathers = step[(step["kind"] == GATHER) & (step["phase"] == "forward")]
    waits = gathers["wait_start_ns"].dropna()
    if waits.empty:
        return 1
    return max(0, int((gathers["at"] < int(waits.min())).sum()) - 1)


def _detect_in_flight(reduces: pd.DataFrame) -> int:
    """Return the number of reductions in flight when the oldest is awaited, until the last launch."""
    max_pending, limited = 1, False
    for _, step in reduces[reduces["wait_start_ns"].notna()].groupby(["rank", "step"]):
        at = np.sort(step["at"].to_numpy(np.int64))
        order = np.argsort(step["at"].to_numpy(np.int64), kind="stable")
        waits = step["wait_start_ns"].astype("int64").to_numpy()[order]
        for index, wait in enumerate(waits):
            pending = int((at < wait).sum()) - index
            if int((at > wait).sum()):
                limited = True
                max_pending = max(max_pending, pending)
    return max_pending if limited else UNLIMITED


def _awaits_reductions_immediately(reduces: pd.DataFrame) -> bool:
    known = reduces[reduces["wait_start_ns"].notna() & reduces["launch_end_ns"].notna()]
    if known.empty:
        return False
    last = known.groupby(["rank", "step"])["at"].transform("max")
    early = known[known["at"] < last]
    gap = (early["wait_start_ns"] - early["launch_end_ns"]).astype("float64")
    return bool(len(gap)) and float(gap.median()) < 10 * _IMMEDIATE_NS


def _awaits_gathers_before_end(rows: pd.DataFrame) -> bool:
    """Return True if stages 1 and 2 wait for gathers of new parameters before the next step starts."""
    gathers = rows[rows["kind"] == GATHER]
    waits = gathers[gathers["wait_start_ns"].notna()]
    if len(waits) < len(gathers) / 2 or gathers.empty:
        # without recorded waits: if the gathers are exposed, they are awaited immediately
        exposed = float((gathers["exposed_transfer_ns"] + gathers["exposed_wait_ns"]).sum())
        return bool(len(gathers)) and exposed > _EXPOSED_RATIO * float(
            (gathers["transfer_ns"] + gathers["wait_ns"]).sum()
        )
    last = waits.groupby(["rank", "step"])["at"].transform("max")
    gap = (waits["wait_start_ns"] - last).astype("float64")
    typical_duration = (waits["end_ns"] - waits["start_ns"]).astype("float64").median()
    return bool(gap.max() < typical_duration)
