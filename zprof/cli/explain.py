"""``zprof explain``: explain a finding."""

import argparse

from zprof.base.errors import BadInput
from zprof.cli import console

_MEMORY_IDS = "ZP2"
_REPLAY_NOTE = """
## How the saving is computed
The measured step is replayed without this cause. The printed saving is the gain of that replay, widened by
noise. If the step cannot be replayed, the printed saving is the estimate above.
"""


class ExplainCommand:
    """Explain a finding: how it is detected, what to change, how to disprove it.

    examples:
      zprof explain ZP301
      zprof explain straggler_rank
      zprof explain --list
    """

    name = "explain"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the finding's ID and --list."""
        parser.add_argument(
            "finding", metavar="ID", nargs="?", help="ID or name of a finding, e.g. ZP301 or straggler_rank"
        )
        parser.add_argument("--list", action="store_true", help="list all findings, as no ID does")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the page of the finding, or the list."""
        from zprof.reports.finding_pages import find_cause, read_page
        from zprof.reports.layout import render_markdown_text
        from zprof.reports.pages.small_pages import build_finding_list_page

        if arguments.list and arguments.finding is not None:
            raise BadInput("pass one finding or --list", hint="for example: zprof explain ZP301")
        if arguments.finding is None:
            console.print_page(build_finding_list_page())
        else:
            cause = find_cause(arguments.finding)
            text = read_page(cause.id) + ("" if cause.id.startswith(_MEMORY_IDS) else _REPLAY_NOTE)
            console.print_data(render_markdown_text(text, colour=console.has_colour()))
        return 0
