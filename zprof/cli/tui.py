"""``zprof tui``: look at a run in the terminal."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli.command import Handover
from zprof.cli.live import add_live_options, is_live, show_live
from zprof.cli.opening import open_run
from zprof.cli.options.measuring import Measuring, add_measuring_options, measuring
from zprof.cli.options.training_facts import add_work_options, stated_work
from zprof.cli.terminal import console
from zprof.model.interrupts import python_interrupts

if TYPE_CHECKING:
    from zprof.run.reader import Run


class TuiCommand:
    """Look at a run in the terminal: what is slow, why, and every number behind it.

    Without a terminal (in a pipe, in CI) it prints the text report.  A run that is being
    recorded is shown step by step as it grows.

    examples:
      zprof tui zero3.zprof --baseline ddp.zprof
      zprof tui traces/ --ascii --theme light
      zprof tui run.zprof --live
      NO_COLOR=1 zprof tui zero3.zprof
    """

    name = "tui"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """RUN, its baseline, and how it looks."""
        run_help = "folder that a recording made, a trace, a memory snapshot, or a folder of them"
        parser.add_argument("run", metavar="RUN", type=Path, help=run_help)
        parser.add_argument("--baseline", metavar="RUN", type=Path, help="run to compare with")
        add_measuring_options(parser)
        add_live_options(parser)
        parser.add_argument("--ascii", action="store_true", help="letters instead of glyphs")
        parser.add_argument("--theme", metavar="NAME", help="dark, light, ansi, or any theme of Textual")
        add_work_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Show it; print the report where there is no terminal to show it on."""
        options = measuring(arguments)
        theme = _theme(arguments.theme)
        if not console.are_terminals(sys.stdin, sys.stdout) or os.environ.get("TERM") == "dumb":
            return _printed(arguments, options)
        if is_live(arguments):
            code, opens = show_live(arguments, theme)
            if not opens:
                return code
        return _shown(arguments, options, theme)


def _theme(name: str | None) -> str | None:
    """A wrong name is refused at once, also where nothing is drawn."""
    if name is None:
        return None
    from zprof.tui.theme.looks import theme_named

    return theme_named(name)


def _printed(arguments: argparse.Namespace, options: Measuring) -> int:
    from zprof.analysis.analysis import analyse
    from zprof.planner.whatif.outlook import with_outlook
    from zprof.reports.formats import by_name
    from zprof.rules.diagnose import diagnose

    run, baseline = _given(arguments)
    analysis = analyse(run, options["policy"])
    console.page(by_name("text").render(with_outlook(diagnose(analysis, baseline, **options), analysis)))
    return 0


def _given(arguments: argparse.Namespace) -> "tuple[Run, Run | None]":
    """The run and its baseline, with the work of a step as it was said."""
    run = open_run(arguments.run)
    run = run.described(stated_work(arguments.tokens_per_step, run.manifest.training))
    if arguments.baseline is None:
        return run, None
    before = open_run(arguments.baseline)
    return run, before.described(stated_work(arguments.baseline_tokens_per_step, before.manifest.training))


def _shown(arguments: argparse.Namespace, options: Measuring, theme: str | None) -> int:
    # What cannot be opened is refused in one line, and traces are imported, before the screen is taken.
    run, before = _given(arguments)
    from zprof.tui.app import ZprofApp
    from zprof.tui.session import Asked
    from zprof.tui.theme.looks import wants_no_colour

    def opener(path: Path) -> "Run":
        if path == arguments.run:
            return run
        return before if before is not None and path == arguments.baseline else open_run(path)

    asked = Asked(path=arguments.run, opener=opener, baseline=arguments.baseline, **options)
    app = ZprofApp(asked, ascii_only=arguments.ascii, mono=wants_no_colour())
    if theme is not None:
        app.theme = theme
    with python_interrupts():
        code = app.run() or app.return_code or 0
    if app.has_threads:
        raise Handover(lambda: _end(code))
    return code


def _end(code: int) -> int:
    """Who leaves while a run is measured does not wait for that; its thread only reads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
