"""Plans of the paper's model, and predictions for a recorded run: what pages are tested with."""

from functools import cache
from pathlib import Path

from msgspec.structs import replace

from zprof.analysis.analysis import analyse
from zprof.model.gaps import Gap
from zprof.model.job import Batch, Degrees, Job, Residual
from zprof.model.machines import V100
from zprof.model.plan import Change, Plan, PlanVerification, VerifiedStage, VerifiedTenant
from zprof.model.report import WhatIf
from zprof.model.tenants import DISPLAY_ORDER
from zprof.planner.models.presets import find_preset
from zprof.planner.plan import plan
from zprof.planner.whatif import predict_changes
from zprof.run.reader import load

GB = 10**9
RECORDED = Path(__file__).parents[1] / "data/tui/zero3"
JOB = Job(name="7.5b", parameters=7_500_000_000, degrees=Degrees(dp=64))


@cache
def bare() -> Plan:
    """States only: no batch, no hardware."""
    return replace(plan(JOB), zprof_version="0")


@cache
def full() -> Plan:
    """Batch, hardware, sensitivity and verification."""
    model = find_preset("7.5b")
    job = replace(
        JOB,
        parameters=model.parameters,
        shape=model.shape,
        batch=Batch(samples=4, sequence=1024, micro_batches=2),
        residual=Residual(checkpointing=True),
        hardware=V100,
    )
    return replace(plan(job, with_sensitivity=True), zprof_version="0", verification=verification())


def verification() -> PlanVerification:
    """One stage, a little off."""
    tenants = tuple(
        VerifiedTenant(tenant=tenant, planned_bytes=3 * GB, verified_bytes=3 * GB + 7_000_000,
                       difference_ratio=-0.0023)
        for tenant in DISPLAY_ORDER
    )  # fmt: skip
    stage = VerifiedStage(
        stage=3,
        tenants=tenants,
        planned_peak_bytes=18 * GB,
        verified_peak_bytes=18 * GB + 42_000_000,
        difference_ratio=-0.0023,
        peak_at="backward of block 3",
    )
    gap = Gap(what="stage 1, counted", reason="the program has no such stage", remedy="ask for stage 3")
    return PlanVerification(
        ranks=64, program="36 blocks", how="on tensors without memory", stages=(stage,), gaps=(gap,)
    )


@cache
def whatif() -> WhatIf:
    """Two changes of a recorded run, and one of which the step is not known."""
    analysis = analyse(load(RECORDED))
    changes = (Change(stage=2), Change(bandwidth_ratio=2.0), Change(shard_ranks=8))
    outlook = predict_changes(analysis, changes)
    *known, last = outlook.predictions
    gap = Gap(what="the step over 8 ranks", reason="compute of other ranks is not known", remedy="")
    outlook = replace(
        outlook, predictions=(*known, replace(last, step=(), saving_ns=None)), gaps=(*outlook.gaps, gap)
    )
    return WhatIf(zprof_version="0", run=analysis.run, outlook=outlook)
