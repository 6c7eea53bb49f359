"""Plan a job under every scheme: memory, traffic and step of one device, with assumptions and gaps."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.job import Assumed, Job
from zprof.model.plan import PIPELINES, SCHEME_NAMES, ZERO_STAGES, Assumption, Plan, PlanRow, Scheme
from zprof.model.tenants import DISPLAY_ORDER
from zprof.planner.gpt_units import with_units
from zprof.planner.link_traffic import plan_traffic
from zprof.planner.memory import device_memory, largest_model
from zprof.planner.memory.closed_forms import total_state_bytes
from zprof.planner.memory.walk.ledger import ASSUMPTIONS as WALK_ASSUMPTIONS
from zprof.planner.parallelism import spread_devices
from zprof.planner.planned_step import STEP_ASSUMPTIONS, TRAFFIC_ASSUMPTIONS, plan_step
from zprof.planner.refusals import refuse_impossible
from zprof.planner.sensitivity import analyze_sensitivity
from zprof.planner.unit_times import achieved_flops_per_s
from zprof.planner.usual_values import drop_assumed, list_assumed_leaves
from zprof.version import __version__

ASSUMPTIONS: Mapping[str, Assumption] = {
    **device_memory.MEMORY_ASSUMPTIONS,
    **WALK_ASSUMPTIONS,
    **largest_model.LARGEST_ASSUMPTIONS,
    **STEP_ASSUMPTIONS,
    **TRAFFIC_ASSUMPTIONS,
}
#: A plan that leaves less than this share of the device is tight. The threshold is a choice: the driver's
#: context, network buffers and fragmentation are not part of the peak and take about that much.
TIGHT_RATIO = 0.1


def plan(job: Job, *, schemes: Sequence[Scheme] = tuple(Scheme), with_sensitivity: bool = False) -> Plan:
    """Predict memory, traffic and step time of a job under each scheme.

    Pipeline schemes are omitted for a model that is a single unit. The sensitivity is that of the job as it
    was stated, because its conditions vary.

    Raises:
        BadInput: the job is impossible: degrees that do not divide, sizes below 1, a unit larger than a
            device.
    """
    refuse_impossible(job)
    applicable = [scheme for scheme in schemes if scheme not in PIPELINES or not is_one_unit(job)]
    answers = [_plan_row(job, scheme) for scheme in applicable]
    rows = tuple(row for row, _ in answers)
    # The assumptions that the rows' figures refer to.
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
    """Return the states at rest; those of a ZeRO stage need no shape, so an assumed one is not used."""
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
    """Return True if the model's units were counted and its root contains no unit that could be a layer."""
    return job.shape is None and bool(job.units) and all(unit.encloses for unit in job.units)


def _row_gaps(made: Sequence[tuple[PlanRow, Sequence[Gap]]]) -> Iterator[Gap]:
    """Yield each gap once, with the affected schemes unless all are affected."""
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
