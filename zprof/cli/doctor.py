"""``zprof doctor``: check which dependencies zprof can use on this machine."""

import argparse

from zprof.base.errors import CheckFailed
from zprof.cli import console


class DoctorCommand:
    """Show which features zprof can use on this machine, and how to enable the others.

    Each library is tested in a separate process, so that a crash does no harm. The exit
    code is 1 if something that zprof requires is broken.

    examples:
      zprof doctor
      zprof doctor --json
    """

    name = "doctor"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the output format."""
        parser.add_argument(
            "-f", "--format", choices=("text", "json"), default="text", help="(default: %(default)s)"
        )
        parser.add_argument(
            "--json", dest="format", action="store_const", const="json", help="the same as -f json"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Examine the machine and print the result; exit code 1 if a requirement is broken."""
        from zprof.integrations.doctor import examine
        from zprof.model.json_format import to_json
        from zprof.reports.pages.small_pages import build_doctor_page

        examination = examine()
        if arguments.format == "json":
            console.print_data(to_json(examination))
        else:
            console.print_page(build_doctor_page(examination))
        return 0 if examination.is_well else CheckFailed.exit_code
