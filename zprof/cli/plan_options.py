"""Declare and read the options of ``zprof plan``: model, devices, links and settings of a job."""

import argparse
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from zprof.cli.quantities import (
    parse_count,
    parse_count_or_zero,
    parse_duration,
    parse_parameter_count,
    parse_rate,
    parse_size,
)
from zprof.model.errors import BadInput
from zprof.model.job import Backend, Batch, Degrees, ElementBytes, Hardware, Job, Overlap, Residual, Shape
from zprof.model.plan import ZERO_STAGES, Scheme

#: Bytes per element of the optimizer's own state, without a master copy of the weights.
_OPTIMIZERS = {"adam": 8, "momentum": 4, "sgd": 0}
_FULL, _HALF = 4, 2


def add_planning_options(parser: argparse.ArgumentParser) -> None:
    """Declare every option that a plan depends on."""
    add_model_options(parser)
    _add_degrees(parser)
    _add_states(parser)
    _add_batch(parser)
    _add_engine(parser)
    add_hardware_options(parser)


def choose_schemes(arguments: argparse.Namespace) -> Sequence[Scheme]:
    """Return the requested stage, or all schemes for comparison.

    Raises:
        BadInput: an option of stage 3 is combined with another stage.
    """
    if arguments.keep_last and arguments.stage not in (None, 3):
        raise BadInput(
            f"--keep-last applies to stage 3 only; --stage {arguments.stage} gathers no units",
            hint="remove it, or use --stage 3",
        )
    return tuple(Scheme) if arguments.stage is None else (tuple(ZERO_STAGES)[arguments.stage],)


def build_job(arguments: argparse.Namespace) -> Job:
    """Return the job that the options describe, with usual values for what they do not.

    Raises:
        BadInput: not exactly one model is given, or the hardware is invalid.
    """
    from zprof.planner.usual_values import assume_missing

    name, parameters, shape = read_model(arguments)
    job = Job(
        name=name,
        parameters=parameters,
        shape=shape,
        degrees=Degrees(dp=arguments.dp, mp=arguments.mp, pp=arguments.pp),
        element_bytes=choose_element_bytes(arguments.precision, arguments.optimizer),
        batch=Batch(
            samples=arguments.micro_batch,
            sequence=arguments.sequence,
            micro_batches=arguments.micro_batches,
        ),
        residual=Residual(
            checkpointing=arguments.checkpointing,
            partition=arguments.partition_activations,
            offload=arguments.offload_activations,
            constant_buffer_elements=arguments.constant_buffers,
            defragment=arguments.defragment,
        ),
        overlap=Overlap(prefetch=arguments.prefetch, keep_last=arguments.keep_last),
        backend=Backend(arguments.backend),
        hardware=read_hardware(arguments),
    )
    return assume_missing(fill_counted_model(arguments.model, job) if arguments.model else job)


def choose_element_bytes(precision: str, optimizer: str) -> ElementBytes:
    """Return the bytes per element, including fp32 master weights and gradient copy for 16-bit models."""
    state = _OPTIMIZERS[optimizer]
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


