"""Compute the bytes that one device transfers per step along each axis of parallelism.

Data: gathers x psi + reductions x psi elements of the device's part of the model, with counts per stage
(arXiv 1910.02054, section 7). Model: section 8. Pipeline: one activation tensor per boundary, each way. Shard
padding is not included. Frozen parameters are gathered in stage 3 only and never reduced.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from zprof.model.job import Assumed, Hardware, Job
from zprof.model.plan import Axis, LinkTraffic, Scheme, get_zero_stage
from zprof.planner.parallelism import (
    block_times,
    compute_block_traffic,
    count_stream_elements,
    transfer_ns,
)
from zprof.planner.rounding import ceil_div
from zprof.planner.unit_times import (
    EqualUnits,
    UnitStack,
    count_device_layers,
    select_device_stack,
    stack_units,
    time_data_link,
    trained_elements,
)
from zprof.planner.usual_values import list_assumed_traffic
from zprof.step.from_plan import (
    get_link_name,
    make_boundary_group,
    make_data_group,
    make_model_group,
    ring_bytes,
)

#: Placeholder for unknown hardware: nodes of 8 determine only which groups stay within a node.
_UNKNOWN_HARDWARE = Hardware(
    name="unknown",
    memory_bytes=1,
    flops_per_s=1.0,
    efficiency_ratio=1.0,
    devices_per_node=8,
    node_bytes_per_s=1.0,
    intra_bytes_per_s=1.0,
)
_DATA_ASSUMPTIONS = {0: "traffic.stage_0", 1: "traffic.stage_1", 2: "traffic.stage_2", 3: "traffic.stage_3"}


def plan_traffic(job: Job, scheme: Scheme) -> tuple[LinkTraffic, ...]:
    """Return the traffic of one device, without unknown links; times are None without hardware."""
    placed = job if job.hardware else replace(job, hardware=_UNKNOWN_HARDWARE)
    hardware = job.hardware or _UNKNOWN_HARDWARE
    links = (
        *_data_traffic(placed, hardware, scheme),
        *_model_traffic(placed, hardware),
        *_pipeline_traffic(placed, hardware),
    )
    all_links = tuple(
        replace(link, assumed=list_assumed_traffic(job, scheme, link.axis))
        for link in (*links, *_host_traffic(placed, hardware))
    )
    return all_links if job.hardware else tuple(replace(link, time_ns=None) for link in all_links)


def _data_traffic(job: Job, hardware: Hardware, scheme: Scheme) -> Iterator[LinkTraffic]:
    if job.degrees.dp == 1:
        return
    stage, sizes, stack = get_zero_stage(scheme), job.element_bytes, stack_units(job)
    if stack is not None:
        stack = select_device_stack(job, stack)
    else:  # the units are unknown: the device's part of the parameters is one unit
        per_device = ceil_div(job.parameters, job.degrees.mp * job.degrees.pp)
        stack = UnitStack(runs=(EqualUnits(count=1, elements=per_device, flop_per_token=0.0),))
    gathers, reductions = count_collectives(scheme, job.batch.micro_batches)
    kept = job.batch.micro_batches if scheme is Scheme.ZERO_3 and job.overlap.keep_last else 0
    # The elements of the device's units, or of the stated parameters if only the shape is assumed.
    elements = (
        ceil_div(job.parameters, job.degrees.mp)
        if Assumed.SHAPE in job.assumed and "bytes" not in list_assumed_traffic(job, scheme, Axis.DATA)
        else stack.elements
    )
    trained = trained_elements(job, elements)
    gathered = gathers * (elements if stage == 3 else trained) - kept * stack.last.elements
    reduced = reductions * trained
    size = gathered * sizes.gathered + reduced * sizes.reduced
    links = [(run.count, *time_data_link(job, hardware, run, stage)) for run in stack.all]
    last, _ = time_data_link(job, hardware, stack.last, stage)
    reduced_times = reductions // 2 if stage == 0 else reductions
    yield LinkTraffic(
        axis=Axis.DATA,
        link=get_link_name(make_data_group(hardware, job.degrees)),
        elements=gathered + reduced,
        bytes=size,
        ring_bytes=round(ring_bytes(job.degrees.dp, size)),
        time_ns=sum(n * (gathers * gather + reduced_times * reduce) for n, gather, reduce in links)
        - kept * last,
        assumption="traffic.pipedream_data" if scheme is Scheme.PIPEDREAM else _DATA_ASSUMPTIONS[stage],
    )


def _model_traffic(job: Job, hardware: Hardware) -> Iterator[LinkTraffic]:
    block, time = compute_block_traffic(job), block_times(job, hardware)
    if job.degrees.mp == 1 or block is None or time is None:
        return
    count = count_device_layers(job) * job.batch.micro_batches
    size = block.elements * count * job.element_bytes.parameter
    yield LinkTraffic(
        axis=Axis.MODEL,
        link=get_link_name(make_model_group(hardware, job.degrees)),
        elements=block.elements * count,
        bytes=size,
        ring_bytes=round(ring_bytes(job.degrees.mp, size)),
        time_ns=count * (time.forward_ns + time.backward_ns),
        assumption="traffic.model",
    )


def _pipeline_traffic(job: Job, hardware: Hardware) -> Iterator[LinkTraffic]:
    elements = count_stream_elements(job)
    if job.degrees.pp == 1 or elements is None:
        return
    moved = 2 * elements * job.batch.micro_batches
    yield LinkTraffic(
        axis=Axis.PIPELINE,
        link=get_link_name(make_boundary_group(hardware, job.degrees)),
        elements=moved,
        bytes=moved * job.element_bytes.parameter,
        ring_bytes=moved * job.element_bytes.parameter,
        time_ns=2 * job.batch.micro_batches * transfer_ns(job, hardware, elements),
        assumption="traffic.pipeline",
    )


def _host_traffic(job: Job, hardware: Hardware) -> Iterator[LinkTraffic]:
    block, time = compute_block_traffic(job), block_times(job, hardware)
    if block is None or time is None or not block.host_bytes:
        return
    moves = 2 * count_device_layers(job) * job.batch.micro_batches
    yield LinkTraffic(
        axis=Axis.HOST,
        link="pcie",
        elements=moves * block.host_bytes // job.element_bytes.parameter,
        bytes=moves * block.host_bytes,
        ring_bytes=moves * block.host_bytes,
        time_ns=moves * time.copy_ns,
        assumption="traffic.host",
    )


def count_collectives(scheme: Scheme, micro_batches: int) -> tuple[int, int]:
    """Count the gathers of all parameters and the reductions of all gradients in a step.

    An all-reduce is two reductions (arXiv 1910.02054, section 7.2).

    PipeDream updates, and therefore reduces, in every micro-batch (arXiv 1806.03377, section 3.3).
    """
    match scheme:
        case Scheme.ZERO_1:
            return 1, 1
        case Scheme.ZERO_2:
            return 1, micro_batches
        case Scheme.ZERO_3:
            return 2 * micro_batches, micro_batches
        case Scheme.PIPEDREAM:
            return 0, 2 * micro_batches
        case _:
            return 0, 2
