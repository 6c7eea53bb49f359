"""``zprof verify``: measure a trace with zprof and with HTA."""

import argparse
from pathlib import Path

from zprof.cli import console
from zprof.cli.quantities import parse_number_ranges, parse_positive
from zprof.model.errors import MissingData
from zprof.model.formatting import printable
from zprof.model.second_opinion import FigureStatus


class VerifyCommand:
    """Measure a trace with zprof and with HTA, side by side, and say where they differ.

    HTA (Holistic Trace Analysis) runs in a process of its own, with its rounding off and
    its last step kept, on the same window: the whole trace, each rank by itself. Times
    are equal within 1 us for each 1000 rows of the device (more where HTA's doubles are
    coarser), the overlap within 0.01 points. The exit code is 0 where all agree, 1 where
    something differs, 3 where HTA could say nothing.

    examples:
      zprof verify rank0.pt.trace.json.gz
      zprof verify traces/ --ranks 0-3
      zprof verify traces/ -f json
    """

    name = "verify"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare TRACE and the output options."""
        parser.add_argument("trace", metavar="TRACE", type=Path, help="a Kineto trace, or a folder of them")
        parser.add_argument(
            "--ranks", metavar="RANKS", type=parse_number_ranges, help="ranks such as 0, 0-3 or 0,8"
        )
        parser.add_argument(
            "--hta-seconds",
            metavar="N",
            type=parse_positive,
            help="end HTA on a rank after so long (default: by the size of its file)",
        )
        parser.add_argument(
            "-f", "--format", choices=("text", "json"), default="text", help="(default: %(default)s)"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Measure twice and print the comparison; the exit code says whether both agree."""
        from zprof.integrations.hta.verification import verify_with_hta
        from zprof.model.json_format import to_json
        from zprof.reports.formats import page_text
        from zprof.reports.presenters.small_pages import verification_page

        found = verify_with_hta(
            arguments.trace,
            ranks=arguments.ranks,
            wall_s=arguments.hta_seconds,
            note=lambda text: console.note(f"zprof: {printable(text)}"),
        )
        if arguments.format == "json":
            console.data(to_json(found))
        else:
            console.page(page_text(verification_page(found)))
        if found.status is FigureStatus.UNKNOWN:
            return MissingData.exit_code
        return int(found.status is FigureStatus.DIFFERS)
