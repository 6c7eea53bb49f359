"""Declare and read the options of ``zprof plan``: model, devices, links and settings of a job."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zprof.cli.quantities import (
    parse_count,
    parse_count_or_zero,
    parse_duration,
    parse_parameter_count,
    parse_rate,
    parse_size,
)
from zprof.cli.quantities import parse_parameter_count as elements
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
    """Return one stage, or all schemes to compare.

    Raises:
        BadInput: an option of stage 3 is combined with another stage.
    """
    if arguments.keep_last and arguments.stage not in (None, 3):
        raise BadInput(
            f"--keep-last keeps what stage 3 gathers, and --stage {arguments.stage} gathers no units",
            hint="leave it out, or plan --stage 3",
        )
    return tuple(Scheme) if arguments.stage is None else (tuple(ZERO_STAGES)[arguments.stage],)


def build_job(arguments: argparse.Namespace) -> Job:
    """Return the described job.

    Raises:
        BadInput: no model was named, or two, or the hardware cannot be used.
    """
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
    return fill_counted_model(arguments.model, job) if arguments.model else job


def choose_element_bytes(precision: str, optimizer: str) -> ElementBytes:
    """Return the bytes per element; with 16 bits, fp32 master weights and an fp32 gradient copy are
    included.
    """
    own = _OPTIMIZERS[optimizer]
    if precision == "fp32":
        return ElementBytes(
            parameter=_FULL,
            gradient=_FULL,
            optimizer_state=own,
            gathered=_FULL,
            reduced=_FULL,
            gradient_copy=0,
        )
    return replace(ElementBytes(), optimizer_state=own + _FULL, parameter=_HALF, gradient=_HALF)


def _add_degrees(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the devices")
    group.add_argument(
        "--stage", type=int, choices=range(4), help="one ZeRO stage (default: all, and the alternatives)"
    )
    for name, what in (("dp", "data-parallel"), ("mp", "model-parallel (tensor)"), ("pp", "pipeline")):
        help_text = f"{what} degree (%(default)s)"
        group.add_argument(f"--{name}", metavar="N", type=parse_count, default=1, help=help_text)


def _add_states(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the states")
    group.add_argument(
        "--precision", choices=("bf16", "fp16", "fp32"), default="bf16", help="of the model (%(default)s)"
    )
    group.add_argument(
        "--optimizer",
        choices=tuple(_OPTIMIZERS),
        default="adam",
        help="what it keeps of each parameter (%(default)s)",
    )


def _add_batch(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "the batch", "of one replica of the model; without it activations and time are unknown"
    )
    group.add_argument("--micro-batch", metavar="N", type=parse_count, help="samples of a micro-batch")
    group.add_argument("--sequence", metavar="N", type=parse_count, help="tokens of a sample")
    group.add_argument(
        "--micro-batches", metavar="N", type=parse_count, default=1, help="of a step (%(default)s)"
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it runs")
    for name, what in (
        ("checkpointing", "keep the inputs of blocks only, compute the rest again"),
        ("partition-activations", "split checkpoints over the model-parallel ranks (Pa)"),
        ("offload-activations", "and keep them in host memory (Pa+cpu)"),
        ("defragment", "whole gradients in memory that is allocated once (MD)"),
        ("keep-last", "stage 3: the last unit stays gathered from forward to backward"),
    ):
        group.add_argument(f"--{name}", action="store_true", help=what)
    group.add_argument(
        "--constant-buffers", metavar="N", type=elements, help="elements of fused buffers, as 5e8 (CB)"
    )
    group.add_argument(
        "--prefetch",
        metavar="N",
        type=parse_count_or_zero,
        default=1,
        help="units gathered ahead (%(default)s)",
    )
    group.add_argument(
        "--backend",
        choices=tuple(str(backend) for backend in Backend),
        default="nccl",
        help="what carries collectives (%(default)s)",
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Declare the four ways to name the model."""
    group = parser.add_argument_group("the model", "said in one of these ways")
    group.add_argument(
        "--params", metavar="N", type=parse_parameter_count, help="elements, as 7.5e9, 7.5B or 1T"
    )
    group.add_argument("--preset", metavar="NAME", help="a model by its name, as 7.5b, 60b or 1t")
    group.add_argument(
        "--model", metavar="MODULE:FUNCTION", help="a function that makes it: counted, not run"
    )
    group.add_argument(
        "--layers", metavar="N", type=parse_count, help="blocks of a transformer, with --hidden"
    )
    group.add_argument("--hidden", metavar="N", type=parse_count, help="its width")
    group.add_argument("--heads", metavar="N", type=parse_count, help="attention heads, with --layers")
    group.add_argument(
        "--vocabulary", metavar="N", type=parse_count_or_zero, help="words, with --layers (0: no embedding)"
    )
    group.add_argument(
        "--context", metavar="N", type=parse_count, help="positions, with --layers (the sequence's length)"
    )
    group.add_argument("--untied", action="store_true", help="the head has a table of its own, with --layers")


