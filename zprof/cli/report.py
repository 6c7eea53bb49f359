"""``zprof report``: write the full report of a run."""

import argparse
from functools import cached_property
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
    from zprof.analysis.analysis import RunAnalysis
    from zprof.model.report import Report
    from zprof.model.step_overview import StepOverview
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
        from zprof.reports.formats import make_report_formats

        opened: list[RunReport] = []

        def measure() -> "Report":
            opened.append(_open_run(arguments))
            return _measure(opened[0], arguments)

        render_to(arguments, make_report_formats(lambda: opened[0].read_overview()), measure)
        return 0


class RunReport:
    """The whole report on a run, or only its ``time`` or ``memory``, and the step drawn beside it.

    Both come from the cache if possible; the run is analysed once at most.
    """

    def __init__(
        self, run: "Run", baseline: "Run | None", options: MeasuringOptions, only: str | None = None
    ) -> None:
        self.run, self._baseline, self._options, self._only = run, baseline, options, only

    def read_report(self) -> "Report":
        """Return the report.

        Raises:
            BadInput: A recording is damaged.
        """
        from zprof.cache.reports import Question, answer

        command = f"report {self._only or 'all'}"
        question = Question(command=command, run=self.run, baseline=self._baseline, options={**self._options})
        return answer(question, self._diagnose)

    def read_overview(self) -> "StepOverview | None":
        """Return the step of all ranks; None if no step was timed, or only the memory is reported.

        Raises:
            BadInput: A recording is damaged.
        """
        from zprof.cache.reports import Question, recall_overview

        def build() -> "StepOverview | None":
            from zprof.analysis.step_timeline.overview import build_step_overview

            return build_step_overview(self._analysis)

        if self._only == "memory":
            return None
        question = Question(command="step", run=self.run, options={"policy": self._options["policy"]})
        return recall_overview(question, build)

    @cached_property
    def _analysis(self) -> "RunAnalysis":
        from zprof.analysis.analysis import analyse, analyse_time_only

        measure = analyse_time_only if self._only == "time" else analyse
        return measure(self.run, self._options["policy"])

    def _diagnose(self) -> "Report":
        from zprof.diagnosis.diagnose import diagnose, diagnose_memory, diagnose_time
        from zprof.planner.whatif import add_outlook

        if self._only == "memory":
            return diagnose_memory(self.run, self._baseline)
        judge = diagnose_time if self._only == "time" else diagnose
        return add_outlook(judge(self._analysis, self._baseline, **self._options), self._analysis)


def _open_run(arguments: argparse.Namespace) -> RunReport:
    if arguments.hta and arguments.only == "memory":
        raise BadInput("--hta does not analyze memory", hint="remove --hta or --only memory")
    if arguments.hta:
        from zprof.base.errors import Extra, require_extra

        require_extra(Extra.HTA, "--hta")
    run, baseline = open_run_and_baseline(arguments)
    run = run.described(add_stated_facts(arguments, run.manifest.training, run.manifest.world_size))
    return RunReport(run, baseline, read_measuring_options(arguments), arguments.only)


def _measure(opened: RunReport, arguments: argparse.Namespace) -> "Report":
    report = opened.read_report()
    if arguments.only is None:
        refuse_unmeasured(report)
    return _add_hta(report, opened.run.path) if arguments.hta else report


def _add_hta(report: "Report", run: Path) -> "Report":
    from zprof.integrations.hta.verification import add_second_opinion

    return add_second_opinion(report, run)
