"""``zprof whatif``: what one change would make of a measured run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli.opening import open_run
from zprof.cli.options.output import add_output_options, render_to
from zprof.cli.options.planning_changes import add_change_options, stated_change

if TYPE_CHECKING:
    from zprof.model.planning.whatif_document import WhatIf


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
        """RUN, what is changed, and how to write the answer."""
        run_help = "folder that a recording made, a trace, or a folder of them"
        parser.add_argument("run", metavar="RUN", type=Path, help=run_help)
        add_change_options(parser)
        parser.add_argument(
            "--assumptions", action="store_true", help="in text: each assumption in full, and its figures"
        )
        add_output_options(parser, "text, json, md or html")

    def run(self, arguments: argparse.Namespace) -> int:
        """Predict, render, deliver."""
        from zprof.reports.formats import WHATIFS, WHATIFS_IN_FULL

        formats = WHATIFS_IN_FULL if arguments.assumptions else WHATIFS
        render_to(arguments, formats, lambda: _predicted(arguments))
        return 0


def _predicted(arguments: argparse.Namespace) -> "WhatIf":
    from zprof.analysis.analysis import analyse
    from zprof.model.planning.whatif_document import WhatIf
    from zprof.planner.whatif.change_words import refuse_merging
    from zprof.planner.whatif.outlook import outlook
    from zprof.version import __version__

    analysis = analyse(open_run(arguments.run))
    change = stated_change(arguments)
    asked = None if change is None else (change,)
    found = outlook(analysis, asked)
    if change is not None and found.calibration is not None:
        refuse_merging(change, found.calibration.units)
    return WhatIf(zprof_version=__version__, run=analysis.run, outlook=found)
