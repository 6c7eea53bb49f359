"""Plans of the paper's model, and an outlook made by hand: what pages are tested with."""

from functools import cache

from msgspec.structs import replace

from zprof.model.gaps import Gap
from zprof.model.job import Batch, Degrees, Job, Residual
from zprof.model.machines import V100
from zprof.model.plan import Plan, PlanVerification, VerifiedStage, VerifiedTenant
from zprof.model.report import RunFacts, WhatIf
from zprof.model.tenants import DISPLAY_ORDER
from zprof.model.whatif import (
    Assumption,
    Calibration,
    Change,
    FittedLink,
    Outlook,
    PredictedFigure,
    Prediction,
)
from zprof.planner.model_presets import find_preset
from zprof.planner.plan import plan

GB, MS, MIB = 10**9, 1_000_000, 1 << 20
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


def outlook() -> Outlook:
    """Two changes of a run with its time and memory, one with memory only."""
    return Outlook(
        predictions=(
            _prediction("stage 2", Change(stage=2), 310, 402),
            _prediction("bandwidth x2", Change(bandwidth_ratio=2.0), 355, 201),
            replace(
                _prediction("over 8 ranks", Change(shard_ranks=8), 400, 150), step=(), saving_ns=None
            ),
        ),
        calibration=Calibration(
            units=6,
            micro_batches=1,
            passes=2,
            forward_ns=90 * MS,
            backward_ns=180 * MS,
            optimizer_ns=12 * MS,
            links=(
                FittedLink(kind="all_gather", group="dp", latency_ns=25_000, busbw_bytes_per_s=1.25e9,
                           messages=48, residual_ratio=0.021, how="two sizes"),
                FittedLink(kind="all_reduce", group="dp", latency_ns=31_000, busbw_bytes_per_s=None,
                           messages=4, residual_ratio=0.2, how="one size: no bandwidth"),
            ),
            slowest_rank=3,
            skew_ns=4 * MS,
            prefetch=1,
            steps=5,
        ),
        assumptions={
            "whatif.step": Assumption(formula="the schedule played anew", source="reference engine"),
            "whatif.memory": Assumption(formula="states by the ZeRO formula, the rest as measured",
                                        source="arXiv 1910.02054, section 5", deviation="no fragmentation"),
        },
        gaps=(Gap(what="the step over 8 ranks", reason="compute of other ranks is not known", remedy=""),),
    )  # fmt: skip


def whatif() -> WhatIf:
    """The document around it."""
    run = RunFacts(
        name="zero3",
        source="recording",
        world_size=4,
        ranks_loaded=(0, 1, 2, 3),
        steps=(3, 4, 5, 6, 7),
        device="cpu",
        backend="gloo",
        engine="reference",
        stage=3,
        modelled=("link of 1 GB/s",),
    )
    return WhatIf(zprof_version="0", run=run, outlook=outlook())


def _prediction(words: str, change: Change, step_ms: int, peak_mib: int) -> Prediction:
    def time(name: str, measured: int, modelled: int, predicted: int) -> PredictedFigure:
        return PredictedFigure(
            name=name,
            measured=measured * MS,
            modelled=modelled * MS,
            predicted=predicted * MS,
            low=(predicted - 7) * MS,
            high=(predicted + 9) * MS,
            error_ratio=modelled / measured - 1,
            assumption="whatif.step",
        )

    def size(name: str, measured: int, predicted: int) -> PredictedFigure:
        return PredictedFigure(
            name=name,
            measured=measured * MIB,
            modelled=(measured + 1) * MIB,
            predicted=predicted * MIB,
            low=predicted * MIB,
            high=(predicted + 3) * MIB,
            error_ratio=1 / measured,
            assumption="whatif.memory",
        )

    return Prediction(
        change=change,
        words=words,
        step=(
            time("compute_ns", 281, 282, 281),
            time("exposed_transfer_ns", 99, 95, step_ms - 281),
            time("wall_ns", 380, 377, step_ms),
        ),
        memory=(
            size("parameters", 64, 64),
            PredictedFigure(name="untagged_bytes", measured=None, modelled=None, predicted=None, low=None,
                      high=None, error_ratio=None, assumption="whatif.memory"),
            size("peak_bytes", 301, peak_mib),
        ),
        saving_ns=((380 - step_ms - 9) * MS, (380 - step_ms + 7) * MS),
    )  # fmt: skip
