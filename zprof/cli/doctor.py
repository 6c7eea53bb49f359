"""``zprof doctor``: check which of its dependencies zprof can use on this machine."""

import argparse

from zprof.cli import console
from zprof.model.errors import CheckFailed


class DoctorCommand:
    """Say what this machine has of what zprof can use, and what to do where it is missing.

    Libraries are tried in processes of their own, so that one that crashes does no harm.
    The exit code is 1 where something that zprof needs is broken.

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
        """Examine the machine and print the result; exit code 1 if something that zprof needs is broken."""
        from zprof.integrations.doctor import examine
        from zprof.model.json_format import to_json
        from zprof.reports.formats import page_text
        from zprof.reports.presenters.small_pages import doctor_page

        found = examine()
        if arguments.format == "json":
            console.data(to_json(found))
        else:
            console.page(page_text(doctor_page(found)))
        return 0 if found.is_well else CheckFailed.exit_code
