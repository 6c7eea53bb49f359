"""``zprof diagnose``: explain briefly why a run is slow."""

import argparse
from typing import TYPE_CHECKING

from zprof.cli.inputs import diagnose_or_recall, open_run_and_baseline, refuse_missing, refuse_unmeasured
from zprof.cli.output import add_output_options, render_to
from zprof.cli.shared_options import (
    add_measuring_options,
    add_run_and_baseline,
    add_stated_facts,
    add_stated_work,
    add_training_options,
    add_work_options,
    read_measuring_options,
)

if TYPE_CHECKING:
    from zprof.model.report import Report


class DiagnoseCommand:
    """Explain why a run is slow, how much time that costs, and what to change.

    Prints the verdict, where the time goes (with a baseline: what made the step slower
    or faster), what to change in order of saving, the time that no finding explains, and
    what was not tested. zprof report shows all the data behind it.

    examples:
      zprof diagnose zero3.zprof
      zprof diagnose zero3.zprof ddp.zprof          compare with the run ddp.zprof
      zprof diagnose zero3.zprof --baseline ddp.zprof -f json
      zprof diagnose traces/ --expected-busbw 180
      zprof diagnose snapshot.pickle                what holds the memory of a GPU
      zprof diagnose operations.parquet             which stage or worker slows a pipeline
    """

    name = "diagnose"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare RUN, its baseline and the output options."""
        add_run_and_baseline(parser)
        add_measuring_options(parser)
        add_output_options(parser)
        add_work_options(parser)
        add_training_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Diagnose the run and write the result."""
        if not arguments.output:  # else what is wrong with the files comes first
            refuse_missing(arguments.run, arguments.baseline)
        from zprof.reports.formats import DIAGNOSES

        render_to(arguments, DIAGNOSES, lambda: _diagnose_run(arguments))
        return 0


def _diagnose_run(arguments: argparse.Namespace) -> "Report":
    run, baseline = open_run_and_baseline(arguments)
    if baseline is not None:
        known = add_stated_work(arguments.baseline_tokens_per_step, baseline.manifest.training)
        baseline = baseline.described(known)
    training = add_stated_facts(arguments, run.manifest.training, run.manifest.world_size)
    run = run.described(add_stated_work(arguments.tokens_per_step, training))
    report = diagnose_or_recall(run, baseline, **read_measuring_options(arguments))
    refuse_unmeasured(report)
    return report
