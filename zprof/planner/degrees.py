"""Choose each scheme's parallel degrees so that all schemes are compared on the same devices.

    data parallel, ZeRO    mp as given; all other devices, including pipeline stages, are data parallel
    model parallel         mp as given, else the largest divisor of the model's sizes within a node
    GPipe, PipeDream       pp chosen likewise; mp as given

Every scheme processes the same global batch, up to rounding to an integer number of micro-batches: with fewer
replicas, each replica runs more micro-batches, so that step times stay comparable. The micro-batch itself
does not change.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from zprof.model.job import Degrees, Job, ModelUnit, Shape
from zprof.model.plan import PIPELINES, Scheme
from zprof.planner.rounding import ceil_div

#: Devices per node if the job has no hardware.
_DEFAULT_NODE_DEVICES = 8


def spread_devices(job: Job, scheme: Scheme) -> Job:
    """Return the job with the degrees that a scheme uses on the same devices.

    A model-parallel degree that is not stated is chosen so that it divides hidden and heads. The vocabulary
    is padded to a multiple of it, as in Megatron-LM, and counted units keep only their element counts. A
    pipeline degree that is not stated divides the number of layers. Model parallelism and the pipelines do
    not use ZeRO sharding.
    """
    if scheme is Scheme.MODEL_PARALLEL:
        spread = _spread_model_parallel(job)
    elif scheme in PIPELINES:
        spread = _spread_pipeline(job)
    else:
        spread = replace(job, degrees=_fold_pipeline(job.degrees, job.degrees.mp))
    total = job.batch.micro_batches * job.degrees.dp  # the global batch is kept
    return replace(spread, batch=replace(spread.batch, micro_batches=max(1, total // spread.degrees.dp)))


def _spread_model_parallel(job: Job) -> Job:
    given = job.degrees
    if given.mp > 1:
        return replace(job, degrees=_fold_pipeline(given, given.mp))
    shape = job.shape
    divisible = () if shape is None else model_parallel_sizes(shape).values()
    mp = _largest_divisor((given.devices, *divisible), _devices_per_node(job))
    if shape is not None:
        shape = replace(shape, vocabulary=ceil_div(shape.vocabulary, mp) * mp)
    return replace(job, degrees=_fold_pipeline(given, mp), shape=shape, units=_split_units(job.units, mp))


def _spread_pipeline(job: Job) -> Job:
    given = job.degrees
    if given.pp > 1:
        return job
    layers = count_layers(job)
    pp = _largest_divisor((given.dp,) if layers is None else (given.dp, layers), _devices_per_node(job))
    return replace(job, degrees=Degrees(dp=given.dp // pp, mp=given.mp, pp=pp))


def _fold_pipeline(given: Degrees, mp: int) -> Degrees:
    return Degrees(dp=given.devices // mp, mp=mp, pp=1)


def _devices_per_node(job: Job) -> int:
    return _DEFAULT_NODE_DEVICES if job.hardware is None else job.hardware.devices_per_node


def model_parallel_sizes(shape: Shape) -> Mapping[str, int]:
    """Return the sizes that model parallelism must divide, by name; a vocabulary can be padded instead."""
    sizes = {"hidden": shape.hidden} | ({} if shape.heads is None else {"heads": shape.heads})
    block = shape.block
    return sizes if block is None else sizes | {"kv heads": block.kv_heads, "mlp": block.mlp}


def _split_units(units: Sequence[ModelUnit], mp: int) -> tuple[ModelUnit, ...]:
    """Split elements over ``mp`` ranks; drop byte counts, as inputs and norms do not divide by ``mp``."""
    if mp == 1:
        return tuple(units)
    return tuple(
        ModelUnit(
            name=unit.name,
            elements=ceil_div(unit.elements, mp),
            frozen_elements=ceil_div(unit.frozen_elements, mp),
            active_elements=None if unit.active_elements is None else ceil_div(unit.active_elements, mp),
            encloses=unit.encloses,
        )
        for unit in units
    )


def count_layers(job: Job) -> int | None:
    """Return the number of layers that a pipeline can divide; None if unknown."""
    if job.shape is not None:
        return job.shape.layers
    return sum(not unit.encloses for unit in job.units) or None


def _largest_divisor(numbers: Sequence[int], max_divisor: int) -> int:
    """Return the largest number up to ``max_divisor`` that divides all of ``numbers``."""
    limit = min(*numbers, max_divisor) if numbers else 1
    return max(part for part in range(1, limit + 1) if all(number % part == 0 for number in numbers))
