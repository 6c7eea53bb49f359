"""Copies of a job under another condition: bandwidth, latency, tokens, world size, size of its units."""

from dataclasses import replace

from zprof.model.job import Batch, Degrees, Hardware, Job
from zprof.planner.rounding import ceil_div
from zprof.planner.step.collectives import make_group
from zprof.planner.step.unit_times import Run, Stack


def with_bandwidth(job: Job, ratio: float) -> Job:
    """The network between nodes gives a data-parallel group ``ratio`` of what it gave.

    That is a share of min(bus, node g / devices a node), so that it counts where the bus is the limit too.
    A group within one node does not feel it.
    """
    if job.hardware is None:
        return job
    return replace(job, hardware=slower_network(job.hardware, job.degrees, ratio))


def slower_network(hardware: Hardware, degrees: Degrees, ratio: float) -> Hardware:
    """As ``with_bandwidth``."""
    group = make_group(hardware, degrees.dp, stride=degrees.mp)
    if ratio == 1 or group.nodes == 1:
        return hardware
    share = group.per_node / hardware.devices_per_node
    return replace(hardware, node_bytes_per_s=ratio * group.bytes_per_s / share)


def with_latency(job: Job, latency_ns: int) -> Job:
    """Another latency of a hop between nodes."""
    if job.hardware is None:
        return job
    return replace(job, hardware=replace(job.hardware, inter_latency_ns=latency_ns))


def with_tokens(job: Job, tokens: int) -> Job:
    """So many tokens of a device in a micro-batch, by more samples of the same length.

    Flop of a token stay as they are: a longer sequence would cost more of attention.
    """
    return replace(job, batch=Batch(samples=1, sequence=tokens, micro_batches=job.batch.micro_batches))


def with_samples(job: Job, samples: int) -> Job:
    """So many samples of a device in a micro-batch."""
    return replace(job, batch=replace(job.batch, samples=samples))


def with_ranks(job: Job, dp: int) -> Job:
    """So many data-parallel ranks; each keeps its batch."""
    return replace(job, degrees=replace(job.degrees, dp=dp))


def split_units(stack: Stack, parts: int) -> Stack:
    """Every unit but the root in so many alike."""
    return replace(
        stack,
        runs=tuple(
            Run(
                count=run.count * parts,
                elements=ceil_div(run.elements, parts),
                flop_per_token=run.flop_per_token / parts,
            )
            for run in stack.runs
        ),
    )
