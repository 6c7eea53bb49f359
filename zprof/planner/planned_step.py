"""Compute the ledger of a planned step; its terms sum exactly to the wall time.

wall = compute + exposed_transfer + exposed_memcpy + idle

The phases come from the schedule (:mod:`zprof.step.from_plan`); a pipeline adds idle time and
transfers between its stages (:mod:`zprof.planner.parallelism`).
"""

from collections.abc import Mapping

from zprof.model.job import Job
from zprof.model.machines import Hardware
from zprof.model.plan import Assumption, PlannedStep, Scheme, get_zero_stage
from zprof.planner.parallelism import (
    PipelineFlow,
    compute_gpipe_flow,
    compute_pipedream_flow,
    count_stream_elements,
    transfer_ns,
)
from zprof.planner.unit_times import UnitStack, compute_device_times, stack_units
from zprof.step.from_plan import (
    StackTimes,
    build_plain_passes,
    build_reduced_passes,
    build_sharded_passes,
    build_step_phases,
    repeat_phases,
    sum_phases,
)

_PAPER = "arXiv 1910.02054"
_DEEP_PREFETCH_NOTE = "prefetch of more than one unit counts as one: with equal units it hides no more"

STEP_ASSUMPTIONS: Mapping[str, Assumption] = {
    "step.wall": Assumption(
        formula="compute + exposed transfer + exposed copies + idle",
        source="sum over phases; each lasts as long as the longest activity in it",
        deviation="no rank is late, the host never falls behind, the optimizer's update takes no time",
    ),
    "step.compute": Assumption(
        formula="flop / (peak x efficiency); forward 2 x elements x tokens unless the unit gives it, "
        "backward twice that, with recomputation three times",
        source=f"{_PAPER}, section 4.2; arXiv 2104.04473, appendix; the peak from the vendor's data sheet",
        deviation="no slowdown of compute by concurrent collectives (3 to 15 % in practice)",
    ),
    "step.collectives": Assumption(
        formula="ring: hops + bytes (N-1)/(N beta), all-reduce twice that, or a tree if faster; "
        "beta = min(bus, node x ranks per node / devices per node)",
        source=f"{_PAPER}, section 7; nccl-tests, doc/PERFORMANCE.md",
    ),
    "step.overlapped": Assumption(
        formula="collectives - exposed transfer",
        source="ledger of a step: collective time that is not exposed is hidden",
    ),
    "step.efficiency": Assumption(formula="compute / wall", source="ledger of a step"),
    "step.host_copies": Assumption(
        formula="2 b s h / mp bytes per block, out and in, over the host link, beyond concurrent work",
        source=f"{_PAPER}, section 8 (Pa+cpu)",
    ),
    "step.no_pipeline": Assumption(formula="0", source="only a pipeline leaves a device idle"),
    "step.stage_0": Assumption(
        formula="b_U + sum max(b_u, AR_(u+1)) + AR_1: each unit's all-reduce overlaps the next one's "
        "backward, in the last micro-batch",
        source=f"{_PAPER}, section 7.1",
    ),
    "step.stage_1": Assumption(
        formula="reductions overlap the last backward; parameters are gathered during the next forward",
        source=f"{_PAPER}, section 7.2.1; schedule of the reference engine",
        deviation="DeepSpeed gathers after the update without overlap: add that gather",
    ),
    "step.stage_2": Assumption(
        formula="b_U + sum max(b_u, RS_(u+1)) + RS_1 in every micro-batch; updated parameters are "
        "gathered during the next forward",
        source=f"{_PAPER}, section 7.2.1; schedule of the reference engine",
        deviation="DeepSpeed gathers after the update without overlap, and all-reduces: 3 psi, not 2",
    ),
    "step.stage_3": Assumption(
        formula="AG_1 + sum max(c_u, AG_(u+1)) + c_U; AG_U + max(b_U, AG_(U-1)) + sum max(b_u, RS_(u+1) + "
        "AG_(u-1)) + RS_1",
        source=f"{_PAPER}, section 7.2.2; arXiv 2304.11277, section 3.3",
        deviation=f"the paper broadcasts from owners, engines gather: same volume; {_DEEP_PREFETCH_NOTE}",
    ),
    "step.stage_3_kept": Assumption(
        formula="AG_1 + sum max(c_u, AG_(u+1)) + c_U; b_U + sum max(b_u, RS_(u+1) + AG) + RS_1",
        source=f"{_PAPER}, section 7.2.2; arXiv 2304.11277, section 3.3",
        deviation="the last unit stays gathered: psi minus its elements; with equal units the gather that "
        "could overlap b_U is counted last, at most b_U more than an event schedule; unequal units use the "
        f"event schedule; {_DEEP_PREFETCH_NOTE}",
    ),
    "step.stage_3_waits": Assumption(
        formula="without prefetch every gather and every reduction is exposed",
        source="schedule of the reference engine: one link, first come first served",
    ),
    "step.model_parallel": Assumption(
        formula="2 all-reduces of b s h elements per block in each pass, all exposed; with Pa one more "
        "all-gather; and the data-parallel all-reduce beyond the backward",
        source=f"{_PAPER}, section 8; arXiv 1909.08053, section 3",
        deviation="without the all-reduces of a split vocabulary",
    ),
    "step.gpipe": Assumption(
        formula="bubble (p-1)(f+b): (p-1)/(m+p-1) of the pipeline's time; and 2 (p-2) x while the "
        "links of other stages fill and drain",
        source="arXiv 1811.06965, section 2.3",
        deviation="the slowest stage sets the pace: the one with the most blocks, and the root",
    ),
    "step.gpipe_transfer": Assumption(
        formula="of the device's own 2 m x: 2 x to fill and drain, plus transfers longer than compute in "
        "between; and the data-parallel all-reduce beyond the last backward",
        source="arXiv 1811.06965, section 2.3",
    ),
    "step.pipedream": Assumption(
        formula="no bubble in the steady state", source="arXiv 1806.03377, section 3.2"
    ),
    "step.pipedream_transfer": Assumption(
        formula="max(0, 2 x - f - b) per micro-batch; gradients are all-reduced in each",
        source="arXiv 1806.03377, sections 3.2 and 3.3",
    ),
}

