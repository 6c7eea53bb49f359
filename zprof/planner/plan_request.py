"""Plan what a request asks for: with the reference engine, or for frameworks and with a search."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.model.job import Assumed, Degrees, Job
from zprof.model.layout import Framework, Layout
from zprof.model.plan import Estimate, Plan
from zprof.model.transformer import Transformer
from zprof.planner.estimate import estimate_layout
from zprof.planner.framework_plan import plan_frameworks
from zprof.planner.job_layouts import make_base_layout, make_layouts
from zprof.planner.models.counting import count_active_parameters
from zprof.planner.models.shapes import make_transformer
from zprof.planner.plan import plan
from zprof.planner.plan_settings import PlanSettings, settle_options
from zprof.planner.refusals import (
    MAX_DEVICES,
    refuse_hardware,
    refuse_model,
    refuse_running,
    refuse_unless_integer,
)
from zprof.planner.request import (
    PlanRequest,
    RequestedModel,
    choose_schemes,
    make_job,
    read_model,
    start_job,
)
from zprof.planner.search import FRAMEWORKS, search_layouts, suggest_layouts
from zprof.planner.usual_values import assume_batch, assume_hardware, infer_shape


def plan_request(
    request: PlanRequest, count_model: Callable[[str, Job], Job], *, analyses: Sequence[str] = ()
) -> Plan:
    """Return the plan that the options ask for.

    ``count_model``: returns the job with the counted parameters of the model that ``request.model`` builds.
    ``analyses``: ``search``, ``sensitivity``, ``verify``; the caller verifies.

    Raises:
        BadInput: the options contradict each other, or the job is impossible.
    """
    settings = settle_options(request, analyses=analyses)
    if request.framework is None and not analyses and _has_no_usual_layers(settings.request):
        # Frameworks need layers; the reference engine's model states follow from the parameters alone.
        settings = settle_options(replace(request, framework=Framework.REFERENCE), analyses=analyses)
    if settings.options.framework is Framework.REFERENCE:
        job = make_job(settings.request, count_model)
        made = plan(job, schemes=choose_schemes(settings.request), with_sensitivity="sensitivity" in analyses)
        return replace(made, options=settings.options)
    return _plan_for_frameworks(settings, with_search="search" in analyses)


def _has_no_usual_layers(request: PlanRequest) -> bool:
    return request.params is not None and infer_shape(request.params, Degrees()) is None


def _plan_for_frameworks(settings: PlanSettings, *, with_search: bool) -> Plan:
    request = settings.request
    job, model = _make_framework_job(request)
    hardware, batch = job.hardware, job.batch
    assert hardware is not None
    assert batch.samples is not None
    assert batch.sequence is not None
    base = make_base_layout(settings, model, micro_batch=batch.samples, sequence=batch.sequence)
    layouts = make_layouts(settings, model, hardware, base)
    devices = base.degrees.devices
    global_batch = request.global_batch or base.micro_batch * base.micro_batches * base.degrees.data

    def estimate(layout: Layout) -> Estimate:
        return estimate_layout(model, layout, hardware)

    frameworks = FRAMEWORKS if request.framework is None else (request.framework,)
    made = replace(
        plan_frameworks(job, model, layouts),
        model=model,
        active_parameters=count_active_parameters(model),
        options=settings.options,
    )
    if with_search:
        found = search_layouts(
            model,
            hardware,
            base,
            devices=devices,
            global_batch=global_batch,
            estimate=estimate,
            frameworks=frameworks,
        )
        return replace(made, search=found)
    suggestions = suggest_layouts(
        model, hardware, base, devices=devices, global_batch=global_batch, estimate=estimate
    )
    return replace(made, suggestions=suggestions)


def _make_framework_job(request: PlanRequest) -> tuple[Job, Transformer]:
    """Return the job with typical values for what was not given, and its model layer by layer.

    Raises:
        BadInput: a size is out of bounds, or the model has no layers and no usual ones.
    """
    model = read_model(request)
    job = start_job(request, model)
    if model.transformer is None:
        job, model = _assume_layers(job, model)
    transformer = model.transformer
    assert transformer is not None
    refuse_model(job)
    job = assume_hardware(assume_batch(job, transformer.context))
    refuse_running(job)
    if job.hardware is not None:
        refuse_hardware(job.hardware)
    refuse_unless_integer("devices", job.degrees.devices, max_value=MAX_DEVICES)
    return job, transformer


def _assume_layers(job: Job, model: RequestedModel) -> tuple[Job, RequestedModel]:
    """Return the job and the model with a usual shape of this number of parameters."""
    shape = infer_shape(job.parameters, replace(job.degrees, pp=1))
    if shape is None:
        raise BadInput(
            f"no usual shape has {job.parameters:,} parameters",
            hint="give one: --layers with --hidden, --preset or --config; or use --framework reference",
        )
    job = replace(job, shape=shape, assumed=(*job.assumed, Assumed.SHAPE))
    return job, replace(model, shape=shape, transformer=make_transformer(shape))
