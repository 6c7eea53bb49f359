"""``zprof baseline``: save, show and update the baseline file for comparisons with later runs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.base.errors import BadInput, MissingData
from zprof.base.formatting import printable, shorten
from zprof.cli import console
from zprof.cli.inputs import BASELINE_FILE, measure_run
from zprof.cli.output import check_output_target, write_document
from zprof.cli.shared_options import add_run, add_training_options

if TYPE_CHECKING:
    from zprof.model.baseline import Baseline
    from zprof.model.report import Report


_MAX_LINE = 400


class BaselineCommand:
    """Save a baseline to compare later runs with: a small JSON file to review and commit.

    It contains the memory peak by tenant, the bytes and counts of the collectives, the
    step times, and the conditions they were measured under: a check rejects a baseline
    from different hardware, torch version or world size. To compare a run with it, use
    zprof check RUN --baseline FILE.

    examples:
      zprof baseline save zero3.zprof
      zprof baseline show zprof-baseline.json
      zprof baseline update zero3.zprof zprof-baseline.json
    """

    name = "baseline"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the actions save, show and update."""
        actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
        save = actions.add_parser("save", help="measure RUN and write its baseline")
        add_run(save)
        save.add_argument(
            "-o", "--output", metavar="FILE", type=Path, default=BASELINE_FILE, help="(default: %(default)s)"
        )
        save.add_argument("--force", action="store_true", help="overwrite FILE")
        show = actions.add_parser("show", help="print a saved baseline")
        show.add_argument("file", metavar="FILE", type=Path)
        show.add_argument("-f", "--format", choices=("text", "json"), default="text", help="(default: text)")
        update = actions.add_parser("update", help="show what RUN changes in FILE, then write it")
        add_run(update)
        update.add_argument("file", metavar="FILE", type=Path, help="a saved baseline")
        update.add_argument(
            "--any-conditions",
            action="store_true",
            help="update even if RUN has a different device, world size, stage or torch version",
        )
        for action in (save, update):
            add_training_options(action)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run one of the three actions."""
        {"save": _save, "show": _show, "update": _update}[arguments.action](arguments)
        return 0


def _save(arguments: argparse.Namespace) -> None:
    from zprof.checks.baseline import to_json

    output: Path = arguments.output
    check_output_target(output, force=arguments.force)
    run = measure_run(arguments.run, arguments)
    baseline = run.baseline()
    _refuse_empty(baseline, arguments.run)
    write_document(to_json(baseline), output, force=arguments.force)
    _warn_if_incomplete(baseline, run.report)


def _show(arguments: argparse.Namespace) -> None:
    from zprof.checks.baseline import compare_figures, read_baseline, to_json
    from zprof.reports.pages.small_pages import build_baseline_page

    baseline = read_baseline(arguments.file)
    if arguments.format == "json":
        console.print_data(to_json(baseline))
    else:
        console.print_page(build_baseline_page(baseline.name, compare_figures(baseline, baseline)))


def _update(arguments: argparse.Namespace) -> None:
    from zprof.checks.baseline import compare_figures, find_condition_differences, read_baseline, to_json
    from zprof.reports.pages.small_pages import build_changes_page

    file: Path = arguments.file
    before = read_baseline(file)
    check_output_target(file, force=True)
    run = measure_run(arguments.run, arguments)
    after = run.baseline()
    _refuse_empty(after, arguments.run)
    differences = find_condition_differences(before.conditions, after.conditions)
    if differences and not arguments.any_conditions:
        raise BadInput(
            f"{file}: recorded under different conditions from {arguments.run}: {'; '.join(differences)}",
            hint="use --any-conditions to update it anyway",
        )
    changes = [row for row in compare_figures(before, after) if row.a != row.b]
    console.print_page(build_changes_page(changes))
    write_document(to_json(after), file, force=True)
    _warn_if_incomplete(after, run.report)


def _warn_if_incomplete(baseline: "Baseline", report: "Report") -> None:
    """Warn if the run did not finish, something was not measured, or values are only bounds."""
    from zprof.checks.baseline import list_bounds
    from zprof.model.gaps import GapKind

    kinds = {GapKind.RANK_CUT_SHORT, GapKind.PROGRAM_FAILED, GapKind.DISK_FULL, GapKind.RECORDING_CUT_SHORT}
    unfinished = dict.fromkeys(gap.reason for gap in report.gaps if gap.kind in kinds)
    reasons = "; ".join((*list_bounds(baseline), *unfinished))
    if reasons:
        weak = "checks against this baseline are weaker, and with --require-baseline may end with exit code 3"
        line = shorten(printable(f"the run is incomplete, so {weak}: {reasons}"), _MAX_LINE)
        console.print_note(f"zprof: {line}")


def _refuse_empty(baseline: "Baseline", run: Path) -> None:
    """Raise if nothing was measured: every run would pass against such a baseline."""
    if baseline.memory is None and baseline.time is None and not baseline.collectives:
        raise MissingData(
            f"{run}: neither memory nor any step was measured, so there is nothing to save",
            hint="zprof report RUN lists what is missing",
        )