TRAFFIC_ASSUMPTIONS: Mapping[str, Assumption] = {
    "traffic.stage_0": Assumption(
        formula="all-reduce of all gradients: 2 psi elements", source=f"{_PAPER}, section 7.1"
    ),
    "traffic.stage_1": Assumption(
        formula="reduce-scatter psi + all-gather psi",
        source=f"{_PAPER}, section 7.2.1",
        deviation="DeepSpeed all-reduces: 3 psi",
    ),
    "traffic.stage_2": Assumption(
        formula="reduce-scatter psi in each of A micro-batches + all-gather psi: (A+1) psi",
        source=f"{_PAPER}, section 7.2.1",
        deviation="the paper has one micro-batch; a sharded gradient cannot wait. DeepSpeed: (2A+1) psi",
    ),
    "traffic.stage_3": Assumption(
        formula="two all-gathers and a reduce-scatter in each of A micro-batches: 3 A psi",
        source=f"{_PAPER}, section 7.2.2",
        deviation="the paper has one micro-batch; minus the last unit's second gather if it stays gathered",
    ),
    "traffic.pipedream_data": Assumption(
        formula="all-reduce of the stage's gradients in every micro-batch",
        source="arXiv 1806.03377, section 3.3",
    ),
    "traffic.model": Assumption(
        formula="12 b s h elements per block with checkpointing, 8 without; Pa adds b s h",
        source=f"{_PAPER}, section 8",
    ),
    "traffic.pipeline": Assumption(
        formula="b s h elements per boundary, direction and micro-batch",
        source="arXiv 1811.06965, section 2.3",
    ),
    "traffic.host": Assumption(
        formula="2 b s h / mp bytes per block, out and in", source=f"{_PAPER}, section 8 (Pa+cpu)"
    ),
}

_TRANSFER_KEYS: Mapping[Scheme, str] = {
    Scheme.DATA_PARALLEL: "step.stage_0",
    Scheme.ZERO_1: "step.stage_1",
    Scheme.ZERO_2: "step.stage_2",
    Scheme.ZERO_3: "step.stage_3",
    Scheme.MODEL_PARALLEL: "step.model_parallel",
    Scheme.GPIPE: "step.gpipe_transfer",
    Scheme.PIPEDREAM: "step.pipedream_transfer",
}


