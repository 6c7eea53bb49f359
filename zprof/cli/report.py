"""``zprof report``: a run in, its report out."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli.opening import open_run
from zprof.cli.options.numbers import positive
from zprof.cli.options.training_facts import add_training_options, stated
from zprof.model.errors import BadInput

if TYPE_CHECKING:
    from zprof.model.report import Report


class ReportCommand:
    """Say where the memory and the time of a run went, and what to change.

    With a baseline, split the change of the step time into the terms of the
    ledger, and put the memory of both side by side.

    examples:
      zprof report zero3.zprof
      zprof report zero3.zprof --baseline ddp.zprof
      zprof report zero3.zprof --baseline ddp.zprof -o report.json
      zprof report zero3.zprof --only memory
      zprof report traces/ --hta
    """

    name = "report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """RUN, and how to write the report."""
        parser.add_argument(
            "run", metavar="RUN", type=Path, help="folder that a recording made, a trace, a memory snapshot"
        )
        parser.add_argument("--baseline", metavar="RUN", type=Path, help="recording to compare with")
        parser.add_argument(
            "--only", choices=("time", "memory"), help="one side of the report, with all its pages"
        )
        parser.add_argument(
            "--window",
            choices=("step", "trace"),
            default="step",
            help="measure the steps, or all of the recording as one stretch (default: step)",
        )
        parser.add_argument(
            "--expected-busbw",
            metavar="GB_PER_S",
            type=positive,
            help="bus bandwidth that large messages should reach, in 1e9 bytes a second",
        )
        parser.add_argument(
            "-f",
            "--format",
            metavar="FORMAT",
            help="text, json, or svg: live memory over time (default: text)",
        )
        parser.add_argument(
            "-o", "--output", metavar="FILE", type=Path, help="write here; the suffix chooses the format"
        )
        parser.add_argument("--force", action="store_true", help="overwrite FILE")
        parser.add_argument(
            "--hta",
            action="store_true",
            help="add what HTA says of a trace's GPU ranks: critical path, idle times",
        )
        add_training_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Diagnose, render, deliver."""
        from zprof.cli.terminal.output import check_target, deliver
        from zprof.reports.registry import by_name, by_path

        output: Path | None = arguments.output
        if arguments.format or output is None:
            chosen = by_name(arguments.format or "text")
        else:
            chosen = by_path(output)
        if output is not None:
            check_target(output, force=arguments.force)
        deliver(chosen.render(_diagnosed(arguments)), output, force=arguments.force)
        return 0


def _diagnosed(arguments: argparse.Namespace) -> "Report":
    from zprof.model.time import WindowPolicy
    from zprof.rules.diagnose import diagnose, diagnose_memory, diagnose_time

    if arguments.hta and arguments.only == "memory":
        raise BadInput("--hta says nothing of memory", hint="leave out --hta, or --only memory")
    baseline = open_run(arguments.baseline) if arguments.baseline else None
    run = open_run(arguments.run)
    run = run.described(stated(arguments, run.manifest.training, run.manifest.world_size))
    if arguments.only == "memory":
        return diagnose_memory(run, baseline)
    expected = arguments.expected_busbw * 1e9 if arguments.expected_busbw else None
    policy = WindowPolicy(arguments.window)
    ask = diagnose_time if arguments.only == "time" else diagnose
    report = ask(run, baseline, expected_bus_bytes_per_s=expected, policy=policy)
    return _with_hta(report, run.path) if arguments.hta else report


def _with_hta(report: "Report", run: Path) -> "Report":
    from zprof.integrations.hta.opinion import with_second_opinion

    return with_second_opinion(report, run)
