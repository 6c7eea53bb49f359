"""The ledger of a planned step: wall = compute + exposed_transfer + exposed_memcpy + idle, exactly."""

from collections.abc import Mapping

from zprof.model.planning.assumption import Assumption
from zprof.model.planning.hardware import Hardware
from zprof.model.planning.job import Job
from zprof.model.planning.plan import PlannedStep, Scheme, stage_of
from zprof.planner.step.activations import stream_elements
from zprof.planner.step.assumptions import STEP, leaves_of
from zprof.planner.step.backward import plain_backward, reduced_backward
from zprof.planner.step.forward import plain_forward
from zprof.planner.step.overlap import Passes, sharded_passes, step_phases
from zprof.planner.step.phases import Phase, Total, repeated, total
from zprof.planner.step.pipeline import Flow, gpipe, pipedream, transfer_ns
from zprof.planner.step.runs import Stack, stack_of
from zprof.planner.step.times import StackTimes
from zprof.planner.step.unit_times import device_times

ASSUMPTIONS: Mapping[str, Assumption] = STEP


def step_of(job: Job, scheme: Scheme) -> PlannedStep | None:
    """The step of one device; None where hardware, batch or the model's units are not known."""
    stack = stack_of(job)
    return None if stack is None else step_with(job, scheme, stack)


def step_with(job: Job, scheme: Scheme, stack: Stack) -> PlannedStep | None:
    """As ``step_of``, with the units of the job in runs: for who asks about many batches or machines."""
    if job.hardware is None:
        return None
    times = device_times(job, job.hardware, stack, stage_of(scheme))
    if times is None:
        return None
    flow = _flow(job, job.hardware, scheme, times)
    return None if flow is None else _ledger(job, scheme, total(_phases(job, scheme, times)), flow)


def _phases(job: Job, scheme: Scheme, times: StackTimes) -> tuple[Phase, ...]:
    count = job.batch.micro_batches
    if scheme is Scheme.PIPEDREAM:
        return repeated((*plain_forward(times), *reduced_backward(times)), count)
    return step_phases(times, stage=stage_of(scheme), micro_batches=count, overlap=job.overlap)


def _flow(job: Job, hardware: Hardware, scheme: Scheme, times: StackTimes) -> Flow | None:
    """What the pipeline adds; None where what passes between its stages is not known."""
    if job.degrees.pp == 1:
        return Flow(idle_ns=0, exposed_ns=0, moved_ns=0)
    elements = stream_elements(job)
    if elements is None:
        return None
    passes = _passes(job, scheme, times)
    forward, backward = total(passes.forward).wall_ns, total(passes.backward).wall_ns
    transfer, count = transfer_ns(job, hardware, elements), job.batch.micro_batches
    if scheme is Scheme.PIPEDREAM:
        return pipedream(micro_batches=count, forward_ns=forward, backward_ns=backward, transfer=transfer)
    return gpipe(
        stages=job.degrees.pp,
        micro_batches=count,
        forward_ns=forward,
        backward_ns=backward,
        transfer=transfer,
    )


def _passes(job: Job, scheme: Scheme, times: StackTimes) -> Passes:
    """Of a micro-batch that is not the last."""
    if scheme is Scheme.ZERO_3:
        return sharded_passes(times, job.overlap)
    reduces = scheme in (Scheme.ZERO_2, Scheme.PIPEDREAM)
    return Passes(
        forward=plain_forward(times),
        backward=reduced_backward(times) if reduces else plain_backward(times),
    )


def _ledger(job: Job, scheme: Scheme, phases: Total, flow: Flow) -> PlannedStep:
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
        assumptions=leaves_of(
            scheme,
            pipelined=job.degrees.pp > 1,
            prefetch=job.overlap.prefetch,
            keep_last=job.overlap.keep_last,
        ),
    )
