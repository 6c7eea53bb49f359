"""A predictor with simple arithmetic of its own: what the Plan screen is tested with.

The model of a run gives 0.9 of each term that was measured.  Bandwidth divides the exposed transfer, even
ranks take the exposed wait away, micro-batches multiply all; each prediction is 10 % wide to either side.  A
stage below 3 holds all parameters.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.model.gaps import Gap, GapKind
from zprof.model.tenants import DISPLAY_ORDER
from zprof.model.time import LEDGER_TERMS
from zprof.model.whatif import (
    Assumption,
    Calibration,
    Change,
    FittedLink,
    Outlook,
    PredictedFigure,
    Prediction,
)

MODEL, SPREAD = 0.9, 0.1
ASSUMPTIONS = {
    "step.terms": Assumption(formula="t = sum of units", source="a test", deviation="no engine does this"),
    "step.wall": Assumption(formula="wall = sum of terms", source="a test, section 2"),
    "states": Assumption(formula="(p + g + k) Psi / N", source="arXiv 1910.02054, figure 1"),
}
NO_TIME = Gap(what="step", reason="no step was timed", remedy="record with zprof record")
NO_MEMORY = Gap(
    kind=GapKind.MEMORY, what="memory", reason="no memory was recorded", remedy="record in full mode"
)


def foreseen(analysis: RunAnalysis, changes: tuple[Change, ...], /) -> Outlook:
    """The outlook of this arithmetic."""
    ranks, memory = analysis.time.per_rank, analysis.memory.per_rank
    gaps = [*([] if ranks else [NO_TIME]), *([] if memory else [NO_MEMORY])]
    return Outlook(
        predictions=tuple(_prediction(analysis, change) for change in changes),
        calibration=_calibration(len(ranks)) if ranks else None,
        assumptions=ASSUMPTIONS,
        gaps=tuple(gaps),
    )


def _prediction(analysis: RunAnalysis, change: Change) -> Prediction:
    step = _step(analysis, change)
    wall = step[-1] if step else None
    return Prediction(
        change=change,
        words="",
        step=step,
        memory=_memory(analysis, change),
        saving_ns=None if wall is None else (wall.measured - wall.high, wall.measured - wall.low),
    )


def _step(analysis: RunAnalysis, change: Change) -> tuple[PredictedFigure, ...]:
    ranks = analysis.time.per_rank
    if not ranks:
        return ()
    found = []
    for term in LEDGER_TERMS:
        measured = round(sum(getattr(rank, term) for rank in ranks) / len(ranks))
        found.append(_entry(term, measured, round(measured * _factor(term, change)), "step.terms"))
    sums = [sum(getattr(entry, name) for entry in found) for name in ("measured", "predicted")]
    return (*found, _entry("wall_ns", *sums, "step.wall"))


def _factor(term: str, change: Change) -> float:
    factor = float(change.micro_batches or 1)
    if term == "exposed_transfer_ns":
        factor /= change.bandwidth_ratio or 1
    return 0.0 if term == "exposed_wait_ns" and change.even else factor


def _memory(analysis: RunAnalysis, change: Change) -> tuple[PredictedFigure, ...]:
    ranks = analysis.memory.per_rank
    if not ranks:
        return ()
    largest = max(ranks, key=lambda rank: rank.peak_bytes)
    found = []
    for tenant in DISPLAY_ORDER:
        measured = largest.tenants.get(tenant, 0)
        is_whole = tenant == "parameters" and change.stage not in (None, 3)
        found.append(_entry(tenant.value, measured, measured * (2 if is_whole else 1), "states"))
    found.append(_entry("untagged", largest.untagged_bytes, largest.untagged_bytes, "states"))
    more = sum(entry.predicted - entry.measured for entry in found)
    return (*found, _entry("peak_bytes", largest.peak_bytes, largest.peak_bytes + more, "states"))


def _entry(name: str, measured: int, predicted: int, assumption: str) -> PredictedFigure:
    modelled = round(measured * MODEL)
    return PredictedFigure(
        name=name,
        measured=measured,
        modelled=modelled,
        predicted=predicted,
        low=round(predicted * (1 - SPREAD)),
        high=round(predicted * (1 + SPREAD)),
        error_ratio=modelled / measured - 1 if measured else None,
        assumption=assumption,
    )


def _calibration(ranks: int) -> Calibration:
    link = FittedLink(
        kind="all_gather",
        group="world",
        latency_ns=61_000,
        busbw_bytes_per_s=0.41e9,
        messages=40,
        residual_ratio=0.031,
        how="least squares over sizes",
    )
    return Calibration(
        units=6,
        micro_batches=1,
        passes=2,
        forward_ns=16_000_000,
        backward_ns=32_000_000,
        optimizer_ns=3_000_000,
        links=(link,),
        slowest_rank=ranks - 1,
        skew_ns=400_000,
        prefetch=0,
        steps=5,
    )
