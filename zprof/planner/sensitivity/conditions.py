"""Copy a job with a different bandwidth, latency, token count, world size or unit size."""

from msgspec.structs import replace

from zprof.model.job import Batch, Degrees, Hardware, Job
from zprof.planner.rounding import ceil_div
from zprof.planner.unit_times import EqualUnits, UnitStack
from zprof.step.planned_links import make_group


def with_bandwidth(job: Job, ratio: float) -> Job:
    """Scale the bandwidth that a data-parallel group gets from the network between nodes.

    ``ratio`` applies to min(bus, node g / devices per node), so that it has an effect even if the bus is the
    bottleneck. A group within one node is not affected.
    """
    if job.hardware is None:
        return job
    return replace(job, hardware=scale_network(job.hardware, job.degrees, ratio))


def scale_network(hardware: Hardware, degrees: Degrees, ratio: float) -> Hardware:
    """Return the hardware with the group's inter-node bandwidth scaled, as in ``with_bandwidth``."""
    group = make_group(hardware, degrees.dp, stride=degrees.mp)
    if ratio == 1 or group.nodes == 1:
        return hardware
    share = group.per_node / hardware.devices_per_node
    return replace(hardware, node_bytes_per_s=ratio * group.bytes_per_s / share)


def with_latency(job: Job, latency_ns: int) -> Job:
    """Return the job with a different hop latency between nodes."""
    if job.hardware is None:
        return job
    return replace(job, hardware=replace(job.hardware, inter_latency_ns=latency_ns))


def with_tokens(job: Job, tokens: int) -> Job:
    """Return the job with a different number of tokens per device and micro-batch.

    Flop per token are kept, as with more samples of the same length: longer sequences would cost more
    attention.
    """
    return replace(job, batch=Batch(samples=1, sequence=tokens, micro_batches=job.batch.micro_batches))


def with_samples(job: Job, samples: int) -> Job:
    """Return the job with a different number of samples per device and micro-batch."""
    return replace(job, batch=replace(job.batch, samples=samples))


def with_ranks(job: Job, dp: int) -> Job:
    """Return the job with a different number of data-parallel ranks; each keeps its batch."""
    return replace(job, degrees=replace(job.degrees, dp=dp))


def split_units(stack: UnitStack, parts: int) -> UnitStack:
    """Split every unit except the root into ``parts`` equal units."""
    return replace(
        stack,
        runs=tuple(
            EqualUnits(
                count=run.count * parts,
                elements=ceil_div(run.elements, parts),
                flop_per_token=run.flop_per_token / parts,
            )
            for run in stack.runs
        ),
    )
