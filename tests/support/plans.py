"""Plans of the paper's model, and predictions for a recorded run: what pages are tested with."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.support.made_estimates import BASE, estimate_simply, make_model
from zprof.analysis.analysis import analyse
from zprof.model.gaps import Gap
from zprof.model.job import Batch, Degrees, Job, Residual
from zprof.model.layout import Framework, Layout
from zprof.model.machines import V100
from zprof.model.plan import (
    Change,
    Estimate,
    Plan,
    PlanOptions,
    PlanVerification,
    VerifiedStage,
    VerifiedTenant,
)
from zprof.model.report import WhatIf
from zprof.model.tenants import DISPLAY_ORDER
from zprof.planner.models.presets import find_preset
from zprof.planner.plan import plan
from zprof.planner.search import search_layouts, suggest_layouts
from zprof.planner.whatif import predict_changes
from zprof.run.reader import load

GB = 10**9
RECORDED = Path(__file__).parents[1] / "data/tui/zero3"
MODEL_7B = make_model(36, 4096, heads=32, kv_heads=32)
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


def _estimate(layout: Layout) -> Estimate:
    return estimate_simply(MODEL_7B, layout, V100.memory_bytes)


_JOB: Mapping[str, Any] = {"devices": 64, "global_batch": 512, "estimate": _estimate}


@cache
def searched() -> Plan:
    """A search on the devices of the full plan, with estimates made by hand."""
    found = search_layouts(MODEL_7B, V100, replace(BASE, sequence=1024), **_JOB)
    options = PlanOptions(kept_arguments=("--preset", "7.5b", "--hardware", "v100"))
    return replace(full(), sensitivity=None, verification=None, search=found, options=options)


@cache
def too_large() -> Plan:
    """Layouts that do not fit, what does, and options with old names."""
    options = PlanOptions(
        framework=Framework.DEEPSPEED,
        old_options=(("--mp", "--tp"),),
        auto_keys=("reduce_bucket_size",),
        kept_arguments=("--preset", "7.5b", "--hardware", "v100"),
    )
    return replace(
        full(),
        sensitivity=None,
        verification=None,
        rows=tuple(row for row in full().rows if not row.fits),
        suggestions=suggest_layouts(MODEL_7B, V100, replace(BASE, sequence=1024), **_JOB),
        options=options,
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
