"""``zprof whatif``: predict what one change would do to a measured run."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli.inputs import open_run
from zprof.cli.output import add_output_options, render_to
from zprof.cli.quantities import parse_count, parse_count_or_zero, parse_factor
from zprof.model.whatif import Change

if TYPE_CHECKING:
    from zprof.model.report import WhatIf


class WhatIfCommand:
    """Say what a run would become if one thing were changed.

    The schedule of the measured run is played anew with its own compute times, link and
    memory; each prediction stands beside what was measured, with the error that the same
    model makes on the run itself. Predicted figures begin with ~.

    examples:
      zprof whatif zero3.zprof
      zprof whatif zero3.zprof --stage 2
      zprof whatif zero3.zprof --prefetch 2 --bandwidth x2 --latency x0.5
      zprof whatif traces/ --even -f json
    """

    name = "whatif"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare RUN, the change and the output options."""
        run_help = "folder that a recording made, a trace, or a folder of them"
        parser.add_argument("run", metavar="RUN", type=Path, help=run_help)
        add_change_options(parser)
        parser.add_argument(
            "--assumptions", action="store_true", help="in text: each assumption in full, and its figures"
        )
        add_output_options(parser, "text, json, md or html")

    def run(self, arguments: argparse.Namespace) -> int:
        """Predict the change and write the result."""
        from zprof.reports.formats import WHATIFS, WHATIFS_IN_FULL

        formats = WHATIFS_IN_FULL if arguments.assumptions else WHATIFS
        render_to(arguments, formats, lambda: _predict(arguments))
        return 0


def _predict(arguments: argparse.Namespace) -> "WhatIf":
    from zprof.analysis.analysis import analyse
    from zprof.model.report import WhatIf
    from zprof.planner.whatif.outlook import predict_changes
    from zprof.replay.whatif.changes import refuse_merging
    from zprof.version import __version__

    analysis = analyse(open_run(arguments.run))
    change = read_change(arguments)
    asked = None if change is None else (change,)
    found = predict_changes(analysis, asked)
    if change is not None and found.calibration is not None:
        refuse_merging(change, found.calibration.units)
    return WhatIf(zprof_version=__version__, run=analysis.run, outlook=found)


_ON_OFF = {"on": True, "off": False}


def add_change_options(parser: argparse.ArgumentParser) -> None:
    """Declare one option per field of ``Change``; together they are one change."""
    group = parser.add_argument_group(
        "what is changed", "all of it at once; without any, the usual changes one by one"
    )
    group.add_argument("--stage", type=int, choices=range(4), help="ZeRO stage")
    group.add_argument(
        "--prefetch", metavar="N", type=parse_count_or_zero, help="stage 3: units gathered ahead"
    )
    group.add_argument(
        "--keep", choices=("none", "last", "all"), help="stage 3: units that stay gathered after forward"
    )
    group.add_argument("--overlap-reduce", choices=tuple(_ON_OFF), help="reductions run beside the backward")
    group.add_argument(
        "--overlap-gather",
        choices=tuple(_ON_OFF),
        help="stages 1 and 2: gathers of new parameters run beside the next forward",
    )
    group.add_argument("--bandwidth", metavar="xF", type=parse_factor, help="times that of the link, as x2")
    group.add_argument(
        "--latency",
        metavar="xF",
        type=parse_factor,
        help="as x0.5: times all that a message costs beside its bytes (software and threads too)",
    )
    group.add_argument(
        "--merge-units", metavar="N", type=parse_count, help="so many units become one (2 or more)"
    )
    group.add_argument(
        "--micro-batches",
        metavar="N",
        type=parse_count,
        help="the same samples of a step in so many (in zprof plan they add samples)",
    )
    group.add_argument(
        "--reduce-bytes", type=int, choices=(2, 4), help="bytes of an element of gradients on the wire"
    )
    group.add_argument("--even", action="store_true", help="every rank computes as fast as the median one")
    group.add_argument("--shard-ranks", metavar="N", type=parse_count, help="ranks that share the states")


def read_change(arguments: argparse.Namespace) -> Change | None:
    """Return the change of the command line, or None if there is none."""
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
