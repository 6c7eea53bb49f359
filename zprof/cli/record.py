"""``zprof record``: run and record a training program that knows nothing of zprof."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli import console
from zprof.cli.live_view import LiveView, job_log, print_log_tail, should_show_live
from zprof.cli.quantities import parse_count_or_zero, parse_positive
from zprof.cli.registry import Handover
from zprof.integrations.program.command import GRACE_S
from zprof.model.errors import BadInput
from zprof.model.formatting import printable

if TYPE_CHECKING:
    from zprof.integrations.program.session import ProgramSettings


class RecordCommand:
    """Run a training program as it is, and record it.

    A step is found by the optimizers of the program, the model by what they optimize.
    Everything after -- is the program's own, and so are its output and exit code; ZPROF=0
    in the environment runs it without recording.  A script or -m MODULE runs in this
    process, as a rank of torchrun does; any other command runs as a child, and all that
    trains below it is recorded.  What ctrl+c does not end gets SIGTERM after --grace, and
    SIGKILL after that again; a second ctrl+c ends it at once.

    With --live the terminal shows the run step by step: the program runs as a child, reads
    nothing, and writes to RUN/job.log.  q leaves the view and the program goes on; ctrl+c
    ends the program as it would without.

    examples:
      zprof record -o run.zprof -- python train.py --lr 3e-4
      zprof record -o run.zprof -- torchrun --nproc-per-node 8 train.py
      torchrun --nproc-per-node 8 -m zprof record -o run.zprof -- train.py
      zprof record --live -o run.zprof -- torchrun --nproc-per-node 8 train.py
    """

    name = "record"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the recording's options and the program."""
        parser.add_argument("-o", "--output", metavar="RUN", required=True, help="run to write")
        parser.add_argument("--force", action="store_true", help="overwrite RUN")
        parser.add_argument("--live", action="store_true", help="show it step by step; q leaves the view")
        for name, steps, what in (
            ("skip", 2, "left alone at first, at least 2"),
            ("memory", 2, "watched for memory"),
            ("time", 8, "watched for time"),
        ):
            parser.add_argument(
                f"--{name}-steps",
                metavar="N",
                type=parse_count_or_zero,
                default=steps,
                help=f"steps {what} (%(default)s)",
            )
        parser.add_argument(
            "--memory-mode", choices=("full", "light"), default="full",
            help="full sees every allocation, light costs less (%(default)s)",
        )  # fmt: skip
        parser.add_argument(
            "--no-init", action="store_true", help="do not watch memory before the first step"
        )
        parser.add_argument(
            "--grace", metavar="S", type=parse_positive, default=GRACE_S,
            help="seconds that a command has after ctrl+c (%(default)g)",
        )  # fmt: skip
        parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run")

    def run(self, arguments: argparse.Namespace) -> int:
        """Hand over to the program, or return its exit code."""
        from zprof.integrations.program.in_process import is_python_program
        from zprof.integrations.program.record import record_command, record_here
        from zprof.integrations.program.session import ProgramSettings

        command = _strip_separator(arguments.program)
        settings = ProgramSettings(
            run=str(Path(arguments.output).absolute()),
            skip=arguments.skip_steps,
            memory=arguments.memory_steps,
            time=arguments.time_steps,
            memory_mode=arguments.memory_mode,
            init=not arguments.no_init,
        )
        on = os.environ.get("ZPROF") != "0"
        if on and should_show_live(arguments.live, Path(arguments.output)):
            return _record_live(command, settings, force=arguments.force, grace_s=arguments.grace)
        if is_python_program(command):
            raise Handover(record_here(command, settings, force=arguments.force, on=on, say=_print_note))
        return record_command(
            command, settings, force=arguments.force, on=on, say=_print_note, grace_s=arguments.grace
        )


def _record_live(command: Sequence[str], settings: "ProgramSettings", *, force: bool, grace_s: float) -> int:
    """Record with the live view; a script runs as a child too, for a process and terminal of its own."""
    from zprof.integrations.program.in_process import check_program, is_python_program
    from zprof.integrations.program.record import record_command
    from zprof.run.output_path import check_output_path

    run = Path(settings.run)
    if is_python_program(command):
        check_program(command)
        command = [sys.executable, *command]
    check_output_path(run, force=force)
    with job_log(run) as (path, output):
        view = LiveView(run, log=path, left=lambda: _print_note(f"the program goes on, and writes to {path}"))
        code = record_command(
            command,
            settings,
            force=force,
            on=True,
            say=_print_note,
            output=output,
            beside=view,
            grace_s=grace_s,
        )
        if code:
            print_log_tail(path)
    return code


def _strip_separator(given: Sequence[str]) -> Sequence[str]:
    command = given[1:] if given and given[0] == "--" else given
    if not command:
        raise BadInput("no program given", hint="zprof record -o RUN -- python train.py")
    return command


def _print_note(note: str) -> None:
    console.note(f"zprof: {printable(note)}")
