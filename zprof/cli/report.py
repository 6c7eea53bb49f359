"""``zprof report``: write the report of a run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli.inputs import open_run
from zprof.cli.output import add_output_options, render_to
from zprof.cli.shared_options import (
    add_measuring_options,
    add_stated_facts,
    add_training_options,
    read_measuring_options,
)
from zprof.model.errors import BadInput

if TYPE_CHECKING:
    from zprof.model.report import Report


class ReportCommand:
    """Say where the memory and the time of a run went, and what to change.

    With a baseline, split the change of the step time into the terms of the
    ledger, and put the memory of both side by side. What another stage, prefetch
    or link would make of the run stands at the end: zprof whatif asks for more.

    examples:
      zprof report zero3.zprof
      zprof report zero3.zprof --baseline ddp.zprof
      zprof report zero3.zprof --baseline ddp.zprof -o report.html
      zprof report zero3.zprof --baseline ddp.zprof -f md >> pull-request.md
      zprof report zero3.zprof --only memory
      zprof report traces/ --hta
    """

    name = "report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare RUN and the output options."""
        parser.add_argument(
            "run", metavar="RUN", type=Path, help="folder that a recording made, a trace, a memory snapshot"
        )
        parser.add_argument("--baseline", metavar="RUN", type=Path, help="recording to compare with")
        parser.add_argument(
            "--only", choices=("time", "memory"), help="one side of the report, with all its pages"
        )
        add_measuring_options(parser)
        add_output_options(parser, "text, md, html, json, junit, sarif, or svg: live memory over time")
        parser.add_argument(
            "--hta",
            action="store_true",
            help="add what HTA says of a trace's GPU ranks: critical path, idle times",
        )
        add_training_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Diagnose the run and write the report."""
        from zprof.reports.formats import FORMATS

        render_to(arguments, FORMATS, lambda: _diagnose_run(arguments))
        return 0


def _diagnose_run(arguments: argparse.Namespace) -> "Report":
    from zprof.analysis.analysis import analyse, analyse_time_alone
    from zprof.planner.whatif.outlook import add_outlook
    from zprof.rules.diagnose import diagnose, diagnose_memory, diagnose_time

    if arguments.hta and arguments.only == "memory":
        raise BadInput("--hta says nothing of memory", hint="leave out --hta, or --only memory")
    baseline = open_run(arguments.baseline) if arguments.baseline else None
    run = open_run(arguments.run)
    run = run.described(add_stated_facts(arguments, run.manifest.training, run.manifest.world_size))
    if arguments.only == "memory":
        return diagnose_memory(run, baseline)
    asked = read_measuring_options(arguments)
    if arguments.only == "time":
        analysis = analyse_time_alone(run, asked["policy"])
        report = diagnose_time(analysis, baseline, **asked)
    else:
        analysis = analyse(run, asked["policy"])
        report = diagnose(analysis, baseline, **asked)
    report = add_outlook(report, analysis)
    return _with_hta(report, run.path) if arguments.hta else report


def _with_hta(report: "Report", run: Path) -> "Report":
    from zprof.integrations.hta.second_opinion import add_second_opinion

    return add_second_opinion(report, run)
