"""Make a job from the plan options shared by ``zprof plan`` and ``zprof.plan``.

Errors use the command-line spelling of an option (``--keep-last``).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.base.parsing import (
    parse_count,
    parse_count_or_zero,
    parse_duration,
    parse_parameter_count,
    parse_rate,
    parse_size,
)
from zprof.model.job import Backend, Batch, Degrees, ElementBytes, Job, Overlap, Residual, Shape
from zprof.model.layout import (
    ComputePrecision,
    Framework,
    OptimizerKind,
    PipelineSchedule,
    Recompute,
)
from zprof.model.machines import Hardware
from zprof.model.plan import ZERO_STAGES, Scheme
from zprof.model.transformer import Transformer
from zprof.planner.machine_file import find_hardware
from zprof.planner.rounding import ceil_div

Offload = Literal["optimizer", "parameters"]

#: Kernels that ``--unfused`` names.
UNFUSED = ("loss", "norms", "attention")


def parse_kernels(given: str) -> str:
    """Check a list of kernels, such as ``loss,attention``."""
    names = [name.strip() for name in str(given).split(",")]
    unknown = [name for name in names if name not in UNFUSED]
    if unknown:
        raise BadInput(f"{unknown[0][:40]!r} is none of {', '.join(UNFUSED)}")
    return ",".join(names)


#: Parsers by field; fields without a parser are names or flags.
PARSERS: Mapping[str, Callable[[Any], float | str]] = {
    "params": parse_parameter_count,
    "vocabulary": parse_count_or_zero,
    "constant_buffers": parse_parameter_count,
    "prefetch": parse_count_or_zero,
    "device_memory": parse_size,
    "bandwidth": parse_rate,
    "latency": parse_duration,
    "intra_bandwidth": parse_rate,
    "intra_latency": parse_duration,
    "stage": int,
    "unfused": parse_kernels,
    **dict.fromkeys(("layers", "hidden", "heads", "context"), parse_count),
    **dict.fromkeys(("world", "dp", "tp", "mp", "pp", "cp", "ep", "virtual", "shard"), parse_count),
    **dict.fromkeys(("micro_batch", "sequence", "micro_batches", "global_batch"), parse_count),
}
#: Allowed values by field.
CHOICES: Mapping[str, Sequence[int | str]] = {
    "stage": range(len(ZERO_STAGES)),
    "precision": tuple(ComputePrecision),
    "optimizer": tuple(OptimizerKind),
    "backend": tuple(Backend),
    "framework": tuple(Framework),
    "schedule": tuple(PipelineSchedule),
    "recompute": tuple(Recompute),
    "offload": get_args(Offload),
}
#: Bytes per element of the optimizer's own state, without a master copy of the weights. Adafactor keeps a row
#: and a column of each matrix.
_STATE_BYTES: Mapping[OptimizerKind, int] = {
    OptimizerKind.ADAM: 8,
    OptimizerKind.ADAM_8BIT: 2,
    OptimizerKind.ADAFACTOR: 0,
    OptimizerKind.MUON: 4,
    OptimizerKind.MOMENTUM: 4,
    OptimizerKind.SGD: 0,
}
_FULL, _HALF = 4, 2
#: Hardware field that an option overrides.
_OVERRIDES = {
    "device_memory": "memory_bytes",
    "bandwidth": "node_bytes_per_s",
    "latency": "inter_latency_ns",
    "intra_bandwidth": "intra_bytes_per_s",
    "intra_latency": "intra_latency_ns",
}


class PlanRequest(Struct, frozen=True, kw_only=True):
    """The options of a plan, with the names that users see; None: not given.

    Memory is in bytes, a bandwidth in bytes per second, a latency in nanoseconds, ``constant_buffers`` in
    elements. ``model``: ``module:function``. ``hardware``: a name or the path of a file. Without ``stage``,
    all schemes are planned. ``config``, ``deepspeed``: paths of a ``config.json`` of Hugging Face and of a
    ``ds_config.json``. ``framework``: None for the usual one of each scheme. ``world``: all devices.
    ``mp``: the old name of ``tp``; ``checkpointing``: of ``recompute``. ``unfused``: names of kernels.
    """

    params: int | None = None
    preset: str | None = None
    model: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    vocabulary: int | None = None
    context: int | None = None
    untied: bool = False
    config: str | None = None
    framework: Framework | None = None
    deepspeed: str | None = None
    stage: int | None = None
    world: int | None = None
    dp: int = 1
    tp: int = 1
    mp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    virtual: int = 1
    schedule: PipelineSchedule | None = None
    shard: int | None = None
    no_reshard: bool = False
    no_sequence_parallel: bool = False
    precision: ComputePrecision = ComputePrecision.BF16
    pure: bool = False
    fp32_reduce: bool = False
    optimizer: OptimizerKind = OptimizerKind.ADAM
    offload: Offload | None = None
    micro_batch: int | None = None
    sequence: int | None = None
    micro_batches: int = 1
    global_batch: int | None = None
    recompute: Recompute = Recompute.NONE
    unfused: str | None = None
    compile: bool = False
    checkpointing: bool = False
    partition_activations: bool = False
    offload_activations: bool = False
    defragment: bool = False
    keep_last: bool = False
    constant_buffers: int | None = None
    prefetch: int = 1
    backend: Backend = Backend.NCCL
    hardware: str | None = None
    device_memory: int | None = None
    bandwidth: float | None = None
    latency: int | None = None
    intra_bandwidth: float | None = None
    intra_latency: int | None = None


class RequestedModel(Struct, frozen=True, kw_only=True):
    """The model that a request names.

    ``shape``: None if only the number of parameters is known, or if the reference engine has no such layers.
    ``transformer``: None if only the number of parameters is known.
    """

    name: str
    parameters: int
    shape: Shape | None = None
    transformer: Transformer | None = None


def make_job(request: PlanRequest, count_model: Callable[[str, Job], Job]) -> Job:
    """Return the requested job of the reference engine, with typical values for omitted options.

    ``count_model``: returns the job with the counted parameters of the model that ``request.model`` builds.

    Raises:
        BadInput: not exactly one model is given, the preset or hardware is unknown, the reference engine has
            no such layers, or ``count_model`` fails.
    """
    from zprof.planner.usual_values import assume_missing

    model = read_model(request)
    if model.transformer is not None and model.shape is None:
        raise BadInput(
            f"the reference engine has no layers like those of {model.name}",
            hint="plan it for another framework: --framework fsdp2, ddp, deepspeed or megatron",
        )
    job = start_job(request, model)
    return assume_missing(count_model(request.model, job) if request.model else job)


def start_job(request: PlanRequest, model: RequestedModel) -> Job:
    """Return the requested job without typical values.

    Context ranks share the states as data-parallel ranks do, and count as such.
    """
    return Job(
        name=model.name,
        parameters=model.parameters,
        shape=model.shape,
        degrees=Degrees(dp=request.dp * request.cp, mp=request.tp, pp=request.pp),
        element_bytes=choose_element_bytes(request.precision, request.optimizer, pure=request.pure),
        batch=Batch(
            samples=request.micro_batch, sequence=request.sequence, micro_batches=request.micro_batches
        ),
        residual=Residual(
            checkpointing=request.recompute is Recompute.FULL,
            partition=request.partition_activations,
            offload=request.offload_activations,
            constant_buffer_elements=request.constant_buffers,
            defragment=request.defragment,
        ),
        overlap=Overlap(prefetch=request.prefetch, keep_last=request.keep_last),
        backend=request.backend,
        hardware=_read_hardware(request),
    )


def choose_schemes(request: PlanRequest) -> Sequence[Scheme]:
    """Return the requested stage, or all schemes for comparison.

    Raises:
        BadInput: an option of stage 3 is combined with another stage.
    """
    if request.keep_last and request.stage not in (None, 3):
        raise BadInput(
            f"--keep-last applies to stage 3 only; --stage {request.stage} gathers no units",
            hint="remove it, or use --stage 3",
        )
    return tuple(Scheme) if request.stage is None else (tuple(ZERO_STAGES)[request.stage],)


def choose_element_bytes(
    precision: ComputePrecision, optimizer: OptimizerKind, *, pure: bool = False
) -> ElementBytes:
    """Return the bytes per element.

    Models in 16 bits or less have fp32 master weights and an fp32 copy of the gradient, unless they are
    ``pure``: then the optimizer's state is in 16 bits too.
    """
    state = _STATE_BYTES[optimizer]
    if precision == ComputePrecision.FP32:
        return ElementBytes(
            parameter=_FULL,
            gradient=_FULL,
            optimizer_state=state,
            gathered=_FULL,
            reduced=_FULL,
            gradient_copy=0,
        )
    if pure:
        return replace(ElementBytes(), optimizer_state=ceil_div(state, 2), gradient_copy=0)
    return replace(ElementBytes(), optimizer_state=state + _FULL, parameter=_HALF, gradient=_HALF)


def read_model(request: PlanRequest) -> RequestedModel:
    """Return the model that exactly one option names; ``--model`` is counted later.

    Raises:
        BadInput: not exactly one model is given, the preset is unknown, or a file cannot be read.
    """
    options = {
        "--params": request.params,
        "--layers with --hidden": request.layers or request.hidden,
        "--preset": request.preset,
        "--config": request.config,
        "--model": request.model,
    }
    given = [option for option, value in options.items() if value is not None]
    if len(given) != 1:
        message = f"the model is specified twice: {' and '.join(given)}" if given else "no model given"
        raise BadInput(message, hint=f"use one of: {', '.join(options)}")
    _refuse_unused(request, given[0])
    if request.preset is not None:
        return _read_preset(request.preset, request.sequence or 0)
    if request.config is not None:
        from zprof.planner.models.config_file import read_model_config
        from zprof.planner.models.counting import count_parameters as count_elements
        from zprof.planner.models.shapes import extend_context

        found = read_model_config(Path(request.config))
        transformer = extend_context(found.transformer, request.sequence or 0)
        return RequestedModel(
            name=found.name, parameters=count_elements(transformer), transformer=transformer
        )
    if request.params is not None:
        return RequestedModel(name="", parameters=request.params)
    return RequestedModel(name="", parameters=1) if request.model else _model_from_shape(request)


def _read_preset(name: str, sequence: int) -> RequestedModel:
    """Return a named model; a context shorter than the sequence is extended to it."""
    from zprof.planner.model_shapes import count_parameters
    from zprof.planner.models.presets import find_preset
    from zprof.planner.models.shapes import extend_context

    preset = find_preset(name)
    shape, parameters, name = preset.shape, preset.parameters, preset.name
    if shape is not None and sequence > shape.context:
        shape = replace(shape, context=sequence)
        parameters, name = count_parameters(shape), f"{name} with context {sequence:,}"
    transformer = extend_context(preset.transformer, sequence)
    return RequestedModel(name=name, parameters=parameters, shape=shape, transformer=transformer)


def _refuse_unused(request: PlanRequest, model_option: str) -> None:
    """Raise for shape options that have no effect because the model is specified in another way."""
    if request.layers is not None:
        return
    parts = {
        "--heads": request.heads,
        "--vocabulary": request.vocabulary,
        "--context": request.context,
        "--untied": request.untied or None,
    }
    unused = [option for option, value in parts.items() if value is not None]
    if unused:
        raise BadInput(
            f"{' and '.join(unused)} has no effect: the model is specified by {model_option}",
            hint="remove it, or specify the shape instead: --layers and --hidden",
        )


def _model_from_shape(request: PlanRequest) -> RequestedModel:
    from zprof.planner.model_shapes import count_parameters
    from zprof.planner.models.shapes import make_transformer

    if request.layers is None or request.hidden is None:
        raise BadInput("a shape needs --layers and --hidden", hint="see zprof plan --help")
    if request.context is not None and (request.sequence or 0) > request.context:
        raise BadInput(
            f"--sequence {request.sequence} is longer than --context {request.context}",
            hint="raise --context, or remove it: the default is --sequence",
        )
    shape = Shape(
        layers=request.layers,
        hidden=request.hidden,
        vocabulary=request.vocabulary or 0,
        context=request.context or request.sequence or 0,
        heads=request.heads,
        tied=not request.untied,
    )
    return RequestedModel(
        name="", parameters=count_parameters(shape), shape=shape, transformer=make_transformer(shape)
    )


def _read_hardware(request: PlanRequest) -> Hardware | None:
    """Return the named hardware with overrides; None without a name.

    Raises:
        BadInput: it cannot be found or read, or an override is given without a name.
    """
    overrides: dict[str, Any] = {
        field: value
        for option, field in _OVERRIDES.items()
        if (value := getattr(request, option)) is not None
    }
    if request.hardware is None:
        if overrides:
            raise BadInput("hardware options need --hardware", hint="add --hardware, e.g. v100 or h100")
        return None
    hardware = find_hardware(request.hardware)
    return replace(hardware, name=f"{hardware.name}, changed", **overrides) if overrides else hardware
