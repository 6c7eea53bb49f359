"""The job under another condition: bandwidth, latency, tokens, size of the world, size of its units."""

from dataclasses import replace

from zprof.model.planning.hardware import Hardware
from zprof.model.planning.job import Degrees, Job
from zprof.planner.step.collectives import group_of


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
    group = group_of(hardware, degrees.dp, stride=degrees.mp)
    if ratio == 1 or group.nodes == 1:
        return hardware
    share = group.per_node / hardware.devices_per_node
    return replace(hardware, node_bytes_per_s=ratio * group.bytes_per_s / share)
