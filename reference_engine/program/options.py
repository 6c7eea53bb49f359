"""The command line of the training program, and how it becomes a config."""

import argparse

from zprof.reference_engine.comm import LinkModel
from zprof.reference_engine.config import DTYPES, STAGES, ZeroConfig
from zprof.reference_engine.program.gpt import GPTConfig
from zprof.reference_engine.program.modelled_compute import ComputeModel
from zprof.reference_engine.program.train_config import TrainConfig

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All options of a training run."""
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps (default %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="sequences a step, over all ranks (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    _add_engine(parser.add_argument_group("engine"))
    _add_model(parser.add_argument_group("model"))
    _add_modelled(parser.add_argument_group("modelled: a link and compute of a chosen speed"))


def config_from(options: argparse.Namespace) -> TrainConfig:
    """The run that was asked for.

    Raises:
        ValueError: a setting is out of range or lacks the one that it belongs to; the message names it.
    """
    return TrainConfig(
        zero=_zero(options),
        gpt=GPTConfig(
            layers=options.layers,
            hidden=options.hidden,
            heads=options.heads,
            vocabulary=options.vocabulary,
            context=options.context,
            tied=options.tied,
        ),
        steps=options.steps,
        batch=options.batch,
        seed=options.seed,
        link=_link(options),
        compute=_compute(options),
    )


def _add_engine(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--stage", type=int, choices=STAGES, default=0, help="what is sharded (%(default)s)")
    group.add_argument("--dtype", choices=sorted(_DTYPES), default="float32")
    for direction in ("forward", "backward"):
        group.add_argument(
            f"--{direction}-prefetch",
            type=int,
            default=1,
            metavar="N",
            help=f"stage 3: units gathered ahead of the {direction}, 0 is off (%(default)s)",
        )
    for name, what in (("reduce", "gradient reductions"), ("gather", "parameter gathers of stages 1 and 2")):
        group.add_argument(
            f"--no-overlap-{name}",
            action="store_true",
            help=f"wait for {what} instead of running beside them",
        )
    group.add_argument("--learning-rate", type=float, default=1e-3)
    group.add_argument("--weight-decay", type=float, default=0.01)


def _add_model(group: argparse._ArgumentGroup) -> None:
    for name in ("layers", "hidden", "heads", "vocabulary", "context"):
        group.add_argument(f"--{name}", type=int, default=getattr(GPTConfig(), name), help="(%(default)s)")
    group.add_argument("--tied", action="store_true", help="share the embedding's weights with the head")


def _add_modelled(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--link-gbps", type=float, help="bus bandwidth in 1e9 bits/s; absent: the real network"
    )
    group.add_argument("--link-latency-us", type=float, help="latency of each collective")
    group.add_argument("--compute-forward-ms", type=float, help="each block's forward takes so much longer")
    group.add_argument("--compute-backward-ms", type=float, help="each block's backward takes so much longer")
    group.add_argument("--straggler-rank", type=int, help="this rank is late in every step")
    group.add_argument("--straggler-ms", type=float, help="by so much")


def _zero(options: argparse.Namespace) -> ZeroConfig:
    return ZeroConfig(
        stage=options.stage,
        dtype=_DTYPES[options.dtype],
        forward_prefetch=options.forward_prefetch,
        backward_prefetch=options.backward_prefetch,
        overlap_reduce=not options.no_overlap_reduce,
        overlap_gather=not options.no_overlap_gather,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
    )


def _link(options: argparse.Namespace) -> LinkModel | None:
    if options.link_gbps is None:
        if options.link_latency_us is not None:
            raise ValueError("--link-latency-us needs --link-gbps")
        return None
    return LinkModel(
        bandwidth_bytes_per_s=options.link_gbps * 1e9 / 8,
        latency_s=(options.link_latency_us or 0.0) / 1e6,
    )


def _compute(options: argparse.Namespace) -> ComputeModel | None:
    if (options.straggler_rank is None) != (options.straggler_ms is None):
        raise ValueError("--straggler-rank and --straggler-ms belong together")
    names = ("compute_forward_ms", "compute_backward_ms", "straggler_ms")
    milliseconds = [getattr(options, name) for name in names]
    if all(value is None for value in milliseconds):
        return None
    forward_s, backward_s, straggler_s = ((value or 0.0) / 1e3 for value in milliseconds)
    return ComputeModel(
        forward_s=forward_s,
        backward_s=backward_s,
        straggler_rank=options.straggler_rank,
        straggler_s=straggler_s,
    )
