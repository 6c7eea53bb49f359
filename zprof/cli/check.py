"""``zprof check``: a run held against limits and a baseline."""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli.options.check_baseline import (
    BASELINE_FILE,
    Measured,
    baseline_at,
    is_still_to_save,
    measured,
)
from zprof.cli.options.check_limits import add_limit_options, stated_limits
from zprof.cli.options.check_output import add_check_outputs, outputs, write_outputs
from zprof.cli.options.training_facts import add_training_options
from zprof.model.check import Check, Limit
from zprof.model.errors import BadInput
from zprof.model.printable import printable

if TYPE_CHECKING:
    from zprof.model.baseline import Baseline


class CheckCommand:
    """Hold a run against limits and a baseline: fail where memory or overlap regressed.

    Bytes and counts are exact and are compared as they are; times fail only where the
    interval over the steps is beyond the limit. Limits stand in [tool.zprof.check] of
    pyproject.toml, in [check] of zprof.toml, or here. Without a baseline only absolute
    limits are judged, and the check passes with a notice, unless --require-baseline.

    exit codes: 0 holds, 1 a gate failed, 2 bad input or a baseline of other conditions,
    3 too little was measured to judge.

    examples:
      zprof check zero3.zprof --baseline zprof-baseline.json --require-baseline
      zprof check zero3.zprof --baseline last.zprof --peak-memory exact
      zprof check zero3.zprof --baseline last.zprof --step-time '+3%@0.95'
      zprof check zero3.zprof --peak-memory '24 MiB' --tenant activations='8 MiB'
      zprof check zero3.zprof --baseline zprof-baseline.json --junit check.xml --github
    """

    name = "check"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """RUN, what it is held against, the limits, and how to say it."""
        run_help = "folder that a recording made, a trace, a memory snapshot, or a folder of them"
        parser.add_argument("run", metavar="RUN", type=Path, help=run_help)
        parser.add_argument(
            "--baseline", metavar="FILE|RUN", type=Path, help="saved by zprof baseline, or another run"
        )
        parser.add_argument(
            "--require-baseline",
            action="store_true",
            help="a baseline that is not there is bad input, and no first run",
        )
        parser.add_argument(
            "--config", metavar="FILE", type=Path, help="read limits here, not in the files around"
        )
        parser.add_argument(
            "--any-conditions",
            action="store_true",
            help="take a baseline of another device, world size, stage or torch",
        )
        add_limit_options(parser)
        add_check_outputs(parser)
        add_training_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Read the limits, measure, judge, say it."""
        from zprof.checks.config import limits_for

        wanted = outputs(arguments)
        limits = limits_for(_working_directory(), config=arguments.config, flags=stated_limits(arguments))
        run, check = _checked(arguments, limits)
        write_outputs(check, run.report, wanted)
        return check.exit_code


def _working_directory() -> Path:
    """Return the folder where the search for limits starts."""
    try:
        return Path.cwd()
    except OSError as error:
        reason = f"the working directory cannot be used ({error.strerror})"
        raise BadInput(reason, hint="change to a folder that exists") from None


def _checked(arguments: argparse.Namespace, limits: Sequence[Limit]) -> tuple[Measured, Check]:
    from zprof.checks.check import check
    from zprof.checks.defaults import for_device

    baseline, notices = _baseline(arguments)
    run = measured(arguments.run, arguments)
    held = for_device(limits, run.report.run.device)
    found = check(
        run.report,
        held,
        baseline,
        environment=run.environment,
        any_conditions=arguments.any_conditions,
    )
    notices += _softened(limits, found)
    return run, replace(found, notices=(*found.notices, *notices))


def _baseline(arguments: argparse.Namespace) -> "tuple[Baseline | None, tuple[str, ...]]":
    """What the run is held against; None on a first run, with a notice that says how to go on."""
    path: Path | None = arguments.baseline
    if path is not None and not is_still_to_save(path):
        return baseline_at(path, arguments), ()
    run, file = (shlex.quote(printable(part)) for part in (arguments.run, path or BASELINE_FILE))
    save = f"zprof baseline save {run} -o {file}, commit it"
    if arguments.require_baseline:
        raise BadInput(f"{printable(path or '--baseline')}: no such baseline, and one is required", hint=save)
    if path is None:
        return None, (f"to hold later runs against this one: {save}, and name it with --baseline",)
    return None, (f"{file} is not there yet: {save}",)


def _softened(limits: Sequence[Limit], found: Check) -> tuple[str, ...]:
    """Which gates only warned for they stand in the defaults alone and the ranks are CPU ranks."""
    from zprof.checks.defaults import softened

    gates = softened(limits, found)
    if not gates:
        return ()
    return (
        f"{', '.join(gates)}: zprof's own limits of time only warn on CPU ranks; one that you state fails",
    )
