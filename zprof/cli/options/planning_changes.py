"""Options that say what is changed of a measured run."""

import argparse
from dataclasses import fields

from zprof.cli.options.numbers import count, count_or_none
from zprof.cli.options.planning_units import factor
from zprof.model.planning.whatif import Change

_ON_OFF = {"on": True, "off": False}


def add_change_options(parser: argparse.ArgumentParser) -> None:
    """One option a field of ``Change``; together they are one change."""
    group = parser.add_argument_group(
        "what is changed", "all of it at once; without any, the usual changes one by one"
    )
    group.add_argument("--stage", type=int, choices=range(4), help="ZeRO stage")
    group.add_argument("--prefetch", metavar="N", type=count_or_none, help="stage 3: units gathered ahead")
    group.add_argument(
        "--keep", choices=("none", "last", "all"), help="stage 3: units that stay gathered after forward"
    )
    group.add_argument("--overlap-reduce", choices=tuple(_ON_OFF), help="reductions run beside the backward")
    group.add_argument(
        "--overlap-gather",
        choices=tuple(_ON_OFF),
        help="stages 1 and 2: gathers of new parameters run beside the next forward",
    )
    group.add_argument("--bandwidth", metavar="xF", type=factor, help="times that of the link, as x2")
    group.add_argument(
        "--latency",
        metavar="xF",
        type=factor,
        help="as x0.5: times all that a message costs beside its bytes (software and threads too)",
    )
    group.add_argument("--merge-units", metavar="N", type=count, help="so many units become one (2 or more)")
    group.add_argument(
        "--micro-batches",
        metavar="N",
        type=count,
        help="the same samples of a step in so many (in zprof plan they add samples)",
    )
    group.add_argument(
        "--reduce-bytes", type=int, choices=(2, 4), help="bytes of an element of gradients on the wire"
    )
    group.add_argument("--even", action="store_true", help="every rank computes as fast as the median one")
    group.add_argument("--shard-ranks", metavar="N", type=count, help="ranks that share the states")


def stated_change(arguments: argparse.Namespace) -> Change | None:
    """The change that was said; None where none was."""
    said = Change(
        stage=arguments.stage,
        prefetch=arguments.prefetch,
        keep_after_forward=arguments.keep,
        overlap_reduce=_ON_OFF.get(arguments.overlap_reduce),
        overlap_gather=_ON_OFF.get(arguments.overlap_gather),
        bandwidth_ratio=arguments.bandwidth,
        latency_ratio=arguments.latency,
        units_merged=arguments.merge_units,
        micro_batches=arguments.micro_batches,
        element_bytes_reduced=arguments.reduce_bytes,
        even=arguments.even or None,
        shard_ranks=arguments.shard_ranks,
    )
    return said if any(getattr(said, field.name) is not None for field in fields(said)) else None
