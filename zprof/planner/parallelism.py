"""Compute the cost per step of tensor parallelism and pipelines, and the degrees of each scheme.

Tensor parallelism as in Megatron-LM. With b samples, sequence length s and hidden size h, a block all-reduces
b s h elements twice in its forward pass, twice in its backward pass, and twice more if it is recomputed. An
all-reduce moves each element twice: 12 b s h elements with checkpointing, 8 without. Each all-reduce waits
for the product before it and blocks the next one, so nothing is hidden. Pa adds one all-gather of b s h
before each recomputation: 1/12 of the volume. Pa+cpu moves a rank's shard of a checkpoint, 2 b s h / mp
bytes, to the host in the forward pass and back in the backward pass, overlapped with compute.

Source: arXiv 1910.02054, section 8; arXiv 1909.08053, section 3. Not included: the all-reduces of a split
vocabulary, once per step.

A pipeline of p stages and m micro-batches. GPipe runs all micro-batches forward, then all backward, then the
update. f and b are the forward and backward pass of one micro-batch on one stage, and x is the transfer
between two stages:

    forward   p f + (p-1) x + (m-1) max(f, x)        backward likewise with b

Of this, (p-1)(f+b) is bubble: (p-1)/(m+p-1) of the compute time (arXiv 1811.06965, section 2.3). A device
moves one tensor each way per micro-batch, 2 m x. It waits for the first tensor each way, and then only for
the part of each transfer that exceeds compute. The other 2 (p-2) x of fill and drain use the links of other
stages and count as bubble too.

PipeDream in its steady state (one forward, one backward) has no flush and no bubble, at the cost of stashed
weights on each stage. A micro-batch takes max(f+b, 2x) (arXiv 1806.03377, sections 3.2 and 3.3). PipeDream
reduces gradients over data-parallel ranks and updates in every micro-batch.

A transfer is b s h elements per boundary, direction and micro-batch.

Degrees are chosen to compare all schemes on the same devices.

    data parallel, ZeRO    mp as given; all other devices, including pipeline stages, are data parallel
    model parallel         mp as given, else the largest divisor of the model's sizes within a node
    GPipe, PipeDream       pp chosen likewise; mp as given

Every scheme processes the same global batch, up to rounding to an integer number of micro-batches: with fewer
replicas, each replica runs more micro-batches, so step times stay comparable. The micro-batch itself
does not change.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from zprof.model.job import Degrees, Job, ModelUnit, Shape
from zprof.model.machines import Hardware
from zprof.model.plan import PIPELINES, Scheme
from zprof.planner.rounding import ceil_div
from zprof.step.from_plan import all_reduce_ns, gather_ns, make_boundary_group, make_model_group

#: All-reduces of a block per pass.
_ALL_REDUCES_PER_PASS = 2
#: An all-reduce is a reduce-scatter plus an all-gather.
_PARTS_OF_ALL_REDUCE = 2
_NS_PER_S = 1e9
#: Devices per node if the job has no hardware.
_DEFAULT_NODE_DEVICES = 8


class BlockTraffic(Struct, frozen=True, kw_only=True):
    """Traffic of one block in one micro-batch.

    ``gather_elements``: the all-gathers of Pa, included in ``elements``. ``host_bytes``: per direction.
    """

    elements: int
    gather_elements: int
    host_bytes: int


class BlockTimes(Struct, frozen=True, kw_only=True):
    """Collective and copy times of one block in one micro-batch, in ns."""

    forward_ns: int
    backward_ns: int
    copy_ns: int


def compute_block_traffic(job: Job) -> BlockTraffic | None:
    """Return the traffic of one block; None if the shape or the batch is unknown."""
    tensor = count_stream_elements(job)
    if tensor is None:
        return None
    mp, residual = job.degrees.mp, job.residual
    reduced = 0 if mp == 1 else _PARTS_OF_ALL_REDUCE * _ALL_REDUCES_PER_PASS * _count_passes(job) * tensor
    gathered = tensor if (job.degrees.mp > 1 and job.residual.checkpointing and job.residual.partition) else 0
    kept = tensor * job.element_bytes.parameter // (mp if residual.partition else 1)
    copied = kept if residual.checkpointing and residual.offload else 0
    return BlockTraffic(elements=reduced + gathered, gather_elements=gathered, host_bytes=copied)


def block_times(job: Job, hardware: Hardware) -> BlockTimes | None:
    """Return the collective and copy times of a block; None if shape or batch is unknown."""
    tensor, traffic = count_stream_elements(job), compute_block_traffic(job)
    if tensor is None or traffic is None:
        return None
    group, size = make_model_group(hardware, job.degrees), tensor * job.element_bytes.parameter
    one_pass = _ALL_REDUCES_PER_PASS * all_reduce_ns(group, size)
    gather = gather_ns(group, size) if traffic.gather_elements else 0.0
    return BlockTimes(
        forward_ns=round(one_pass),
        backward_ns=round((_count_passes(job) - 1) * one_pass + gather),
        copy_ns=round(traffic.host_bytes / hardware.host_bytes_per_s * _NS_PER_S),
    )


def _count_passes(job: Job) -> int:
    """Count the passes: forward, backward and, with checkpointing, the recomputed forward."""
    return 3 if job.residual.checkpointing else 2


class PipelineFlow(Struct, frozen=True, kw_only=True):
    """Time that a pipeline adds to the compute passes of one device.

    ``idle_ns``: waits for compute and transfers of other stages. ``moved_ns``: own transfers, one tensor each
    way per micro-batch, hidden or not. ``exposed_ns``: the exposed part of ``moved_ns``.
    """

    idle_ns: int
    exposed_ns: int
    moved_ns: int


def transfer_ns(job: Job, hardware: Hardware, elements: int) -> int:
    """Return the time of a transfer: a hop plus the bytes; each model-parallel rank sends the full tensor."""
    pair = make_boundary_group(hardware, job.degrees)
    size = elements * job.element_bytes.parameter
    return round(pair.hop_ns + size / pair.bytes_per_s * _NS_PER_S)


def compute_gpipe_flow(
    *, stages: int, micro_batches: int, forward_ns: int, backward_ns: int, transfer: int
) -> PipelineFlow:
    """Return the flow of GPipe, which flushes after the last micro-batch; ``stages`` is at least 2."""
    excess = max(0, transfer - forward_ns) + max(0, transfer - backward_ns)
    return PipelineFlow(
        idle_ns=(stages - 1) * (forward_ns + backward_ns) + 2 * (stages - 2) * transfer,
        exposed_ns=2 * transfer + (micro_batches - 1) * excess,
        moved_ns=2 * micro_batches * transfer,
    )


def compute_pipedream_flow(
    *, micro_batches: int, forward_ns: int, backward_ns: int, transfer: int
) -> PipelineFlow:
    """Return the flow of PipeDream in its steady state."""
    excess = max(0, 2 * transfer - forward_ns - backward_ns)
    return PipelineFlow(idle_ns=0, exposed_ns=micro_batches * excess, moved_ns=2 * micro_batches * transfer)


def count_stream_elements(job: Job) -> int | None:
    """Return b s h elements per micro-batch of one replica; None if shape or batch is unknown."""
    tokens = job.batch.tokens
    return None if job.shape is None or tokens is None else tokens * job.shape.hidden


def spread_devices(job: Job, scheme: Scheme) -> Job:
    """Return the job with the degrees of a scheme on the same devices.

    A model-parallel degree that is not given is chosen to divide hidden and heads. The vocabulary is padded
    to a multiple of it, as in Megatron-LM, and counted units keep only their element counts. A pipeline
    degree that is not given is chosen to divide the number of layers. Model parallelism and the pipelines do
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
    """Split elements over ``mp`` ranks; drop byte counts, because inputs and norms are not split."""
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
