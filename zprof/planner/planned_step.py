"""Compute the ledger of a planned step; its terms sum exactly to the wall time.

wall = compute + exposed_transfer + exposed_memcpy + idle

The phases of the step are those of its schedule (:mod:`zprof.step.from_plan`); a pipeline adds idle time and
transfers between its stages (:mod:`zprof.planner.parallelism`).
"""

from zprof.model.job import Hardware, Job
from zprof.model.plan import PlannedStep, Scheme, get_zero_stage
from zprof.planner.parallelism import (
    PipelineFlow,
    compute_gpipe_flow,
    compute_pipedream_flow,
    count_stream_elements,
    transfer_ns,
)
from zprof.planner.step_assumptions import assumptions_by_leaf
from zprof.planner.unit_times import UnitStack, compute_device_times, stack_units
from zprof.step.from_plan import (
    MicroBatchPhases,
    StackTimes,
    StepPhase,
    build_plain_passes,
    build_reduced_passes,
    build_sharded_passes,
    build_step_phases,
    repeat_phases,
    sum_phases,
)


def plan_step(job: Job, scheme: Scheme) -> PlannedStep | None:
    """Return the planned step of one device; None if hardware, batch or units are unknown."""
    stack = stack_units(job)
    return None if stack is None else plan_stack_step(job, scheme, stack)


def plan_stack_step(job: Job, scheme: Scheme, stack: UnitStack) -> PlannedStep | None:
    """Return the planned step of units that are already grouped in runs.

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
    phases = sum_phases(_plan_phases(job, scheme, times))
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


def _plan_phases(job: Job, scheme: Scheme, times: StackTimes) -> tuple[StepPhase, ...]:
    count = job.batch.micro_batches
    if scheme is Scheme.PIPEDREAM:
        return repeat_phases(build_reduced_passes(times).all, count)
    return build_step_phases(times, stage=get_zero_stage(scheme), micro_batches=count, overlap=job.overlap)


def _pipeline_flow(job: Job, hardware: Hardware, scheme: Scheme, times: StackTimes) -> PipelineFlow | None:
    """Return the pipeline's share of the step; None if the size of its transfers is unknown."""
    if job.degrees.pp == 1:
        return PipelineFlow(idle_ns=0, exposed_ns=0, moved_ns=0)
    elements = count_stream_elements(job)
    if elements is None:
        return None
    passes = _plan_passes(job, scheme, times)
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


def _plan_passes(job: Job, scheme: Scheme, times: StackTimes) -> MicroBatchPhases:
    """Return the passes of a micro-batch that is not the last one."""
    if scheme is Scheme.ZERO_3:
        return build_sharded_passes(times, job.overlap)
    reduces = scheme in (Scheme.ZERO_2, Scheme.PIPEDREAM)
    return build_reduced_passes(times) if reduces else build_plain_passes(times)