def _add_degrees(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("devices")
    group.add_argument(
        "--stage", type=int, choices=range(4), help="one ZeRO stage (default: all stages and alternatives)"
    )
    for name, kind in (("dp", "data-parallel"), ("mp", "model-parallel (tensor)"), ("pp", "pipeline")):
        help_text = f"{kind} degree (default: %(default)s)"
        group.add_argument(f"--{name}", metavar="N", type=parse_count, default=1, help=help_text)


def _add_states(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model states")
    group.add_argument(
        "--precision",
        choices=("bf16", "fp16", "fp32"),
        default="bf16",
        help="precision of the model (default: %(default)s)",
    )
    group.add_argument(
        "--optimizer",
        choices=tuple(_OPTIMIZERS),
        default="adam",
        help="optimizer, which sets the bytes of state per parameter (default: %(default)s)",
    )


def _add_batch(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "batch", "per model replica; without it, one sample of 4,096 tokens is assumed, marked ~"
    )
    group.add_argument("--micro-batch", metavar="N", type=parse_count, help="samples per micro-batch")
    group.add_argument("--sequence", metavar="N", type=parse_count, help="tokens per sample")
    group.add_argument(
        "--micro-batches",
        metavar="N",
        type=parse_count,
        default=1,
        help="micro-batches per step (default: %(default)s)",
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    for name, help_text in (
        ("checkpointing", "keep only the inputs of blocks and recompute the rest"),
        ("partition-activations", "split activation checkpoints across the model-parallel ranks (Pa)"),
        ("offload-activations", "also move these checkpoints to host memory (Pa+cpu)"),
        ("defragment", "keep full gradients in preallocated memory (MD)"),
        ("keep-last", "stage 3: keep the last unit gathered between forward and backward"),
    ):
        group.add_argument(f"--{name}", action="store_true", help=help_text)
    group.add_argument(
        "--constant-buffers",
        metavar="N",
        type=parse_parameter_count,
        help="size of fused buffers in elements, e.g. 5e8 (CB)",
    )
    group.add_argument(
        "--prefetch",
        metavar="N",
        type=parse_count_or_zero,
        default=1,
        help="units to gather ahead (default: %(default)s)",
    )
    group.add_argument(
        "--backend",
        choices=tuple(str(backend) for backend in Backend),
        default="nccl",
        help="communication backend (default: %(default)s)",
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Declare the four ways to specify the model."""
    group = parser.add_argument_group("model", "specify it in exactly one of these ways")
    group.add_argument(
        "--params",
        metavar="N",
        type=parse_parameter_count,
        help="number of parameters, e.g. 7.5e9, 7.5B or 1T; a usual shape is assumed, marked ~",
    )
    group.add_argument(
        "--preset",
        metavar="NAME",
        help="known model, e.g. llama-3-8b, qwen2.5-7b, mixtral-8x7b or 7.5b; list: show all",
    )
    group.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="function that builds the model; its parameters are counted, it is not run",
    )
    group.add_argument("--layers", metavar="N", type=parse_count, help="transformer blocks, with --hidden")
    group.add_argument("--hidden", metavar="N", type=parse_count, help="hidden size, with --layers")
    group.add_argument("--heads", metavar="N", type=parse_count, help="attention heads, with --layers")
    group.add_argument(
        "--vocabulary",
        metavar="N",
        type=parse_count_or_zero,
        help="vocabulary size, with --layers (0: no embedding)",
    )
    group.add_argument(
        "--context",
        metavar="N",
        type=parse_count,
        help="maximum positions, with --layers (default: --sequence)",
    )
    group.add_argument(
        "--untied",
        action="store_true",
        help="the output head does not share the embedding weights, with --layers",
    )


def read_model(arguments: argparse.Namespace) -> tuple[str, int, Shape | None]:
    """Return name, parameters and shape from exactly one option; a ``--model`` is not counted yet.

    Raises:
        BadInput: not exactly one model is given, or the preset is unknown.
    """
    options = {
        "--params": arguments.params,
        "--layers with --hidden": arguments.layers or arguments.hidden,
        "--preset": arguments.preset,
        "--model": arguments.model,
    }
    given = [option for option, value in options.items() if value is not None]
    if len(given) != 1:
        message = f"the model is specified twice: {' and '.join(given)}" if given else "no model given"
        raise BadInput(message, hint=f"use one of: {', '.join(options)}")
    _refuse_unused(arguments, given[0])
    if arguments.preset is not None:
        return _model_from_preset(arguments.preset, arguments.sequence)
    if arguments.params is not None:
        return "", arguments.params, None
    return ("", 1, None) if arguments.model else _model_from_shape(arguments)


def fill_counted_model(spec: str, job: Job) -> Job:
    """Return the job with the counted parameters of the model that the function builds.

    Raises:
        BadInput: the function does not build a model.
    """
    from zprof.integrations.planning.tasks import count_model

    return count_model(spec, job)


def _refuse_unused(arguments: argparse.Namespace, model_option: str) -> None:
    """Raise for shape options that have no effect because the model is specified in another way."""
    if arguments.layers is not None:
        return
    parts = {
        "--heads": arguments.heads,
        "--vocabulary": arguments.vocabulary,
        "--context": arguments.context,
        "--untied": arguments.untied or None,
    }
    unused = [option for option, value in parts.items() if value is not None]
    if unused:
        raise BadInput(
            f"{' and '.join(unused)} has no effect: the model is specified by {model_option}",
            hint="remove it, or specify the shape instead: --layers and --hidden",
        )


def _model_from_preset(name: str, sequence: int | None) -> tuple[str, int, Shape | None]:
    """Return a preset's model, with the context extended to the sequence length if it is shorter."""
    from zprof.planner.model_presets import find_preset
    from zprof.planner.model_shapes import count_parameters

    preset = find_preset(name)
    shape = preset.shape
    if sequence is None or sequence <= shape.context:
        return preset.name, preset.parameters, shape
    extended = replace(shape, context=sequence)
    return f"{preset.name} with context {sequence:,}", count_parameters(extended), extended


def _model_from_shape(arguments: argparse.Namespace) -> tuple[str, int, Shape | None]:
    from zprof.planner.model_shapes import count_parameters

    if arguments.layers is None or arguments.hidden is None:
        raise BadInput("a shape needs --layers and --hidden", hint="see zprof plan --help")
    if arguments.context is not None and (arguments.sequence or 0) > arguments.context:
        raise BadInput(
            f"--sequence {arguments.sequence} is longer than --context {arguments.context}",
            hint="raise --context, or remove it: the default is --sequence",
        )
    shape = Shape(
        layers=arguments.layers,
        hidden=arguments.hidden,
        vocabulary=arguments.vocabulary or 0,
        context=arguments.context or arguments.sequence or 0,
        heads=arguments.heads,
        tied=not arguments.untied,
    )
    return "", count_parameters(shape), shape


#: Option, field of the hardware, its parser, metavar, help text.
_HARDWARE_OVERRIDES = (
    ("device-memory", "memory_bytes", parse_size, "SIZE", "memory per device, e.g. 32GB"),
    (
        "bandwidth",
        "node_bytes_per_s",
        parse_rate,
        "RATE",
        "total network bandwidth of a node in one direction, e.g. 100GB/s",
    ),
    ("latency", "inter_latency_ns", parse_duration, "TIME", "latency per hop between nodes, e.g. 10us"),
    (
        "intra-bandwidth",
        "intra_bytes_per_s",
        parse_rate,
        "RATE",
        "bus bandwidth of collectives within a node",
    ),
    ("intra-latency", "intra_latency_ns", parse_duration, "TIME", "latency per hop within a node"),
)


def add_hardware_options(parser: argparse.ArgumentParser) -> None:
    """Declare ``--hardware``, and one option for each field that is often overridden."""
    group = parser.add_argument_group(
        "hardware",
        "without it, an h100 is assumed, marked ~; docs/planner.md describes the file format",
    )
    group.add_argument(
        "--hardware", metavar="NAME", help="v100, a100, a100-40gb, h100, h200, or a .toml file"
    )
    for option, _, parse, unit, help_text in _HARDWARE_OVERRIDES:
        group.add_argument(f"--{option}", metavar=unit, type=parse, help=help_text)


def read_hardware(arguments: argparse.Namespace) -> Hardware | None:
    """Return the named hardware with the overrides of the command line, or None without ``--hardware``.

    Raises:
        BadInput: it cannot be found or read, or an override is given without ``--hardware``.
    """
    overrides: dict[str, Any] = {}
    for option, field, *_ in _HARDWARE_OVERRIDES:
        value = getattr(arguments, option.replace("-", "_"))
        if value is not None:
            overrides[field] = value
    if arguments.hardware is None:
        if overrides:
            raise BadInput("hardware options need --hardware", hint="add --hardware, e.g. v100 or h100")
        return None
    from zprof.planner.hardware import find_hardware

    hardware = find_hardware(arguments.hardware)
    return replace(hardware, name=f"{hardware.name}, changed", **overrides) if overrides else hardware
