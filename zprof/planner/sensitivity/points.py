"""Steps of ZeRO-3 of one job, with one condition changed at a time."""

from collections.abc import Iterable, Iterator

from zprof.model.planning.job import Job
from zprof.model.planning.plan import Scheme
from zprof.model.planning.sensitivity import BreakEven, Point
from zprof.planner.memory.states import law_bytes
from zprof.planner.sensitivity.break_even import BANDWIDTHS
from zprof.planner.sensitivity.conditions import with_bandwidth, with_latency, with_ranks, with_tokens
from zprof.planner.step.ledger import step_with
from zprof.planner.step.runs import Stack

LATENCIES_NS = (5_000, 10_000, 50_000, 100_000)
#: Worlds are looked at up to here, or to the job's own.
_MOST_DEVICES = 1024


def bandwidth_points(job: Job, stack: Stack) -> tuple[Point, ...]:
    """At 100, 75 and 50 % of what the group gets of the network."""
    states = law_bytes(job, Scheme.ZERO_3)
    return _made(_point(job, stack, states, ratio) for ratio in BANDWIDTHS)


def latency_points(job: Job, stack: Stack) -> tuple[Point, ...]:
    """At 5 to 100 µs a hop between nodes."""
    states = law_bytes(job, Scheme.ZERO_3)
    return _made(_point(with_latency(job, latency), stack, states) for latency in LATENCIES_NS)


def token_points(job: Job, stack: Stack, break_even: Iterable[BreakEven]) -> tuple[Point, ...]:
    """At powers of two around the job's tokens and the break-even, at each bandwidth."""
    tokens = [even.forward_tokens for even in break_even] + [float(job.batch.tokens or 1)]
    counts = list(_powers(min(tokens) / 2, max(tokens) * 2))
    states = law_bytes(job, Scheme.ZERO_3)
    return _made(
        _point(with_tokens(job, count), stack, states, ratio) for ratio in BANDWIDTHS for count in counts
    )


def world_points(job: Job, stack: Stack) -> tuple[Point, ...]:
    """From one node on, twice as many data-parallel ranks each time; a device keeps its batch."""
    sized = [with_ranks(job, dp) for dp in worlds(job)]
    return _made(_point(there, stack, law_bytes(there, Scheme.ZERO_3)) for there in sized)


def worlds(job: Job) -> tuple[int, ...]:
    """Data-parallel degrees from one node's up to 1024 devices', and the job's."""
    degrees, hardware = job.degrees, job.hardware
    within = degrees.mp * degrees.pp
    first = 1 if hardware is None else max(1, hardware.devices_per_node // within)
    most = max(_MOST_DEVICES // within, degrees.dp)
    found, dp = {degrees.dp}, first
    while dp <= most:
        found.add(dp)
        dp *= 2
    return tuple(sorted(found))


def _point(job: Job, stack: Stack, states: int, ratio: float = 1.0) -> Point | None:
    hardware = job.hardware
    step = step_with(with_bandwidth(job, ratio), Scheme.ZERO_3, stack)
    if step is None or hardware is None or job.batch.tokens is None:
        return None
    return Point(
        bandwidth_ratio=ratio,
        latency_ns=hardware.inter_latency_ns,
        tokens=job.batch.tokens,
        devices=job.degrees.devices,
        wall_ns=step.wall_ns,
        compute_ns=step.compute_ns,
        exposed_ns=step.exposed_transfer_ns,
        efficiency_ratio=step.efficiency_ratio,
        state_bytes=states,
    )


def _made(points: Iterable[Point | None]) -> tuple[Point, ...]:
    return tuple(point for point in points if point is not None)


def _powers(least: float, most: float) -> Iterator[int]:
    count = 1
    while count <= most:
        if count >= least:
            yield count
        count *= 2