def read_model(arguments: argparse.Namespace) -> tuple[str, int, Shape | None]:
    """Return name, parameters and shape from exactly one option; a ``--model`` is not counted yet.

    Raises:
        BadInput: no model was named, or two, or there is no such preset.
    """
    ways = {
        "--params": arguments.params,
        "--layers with --hidden": arguments.layers or arguments.hidden,
        "--preset": arguments.preset,
        "--model": arguments.model,
    }
    said = [way for way, value in ways.items() if value is not None]
    if len(said) != 1:
        what = f"the model is said twice: {' and '.join(said)}" if said else "no model is named"
        raise BadInput(what, hint=f"one of: {', '.join(ways)}")
    _refuse_unused(arguments, said[0])
    if arguments.preset is not None:
        return _model_from_preset(arguments.preset, arguments.sequence)
    if arguments.params is not None:
        return "", arguments.params, None
    return ("", 1, None) if arguments.model else _model_from_shape(arguments)


def fill_counted_model(spec: str, job: Job) -> Job:
    """Return the job with the counted model that the function builds.

    Raises:
        BadInput: it builds no model.
    """
    from zprof.integrations.planning.tasks import count_model

    return count_model(spec, job)


def _refuse_unused(arguments: argparse.Namespace, way: str) -> None:
    """Raise for options of a shape that have no effect on a model named in another way."""
    if arguments.layers is not None:
        return
    parts = {
        "--heads": arguments.heads,
        "--vocabulary": arguments.vocabulary,
        "--context": arguments.context,
        "--untied": arguments.untied or None,
    }
    stray = [option for option, value in parts.items() if value is not None]
    if stray:
        raise BadInput(
            f"{' and '.join(stray)} would change nothing: the model is said by {way}",
            hint="leave it out, or say the shape instead: --layers and --hidden",
        )


def _model_from_preset(name: str, sequence: int | None) -> tuple[str, int, Shape | None]:
    """Return a preset's model; a context shorter than a sample grows to it, and the name says so."""
    from zprof.planner.model_shapes import count_parameters, find_preset

    found = find_preset(name)
    shape = found.shape
    if sequence is None or sequence <= shape.context:
        return found.name, found.parameters, shape
    grown = replace(shape, context=sequence)
    return f"{found.name} with context {sequence:,}", count_parameters(grown), grown


def _model_from_shape(arguments: argparse.Namespace) -> tuple[str, int, Shape | None]:
    from zprof.planner.model_shapes import count_parameters

    if arguments.layers is None or arguments.hidden is None:
        raise BadInput("a shape needs --layers and --hidden", hint="zprof plan --help shows how")
    if arguments.context is not None and (arguments.sequence or 0) > arguments.context:
        raise BadInput(
            f"--sequence {arguments.sequence} is longer than --context {arguments.context}",
            hint="raise --context, or leave it out: it is the sequence's length then",
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
_CHANGES = (
    ("device-memory", "memory_bytes", parse_size, "SIZE", "of one device, as 32GB"),
    (
        "bandwidth",
        "node_bytes_per_s",
        parse_rate,
        "RATE",
        "of all network cards of a node, one way, as 100GB/s",
    ),
    ("latency", "inter_latency_ns", parse_duration, "TIME", "of a hop between nodes, as 10us"),
    ("intra-bandwidth", "intra_bytes_per_s", parse_rate, "RATE", "of collectives in a node, on the bus"),
    ("intra-latency", "intra_latency_ns", parse_duration, "TIME", "of a hop in a node"),
)


def add_hardware_options(parser: argparse.ArgumentParser) -> None:
    """Declare ``--hardware``, and an option for each field that is often changed."""
    group = parser.add_argument_group(
        "the hardware", "without it there is no time, and nothing to fit into; docs/planner.md shows a file"
    )
    group.add_argument(
        "--hardware", metavar="NAME", help="v100, a100, a100-40gb, h100, h200, or the path of a .toml file"
    )
    for option, _, read, unit, what in _CHANGES:
        group.add_argument(f"--{option}", metavar=unit, type=read, help=what)


def read_hardware(arguments: argparse.Namespace) -> Hardware | None:
    """Return the named hardware with the changes of the command line, or None if none is named.

    Raises:
        BadInput: it cannot be found or read, or a change is given without ``--hardware``.
    """
    said: dict[str, Any] = {}
    for option, field, *_ in _CHANGES:
        value = getattr(arguments, option.replace("-", "_"))
        if value is not None:
            said[field] = value
    if arguments.hardware is None:
        if said:
            raise BadInput(
                "no hardware is named that could be changed", hint="add --hardware, as v100 or h100"
            )
        return None
    from zprof.planner.hardware import find_hardware

    found = find_hardware(arguments.hardware)
    return replace(found, name=f"{found.name}, changed", **said) if said else found
