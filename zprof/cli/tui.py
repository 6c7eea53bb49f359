"""``zprof tui``: show a run in the terminal, or watch it while it is recorded."""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli import console
from zprof.cli.inputs import open_run
from zprof.cli.registry import Handover
from zprof.cli.shared_options import (
    MeasuringOptions,
    add_measuring_options,
    add_mesh_option,
    add_run_and_baseline,
    add_stated_mesh,
    add_stated_work,
    add_work_options,
    read_measuring_options,
)
from zprof.process.interrupts import restore_python_interrupts

if TYPE_CHECKING:
    from zprof.run.reader import Run


class TuiCommand:
    """Explore a run in the terminal: what is slow, why, and the data behind every number.

    Without a terminal (in a pipe, in CI) it prints the text report. A run that is still
    being recorded is shown step by step as it grows.

    examples:
      zprof tui zero3.zprof --baseline ddp.zprof
      zprof tui traces/ --ascii --theme light
      zprof tui run.zprof --live
      NO_COLOR=1 zprof tui zero3.zprof
    """

    name = "tui"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare RUN, its baseline and the display options."""
        add_run_and_baseline(parser)
        add_measuring_options(parser)
        add_live_options(parser)
        parser.add_argument("--ascii", action="store_true", help="use ASCII characters only")
        parser.add_argument("--theme", metavar="NAME", help="dark, light, ansi, or any Textual theme")
        add_mesh_option(parser)
        add_work_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Show the run, or print the report if there is no terminal."""
        options = read_measuring_options(arguments)
        theme = _check_theme(arguments.theme)
        if not console.are_terminals(sys.stdin, sys.stdout) or os.environ.get("TERM") == "dumb":
            run, baseline = _open_runs(arguments)
            from zprof.cli.report import RunReport
            from zprof.reports.pages.report import build_report_page

            console.print_page(build_report_page(RunReport(run, baseline, options).read_report()))
            return 0
        if is_live(arguments):
            code, opens_run = show_live(arguments, theme)
            if not opens_run:
                return code
        return _show_app(arguments, options, theme)


def _check_theme(name: str | None) -> str | None:
    """Return the theme of this name; raise for an unknown name even if nothing is drawn."""
    if name is None:
        return None
    from zprof.tui.theme import resolve_theme

    return resolve_theme(name)


def _open_runs(arguments: argparse.Namespace) -> "tuple[Run, Run | None]":
    """Return the run and its baseline, with the stated tokens per step."""
    run = open_run(arguments.run)
    training = add_stated_mesh(arguments.mesh, run.manifest.training, run.manifest.world_size)
    run = run.described(add_stated_work(arguments.tokens_per_step, training))
    if arguments.baseline is None:
        return run, None
    baseline = open_run(arguments.baseline)
    return run, baseline.described(
        add_stated_work(arguments.baseline_tokens_per_step, baseline.manifest.training)
    )


def _show_app(arguments: argparse.Namespace, options: MeasuringOptions, theme: str | None) -> int:
    # Open the runs first, so errors are printed and traces imported before the screen is taken over.
    run, baseline = _open_runs(arguments)
    from zprof.tui.app import ZprofApp
    from zprof.tui.session import RunRequest
    from zprof.tui.theme import wants_no_colour

    def open_once(path: Path) -> "Run":
        if path == arguments.run:
            return run
        return baseline if baseline is not None and path == arguments.baseline else open_run(path)

    request = RunRequest(path=arguments.run, opener=open_once, baseline=arguments.baseline, **options)
    app = ZprofApp(request, ascii_only=arguments.ascii, mono=wants_no_colour())
    if theme is not None:
        app.theme = theme
    with restore_python_interrupts(), _draw_on_stdout():
        code = app.run() or app.return_code or 0
    if app.has_threads:
        raise Handover(lambda: _exit_now(code))
    return code


@contextmanager
def _draw_on_stdout() -> Iterator[None]:
    """Draw on stdout, which is a terminal: Textual draws on stderr, which may be a file (``2> errors``)."""
    if console.are_terminals(sys.stderr):
        yield
        return
    drawn_on = sys.__stderr__
    sys.__stderr__ = sys.__stdout__  # type: ignore[misc]  # what textual's drivers write to
    try:
        yield
    finally:
        sys.__stderr__ = drawn_on  # type: ignore[misc]


def _exit_now(code: int) -> int:
    """Exit without waiting for measurement threads, which only read."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


#: Lower priority, so the view does not slow down the job.
_NICENESS = 10


def add_live_options(parser: argparse.ArgumentParser) -> None:
    """Declare ``--live``, and the hidden options of commands that run a job next to the view."""
    parser.add_argument(
        "--live", action="store_true", help="wait for RUN, and show it step by step as it grows"
    )
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--job-log", type=Path, help=argparse.SUPPRESS)


def is_live(arguments: argparse.Namespace) -> bool:
    """Return True if the live view was requested or the run is still being recorded."""
    from zprof.run.live import is_still_recording

    return bool(arguments.live) or is_still_recording(arguments.run, time.time_ns())


def show_live(arguments: argparse.Namespace, theme: str | None) -> tuple[int, bool]:
    """Show the live view; return its exit code, and if the user asked to open the run."""
    from zprof.tui.live.app import LiveApp
    from zprof.tui.live.watcher import Watcher
    from zprof.tui.theme import wants_no_colour

    with suppress(OSError):
        os.nice(_NICENESS)
    watcher = Watcher(arguments.run, job=arguments.job, log=arguments.job_log)
    app = LiveApp(watcher, ascii_only=arguments.ascii, mono=wants_no_colour())
    if theme is not None:
        app.theme = theme
    try:
        with restore_python_interrupts(), _draw_on_stdout():
            code = app.run()
    finally:
        watcher.close()
    return code or app.return_code or 0, app.opens
