"""Detect how the engine of a run schedules its messages: prefetch, reductions in flight, waits."""

import numpy as np

from zprof.analysis.columns import Columns
from zprof.analysis.intervals import Int64s
from zprof.step.schedule import UNLIMITED, EnginePolicy
from zprof.step.units import UnitOrder, select_gathers, select_reductions

#: Reductions in flight if the run does not show them (the reference engine's default from stage 2 on).
DEFAULT_IN_FLIGHT = 2
_IMMEDIATE_NS = 20_000
#: If more than this share of the gathers' time is exposed, they overlap with nothing.
_EXPOSED_RATIO = 0.9


def detect_policy(rows: Columns, order: UnitOrder, stage: int | None) -> EnginePolicy:
    """Return the policy shown by the order of launches and waits; ``stage`` is the run's own, or None."""
    detected_stage = _detect_stage(rows, order) if stage is None else stage
    reduces = select_reductions(rows)
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


def _detect_stage(rows: Columns, order: UnitOrder) -> int:
    if order.gathers_before_passes:
        return 3
    return 2 if order.has_gathers else 0


def _detect_kept_units(order: UnitOrder) -> str:
    inner = {index for index, unit in enumerate(order.units) if not unit.encloses}
    if not order.not_resharded:
        return "none"
    return "all" if inner <= order.not_resharded and len(inner) > 1 else "last"


def _detect_prefetch(rows: Columns, order: UnitOrder) -> int:
    """Return the number of prefetched gathers in the backward, as a median over steps."""
    enclosing = {unit.name for unit in order.units if unit.encloses}
    depths = []
    for places in rows.group_by("rank", "step").split():
        step = rows.at(places)
        step = step.at(step.ints("micro_batch") == 0)
        step = step.at(np.argsort(step.ints("at"), kind="stable"))
        gathers = select_gathers(step)
        gathers = gathers.at(~gathers.texts("phase").equals("forward"))
        names, launched = gathers.texts("unit").tolist(), gathers.ints("at")
        reduces = select_reductions(step)
        ahead = [
            int((launched < at).sum()) - names.index(name) - 1
            for name, at in zip(reduces.texts("unit").tolist(), reduces.ints("at").tolist(), strict=True)
            if name in names and name not in enclosing
        ]
        if len(names) > 1 and ahead:
            depths.append(max(0, *ahead))
        elif not names:
            depths.append(_detect_forward_prefetch(step))
    return round(float(np.median(depths))) if depths else 1


def _awaits_gathers_immediately(rows: Columns) -> bool:
    """Return True if almost every gather is awaited right after its launch, as in FSDP2 on CPU ranks."""
    gathers = select_gathers(rows)
    gathers = gathers.at(gathers.known("wait_start_ns") & gathers.known("launch_end_ns"))
    if not len(gathers):
        return False
    gap = gathers.ints("wait_start_ns") - gathers.ints("launch_end_ns")
    return float((gap < 10 * _IMMEDIATE_NS).mean()) > _EXPOSED_RATIO


def _detect_forward_prefetch(step: Columns) -> int:
    """Return the number of gathers launched before the first wait, excluding the first gather."""
    gathers = select_gathers(step)
    gathers = gathers.at(gathers.texts("phase").equals("forward"))
    waits = gathers.ints("wait_start_ns")[gathers.known("wait_start_ns")]
    if not len(waits):
        return 1
    return max(0, int((gathers.ints("at") < waits.min()).sum()) - 1)


def _detect_in_flight(reduces: Columns) -> int:
    """Return the number of reductions in flight when the oldest is awaited, until the last launch."""
    max_pending, limited = 1, False
    known = reduces.at(reduces.known("wait_start_ns"))
    for places in known.group_by("rank", "step").split():
        launched = known.ints("at")[places]
        order = np.argsort(launched, kind="stable")
        at, waits = launched[order], known.ints("wait_start_ns")[places][order]
        for index, wait in enumerate(waits):
            pending = int((at < wait).sum()) - index
            if int((at > wait).sum()):
                limited = True
                max_pending = max(max_pending, pending)
    return max_pending if limited else UNLIMITED


def _awaits_reductions_immediately(reduces: Columns) -> bool:
    known = reduces.at(reduces.known("wait_start_ns") & reduces.known("launch_end_ns"))
    early = known.at(known.ints("at") < _last_launch_ns(known))
    gap = early.ints("wait_start_ns") - early.ints("launch_end_ns")
    return bool(len(gap)) and float(np.median(gap)) < 10 * _IMMEDIATE_NS


def _last_launch_ns(rows: Columns) -> Int64s:
    """Return for each message the last launch in its step."""
    steps = rows.group_by("rank", "step")
    return steps.max(rows.ints("at"))[steps.codes]


def _awaits_gathers_before_end(rows: Columns) -> bool:
    """Return True if stages 1 and 2 wait for gathers of new parameters before the next step starts."""
    gathers = select_gathers(rows)
    waits = gathers.at(gathers.known("wait_start_ns"))
    if len(waits) < len(gathers) / 2 or not len(gathers):
        # without recorded waits: if the gathers are exposed, they are awaited immediately
        exposed, elapsed = (
            float(sum(gathers.ints(name).sum() for name in names))
            for names in (("exposed_transfer_ns", "exposed_wait_ns"), ("transfer_ns", "wait_ns"))
        )
        return bool(len(gathers)) and exposed > _EXPOSED_RATIO * elapsed
    gap = waits.ints("wait_start_ns") - _last_launch_ns(waits)
    return bool(gap.max() < np.median(waits.ints("end_ns") - waits.ints("start_ns")))
