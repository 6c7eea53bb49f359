"""Plans and outlooks made by hand: what faces are tested with, whatever the planner computes."""

from collections.abc import Mapping

from msgspec.structs import replace

from zprof.model.gaps import Gap
from zprof.model.job import Batch, Degrees, Hardware, Job, Residual, Shape
from zprof.model.plan import (
    Axis,
    BreakEven,
    LinkTraffic,
    Plan,
    PlannedStep,
    PlanRow,
    PlanVerification,
    Scheme,
    Sensitivity,
    SensitivityPoint,
    SpeedUp,
    Term,
    VerifiedStage,
    VerifiedTenant,
)
from zprof.model.report import RunFacts, WhatIf
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.model.whatif import (
    Assumption,
    Calibration,
    Change,
    FittedLink,
    Outlook,
    PredictedFigure,
    Prediction,
)

GB, MS, MIB = 10**9, 1_000_000, 1 << 20
NODE = Hardware(
    name="v100",
    memory_bytes=32 * GB,
    flops_per_s=125e12,
    efficiency_ratio=0.3,
    devices_per_node=16,
    node_bytes_per_s=100e9,
    intra_bytes_per_s=130e9,
)
JOB = Job(name="7.5b", parameters=7_500_000_000, degrees=Degrees(dp=64))
#: Gigabytes of parameters, gradients, optimizer state and activations; the step in ms; degrees.
_ROWS: Mapping[Scheme, tuple[float, float, float, float, float, tuple[int, int, int]]] = {
    Scheme.DATA_PARALLEL: (15, 15, 90, 9.5, 612.5, (64, 1, 1)),
    Scheme.ZERO_1: (15, 15, 1.40625, 9.5, 640.25, (64, 1, 1)),
    Scheme.ZERO_2: (15, 0.234375, 1.40625, 9.5, 655.75, (64, 1, 1)),
    Scheme.ZERO_3: (0.234375, 0.234375, 1.40625, 9.5, 701.5, (64, 1, 1)),
    Scheme.MODEL_PARALLEL: (0.9375, 0.9375, 5.625, 0.6, 890.5, (4, 16, 1)),
    Scheme.GPIPE: (1.25, 1.25, 7.5, 12.75, 810.5, (4, 1, 16)),
    Scheme.PIPEDREAM: (2.5, 1.25, 7.5, 19.5, 777.5, (4, 1, 16)),
}
_UNKNOWN_ACTIVATIONS = Gap(
    what="activations",
    reason="no batch and no layers were said",
    remedy="--layers, --hidden, --micro-batch, --sequence",
)
ASSUMPTIONS = {
    "states.replicated": Assumption(formula="(2 + 2 + K) Ψ", source="arXiv 1910.02054, section 3.1"),
    "states.sharded": Assumption(
        formula="what a stage shards, over N ranks",
        source="arXiv 1910.02054, section 5, figure 1",
        deviation="rounded up to whole elements",
    ),
    "residual.activations": Assumption(formula="12 h b s L elements", source="arXiv 1910.02054, section 3.2"),
    "traffic.ring": Assumption(formula="S (N-1)/N", source="arXiv 1910.02054, section 7"),
    "step.overlap": Assumption(formula="max(compute, gather) a unit", source="reference engine"),
}


def bare() -> Plan:
    """States only: no batch, no hardware."""
    rows = tuple(_row(scheme, has_batch=False) for scheme in Scheme)
    return Plan(
        zprof_version="0",
        job=JOB,
        rows=rows,
        assumptions=ASSUMPTIONS,
        gaps=(_UNKNOWN_ACTIVATIONS,),
    )


def full() -> Plan:
    """Batch, hardware, sensitivity and verification."""
    job = replace(
        JOB,
        shape=Shape(layers=36, hidden=4096, vocabulary=50257, context=1024, heads=32),
        batch=Batch(samples=4, sequence=1024, micro_batches=2),
        residual=Residual(checkpointing=True),
        hardware=NODE,
    )
    return Plan(
        zprof_version="0",
        job=job,
        rows=tuple(_row(scheme, has_batch=True) for scheme in Scheme),
        assumptions=ASSUMPTIONS,
        sensitivity=sensitivity(),
        verification=verification(),
    )


def sensitivity() -> Sensitivity:
    """Each condition with points of its own."""
    return Sensitivity(
        answers=("ZeRO-3 keeps 95 % of its speed at 50 % bandwidth from 1,100 tokens of a device on.",),
        bandwidth=tuple(
            _point(bandwidth=ratio, tokens=tokens, efficiency=ratio * (0.9 if tokens == 512 else 0.99))
            for ratio in (0.5, 0.75, 1.0)
            for tokens in (512, 4096)
        ),
        latency=tuple(_point(latency=us * 1000, efficiency=0.9 - us / 200) for us in (5, 10, 50, 100)),
        tokens=tuple(_point(tokens=t, efficiency=min(1, t / 4000)) for t in (512, 1024, 2048, 4096)),
        world=tuple(_point(devices=d, efficiency=1 - d / 2000) for d in (64, 256, 1024)),
        break_even=tuple(
            BreakEven(
                hardware=name,
                bandwidth_ratio=ratio,
                forward_tokens=tokens / ratio,
                backward_tokens=tokens / ratio / 1.5,
                holds_from_tokens=None if name == "a100" else 1100,
                kept_ratio=0.95,
            )
            for name, tokens in (("v100", 375.0), ("a100", 702.0))
            for ratio in (1.0, 0.5)
        ),
        speed_up=(
            _speed(64, 16, 20.76, 1.26, 1.0, 1.0, 1.0),
            _speed(400, 64, 9.66, 5.03, 1.35, 0.97, 1.39),
        ),
    )


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


