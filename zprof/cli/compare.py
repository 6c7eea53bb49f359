"""``zprof compare``: compare two runs side by side."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli.inputs import open_run
from zprof.cli.output import add_output_options, render_to
from zprof.cli.shared_options import (
    RUN_HELP,
    add_measuring_options,
    add_stated_work,
    add_work_options,
    read_measuring_options,
)

if TYPE_CHECKING:
    from zprof.model.comparison import SideBySide


class CompareCommand:
    """Compare all metrics of two runs side by side, and list the settings that differ.

    The verdict compares B with A. Metrics that are 0 or unknown in both runs and equal
    settings are omitted. zprof diagnose B --baseline A explains the difference.

    examples:
      zprof compare ddp.zprof zero3.zprof
      zprof compare before/ after/ --all
      zprof compare before.pickle after.pickle      what changed between two CUDA snapshots
      zprof compare ddp.zprof zero3.zprof -f json -o both.json
    """

    name = "compare"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare A, B and the output options."""
        for name, help_text in (
            ("a", "run to compare B with"),
            ("b", RUN_HELP),
        ):
            parser.add_argument(name, metavar=name.upper(), type=Path, help=help_text)
        parser.add_argument(
            "--all", action="store_true", help="also show what is equal, 0 or unknown in both runs"
        )
        add_measuring_options(parser, subject="each recording")
        add_output_options(parser)
        add_work_options(parser, ("B", "A"))

    def run(self, arguments: argparse.Namespace) -> int:
        """Compare the runs and write the result."""
        from zprof.reports.formats import COMPARISONS, COMPARISONS_IN_FULL

        formats = COMPARISONS_IN_FULL if arguments.all else COMPARISONS
        render_to(arguments, formats, lambda: _compare_runs(arguments))
        return 0


def _compare_runs(arguments: argparse.Namespace) -> "SideBySide":
    a, b = open_run(arguments.a), open_run(arguments.b)
    from zprof.diagnosis.diagnose import diagnose_side_by_side

    a = a.described(add_stated_work(arguments.baseline_tokens_per_step, a.manifest.training))
    b = b.described(add_stated_work(arguments.tokens_per_step, b.manifest.training))
    return diagnose_side_by_side(a, b, **read_measuring_options(arguments))
