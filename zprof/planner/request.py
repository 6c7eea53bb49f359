"""Make a job from the plan options shared by ``zprof plan`` and ``zprof.plan``.

Errors use the command-line spelling of an option (``--keep-last``).
"""

from collections.abc import Callable, Mapping, Sequence
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
from zprof.model.machines import Hardware
from zprof.model.plan import ZERO_STAGES, Scheme
from zprof.planner.machine_file import find_hardware

Precision = Literal["bf16", "fp16", "fp32"]
Optimizer = Literal["adam", "momentum", "sgd"]

#: Parsers by field; fields without a parser are names or flags.
PARSERS: Mapping[str, Callable[[Any], float]] = {
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
    **dict.fromkeys(("layers", "hidden", "heads", "context", "dp", "mp", "pp"), parse_count),
    **dict.fromkeys(("micro_batch", "sequence", "micro_batches"), parse_count),
}
#: Allowed values by field.
CHOICES: Mapping[str, Sequence[int | str]] = {
    "stage": range(len(ZERO_STAGES)),
    "precision": get_args(Precision),
    "optimizer": get_args(Optimizer),
    "backend": tuple(str(backend) for backend in Backend),
}
#: Bytes per element of the optimizer's own state, without a master copy of the weights.
_STATE_BYTES: Mapping[Optimizer, int] = {"adam": 8, "momentum": 4, "sgd": 0}
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
    all schemes are planned.
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
    stage: int | None = None
    dp: int = 1
    mp: int = 1
    pp: int = 1
    precision: Precision = "bf16"
    optimizer: Optimizer = "adam"
    micro_batch: int | None = None
    sequence: int | None = None
    micro_batches: int = 1
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


def make_job(request: PlanRequest, count_model: Callable[[str, Job], Job]) -> Job:
    """Return the requested job, with typical values for omitted options.

    ``count_model``: returns the job with the counted parameters of the model that ``request.model`` builds.

    Raises:
        BadInput: not exactly one model is given, the preset or hardware is unknown, or ``count_model`` fails.
    """
    from zprof.planner.usual_values import assume_missing

    name, parameters, shape = _read_model(request)
    job = Job(
        name=name,
        parameters=parameters,
        shape=shape,
        degrees=Degrees(dp=request.dp, mp=request.mp, pp=request.pp),
        element_bytes=choose_element_bytes(request.precision, request.optimizer),
        batch=Batch(
            samples=request.micro_batch, sequence=request.sequence, micro_batches=request.micro_batches
        ),
        residual=Residual(
            checkpointing=request.checkpointing,
            partition=request.partition_activations,
            offload=request.offload_activations,
            constant_buffer_elements=request.constant_buffers,
            defragment=request.defragment,
        ),
        overlap=Overlap(prefetch=request.prefetch, keep_last=request.keep_last),
        backend=request.backend,
        hardware=_read_hardware(request),
    )
    return assume_missing(count_model(request.model, job) if request.model else job)


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


def choose_element_bytes(precision: Precision, optimizer: Optimizer) -> ElementBytes:
    """Return the bytes per element, including fp32 master weights and a gradient copy for 16-bit models."""
    state = _STATE_BYTES[optimizer]
    if precision == "fp32":
        return ElementBytes(
            parameter=_FULL,
            gradient=_FULL,
            optimizer_state=state,
            gathered=_FULL,
            reduced=_FULL,
            gradient_copy=0,
        )
    return replace(ElementBytes(), optimizer_state=state + _FULL, parameter=_HALF, gradient=_HALF)


def _read_model(request: PlanRequest) -> tuple[str, int, Shape | None]:
    """Return name, parameters and shape from exactly one option; ``--model`` is counted later.

    Raises:
        BadInput: not exactly one model is given, the preset is unknown or has no shape.
    """
    options = {
        "--params": request.params,
        "--layers with --hidden": request.layers or request.hidden,
        "--preset": request.preset,
        "--model": request.model,
    }
    given = [option for option, value in options.items() if value is not None]
    if len(given) != 1:
        message = f"the model is specified twice: {' and '.join(given)}" if given else "no model given"
        raise BadInput(message, hint=f"use one of: {', '.join(options)}")
    _refuse_unused(request, given[0])
    if request.preset is not None:
        # A preset model; a context shorter than the sequence is extended to it.
        from zprof.planner.model_shapes import count_parameters
        from zprof.planner.models.presets import find_preset

        preset = find_preset(request.preset)
        shape = preset.shape
        if shape is None:
            raise BadInput(
                f"the reference engine has no layers like those of {preset.name}",
                hint="plan it for another framework: --framework fsdp2, ddp, deepspeed or megatron",
            )
        if request.sequence is None or request.sequence <= shape.context:
            return preset.name, preset.parameters, shape
        extended = replace(shape, context=request.sequence)
        return f"{preset.name} with context {request.sequence:,}", count_parameters(extended), extended
    if request.params is not None:
        return "", request.params, None
    return ("", 1, None) if request.model else _model_from_shape(request)


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


def _model_from_shape(request: PlanRequest) -> tuple[str, int, Shape | None]:
    from zprof.planner.model_shapes import count_parameters

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
    return "", count_parameters(shape), shape


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
