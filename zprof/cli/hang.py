"""``zprof hang``: say why a job is stuck, from the flight recorders of its ranks."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli.inputs import diagnose_or_recall, open_dumps, refuse_missing
from zprof.cli.output import add_output_options, render_to
from zprof.model.errors import MissingData

if TYPE_CHECKING:
    from zprof.model.report import Report


class HangCommand:
    """Say why a job is stuck: which rank, which collective, which line.

    Reads the dumps of PyTorch's flight recorder (pickle or JSON, one per rank, or their
    folder), logs with the lines of NCCL's watchdog, or a run of zprof record --watch.
    A dump is read in a separate process with limits, and nothing in it is executed.
    Ranks without a dump are listed, and not accused.

    Dumps are written when a collective times out, if TORCH_FR_BUFFER_SIZE (or
    TORCH_NCCL_TRACE_BUFFER_SIZE) and TORCH_NCCL_DUMP_ON_TIMEOUT are set: zprof doctor
    says if a job would leave one.

    examples:
      zprof hang dumps/
      zprof hang nccl_trace_rank_* rank3.log
      zprof hang run.zprof -f json
      zprof hang dumps/ -o hang.html
    """

    name = "hang"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the dumps and the output options."""
        parser.add_argument(
            "paths",
            metavar="DUMP",
            type=Path,
            nargs="+",
            help="flight-recorder dump, log, folder of dumps, or run",
        )
        add_output_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Read the dumps and write the result."""
        if not arguments.output:  # else what is wrong with the files comes first
            refuse_missing(*arguments.paths)
        from zprof.reports.formats import DIAGNOSES

        render_to(arguments, DIAGNOSES, lambda: _diagnose_dumps(arguments.paths))
        return 0


def _diagnose_dumps(paths: list[Path]) -> "Report":
    run = open_dumps(paths)
    report = diagnose_or_recall(run)
    if report.hang is None:
        raise MissingData(
            f"{paths[0]}: no flight recorder in it",
            hint="pass dumps of PyTorch's flight recorder, or a run of zprof record --watch SECONDS",
        )
    return report
