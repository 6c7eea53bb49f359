"""Make the layouts that a plan compares: one per scheme, on the devices and with the batch of the job."""

from collections.abc import Mapping

from msgspec.structs import replace

from zprof.model.layout import (
    EngineBuffers,
    Framework,
    Kernels,
    Layout,
    ParallelDegrees,
    PipelineSchedule,
)
from zprof.model.machines import Hardware
from zprof.model.plan import ZERO_STAGES, Scheme
from zprof.model.transformer import Transformer
from zprof.planner.legal_layouts import list_divisors, list_tensor_degrees, reduces_in_fp32, refuse_illegal
from zprof.planner.plan_settings import PlanSettings
from zprof.planner.request import UNFUSED, PlanRequest

#: The framework that a scheme is usually run with.
_USUAL: Mapping[Scheme, Framework] = {
    Scheme.DATA_PARALLEL: Framework.DDP,
    Scheme.ZERO_1: Framework.DEEPSPEED,
    Scheme.ZERO_2: Framework.DEEPSPEED,
    Scheme.ZERO_3: Framework.FSDP2,
    Scheme.MODEL_PARALLEL: Framework.MEGATRON,
    Scheme.GPIPE: Framework.MEGATRON,
    Scheme.PIPEDREAM: Framework.MEGATRON,
}
#: Pipelines of a comparison stay this short, as nodes usually are.
_MAX_PIPELINE = 8


def make_layouts(
    settings: PlanSettings, model: Transformer, hardware: Hardware, base: Layout
) -> Mapping[Scheme, Layout]:
    """Return the layouts to compare; ``base``: as :func:`make_base_layout` returns it.

    Without a framework, each scheme has its usual one and the devices are spread for it: stages of ZeRO have
    no pipeline, Megatron and the pipelines choose degrees that are not given. With a framework, the degrees
    are those of the job. The global batch is the same in all layouts, up to whole micro-batches; schemes
    whose ranks do not divide a stated global batch are left out.

    Raises:
        BadInput: a degree does not divide the model or the batch.
    """
    layouts = {}
    for scheme in _choose_schemes(settings.request):
        layout = _spread(base, scheme, model, hardware, settings.request)
        stated = settings.request.global_batch
        if stated is not None:
            samples = layout.micro_batch * layout.degrees.data
            if stated % samples:
                continue
            layout = replace(layout, micro_batches=stated // samples)
        refuse_illegal(model, layout)
        layouts[scheme] = layout
    return layouts


def make_base_layout(
    settings: PlanSettings, model: Transformer, *, micro_batch: int, sequence: int
) -> Layout:
    """Return the job's degrees, batch and settings, before a scheme spreads the devices."""
    request, config = settings.request, settings.deepspeed
    unfused = () if request.unfused is None else request.unfused.split(",")
    buffers = EngineBuffers() if config is None else config.fill_auto_buffers(model.hidden)
    return Layout(
        framework=request.framework or Framework.FSDP2,
        degrees=ParallelDegrees(
            data=request.dp,
            tensor=request.tp,
            context=request.cp,
            pipeline=request.pp,
            expert=request.ep,
            shard=request.shard or request.dp * request.cp,
            virtual=request.virtual,
        ),
        stage=3 if request.stage is None else request.stage,
        micro_batch=micro_batch,
        micro_batches=request.micro_batches,
        sequence=sequence,
        reshard=not request.no_reshard,
        sequence_parallel=not request.no_sequence_parallel,
        schedule=request.schedule or _choose_schedule(request),
        recompute=request.recompute,
        offload_optimizer=request.offload is not None,
        offload_parameters=request.offload == "parameters",
        precision=request.precision,
        master_weights=not request.pure,
        fp32_reduce=request.fp32_reduce,
        optimizer=request.optimizer,
        kernels=Kernels(
            compiled=request.compile,
            flash_attention="attention" not in unfused,
            **{f"fused_{name}": name not in unfused for name in UNFUSED if name != "attention"},
        ),
        buffers=buffers,
    )


def _choose_schedule(request: PlanRequest) -> PipelineSchedule:
    return PipelineSchedule.INTERLEAVED if request.virtual > 1 else PipelineSchedule.ONE_F_ONE_B


def _choose_schemes(request: PlanRequest) -> tuple[Scheme, ...]:
    """Return the schemes of the framework, or of the given stage."""
    stages = tuple(ZERO_STAGES)
    match request.framework:
        case Framework.DDP:
            return (Scheme.DATA_PARALLEL,)
        case Framework.DEEPSPEED:
            if request.stage is None:
                return stages[1:2] if request.pp > 1 else stages[1:]
            return (stages[request.stage],)
        case Framework.FSDP2:
            return (Scheme.ZERO_3,)
        case Framework.MEGATRON:
            return (Scheme.PIPEDREAM if request.pp > 1 else Scheme.MODEL_PARALLEL,)
    return tuple(Scheme) if request.stage is None else (stages[request.stage],)


def _spread(
    base: Layout, scheme: Scheme, model: Transformer, hardware: Hardware, request: PlanRequest
) -> Layout:
    """Return the layout of a scheme on the devices of the job."""
    framework = request.framework or _USUAL[scheme]
    stage = ZERO_STAGES.get(scheme, 1)
    if scheme in (Scheme.MODEL_PARALLEL, Scheme.GPIPE, Scheme.PIPEDREAM) and request.stage is not None:
        stage = request.stage
    degrees, schedule = base.degrees, base.schedule
    if request.framework is None:
        degrees = _spread_degrees(base, scheme, model, hardware)
        if scheme is Scheme.GPIPE:
            degrees, schedule = replace(degrees, virtual=1), PipelineSchedule.GPIPE
    shard = degrees.data * degrees.context
    if request.shard is not None and (request.framework or scheme is Scheme.ZERO_3):
        shard = request.shard
    total = base.micro_batches * base.degrees.data
    return replace(
        base,
        framework=framework,
        fp32_reduce=reduces_in_fp32(replace(base, framework=framework)),
        stage=stage,
        schedule=schedule,
        degrees=replace(degrees, shard=shard if stage else 1),
        micro_batches=max(1, total // degrees.data),
        sequence_parallel=base.sequence_parallel and degrees.tensor > 1,
        offload_optimizer=base.offload_optimizer and stage > 0,
        offload_parameters=base.offload_parameters and stage == 3,
    )


def _spread_degrees(base: Layout, scheme: Scheme, model: Transformer, hardware: Hardware) -> ParallelDegrees:
    """Return the degrees of a scheme; tensor and pipeline degrees that are not given are chosen."""
    given = base.degrees
    tensor, pipeline, data = given.tensor, 1, given.data * given.pipeline
    if scheme is Scheme.MODEL_PARALLEL and tensor == 1:
        tensors = list_tensor_degrees(model, hardware, Framework.MEGATRON)
        tensor = max(degree for degree in tensors if data % degree == 0)
        data //= tensor
    if scheme in (Scheme.GPIPE, Scheme.PIPEDREAM):
        pipeline = given.pipeline if given.pipeline > 1 else _choose_pipeline(data, model, hardware)
        data //= pipeline
    virtual = given.virtual if pipeline > 1 else 1
    return replace(given, tensor=tensor, pipeline=pipeline, data=data, virtual=virtual)


def _choose_pipeline(devices: int, model: Transformer, hardware: Hardware) -> int:
    limit = min(model.layer_count, hardware.devices_per_node, _MAX_PIPELINE)
    return max(degree for degree in list_divisors(devices) if degree <= limit)
