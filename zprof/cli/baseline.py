"""``zprof baseline``: save, show and update the small file that later runs are compared with."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli import console
from zprof.cli.inputs import BASELINE_FILE, measure_run
from zprof.cli.output import check_target, deliver
from zprof.cli.shared_options import add_training_options
from zprof.model.errors import BadInput, MissingData
from zprof.model.formatting import printable, shorten

if TYPE_CHECKING:
    from zprof.model.baseline import Baseline


_MAX_LINE = 400
_RUN = "folder that a recording made, a trace, a memory snapshot, or a folder of them"


class BaselineCommand:
    """Save what later runs are held against: a small JSON file to review and commit.

    It holds the peak and its tenants, bytes and counts of the collectives, the times of
    the steps, and under which conditions that was: a check refuses one of other hardware,
    torch or world size. zprof check RUN --baseline FILE compares with it.

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
        save.add_argument("run", metavar="RUN", type=Path, help=_RUN)
        save.add_argument(
            "-o", "--output", metavar="FILE", type=Path, default=BASELINE_FILE, help="(default: %(default)s)"
        )
        save.add_argument("--force", action="store_true", help="overwrite FILE")
        show = actions.add_parser("show", help="print a saved baseline")
        show.add_argument("file", metavar="FILE", type=Path)
        show.add_argument("-f", "--format", choices=("text", "json"), default="text", help="(default: text)")
        update = actions.add_parser("update", help="say what RUN changes in FILE, and write it")
        update.add_argument("run", metavar="RUN", type=Path, help=_RUN)
        update.add_argument("file", metavar="FILE", type=Path, help="a saved baseline")
        update.add_argument(
            "--any-conditions",
            action="store_true",
            help="though RUN is of another device, world size, stage or torch",
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
    check_target(output, force=arguments.force)
    baseline = measure_run(arguments.run, arguments).baseline()
    _refuse_empty(baseline, arguments.run)
    deliver(to_json(baseline), output, force=arguments.force)
    _note_bounds(baseline)


def _show(arguments: argparse.Namespace) -> None:
    from zprof.checks.baseline import read_baseline, to_json
    from zprof.checks.baseline_comparison import compare_figures
    from zprof.reports.formats import page_text
    from zprof.reports.presenters.small_pages import baseline_page

    baseline = read_baseline(arguments.file)
    if arguments.format == "json":
        console.data(to_json(baseline))
    else:
        console.page(page_text(baseline_page(baseline.name, compare_figures(baseline, baseline))))


def _update(arguments: argparse.Namespace) -> None:
    from zprof.checks.baseline import read_baseline, to_json
    from zprof.checks.baseline_comparison import list_changes, other_conditions
    from zprof.reports.formats import page_text
    from zprof.reports.presenters.small_pages import changes_page

    file: Path = arguments.file
    before = read_baseline(file)
    check_target(file, force=True)
    after = measure_run(arguments.run, arguments).baseline()
    _refuse_empty(after, arguments.run)
    apart = other_conditions(before, after)
    if apart and not arguments.any_conditions:
        raise BadInput(
            f"{file}: recorded under other conditions than {arguments.run}: {'; '.join(apart)}",
            hint="--any-conditions updates it all the same",
        )
    console.page(page_text(changes_page(list_changes(before, after))))
    deliver(to_json(after), file, force=True)
    _note_bounds(after)


def _note_bounds(baseline: "Baseline") -> None:
    """Note that a rank was killed or figures are bounds, if so."""
    from zprof.checks.baseline_comparison import list_bounds

    said = "; ".join(list_bounds(baseline))
    if said:
        line = shorten(
            printable(f"not all of the run was seen, a check judges less by it: {said}"), _MAX_LINE
        )
        console.note(f"zprof: {line}")


def _refuse_empty(baseline: "Baseline", run: Path) -> None:
    """Raise if nothing was measured: such a baseline would let every run pass."""
    if baseline.memory is None and baseline.time is None and not baseline.collectives:
        raise MissingData(
            f"{run}: neither memory nor a step was measured, so there is nothing to save",
            hint="zprof report RUN says what is missing",
        )
