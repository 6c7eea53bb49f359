"""Plan a job under every scheme: memory, traffic and step of one device, with assumptions and gaps.

Bytes that one device transfers per step along each axis of parallelism:

Data: gathers x psi + reductions x psi elements of the device's part of the model, with counts per stage
(arXiv 1910.02054, section 7). Model: section 8. Pipeline: one activation tensor per boundary, each way. Shard
padding is not included. Frozen parameters are gathered in stage 3 only and never reduced.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.job import Assumed, Job
from zprof.model.machines import Hardware
from zprof.model.plan import (
    PIPELINES,
    SCHEME_NAMES,
    ZERO_STAGES,
    Assumption,
    Axis,
    LinkTraffic,
    Plan,
    PlanRow,
    Scheme,
    get_zero_stage,
)
from zprof.model.tenants import DISPLAY_ORDER
from zprof.planner.gpt_units import with_units
from zprof.planner.memory import device_memory, largest_model
from zprof.planner.memory.closed_forms import total_state_bytes
from zprof.planner.memory.walk.ledger import ASSUMPTIONS as WALK_ASSUMPTIONS
from zprof.planner.parallelism import (
    block_times,
    compute_block_traffic,
    count_stream_elements,
    spread_devices,
    transfer_ns,
)
from zprof.planner.planned_step import STEP_ASSUMPTIONS, TRAFFIC_ASSUMPTIONS, plan_step
from zprof.planner.refusals import refuse_impossible
from zprof.planner.rounding import ceil_div
from zprof.planner.sensitivity import analyze_sensitivity
from zprof.planner.unit_times import (
    EqualUnits,
    UnitStack,
    achieved_flops_per_s,
    count_device_layers,
    select_device_stack,
    stack_units,
    time_data_link,
    trained_elements,
)
from zprof.planner.usual_values import drop_assumed, list_assumed_leaves, list_assumed_traffic
from zprof.step.from_plan import (
    get_link_name,
    make_boundary_group,
    make_data_group,
    make_model_group,
    ring_bytes,
)
from zprof.version import __version__

ASSUMPTIONS: Mapping[str, Assumption] = {
    **device_memory.MEMORY_ASSUMPTIONS,
    **WALK_ASSUMPTIONS,
    **largest_model.LARGEST_ASSUMPTIONS,
    **STEP_ASSUMPTIONS,
    **TRAFFIC_ASSUMPTIONS,
}
#: A plan that leaves less than this share of the device free is tight. The threshold is a choice: driver
#: context, network buffers and fragmentation take about that much and are not part of the peak.
TIGHT_RATIO = 0.1
#: Placeholder for unknown hardware: nodes of 8 only determine which groups stay within a node.
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


def plan(job: Job, *, schemes: Sequence[Scheme] = tuple(Scheme), with_sensitivity: bool = False) -> Plan:
    """Predict memory, traffic and step time of a job under each scheme.

    Pipeline schemes are omitted for a model with a single unit. The sensitivity analysis starts from the job
    as given, because it varies the conditions itself.

    Raises:
        BadInput: the job is impossible: degrees that do not divide, sizes below 1, a unit larger than a
            device.
    """
    refuse_impossible(job)
    applicable = [scheme for scheme in schemes if scheme not in PIPELINES or not is_one_unit(job)]
    answers = [_plan_row(job, scheme) for scheme in applicable]
    rows = tuple(row for row, _ in answers)
    # Only the assumptions that figures of the rows refer to.
    keys = {term.assumption for row in rows for term in row.terms}
    keys |= {link.assumption for row in rows for link in row.links}
    keys |= {key for row in rows if row.step for key in row.step.assumptions.values()}
    keys |= (
        set(largest_model.LARGEST_ASSUMPTIONS)
        if any(row.largest_parameters is not None for row in rows)
        else set()
    )
    return Plan(
        zprof_version=__version__,
        job=with_units(job),
        rows=rows,
        assumptions=({key: ASSUMPTIONS[key] for key in sorted(keys)}),
        sensitivity=analyze_sensitivity(drop_assumed(job)) if with_sensitivity else None,
        gaps=(
            *_list_job_gaps(job),
            *_row_gaps(answers),
            *_missing_time_gaps(job, [row for row, _ in answers]),
        ),
    )


def _plan_row(given: Job, scheme: Scheme) -> tuple[PlanRow, tuple[Gap, ...]]:
    job = with_units(spread_devices(given, scheme))
    memory = device_memory.plan_memory(job, scheme)
    # Known bytes per tenant, in display order.
    sizes = {
        tenant: [term.bytes for term in memory.terms if term.tenant is tenant] for tenant in DISPLAY_ORDER
    }
    known = {
        tenant: sum(size for size in of_tenant if size is not None)
        for tenant, of_tenant in sizes.items()
        if any(size is not None for size in of_tenant)
    }
    least_bytes = sum(known.values())
    peak_bytes = None if any(term.bytes is None for term in memory.terms) else least_bytes
    capacity_bytes = None if job.hardware is None else job.hardware.memory_bytes
    left_bytes = None if capacity_bytes is None or peak_bytes is None else capacity_bytes - peak_bytes
    fits = None if left_bytes is None else True
    if capacity_bytes is not None and least_bytes > capacity_bytes:
        fits = False  # the known terms alone exceed the device
    row = PlanRow(
        scheme=scheme,
        stage=ZERO_STAGES.get(scheme),
        degrees=job.degrees,
        micro_batches=job.batch.micro_batches,
        terms=memory.terms,
        tenants=known,
        state_bytes=_count_state_bytes(given, job, scheme),
        least_bytes=least_bytes,
        peak_bytes=peak_bytes,
        peak_at=memory.peak_at,
        fits=fits,
        largest_parameters=largest_model.largest_parameters(job, scheme),
        left_bytes=left_bytes,
        tight=capacity_bytes is not None
        and left_bytes is not None
        and 0 <= left_bytes < TIGHT_RATIO * capacity_bytes,
        links=plan_traffic(job, scheme),
        step=plan_step(job, scheme),
        assumed=list_assumed_leaves(given, scheme),
    )
    return row, memory.gaps


def _count_state_bytes(given: Job, spread: Job, scheme: Scheme) -> int:
    """Return the states at rest; a ZeRO stage needs no shape, so an assumed shape is not used."""
    if scheme in ZERO_STAGES and Assumed.SHAPE in given.assumed:
        return total_state_bytes(spread_devices(drop_assumed(given), scheme), scheme)
    return total_state_bytes(spread, scheme)


def _list_job_gaps(job: Job) -> Iterator[Gap]:
    block = None if job.shape is None else job.shape.block
    if block is not None and block.experts > 1:
        yield make_gap("plan_of_experts", experts=block.experts)
    if job.hardware is not None and achieved_flops_per_s(job, job.hardware) is None:
        yield make_gap("plan_without_fp32_peak", hardware=job.hardware.name)
    if is_one_unit(job):
        yield make_gap("plan_of_one_unit")


def is_one_unit(job: Job) -> bool:
    """Return True if the units were counted and the root contains no unit that could be a layer."""
    return job.shape is None and bool(job.units) and all(unit.encloses for unit in job.units)


def _row_gaps(made: Sequence[tuple[PlanRow, Sequence[Gap]]]) -> Iterator[Gap]:
    """Yield each gap once, with the affected schemes if only some are affected."""
    for gap in dict.fromkeys(gap for _, gaps in made for gap in gaps):
        affected = [row for row, gaps in made if gap in gaps]
        yield (
            gap
            if len(affected) == len(made)
            else replace(gap, what=f"{gap.what} of {_join_scheme_names(affected)}")
        )


def _missing_time_gaps(job: Job, rows: Sequence[PlanRow]) -> Iterator[Gap]:
    """Yield a gap for step times that need the width of inter-rank tensors; counted units lack it."""
    if job.hardware is None or job.batch.tokens is None or job.shape is not None or not job.units:
        return
    affected = [row for row in rows if row.step is None]
    if affected and achieved_flops_per_s(job, job.hardware) is not None:
        yield make_gap("plan_without_tensor_sizes", schemes=_join_scheme_names(affected))


def _join_scheme_names(rows: Sequence[PlanRow]) -> str:
    *first, last = (SCHEME_NAMES[row.scheme] for row in rows)
    return f"{', '.join(first)} and {last}" if first else last


def plan_traffic(job: Job, scheme: Scheme) -> tuple[LinkTraffic, ...]:
    """Return the traffic of one device, omitting unknown links; times are None without hardware."""
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
    # Elements of the device's units, or of the given parameters if only the shape is assumed.
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
