"""What the rules about passes need to know, and the gap where it is not there."""

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.passes.table import PASS_COLUMNS
from zprof.model.causes import Cause
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence
from zprof.model.gaps import Gap
from zprof.rules.rows import has_no_collectives, noise_floor_ns
from zprof.rules.rule import not_tested
from zprof.rules.volume.passes.price import Price

_FEW_STEPS = 3


def passes_of(analysis: RunAnalysis) -> pd.DataFrame:
    """The passes, with their columns also where nothing is in them."""
    return analysis.passes.reindex(columns=list(PASS_COLUMNS)) if analysis.passes.empty else analysis.passes


def missing_of_gathers(analysis: RunAnalysis, cause: Cause) -> Gap | None:
    """Why gathers cannot be told apart by unit and micro-batch, where they cannot."""
    missing = missing_of_reductions(analysis, cause)
    if missing:
        return missing
    gathers = passes_of(analysis)
    gathers = gathers[gathers["kind"] == CollectiveKind.ALL_GATHER.value]
    if len(gathers) and gathers["unit"].isna().all():
        reason = "the recording does not say which unit an all_gather is of"
        return not_tested(cause, reason, "profile with the ranges of FSDP2, or of zprof's own grammar")
    return None


def missing_of_reductions(analysis: RunAnalysis, cause: Cause) -> Gap | None:
    """Why collectives cannot be assigned to micro-batches, where they cannot."""
    if has_no_collectives(analysis):
        return not_tested(cause, "no collective was recorded", "record the time window")
    passes = passes_of(analysis)
    if len(passes) and passes["micro_batch"].isna().all():
        reason = "the recording does not show where a forward or a backward begins"
        return not_tested(cause, reason, "profile CPU activities, too: ProfilerActivity.CPU")
    return None


def confidence_of(analysis: RunAnalysis, price: Price) -> Confidence:
    """Counts prove it; the price may be noise, and two steps may be the odd ones."""
    if price.exposed_ns < noise_floor_ns(analysis):
        return Confidence.LOW
    enough = analysis.steps["step"].nunique() >= _FEW_STEPS
    by_order = (passes_of(analysis)["method"] == "order").any()
    return Confidence.HIGH if enough and not by_order else Confidence.MEDIUM
