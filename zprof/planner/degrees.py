"""Spread the same devices in another way, so that all schemes are compared on the same hardware.

    data parallel, ZeRO    mp as stated; all else is data parallel, the devices of pipeline stages too
    model parallel         mp as stated, else the most of a node's devices that divides what it must
    GPipe, PipeDream       pp likewise; mp as stated

Every scheme works off the same global batch, as far as whole micro-batches allow: where fewer replicas are
left, each takes the micro-batches of those that are gone, so that times of a step can be compared.  A
micro-batch itself stays as it is.
"""

from collections.abc import Sequence
from dataclasses import replace

from zprof.model.job import Degrees, Job, Shape, Unit
from zprof.model.plan import PIPELINES, Scheme
from zprof.planner.rounding import ceil_div

#: Devices of a node where no hardware says it.
_DEFAULT_NODE_DEVICES = 8


def spread_devices(job: Job, scheme: Scheme) -> Job:
    """The job with the degrees of a scheme; ZeRO's own sharding is off in the last two.

    A model-parallel degree that is not stated divides hidden and heads, and the vocabulary is padded to a
    multiple of it, as Megatron-LM does; units of another degree keep their elements only.  A pipeline degree
    that is not stated divides the layers.
    """
    return _keep_global_batch(_spread_by_scheme(job, scheme), job)


def _spread_by_scheme(job: Job, scheme: Scheme) -> Job:
    if scheme is Scheme.MODEL_PARALLEL:
        return _spread_model_parallel(job)
    if scheme in PIPELINES:
        return _spread_pipeline(job)
    return replace(job, degrees=_fold_pipeline(job.degrees, job.degrees.mp))


def _keep_global_batch(there: Job, given: Job) -> Job:
    """What all replicas take together, in whole micro-batches; one each at least."""
    whole = given.batch.micro_batches * given.degrees.dp
    return replace(there, batch=replace(there.batch, micro_batches=max(1, whole // there.degrees.dp)))


def _spread_model_parallel(job: Job) -> Job:
    given = job.degrees
    if given.mp > 1:
        return replace(job, degrees=_fold_pipeline(given, given.mp))
    split = () if job.shape is None else model_parallel_sizes(job.shape)
    mp = _largest_divisor((given.devices, *split), _devices_of_node(job))
    return replace(
        job,
        degrees=_fold_pipeline(given, mp),
        shape=_pad_vocabulary(job.shape, mp),
        units=_split_units(job.units, mp),
    )


def _spread_pipeline(job: Job) -> Job:
    given = job.degrees
    if given.pp > 1:
        return job
    layers = count_layers(job)
    pp = _largest_divisor((given.dp,) if layers is None else (given.dp, layers), _devices_of_node(job))
    return replace(job, degrees=Degrees(dp=given.dp // pp, mp=given.mp, pp=pp))


def _fold_pipeline(given: Degrees, mp: int) -> Degrees:
    return Degrees(dp=given.devices // mp, mp=mp, pp=1)


def _devices_of_node(job: Job) -> int:
    return _DEFAULT_NODE_DEVICES if job.hardware is None else job.hardware.devices_per_node


def model_parallel_sizes(shape: Shape) -> tuple[int, ...]:
    """What model parallelism divides, beside a vocabulary that can be padded."""
    return (shape.hidden,) if shape.heads is None else (shape.hidden, shape.heads)


def _pad_vocabulary(shape: Shape | None, mp: int) -> Shape | None:
    return None if shape is None else replace(shape, vocabulary=ceil_div(shape.vocabulary, mp) * mp)


def _split_units(units: Sequence[Unit], mp: int) -> tuple[Unit, ...]:
    """What a unit keeps does not divide as its elements do (inputs, norms): that is unknown then."""
    if mp == 1:
        return tuple(units)
    return tuple(
        Unit(
            name=unit.name,
            elements=ceil_div(unit.elements, mp),
            frozen_elements=ceil_div(unit.frozen_elements, mp),
            encloses=unit.encloses,
        )
        for unit in units
    )


def count_layers(job: Job) -> int | None:
    """What a pipeline divides; None where the model's inside is not known."""
    if job.shape is not None:
        return job.shape.layers
    return sum(not unit.encloses for unit in job.units) or None


def _largest_divisor(wholes: Sequence[int], most: int) -> int:
    """The largest number that divides all and is not above ``most``."""
    least = min(*wholes, most) if wholes else 1
    return max(part for part in range(1, least + 1) if all(whole % part == 0 for whole in wholes))
