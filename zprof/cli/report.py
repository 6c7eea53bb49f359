"""``zprof report``: write the full report of a run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.base.errors import BadInput
from zprof.cli.inputs import open_run_and_baseline, refuse_missing, refuse_unmeasured
from zprof.cli.output import PAGE_FORMATS, add_output_options, render_to
from zprof.cli.shared_options import (
    MeasuringOptions,
    add_measuring_options,
    add_run_and_baseline,
    add_stated_facts,
    add_training_options,
    read_measuring_options,
)

if TYPE_CHECKING:
    from zprof.model.report import Report
    from zprof.run.reader import Run


class ReportCommand:
    """Report where a run's memory and time went, and what to change.

    With a baseline, also split the change in step time into compute, transfer, wait
    and the other terms, and show the memory of both runs side by side. The report
    ends with predictions for another stage, prefetch or link; zprof whatif predicts
    other changes.

    examples:
      zprof report zero3.zprof
      zprof report zero3.zprof ddp.zprof            compare with the run ddp.zprof
      zprof report zero3.zprof --baseline ddp.zprof -o report.html -o report.md
      zprof report zero3.zprof --baseline ddp.zprof -f md >> pull-request.md
      zprof report zero3.zprof --only memory
      zprof report traces/ --hta
    """

    name = "report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare RUN and the output options."""
        add_run_and_baseline(parser)
        parser.add_argument(
            "--only", choices=("time", "memory"), help="report only time or only memory, in full"
        )
        add_measuring_options(parser)
        add_output_options(parser, (*PAGE_FORMATS, "junit", "sarif", "svg"), " (svg: live memory over time)")
        parser.add_argument(
            "--hta",
            action="store_true",
            help="add the critical path and idle times that HTA finds for the GPU ranks of a trace",
        )
        add_training_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Diagnose the run and write the report."""
        if not arguments.output:  # else what is wrong with the files comes first
            refuse_missing(arguments.run, arguments.baseline)
        from zprof.reports.formats import FORMATS

        render_to(arguments, FORMATS, lambda: _diagnose_run(arguments))
        return 0


def _diagnose_run(arguments: argparse.Namespace) -> "Report":
    if arguments.hta and arguments.only == "memory":
        raise BadInput("--hta does not analyze memory", hint="remove --hta or --only memory")
    if arguments.hta:
        from zprof.base.errors import Extra, require_extra

        require_extra(Extra.HTA, "--hta")
    run, baseline = open_run_and_baseline(arguments)
    run = run.described(add_stated_facts(arguments, run.manifest.training, run.manifest.world_size))
    options = read_measuring_options(arguments)
    report = make_report(run, baseline, options, arguments.only)
    if arguments.only is None:
        refuse_unmeasured(report)
    return _add_hta(report, run.path) if arguments.hta else report


def make_report(
    run: "Run", baseline: "Run | None", options: MeasuringOptions, only: str | None = None
) -> "Report":
    """Return the whole report on a run, or only ``time`` or ``memory``; from the cache if possible.

    Raises:
        BadInput: A recording is damaged.
    """
    from zprof.cache.reports import Question, answer

    question = Question(command=f"report {only or 'all'}", run=run, baseline=baseline, options={**options})
    return answer(question, lambda: _measure(run, baseline, only, options))


def _measure(run: "Run", baseline: "Run | None", only: str | None, options: MeasuringOptions) -> "Report":
    from zprof.analysis.analysis import analyse, analyse_time_only
    from zprof.diagnosis.diagnose import diagnose, diagnose_memory, diagnose_time
    from zprof.planner.whatif import add_outlook

    if only == "memory":
        return diagnose_memory(run, baseline)
    if only == "time":
        analysis = analyse_time_only(run, options["policy"])
        return add_outlook(diagnose_time(analysis, baseline, **options), analysis)
    analysis = analyse(run, options["policy"])
    return add_outlook(diagnose(analysis, baseline, **options), analysis)


def _add_hta(report: "Report", run: Path) -> "Report":
    from zprof.integrations.hta.verification import add_second_opinion

    return add_second_opinion(report, run)
