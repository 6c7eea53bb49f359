"""Options that describe a job which did not run: model, degrees, precision, batch, how the engine works."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from zprof.cli.options.numbers import count, count_or_none
from zprof.cli.options.planning_hardware import add_hardware_options, stated_hardware
from zprof.cli.options.planning_model import add_model_options, counted, stated_model
from zprof.cli.options.planning_units import parameters as elements
from zprof.model.errors import BadInput
from zprof.model.planning.job import Backend, Batch, Degrees, ElementBytes, Job, Overlap, Residual
from zprof.model.planning.plan import ZERO_STAGES, Scheme

#: Bytes of an element of the optimizer's own state, without a master copy of the weights.
_OPTIMIZERS = {"adam": 8, "momentum": 4, "sgd": 0}
_FULL, _HALF = 4, 2


def add_planning_options(parser: argparse.ArgumentParser) -> None:
    """Everything that a plan depends on."""
    add_model_options(parser)
    _add_degrees(parser)
    _add_states(parser)
    _add_batch(parser)
    _add_engine(parser)
    add_hardware_options(parser)


def schemes_of(arguments: argparse.Namespace) -> Sequence[Scheme]:
    """One stage, or all ways side by side.

    Raises:
        BadInput: an option of stage 3 stands beside another stage.
    """
    if arguments.keep_last and arguments.stage not in (None, 3):
        raise BadInput(
            f"--keep-last keeps what stage 3 gathers, and --stage {arguments.stage} gathers no units",
            hint="leave it out, or plan --stage 3",
        )
    return tuple(Scheme) if arguments.stage is None else (tuple(ZERO_STAGES)[arguments.stage],)


def job_of(arguments: argparse.Namespace) -> Job:
    """The job that was described.

    Raises:
        BadInput: no model was named, or two, or the hardware cannot be used.
    """
    name, parameters, shape = stated_model(arguments)
    job = Job(
        name=name,
        parameters=parameters,
        shape=shape,
        degrees=Degrees(dp=arguments.dp, mp=arguments.mp, pp=arguments.pp),
        element_bytes=element_bytes(arguments.precision, arguments.optimizer),
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
        hardware=stated_hardware(arguments),
    )
    return counted(arguments.model, job) if arguments.model else job


def element_bytes(precision: str, optimizer: str) -> ElementBytes:
    """With 16 bits the optimizer holds fp32 master weights too, and makes an fp32 copy of the gradient."""
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
        group.add_argument(f"--{name}", metavar="N", type=count, default=1, help=help_text)


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
    group.add_argument("--micro-batch", metavar="N", type=count, help="samples of a micro-batch")
    group.add_argument("--sequence", metavar="N", type=count, help="tokens of a sample")
    group.add_argument("--micro-batches", metavar="N", type=count, default=1, help="of a step (%(default)s)")


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
        "--prefetch", metavar="N", type=count_or_none, default=1, help="units gathered ahead (%(default)s)"
    )
    group.add_argument(
        "--backend",
        choices=tuple(str(backend) for backend in Backend),
        default="nccl",
        help="what carries collectives (%(default)s)",
    )
