"""``zprof record``: run and record an unmodified training program."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.base.errors import BadInput
from zprof.base.formatting import printable
from zprof.base.parsing import parse_count_or_zero, parse_positive
from zprof.cli import console
from zprof.cli.live_view import LiveView, open_job_log, print_log_tail, should_show_live
from zprof.cli.registry import Handover
from zprof.process.command import GRACE_S

if TYPE_CHECKING:
    from zprof.collectors.record.launch.session import ProgramSettings


class RecordCommand:
    """Run an unmodified training program and record it.

    Steps are detected from the program's optimizers, and the model from the parameters
    that they update. Everything after -- is the program's command line; its output and
    exit code are passed through. Set ZPROF=0 in the environment to run it without
    recording. A script or -m MODULE runs in this process, e.g. as a rank of torchrun; any
    other command runs as a child process, and every training process that it starts is
    recorded. If ctrl+c does not end the command, it gets SIGTERM after --grace seconds and
    SIGKILL after another --grace seconds; a second ctrl+c kills it at once.

    With --watch SECONDS, if a rank enters no collective and ends no step for SECONDS, the
    state of all ranks is saved into RUN: the last collectives, and the Python stacks of all
    threads. The program continues undisturbed; a slow checkpoint is marked as ended when it
    ends. zprof diagnose RUN shows what the job waits for. With --end-stuck SECONDS as well,
    the command gets SIGTERM if no rank makes progress for SECONDS after all of them were
    saved, and SIGKILL 10 seconds later; the exit code is then 1.

    RUN also contains how each rank ended, with or without --watch: exit code or signal, the
    exception and its last lines, and which rank ended first. zprof diagnose RUN shows it.

    With --live the terminal shows the run step by step. The program then runs as a child
    process without input, and its output goes to RUN/job.log. q closes the view and the
    program continues; ctrl+c ends the program as it would without --live.

    examples:
      zprof record -o run.zprof -- python train.py --lr 3e-4
      zprof record -o run.zprof -- torchrun --nproc-per-node 8 train.py
      torchrun --nproc-per-node 8 -m zprof record -o run.zprof -- train.py
      zprof record --watch 60 -o run.zprof -- torchrun --nproc-per-node 8 train.py
      zprof record --live -o run.zprof -- torchrun --nproc-per-node 8 train.py
    """

    name = "record"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the recording options and the program."""
        parser.add_argument("-o", "--output", metavar="RUN", required=True, help="run to write")
        parser.add_argument("--force", action="store_true", help="overwrite RUN")
        parser.add_argument(
            "--live", action="store_true", help="show the run step by step; q closes the view"
        )
        for name, steps, what in (
            ("skip", 2, "initial steps to skip, at least 2"),
            ("memory", 2, "steps to record memory for"),
            ("time", 8, "steps to record time for"),
        ):
            parser.add_argument(
                f"--{name}-steps",
                metavar="N",
                type=parse_count_or_zero,
                default=steps,
                help=f"{what} (default: %(default)s)",
            )
        parser.add_argument(
            "--memory-mode", choices=("full", "light"), default="full",
            help="full records every allocation, light has less overhead (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument(
            "--no-init", action="store_true", help="do not record memory before the first step"
        )
        parser.add_argument(
            "--watch", metavar="SECONDS", type=parse_positive, default=0.0,
            help="save the state of all ranks if one makes no progress for SECONDS, and let the program "
            "continue (default: off)",
        )  # fmt: skip
        parser.add_argument(
            "--end-stuck", metavar="SECONDS", type=parse_positive, default=0.0,
            help="with --watch: end the command if no rank makes progress for SECONDS after all of them "
            "were saved (default: off)",
        )  # fmt: skip
        parser.add_argument(
            "--grace", metavar="S", type=parse_positive, default=GRACE_S,
            help="seconds to wait for the command to exit after ctrl+c (default: %(default)g)",
        )  # fmt: skip
        parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="command to run")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the program and return its exit code."""
        from zprof.collectors.record.launch.in_process import is_python_program
        from zprof.collectors.record.launch.record import check_torch, record_command, record_here
        from zprof.collectors.record.launch.session import ProgramSettings

        command = _strip_separator(arguments.program)
        settings = ProgramSettings(
            run=str(Path(arguments.output).absolute()),
            skip=arguments.skip_steps,
            memory=arguments.memory_steps,
            time=arguments.time_steps,
            memory_mode=arguments.memory_mode,
            init=not arguments.no_init,
            watch_s=arguments.watch,
        )
        if arguments.end_stuck and not arguments.watch:
            raise BadInput("--end-stuck: needs --watch", hint="for example: --watch 60 --end-stuck 30")
        if arguments.end_stuck and is_python_program(command) and not arguments.live:
            raise BadInput(
                "--end-stuck: a script that runs in this process cannot be ended",
                hint="pass it to its interpreter: zprof record -o RUN --watch 60 --end-stuck 30 -- python …",
            )
        is_enabled = os.environ.get("ZPROF") != "0"
        if is_enabled:
            check_torch(command)
        if is_enabled and should_show_live(arguments.live, Path(arguments.output)):
            return _record_live(
                command,
                settings,
                force=arguments.force,
                grace_s=arguments.grace,
                end_stuck_s=arguments.end_stuck,
            )
        if is_python_program(command):
            raise Handover(
                record_here(
                    command, settings, force=arguments.force, enabled=is_enabled, print_note=_print_note
                )
            )
        return record_command(
            command,
            settings,
            force=arguments.force,
            enabled=is_enabled,
            print_note=_print_note,
            grace_s=arguments.grace,
            end_stuck_s=arguments.end_stuck,
        )


def _record_live(
    command: Sequence[str], settings: "ProgramSettings", *, force: bool, grace_s: float, end_stuck_s: float
) -> int:
    """Record next to the live view; a script runs as a child as well, because the view owns the terminal."""
    from zprof.collectors.record.launch.in_process import check_program, is_python_program
    from zprof.collectors.record.launch.record import record_command
    from zprof.run.output_path import check_output_path

    run = Path(settings.run)
    if is_python_program(command):
        check_program(command)
        command = [sys.executable, *command]
    check_output_path(run, force=force)
    with open_job_log(run) as (path, output):
        view = LiveView(
            run, log=path, on_leave=lambda: _print_note(f"the program continues and writes to {path}")
        )
        code = record_command(
            command,
            settings,
            force=force,
            enabled=True,
            print_note=_print_note,
            output=output,
            observer=view,
            grace_s=grace_s,
            end_stuck_s=end_stuck_s,
        )
        if code:
            print_log_tail(path)
    return code


def _strip_separator(words: Sequence[str]) -> Sequence[str]:
    command = words[1:] if words and words[0] == "--" else words
    if not command:
        raise BadInput("no program given", hint="for example: zprof record -o RUN -- python train.py")
    return command


def _print_note(note: str) -> None:
    console.print_note(f"zprof: {printable(note)}")
