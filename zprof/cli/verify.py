"""``zprof verify``: compare zprof's measurements of a trace with those of HTA."""

import argparse
from pathlib import Path

from zprof.base.errors import Extra, MissingData, require_extra
from zprof.base.formatting import printable
from zprof.base.parsing import parse_number_ranges, parse_positive
from zprof.cli import console
from zprof.model.report import FigureStatus


class VerifyCommand:
    """Analyze a trace with both zprof and HTA, and show where they differ.

    HTA (Holistic Trace Analysis) runs in a separate process, without rounding and without
    dropping the last step. Both measure the same window, the entire trace, one rank at a
    time. Times may differ by 1 us per 1000 device rows (more if HTA's doubles are
    coarser), the overlap by 0.01 points.

    exit codes: 0 both agree, 1 something differs, 3 HTA gave no result.

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
            "--ranks",
            metavar="RANKS",
            type=parse_number_ranges,
            help="analyze only these ranks, e.g. 0, 0-3 or 0,8",
        )
        parser.add_argument(
            "--hta-seconds",
            metavar="N",
            type=parse_positive,
            help="stop HTA on a rank after N seconds (default: depends on the size of its file)",
        )
        parser.add_argument(
            "-f", "--format", choices=("text", "json"), default="text", help="(default: %(default)s)"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Analyze the trace with both programs and print the comparison; exit code 0 if they agree."""
        require_extra(Extra.HTA, "verify")
        from zprof.integrations.hta.verification import verify_with_hta
        from zprof.model.json_format import to_json
        from zprof.reports.pages.small_pages import build_verification_page

        verification = verify_with_hta(
            arguments.trace,
            ranks=arguments.ranks,
            wall_s=arguments.hta_seconds,
            print_note=lambda text: console.print_note(f"zprof: {printable(text)}"),
        )
        if arguments.format == "json":
            console.print_data(to_json(verification))
        else:
            console.print_page(build_verification_page(verification))
        if verification.status is FigureStatus.UNKNOWN:
            return MissingData.exit_code
        return int(verification.status is FigureStatus.DIFFERS)
