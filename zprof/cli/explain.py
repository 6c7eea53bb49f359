"""``zprof explain``: the page of a finding."""

import argparse

from zprof.cli.terminal import console
from zprof.model.errors import BadInput


class ExplainCommand:
    """Print the page of a finding: how it is found, what to change, how to disprove it.

    examples:
      zprof explain ZP301
      zprof explain straggler_rank
      zprof explain --list
    """

    name = "explain"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """ID, or all of them."""
        parser.add_argument("finding", metavar="ID", nargs="?", help="a finding: ZP301, or straggler_rank")
        parser.add_argument("--list", action="store_true", help="all findings, a line or two each")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print it."""
        from zprof.reports.pages import cause_of, page
        from zprof.reports.text.finding_list import finding_list
        from zprof.reports.text.markdown import as_text

        if arguments.list == (arguments.finding is not None):
            raise BadInput("name one finding, or --list", hint="zprof explain ZP301")
        if arguments.list:
            console.page(finding_list())
        else:
            console.page(as_text(page(cause_of(arguments.finding))))
        return 0
