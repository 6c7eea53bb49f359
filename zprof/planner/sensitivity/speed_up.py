"""Split super-linear speed-up into the effects of an equal batch and of a larger batch.

Sharding over more ranks leaves each device more memory, so it takes more samples, and the exposed time of a
step is spread over more of them (arXiv 1910.02054, section 10.3, figure 3, table 6). With thr(N, n) the
throughput of a device at N ranks and n samples per micro-batch:

    whole = thr(N, n_N) / thr(N_0, n_0) = [thr(N, n_0) / thr(N_0, n_0)] x [thr(N, n_N) / thr(N, n_0)]

The first factor is the equal-batch effect and hardly above 1: sharding itself moves no less. n_N is the most
that fits by the plan's memory. If a part of that is unknown (counted units, whose bytes at another batch are
not given), n_N is the most that fits next to model states, gathered units, checkpoints and the recomputed
block. This is an upper bound.

Reported activations follow ``memory.closed_forms``, without work buffers and the optimizer's copies.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zprof.model.job import Job, Shape
from zprof.model.plan import Scheme, SpeedUp
from zprof.planner.gpt_units import with_units
from zprof.planner.memory import closed_forms
from zprof.planner.memory.closed_forms import gathered_bytes, sum_known_bytes, working_set_bytes
from zprof.planner.memory.device_memory import plan_memory
from zprof.planner.memory.largest_model import largest_that_fits
from zprof.planner.memory.states import total_state_bytes
from zprof.planner.sensitivity.conditions import with_ranks, with_samples
from zprof.planner.step.ledger import plan_step_of_stack
from zprof.planner.step.unit_times import Stack

#: Maximum samples of a micro-batch.
_MAX_SAMPLES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSamples:
    """Largest micro-batch of a device; ``at_most`` marks an upper bound, because some memory is unknown."""

    count: int
    at_most: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    job: Job
    most: MaxSamples
    state_bytes: int


def compute_speed_up(
    job: Job, stack: Stack, dp_degrees: Sequence[int], scheme: Scheme = Scheme.ZERO_3
) -> tuple[SpeedUp, ...]:
    """Return the speed-up of every world in which a sample fits, relative to the smallest; empty if unknown.

    ``job`` must not have units of its shape yet, because their bytes depend on the batch.
    """
    worlds = sorted(_fitting_worlds(job, dp_degrees, scheme), key=lambda world: world.job.degrees.dp)
    return tuple(
        found for world in worlds if (found := _compare_worlds(worlds[0], world, stack, scheme)) is not None
    )


def find_max_samples(job: Job, scheme: Scheme) -> MaxSamples:
    """Return a device's largest micro-batch that fits; 0 if none does or the inputs are unknown."""
    if job.hardware is None or job.shape is None or job.batch.sequence is None:
        return MaxSamples(count=0, at_most=False)
    memory = job.hardware.memory_bytes
    if _is_memory_known(job, scheme):
        count = largest_that_fits(
            lambda samples: _peak_bytes_with_samples(job, scheme, samples), memory, most=_MAX_SAMPLES
        )
        return MaxSamples(count=count, at_most=False)
    return MaxSamples(count=_max_samples_by_formula(job, job.shape, scheme, memory), at_most=True)


def _is_memory_known(job: Job, scheme: Scheme) -> bool:
    """Return True if all memory of the job is known at any batch."""
    terms = plan_memory(with_units(with_samples(job, 1)), scheme).terms
    return not job.units and all(term.bytes is not None for term in terms)


def _peak_bytes_with_samples(job: Job, scheme: Scheme, samples: int) -> int:
    return sum_known_bytes(plan_memory(with_units(with_samples(job, samples)), scheme).terms)


def _max_samples_by_formula(job: Job, shape: Shape, scheme: Scheme, memory: int) -> int:
    there = with_units(job)
    left = (
        memory - total_state_bytes(there, scheme) - (gathered_bytes(there) if scheme is Scheme.ZERO_3 else 0)
    )
    sample = micro_batch_activation_bytes(job, 1) or 0
    if job.residual.checkpointing:
        sequence, size = job.batch.sequence or 0, job.element_bytes.parameter
        sample += working_set_bytes(shape, sequence, size, mp=job.degrees.mp)
    return max(0, min(_MAX_SAMPLES, left // max(1, sample)))


def _fitting_worlds(job: Job, dp_degrees: Sequence[int], scheme: Scheme) -> Iterator[_World]:
    for dp in dp_degrees:
        there = with_ranks(job, dp)
        most = find_max_samples(there, scheme)
        if most.count:
            yield _World(job=there, most=most, state_bytes=total_state_bytes(with_units(there), scheme))


def _compare_worlds(first: _World, world: _World, stack: Stack, scheme: Scheme) -> SpeedUp | None:
    start = _device_throughput(first.job, stack, first.most.count, scheme)
    equal = _device_throughput(world.job, stack, first.most.count, scheme)
    larger = _device_throughput(world.job, stack, world.most.count, scheme)
    kept = micro_batch_activation_bytes(world.job, world.most.count)
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


def _device_throughput(job: Job, stack: Stack, samples: int, scheme: Scheme) -> float | None:
    """Return samples per ns of a device."""
    step = plan_step_of_stack(with_samples(job, samples), scheme, stack)
    return None if step is None or not step.wall_ns else samples * job.batch.micro_batches / step.wall_ns


def micro_batch_activation_bytes(job: Job, samples: int) -> int | None:
    """Return the bytes that the forward saves for the backward; None if shape or sequence is unknown."""
    shape, sequence, mp = job.shape, job.batch.sequence, job.degrees.mp
    if shape is None or sequence is None:
        return None
    size = job.element_bytes.parameter
    if job.residual.checkpointing:
        return closed_forms.checkpoint_bytes(shape, samples * sequence, size, job.residual, mp=mp)
    return closed_forms.activation_bytes(shape, samples * sequence, size, mp=mp)
