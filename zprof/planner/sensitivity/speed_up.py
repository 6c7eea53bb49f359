"""Super-linear speed-up, taken apart: the same batch of a device, and a larger one.

Sharding over more ranks leaves a device more memory, so that it takes more samples, and what is exposed in a
step is spread over more of them (arXiv 1910.02054, section 10.3, figure 3, table 6).  With thr(N, n) samples
a second of a device at N ranks and n samples a micro-batch:

    whole = thr(N, n_N) / thr(N_0, n_0) = [thr(N, n_0) / thr(N_0, n_0)] x [thr(N, n_N) / thr(N, n_0)]

The first factor is of equal batch, and hardly above 1: sharding itself moves no less.  n_N is the most that
fits by the memory of the plan.  Where a part of that is not known (units of the job's own, whose bytes at
another batch nobody says), it is the most that fits beside model states, gathered units, checkpoints and the
block that is computed again: an upper bound.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zprof.model.planning.job import Job, Shape
from zprof.model.planning.plan import Scheme
from zprof.model.planning.sensitivity import SpeedUp
from zprof.planner.memory.moments import known_bytes
from zprof.planner.memory.residual import gathered_bytes, working_set_bytes
from zprof.planner.memory.rows import memory_of
from zprof.planner.memory.searching import largest_that_fits
from zprof.planner.memory.states import law_bytes
from zprof.planner.models.units import with_units
from zprof.planner.sensitivity.conditions import with_ranks, with_samples
from zprof.planner.sensitivity.states import activation_bytes
from zprof.planner.step.ledger import step_with
from zprof.planner.step.runs import Stack

#: Above this many samples a micro-batch is no longer one.
_MOST_SAMPLES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MostSamples:
    """Of a device's micro-batch; ``at_most``: an upper bound, as not all of its memory is known."""

    count: int
    at_most: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    job: Job
    most: MostSamples
    state_bytes: int


def speed_up_of(
    job: Job, stack: Stack, dp_degrees: Sequence[int], scheme: Scheme = Scheme.ZERO_3
) -> tuple[SpeedUp, ...]:
    """Of every world in which a sample fits, against the smallest of them; empty where it is not known.

    ``job`` has no units of its shape yet: they keep other bytes with every batch.
    """
    worlds = sorted(_fitting(job, dp_degrees, scheme), key=lambda world: world.job.degrees.dp)
    return tuple(
        found for world in worlds if (found := _against(worlds[0], world, stack, scheme)) is not None
    )


def most_samples(job: Job, scheme: Scheme) -> MostSamples:
    """A device's largest micro-batch that fits; 0 where none does, or that is not known."""
    if job.hardware is None or job.shape is None or job.batch.sequence is None:
        return MostSamples(count=0, at_most=False)
    memory = job.hardware.memory_bytes
    if _is_known(job, scheme):
        count = largest_that_fits(lambda samples: _peak(job, scheme, samples), memory, most=_MOST_SAMPLES)
        return MostSamples(count=count, at_most=False)
    return MostSamples(count=_by_formula(job, job.shape, scheme, memory), at_most=True)


def _is_known(job: Job, scheme: Scheme) -> bool:
    """All of its memory at any batch."""
    terms = memory_of(with_units(with_samples(job, 1)), scheme).terms
    return not job.units and all(term.bytes is not None for term in terms)


def _peak(job: Job, scheme: Scheme, samples: int) -> int:
    return known_bytes(memory_of(with_units(with_samples(job, samples)), scheme).terms)


def _by_formula(job: Job, shape: Shape, scheme: Scheme, memory: int) -> int:
    there = with_units(job)
    left = memory - law_bytes(there, scheme) - (gathered_bytes(there) if scheme is Scheme.ZERO_3 else 0)
    sample = activation_bytes(job, 1) or 0
    if job.residual.checkpointing:
        sequence, size = job.batch.sequence or 0, job.element_bytes.parameter
        sample += working_set_bytes(shape, sequence, size, mp=job.degrees.mp)
    return max(0, min(_MOST_SAMPLES, left // max(1, sample)))


def _fitting(job: Job, dp_degrees: Sequence[int], scheme: Scheme) -> Iterator[_World]:
    for dp in dp_degrees:
        there = with_ranks(job, dp)
        most = most_samples(there, scheme)
        if most.count:
            yield _World(job=there, most=most, state_bytes=law_bytes(with_units(there), scheme))


def _against(first: _World, world: _World, stack: Stack, scheme: Scheme) -> SpeedUp | None:
    start = _speed(first.job, stack, first.most.count, scheme)
    equal = _speed(world.job, stack, first.most.count, scheme)
    larger = _speed(world.job, stack, world.most.count, scheme)
    kept = activation_bytes(world.job, world.most.count)
    if start is None or equal is None or larger is None or kept is None:
        return None
    return SpeedUp(
        devices=world.job.degrees.devices,
        samples=world.most.count,
        at_most=world.most.at_most,
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
