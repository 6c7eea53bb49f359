"""Plan a job under frameworks: one row per layout, with memory, traffic, step and the largest model that
fits."""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.job import Degrees, Job
from zprof.model.layout import Layout
from zprof.model.machines import Hardware
from zprof.model.plan import ZERO_STAGES, Assumption, Estimate, Fit, Plan, PlanRow, Scheme
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.model.transformer import Transformer
from zprof.planner.estimate import estimate_layout, judge_layout
from zprof.planner.framework_memory import MEMORY_ASSUMPTIONS, count_state_bytes
from zprof.planner.framework_step import STEP_ASSUMPTIONS
from zprof.planner.layer_times import TIME_ASSUMPTIONS, get_peak
from zprof.planner.layers import is_low_precision
from zprof.planner.models.counting import count_parameters
from zprof.planner.stages import split_stages
from zprof.planner.usual_values import list_assumed_leaves, list_assumed_traffic
from zprof.version import __version__

ASSUMPTIONS: Mapping[str, Assumption] = {
    **MEMORY_ASSUMPTIONS,
    **STEP_ASSUMPTIONS,
    **TIME_ASSUMPTIONS,
    "framework.largest": Assumption(
        formula="the job's layers in another number, in this layout",
        source="search over the peak of this plan",
    ),
}
_LARGEST = "framework.largest"
#: Layers beyond which the search for the largest model stops.
_MAX_LAYERS = 1 << 16


def plan_frameworks(job: Job, model: Transformer, layouts: Mapping[Scheme, Layout]) -> Plan:
    """Predict memory, traffic and step of each layout of a job; ``job`` must have hardware."""
    hardware = job.hardware
    if hardware is None:
        raise ValueError("a framework's plan needs hardware")
    estimates = {scheme: estimate_layout(model, layout, hardware) for scheme, layout in layouts.items()}
    rows = tuple(_make_row(job, model, scheme, estimate, hardware) for scheme, estimate in estimates.items())
    keys = {term.assumption for row in rows for term in row.terms}
    keys |= {link.assumption for row in rows for link in row.links}
    keys |= {key for row in rows if row.step for key in row.step.assumptions.values()}
    return Plan(
        zprof_version=__version__,
        job=job,
        rows=rows,
        assumptions={key: ASSUMPTIONS[key] for key in sorted({*keys, _LARGEST})},
        gaps=tuple(dict.fromkeys(_list_gaps(layouts, hardware))),
    )


def _make_row(
    job: Job, model: Transformer, scheme: Scheme, estimate: Estimate, hardware: Hardware
) -> PlanRow:
    layout = estimate.layout
    degrees = layout.degrees
    return PlanRow(
        scheme=scheme,
        stage=layout.stage if scheme in ZERO_STAGES else None,
        degrees=Degrees(dp=degrees.data * degrees.context, mp=degrees.tensor, pp=degrees.pipeline),
        micro_batches=layout.micro_batches,
        terms=estimate.terms,
        tenants=sum_tenants(estimate),
        state_bytes=max(round(count_state_bytes(parts, layout)) for parts in split_stages(model, layout)),
        least_bytes=estimate.peak_bytes,
        peak_bytes=estimate.peak_bytes,
        peak_at=estimate.peak_at,
        fits=estimate.fit is not Fit.TOO_LARGE,
        largest_parameters=find_largest_parameters(model, layout, hardware),
        left_bytes=hardware.memory_bytes - estimate.peak_bytes,
        tight=estimate.fit is Fit.TIGHT,
        links=tuple(
            replace(link, assumed=list_assumed_traffic(job, scheme, link.axis)) for link in estimate.links
        ),
        step=estimate.step,
        assumed=list_assumed_leaves(job, scheme),
        layout=layout,
        reserve_bytes=estimate.reserve_bytes,
        tokens_per_s=estimate.tokens_per_s,
        launch_ns=estimate.launch_ns,
        bound=estimate.bound,
    )


def sum_tenants(estimate: Estimate) -> Mapping[Tenant, int]:
    """Return the bytes of each tenant at the peak, in display order."""
    return {
        tenant: sum(term.bytes or 0 for term in estimate.terms if term.tenant is tenant)
        for tenant in DISPLAY_ORDER
        if any(term.tenant is tenant for term in estimate.terms)
    }


def find_largest_parameters(model: Transformer, layout: Layout, hardware: Hardware) -> int:
    """Return the parameters of the deepest model of this kind that fits; 0 if not even one layer per stage
    does.

    The layers are scaled run by run, so that their proportions stay.
    """
    fewest, count = layout.degrees.pipeline * layout.degrees.virtual, model.layer_count

    def fits(layers: int) -> bool:
        return judge_layout(scale_layers(model, layers), layout, hardware) is not Fit.TOO_LARGE

    low, high = 0, max(fewest, count)
    while high < _MAX_LAYERS and fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(max(middle, fewest)) else (low, middle)
    return count_parameters(scale_layers(model, low)) if low >= fewest else 0


def scale_layers(model: Transformer, layers: int) -> Transformer:
    """Return the model with another number of layers, in about the same proportions."""
    done, runs, total = 0, [], model.layer_count
    at = 0
    for run in model.layers:
        at += run.count
        until = round(layers * at / total)
        if until > done:
            runs.append(replace(run, count=until - done))
            done = until
    return replace(model, layers=tuple(runs))


def _list_gaps(layouts: Mapping[Scheme, Layout], hardware: Hardware) -> Iterator[Gap]:
    for layout in layouts.values():
        if is_low_precision(layout) and get_peak(hardware, layout.precision) == hardware.flops_per_s:
            yield make_gap(
                "plan_without_precision_peak", precision=layout.precision.value, hardware=hardware.name
            )
