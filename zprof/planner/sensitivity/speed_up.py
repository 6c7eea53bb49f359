"""Split super-linear speed-up into an equal-batch and a larger-batch effect.

Sharding over more ranks frees memory on each device. It can then run a larger micro-batch, which amortizes
the exposed time (arXiv 1910.02054, section 10.3, figure 3, table 6). With thr(N, n) the
throughput of a device at N ranks and n samples per micro-batch:

    total = thr(N, n_N) / thr(N_0, n_0) = [thr(N, n_0) / thr(N_0, n_0)] x [thr(N, n_N) / thr(N, n_0)]

The first factor is the equal-batch effect. It is barely above 1, because sharding over more ranks does not
reduce traffic. n_N is the largest micro-batch that fits according to the memory plan. If some term is unknown
(counted units carry bytes for one batch size only), n_N is the largest that fits next to model states,
gathered units, checkpoints and the recomputed block. This is an upper bound.

Reported activations follow ``memory.closed_forms``, excluding work buffers and the optimizer's copies.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from zprof.model.job import Job
from zprof.model.plan import Scheme, SpeedUp, Term
from zprof.planner.gpt_units import with_units
from zprof.planner.memory import closed_forms
from zprof.planner.memory.closed_forms import gathered_bytes, sum_known_bytes, working_set_bytes
from zprof.planner.memory.device_memory import plan_memory
from zprof.planner.memory.largest_model import find_largest_fit
from zprof.planner.memory.states import total_state_bytes
from zprof.planner.sensitivity.conditions import with_ranks, with_samples
from zprof.planner.step.ledger import plan_stack_step
from zprof.planner.step.unit_times import UnitStack

#: Upper bound of the search, in samples per micro-batch.
_MAX_SAMPLES = 1 << 20


class MaxSamples(Struct, frozen=True, kw_only=True):
    """Largest micro-batch of a device; ``is_upper_bound`` if some memory is unknown."""

    count: int
    is_upper_bound: bool


class _FittingWorld(Struct, frozen=True, kw_only=True):
    job: Job
    max_samples: MaxSamples
    state_bytes: int


def compute_speed_up(
    job: Job, stack: UnitStack, dp_degrees: Sequence[int], scheme: Scheme = Scheme.ZERO_3
) -> tuple[SpeedUp, ...]:
    """Return the speed-up of every world size at which a sample fits, relative to the smallest.

    Empty if unknown. ``job`` must not have its units filled in yet, because their bytes depend on the batch.
    """
    worlds = sorted(_fitting_worlds(job, dp_degrees, scheme), key=lambda world: world.job.degrees.dp)
    return tuple(
        row for world in worlds if (row := _compare_worlds(worlds[0], world, stack, scheme)) is not None
    )


def find_max_samples(job: Job, scheme: Scheme) -> MaxSamples:
    """Return a device's largest micro-batch that fits; 0 if none does or the inputs are unknown."""
    if job.hardware is None or job.shape is None or job.batch.sequence is None:
        return MaxSamples(count=0, is_upper_bound=False)
    memory = job.hardware.memory_bytes

    def plan_terms(samples: int) -> Sequence[Term]:
        return plan_memory(with_units(with_samples(job, samples)), scheme).terms

    if not job.units and all(term.bytes is not None for term in plan_terms(1)):  # known for any batch size
        count = find_largest_fit(
            lambda samples: sum_known_bytes(plan_terms(samples)), memory, max_value=_MAX_SAMPLES
        )
        return MaxSamples(count=count, is_upper_bound=False)
    job_with_units = with_units(job)
    free_bytes = (
        memory
        - total_state_bytes(job_with_units, scheme)
        - (gathered_bytes(job_with_units) if scheme is Scheme.ZERO_3 else 0)
    )
    bytes_per_sample = micro_batch_activation_bytes(job, 1) or 0
    if job.residual.checkpointing:
        sequence, size = job.batch.sequence or 0, job.element_bytes.parameter
        bytes_per_sample += working_set_bytes(job.shape, sequence, size, mp=job.degrees.mp)
    return MaxSamples(
        count=max(0, min(_MAX_SAMPLES, free_bytes // max(1, bytes_per_sample))), is_upper_bound=True
    )


def _fitting_worlds(job: Job, dp_degrees: Sequence[int], scheme: Scheme) -> Iterator[_FittingWorld]:
    for dp in dp_degrees:
        scaled = with_ranks(job, dp)
        max_samples = find_max_samples(scaled, scheme)
        if max_samples.count:
            yield _FittingWorld(
                job=scaled, max_samples=max_samples, state_bytes=total_state_bytes(with_units(scaled), scheme)
            )


def _compare_worlds(
    first: _FittingWorld, world: _FittingWorld, stack: UnitStack, scheme: Scheme
) -> SpeedUp | None:
    base = _device_throughput(first.job, stack, first.max_samples.count, scheme)
    equal_batch = _device_throughput(world.job, stack, first.max_samples.count, scheme)
    larger_batch = _device_throughput(world.job, stack, world.max_samples.count, scheme)
    activation_bytes = micro_batch_activation_bytes(world.job, world.max_samples.count)
    if base is None or equal_batch is None or larger_batch is None or activation_bytes is None:
        return None
    return SpeedUp(
        devices=world.job.degrees.devices,
        samples=world.max_samples.count,
        at_most=world.max_samples.is_upper_bound,
        state_bytes=world.state_bytes,
        activation_bytes=activation_bytes,
        whole_ratio=larger_batch / base,
        equal_batch_ratio=equal_batch / base,
        larger_batch_ratio=larger_batch / equal_batch,
    )


def _device_throughput(job: Job, stack: UnitStack, samples: int, scheme: Scheme) -> float | None:
    """Return samples per ns of a device."""
    step = plan_stack_step(with_samples(job, samples), scheme, stack)
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
