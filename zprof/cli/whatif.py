"""``zprof whatif``: predict the effect of a change on a measured run."""

import argparse
from typing import TYPE_CHECKING

from msgspec.structs import fields

from zprof.base.parsing import parse_count, parse_count_or_zero, parse_factor
from zprof.cli.inputs import open_run
from zprof.cli.output import add_output_options, render_to
from zprof.cli.shared_options import add_run
from zprof.model.plan import Change

if TYPE_CHECKING:
    from zprof.model.report import WhatIf


class WhatIfCommand:
    """Predict the effect of a change on a measured run.

    Replays the schedule of the run with its measured compute times, link and memory. Each
    prediction is shown next to the measured value, with the error of the same model on
    the unchanged run. Predicted values start with ~.

    examples:
      zprof whatif zero3.zprof
      zprof whatif zero3.zprof --stage 2
      zprof whatif zero3.zprof --prefetch 2 --bandwidth x2 --latency x0.5
      zprof whatif traces/ --even -f json
    """

    name = "whatif"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare RUN, the change and the output options."""
        add_run(parser)
        add_change_options(parser)
        parser.add_argument(
            "--assumptions",
            action="store_true",
            help="text output: show each assumption in full, with its values",
        )
        add_output_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Predict the change and write the result."""
        from zprof.reports.formats import WHATIFS, WHATIFS_IN_FULL

        formats = WHATIFS_IN_FULL if arguments.assumptions else WHATIFS
        render_to(arguments, formats, lambda: _predict(arguments))
        return 0


def _predict(arguments: argparse.Namespace) -> "WhatIf":
    run = open_run(arguments.run)
    from zprof.analysis.analysis import analyse
    from zprof.model.report import WhatIf
    from zprof.planner.whatif import predict_changes
    from zprof.step.prediction import refuse_merging
    from zprof.version import __version__

    analysis = analyse(run)
    change = read_change(arguments)
    outlook = predict_changes(analysis, None if change is None else (change,))
    if change is not None and outlook.calibration is not None:
        refuse_merging(change, outlook.calibration.units)
    return WhatIf(zprof_version=__version__, run=analysis.run, outlook=outlook)


_ON_OFF = {"on": True, "off": False}


def add_change_options(parser: argparse.ArgumentParser) -> None:
    """Declare one option per field of ``Change``; together they are one change."""
    group = parser.add_argument_group(
        "change", "all options together are one change; without any, the usual changes one by one"
    )
    group.add_argument("--stage", type=int, choices=range(4), help="ZeRO stage")
    group.add_argument(
        "--prefetch", metavar="N", type=parse_count_or_zero, help="stage 3: units to gather ahead"
    )
    group.add_argument(
        "--keep", choices=("none", "last", "all"), help="stage 3: units that stay gathered after forward"
    )
    group.add_argument(
        "--overlap-reduce", choices=tuple(_ON_OFF), help="overlap reductions with the backward pass"
    )
    group.add_argument(
        "--overlap-gather",
        choices=tuple(_ON_OFF),
        help="stages 1 and 2: overlap gathers of updated parameters with the next forward pass",
    )
    group.add_argument(
        "--bandwidth", metavar="xF", type=parse_factor, help="scale the link bandwidth, e.g. x2"
    )
    group.add_argument(
        "--latency",
        metavar="xF",
        type=parse_factor,
        help="scale the fixed cost per message, software and threads included, e.g. x0.5",
    )
    group.add_argument(
        "--merge-units", metavar="N", type=parse_count, help="merge every N units into one (2 or more)"
    )
    group.add_argument(
        "--micro-batches",
        metavar="N",
        type=parse_count,
        help="split the samples of a step into N micro-batches (zprof plan adds samples instead)",
    )
    group.add_argument(
        "--reduce-bytes", type=int, choices=(2, 4), help="bytes per gradient element on the wire"
    )
    group.add_argument(
        "--even", action="store_true", help="let every rank compute as fast as the median rank"
    )
    group.add_argument(
        "--shard-ranks", metavar="N", type=parse_count, help="ranks that the model states are sharded over"
    )


def read_change(arguments: argparse.Namespace) -> Change | None:
    """Return the change that the options describe, or None if there is none."""
    change = Change(
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
    return change if any(getattr(change, field.name) is not None for field in fields(change)) else None
