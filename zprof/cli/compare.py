"""``zprof compare``: two runs side by side."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli.opening import open_run
from zprof.cli.options.measuring import add_measuring_options, measuring
from zprof.cli.options.training_facts import add_work_options, stated_work
from zprof.model.errors import BadInput

if TYPE_CHECKING:
    from zprof.model.side_by_side import SideBySide


class CompareCommand:
    """Put every figure of two runs side by side, and what differs in how they were run.

    The verdict is that of B against A. What is 0 or unknown in both, and settings that
    are equal, are left out. zprof diagnose B --baseline A says what it means.

    examples:
      zprof compare ddp.zprof zero3.zprof
      zprof compare before/ after/ --all
      zprof compare ddp.zprof zero3.zprof -f json -o both.json
    """

    name = "compare"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """A and B, and how to write them."""
        for name, what in (
            ("a", "run to compare with"),
            ("b", "run, a trace, a snapshot or a folder of them"),
        ):
            parser.add_argument(name, metavar=name.upper(), type=Path, help=what)
        parser.add_argument("--all", action="store_true", help="also what is equal, 0 or unknown in both")
        add_measuring_options(parser, of="each recording")
        parser.add_argument("-f", "--format", choices=("text", "json"), default=None, help="(default: text)")
        parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write here: .txt or .json")
        parser.add_argument("--force", action="store_true", help="overwrite FILE")
        add_work_options(parser, ("B", "A"))

    def run(self, arguments: argparse.Namespace) -> int:
        """Compare, render, deliver."""
        from zprof.cli.terminal.output import check_target, deliver
        from zprof.model.json_tree import to_json
        from zprof.reports.text.compare.page import render

        output: Path | None = arguments.output
        chosen = arguments.format or _format_of(output)
        if output is not None:
            check_target(output, force=arguments.force)
        both = _both(arguments)
        document = to_json(both) if chosen == "json" else render(both, everything=arguments.all)
        deliver(document, output, force=arguments.force)
        return 0


def _format_of(output: Path | None) -> str:
    if output is None or output.suffix.lower() in (".txt", ".text"):
        return "text"
    if output.suffix.lower() == ".json":
        return "json"
    raise BadInput(f"{output}: its suffix names no format", hint="add -f and one of: text, json")


def _both(arguments: argparse.Namespace) -> "SideBySide":
    from zprof.rules.side_by_side import side_by_side

    a, b = open_run(arguments.a), open_run(arguments.b)
    a = a.described(stated_work(arguments.baseline_tokens_per_step, a.manifest.training))
    b = b.described(stated_work(arguments.tokens_per_step, b.manifest.training))
    return side_by_side(a, b, **measuring(arguments))