def plan_step(job: Job, scheme: Scheme) -> PlannedStep | None:
    """Return the planned step of one device; None if hardware, batch or units are unknown."""
    stack = stack_units(job)
    return None if stack is None else plan_stack_step(job, scheme, stack)


def plan_stack_step(job: Job, scheme: Scheme, stack: UnitStack) -> PlannedStep | None:
    """Return the planned step of units already grouped in runs.

    Callers that try many batches or machines group the units once, then call this instead of ``plan_step``.
    """
    if job.hardware is None:
        return None
    times = compute_device_times(job, job.hardware, stack, get_zero_stage(scheme))
    if times is None:
        return None
    flow = _pipeline_flow(job, job.hardware, scheme, times)
    if flow is None:
        return None
    count = job.batch.micro_batches
    if scheme is Scheme.PIPEDREAM:
        all_phases = repeat_phases(build_reduced_passes(times).all, count)
    else:
        stage = get_zero_stage(scheme)
        all_phases = build_step_phases(times, stage=stage, micro_batches=count, overlap=job.overlap)
    phases = sum_phases(all_phases)
    wall = phases.wall_ns + flow.idle_ns + flow.exposed_ns
    exposed = phases.exposed_transfer_ns + flow.exposed_ns
    collective = phases.collective_ns + flow.moved_ns
    return PlannedStep(
        wall_ns=wall,
        compute_ns=phases.compute_ns,
        exposed_transfer_ns=exposed,
        exposed_memcpy_ns=phases.exposed_memcpy_ns,
        idle_ns=flow.idle_ns,
        collective_ns=collective,
        overlapped_ns=collective - exposed,
        efficiency_ratio=phases.compute_ns / wall if wall else 1.0,
        assumptions=assumptions_by_leaf(
            scheme,
            pipelined=job.degrees.pp > 1,
            prefetch=job.overlap.prefetch,
            keep_last=job.overlap.keep_last,
        ),
    )


def _pipeline_flow(job: Job, hardware: Hardware, scheme: Scheme, times: StackTimes) -> PipelineFlow | None:
    """Return the pipeline's share of the step; None if the size of its transfers is unknown."""
    if job.degrees.pp == 1:
        return PipelineFlow(idle_ns=0, exposed_ns=0, moved_ns=0)
    elements = count_stream_elements(job)
    if elements is None:
        return None
    # Passes of a micro-batch other than the last.
    if scheme is Scheme.ZERO_3:
        passes = build_sharded_passes(times, job.overlap)
    elif scheme in (Scheme.ZERO_2, Scheme.PIPEDREAM):
        passes = build_reduced_passes(times)
    else:
        passes = build_plain_passes(times)
    forward, backward = sum_phases(passes.forward).wall_ns, sum_phases(passes.backward).wall_ns
    transfer, count = transfer_ns(job, hardware, elements), job.batch.micro_batches
    if scheme is Scheme.PIPEDREAM:
        return compute_pipedream_flow(
            micro_batches=count, forward_ns=forward, backward_ns=backward, transfer=transfer
        )
    return compute_gpipe_flow(
        stages=job.degrees.pp,
        micro_batches=count,
        forward_ns=forward,
        backward_ns=backward,
        transfer=transfer,
    )


def assumptions_by_leaf(
    scheme: Scheme, *, pipelined: bool, prefetch: int, keep_last: bool
) -> Mapping[str, str]:
    """Return the assumption key of each leaf of a planned step."""
    transfer = _TRANSFER_KEYS[scheme]
    if scheme is Scheme.ZERO_3 and prefetch == 0:
        transfer = "step.stage_3_waits"
    elif scheme is Scheme.ZERO_3 and keep_last:
        transfer = "step.stage_3_kept"
    idle = "step.pipedream" if scheme is Scheme.PIPEDREAM else "step.gpipe"
    return {
        "wall_ns": "step.wall",
        "compute_ns": "step.compute",
        "exposed_transfer_ns": transfer,
        "exposed_memcpy_ns": "step.host_copies",
        "idle_ns": idle if pipelined else "step.no_pipeline",
        "collective_ns": "step.collectives",
        "overlapped_ns": "step.overlapped",
        "efficiency_ratio": "step.efficiency",
    }
