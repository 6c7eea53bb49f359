"""Super-linear speed-up, taken apart: the same batch of a device, and a larger one.

Sharding over more ranks leaves a device more memory, so that it takes more samples, and what is exposed in a
step is spread over more of them (arXiv 1910.02054, section 10.3, figure 3, table 6).  With thr(N, n) samples
a second of a device at N ranks and n samples a micro-batch:

    whole = thr(N, n_N) / thr(N_0, n_0) = [thr(N, n_0) / thr(N_0, n_0)] x [thr(N, n_N) / thr(N, n_0)]

The first factor is of equal batch, and hardly above 1: sharding itself moves no less.  n_N is the most that
fits with the model states, the gathered units and the checkpoints: an upper bound, as work buffers are left
out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zprof.model.planning.job import Job
from zprof.model.planning.plan import Scheme
from zprof.model.planning.sensitivity import SpeedUp
from zprof.planner.memory.residual import gathered_bytes
from zprof.planner.sensitivity.conditions import with_ranks, with_samples
from zprof.planner.sensitivity.states import activation_bytes, state_bytes
from zprof.planner.step.ledger import step_with
from zprof.planner.step.runs import Stack

#: Above this many samples a micro-batch is no longer one.
_MOST_SAMPLES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    job: Job
    samples: int
    state_bytes: int


def speed_up_of(
    job: Job, stack: Stack, dp_degrees: Sequence[int], scheme: Scheme = Scheme.ZERO_3
) -> tuple[SpeedUp, ...]:
    """Of every world in which a sample fits, against the smallest of them; empty where it is not known."""
    worlds = sorted(_fitting(job, dp_degrees, scheme), key=lambda world: world.job.degrees.dp)
    return tuple(
        found for world in worlds if (found := _against(worlds[0], world, stack, scheme)) is not None
    )


def most_samples(job: Job, scheme: Scheme) -> int:
    """A device's largest micro-batch that fits; 0 where none does, or that is not known."""
    sample = activation_bytes(job, 1)
    if job.hardware is None or sample is None:
        return 0
    left = job.hardware.memory_bytes - state_bytes(job, scheme)
    left -= gathered_bytes(job) if scheme is Scheme.ZERO_3 else 0
    if left < sample:
        return 0
    return _MOST_SAMPLES if sample == 0 else min(_MOST_SAMPLES, left // sample)


def _fitting(job: Job, dp_degrees: Sequence[int], scheme: Scheme) -> Iterator[_World]:
    for dp in dp_degrees:
        there = with_ranks(job, dp)
        samples = most_samples(there, scheme)
        if samples:
            yield _World(job=there, samples=samples, state_bytes=state_bytes(there, scheme))


def _against(first: _World, world: _World, stack: Stack, scheme: Scheme) -> SpeedUp | None:
    start = _speed(first.job, stack, first.samples, scheme)
    equal = _speed(world.job, stack, first.samples, scheme)
    larger = _speed(world.job, stack, world.samples, scheme)
    kept = activation_bytes(world.job, world.samples)
    if start is None or equal is None or larger is None or kept is None:
        return None
    return SpeedUp(
        devices=world.job.degrees.devices,
        samples=world.samples,
        state_bytes=world.state_bytes,
        activation_bytes=kept,
        whole_ratio=larger / start,
        equal_batch_ratio=equal / start,
        larger_batch_ratio=larger / equal,
    )


def _speed(job: Job, stack: Stack, samples: int, scheme: Scheme) -> float | None:
    """Samples a second of a device."""
    step = step_with(with_samples(job, samples), scheme, stack)
    return None if step is None or not step.wall_ns else samples * job.batch.micro_batches / step.wall_ns
