"""The live view in this process: what ``zprof tui`` shows while a run is recorded."""

import argparse
import os
import time
from contextlib import suppress
from pathlib import Path

from zprof.model.interrupts import python_interrupts

#: A view gives way to the job that it shows.
_NICENESS = 10


def add_live_options(parser: argparse.ArgumentParser) -> None:
    """``--live``, and what a command that runs a job beside it tells it."""
    parser.add_argument(
        "--live", action="store_true", help="wait for RUN, and show it step by step as it grows"
    )
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--job-log", type=Path, help=argparse.SUPPRESS)


def is_live(arguments: argparse.Namespace) -> bool:
    """Whether to show the live view: it was asked for, or somebody records there right now."""
    from zprof.run.live import still_recording

    return bool(arguments.live) or still_recording(arguments.run, time.time_ns())


def show_live(arguments: argparse.Namespace, theme: str | None) -> tuple[int, bool]:
    """Show it until the user leaves; its exit code, and whether to go on with all screens of the run."""
    from zprof.tui.live.app import LiveApp
    from zprof.tui.live.watcher import Watcher
    from zprof.tui.theme.looks import wants_no_colour

    with suppress(OSError):
        os.nice(_NICENESS)
    watcher = Watcher(arguments.run, job=arguments.job, log=arguments.job_log)
    app = LiveApp(watcher, ascii_only=arguments.ascii, mono=wants_no_colour())
    if theme is not None:
        app.theme = theme
    try:
        with python_interrupts():
            code = app.run()
    finally:
        watcher.close()
    return code or app.return_code or 0, app.opens