def _row(scheme: Scheme, *, has_batch: bool) -> PlanRow:
    *states, activations, step_ms, degrees = _ROWS[scheme]
    sharded = "states.replicated" if scheme is Scheme.DATA_PARALLEL else "states.sharded"
    kinds = (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)
    terms = [
        Term(tenant=tenant, sub="shard", bytes=round(size * GB), assumption=sharded)
        for tenant, size in zip(kinds, states, strict=True)
    ]
    act = round(activations * GB) if has_batch else None
    terms.append(Term(tenant=Tenant.ACTIVATIONS, sub="saved", bytes=act, assumption="residual.activations"))
    terms.append(
        Term(tenant=Tenant.TEMPORARY_BUFFERS, sub="gradient_fp32_copy", bytes=468_750_000,
             assumption="states.sharded")
    )  # fmt: skip
    least = sum(term.bytes or 0 for term in terms)
    sizes = {
        t: sum(m.bytes or 0 for m in terms if m.tenant is t and m.bytes is not None) for t in DISPLAY_ORDER
    }
    dp, mp, pp = degrees
    return PlanRow(
        scheme=scheme,
        stage={Scheme.DATA_PARALLEL: 0, Scheme.ZERO_1: 1, Scheme.ZERO_2: 2, Scheme.ZERO_3: 3}.get(scheme),
        degrees=Degrees(dp=dp, mp=mp, pp=pp),
        micro_batches=(2 if has_batch else 1) * JOB.degrees.dp // dp,
        terms=tuple(terms),
        tenants={
            t: size for t, size in sizes.items() if any(m.tenant is t and m.bytes is not None for m in terms)
        },
        state_bytes=round(sum(states) * GB),
        least_bytes=least,
        peak_bytes=least if has_batch else None,
        peak_at="backward of block 36",
        fits=least <= NODE.memory_bytes if has_batch else None,
        largest_parameters=round(32 / sum(states) * 7.5e9) if has_batch else None,
        links=_links(scheme) if has_batch else (),
        step=_step(step_ms) if has_batch else None,
    )


def _links(scheme: Scheme) -> tuple[LinkTraffic, ...]:
    factor = 3 if scheme is Scheme.ZERO_3 else 2
    size = factor * 15 * GB
    data = LinkTraffic(
        axis=Axis.DATA,
        link="inter",
        elements=size // 2,
        bytes=size,
        ring_bytes=size * 63 // 64,
        time_ns=size * 63 // 64 * 10,
        assumption="traffic.ring",
    )
    if scheme is not Scheme.MODEL_PARALLEL:
        return (data,)
    return (data, replace(data, axis=Axis.MODEL, link="intra", bytes=12 * GB, ring_bytes=11 * GB))


def _step(step_ms: float) -> PlannedStep:
    wall = round(step_ms * MS)
    return PlannedStep(
        wall_ns=wall,
        compute_ns=wall - 90 * MS,
        exposed_transfer_ns=60 * MS,
        exposed_memcpy_ns=0,
        idle_ns=30 * MS,
        collective_ns=300 * MS,
        overlapped_ns=240 * MS,
        efficiency_ratio=(wall - 90 * MS) / wall,
        assumptions={"wall_ns": "step.overlap", "compute_ns": "step.overlap"},
    )


def _point(
    *,
    bandwidth: float = 1.0,
    latency: int = 10_000,
    tokens: int = 2048,
    devices: int = 1024,
    efficiency: float = 1.0,
) -> SensitivityPoint:
    compute = tokens * 200_000
    wall = round(compute / efficiency)
    return SensitivityPoint(
        bandwidth_ratio=bandwidth,
        latency_ns=latency,
        tokens=tokens,
        devices=devices,
        wall_ns=wall,
        compute_ns=compute,
        exposed_ns=wall - compute,
        efficiency_ratio=efficiency,
        state_bytes=16 * 10**12 // devices,
    )


def _speed(devices: int, samples: int, states: float, acts: float, *ratios: float) -> SpeedUp:
    whole, equal, larger = ratios
    return SpeedUp(
        devices=devices,
        samples=samples,
        state_bytes=round(states * GB),
        activation_bytes=round(acts * GB),
        whole_ratio=whole,
        equal_batch_ratio=equal,
        larger_batch_ratio=larger,
    )


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
