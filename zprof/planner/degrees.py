"""The same devices, spread in another way: so that every scheme is asked about as much hardware."""

from dataclasses import replace

from zprof.model.planning.job import Degrees, Job
from zprof.model.planning.plan import Scheme

#: Devices of a node where no hardware says it.
_NODE = 8


def spread(job: Job, scheme: Scheme) -> Job:
    """The job with the degrees of a scheme.

    Data parallelism and ZeRO take those of the job.  Model parallelism and pipelines take the job's degree
    where it has one, else as many devices as a node has and the job's divide into, and data parallelism over
    the rest; ZeRO's own sharding is then off.
    """
    given, node = job.degrees, _NODE if job.hardware is None else job.hardware.devices_per_node
    if scheme is Scheme.MODEL_PARALLEL:
        mp = given.mp if given.mp > 1 else _divisor(given.devices // given.pp, node)
        return replace(job, degrees=Degrees(dp=given.devices // (mp * given.pp), mp=mp, pp=given.pp))
    if scheme in (Scheme.GPIPE, Scheme.PIPEDREAM):
        most = node if job.shape is None else min(node, job.shape.layers)
        pp = given.pp if given.pp > 1 else _divisor(given.devices // given.mp, most)
        return replace(job, degrees=Degrees(dp=given.devices // (given.mp * pp), mp=given.mp, pp=pp))
    return job


def _divisor(whole: int, most: int) -> int:
    """The largest divisor of ``whole`` that is not above ``most``."""
    return max(part for part in range(1, min(whole, most) + 1) if whole % part == 0)
