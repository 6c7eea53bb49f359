"""``zprof check``: check a run against limits and a baseline.

Each gate has one flag for its limit.
"""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli.check_output import add_check_outputs, choose_outputs, write_outputs
from zprof.cli.inputs import BASELINE_FILE, MeasuredRun, is_missing_baseline, load_baseline, measure_run
from zprof.cli.shared_options import add_training_options
from zprof.model.check import Check, Limit
from zprof.model.errors import BadInput
from zprof.model.formatting import printable

if TYPE_CHECKING:
    from zprof.checks.config import StatedLimit
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
        """Declare RUN, the baseline, the limits and the outputs."""
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
        """Read the limits, measure, judge, write the outputs."""
        from zprof.checks.config import limits_for

        wanted = choose_outputs(arguments)
        limits = limits_for(_working_directory(), config=arguments.config, flags=read_limits(arguments))
        run, check = _run_check(arguments, limits)
        write_outputs(check, run.report, wanted)
        return check.exit_code


def _working_directory() -> Path:
    """Return the folder where the search for limits starts."""
    try:
        return Path.cwd()
    except OSError as error:
        reason = f"the working directory cannot be used ({error.strerror})"
        raise BadInput(reason, hint="change to a folder that exists") from None


def _run_check(arguments: argparse.Namespace, limits: Sequence[Limit]) -> tuple[MeasuredRun, Check]:
    from zprof.checks.check import check
    from zprof.checks.config import soften_for_device

    baseline, notices = _find_baseline(arguments)
    run = measure_run(arguments.run, arguments)
    held = soften_for_device(limits, run.report.run.device)
    found = check(
        run.report,
        held,
        baseline,
        environment=run.environment,
        any_conditions=arguments.any_conditions,
    )
    notices += _explain_softened(limits, found)
    return run, replace(found, notices=(*found.notices, *notices))


def _find_baseline(arguments: argparse.Namespace) -> "tuple[Baseline | None, tuple[str, ...]]":
    """Return the baseline and notices; no baseline on a first run, with a notice that says how to make
    one.
    """
    path: Path | None = arguments.baseline
    if path is not None and not is_missing_baseline(path):
        return load_baseline(path, arguments), ()
    run, file = (shlex.quote(printable(part)) for part in (arguments.run, path or BASELINE_FILE))
    save = f"zprof baseline save {run} -o {file}, commit it"
    if arguments.require_baseline:
        raise BadInput(f"{printable(path or '--baseline')}: no such baseline, and one is required", hint=save)
    if path is None:
        return None, (f"to hold later runs against this one: {save}, and name it with --baseline",)
    return None, (f"{file} is not there yet: {save}",)


def _explain_softened(limits: Sequence[Limit], found: Check) -> tuple[str, ...]:
    """Return a notice on gates that only warned because their limits are defaults, on CPU ranks."""
    from zprof.checks.config import list_softened

    gates = list_softened(limits, found)
    if not gates:
        return ()
    return (
        f"{', '.join(gates)}: zprof's own limits of time only warn on CPU ranks; one that you state fails",
    )


_FLAGS = (
    ("peak_memory", "+2%%, exact, or 24 MiB: the highest peak of any rank"),
    ("untagged_ratio", "0.1%%: share of the peak that no tenant claims"),
    ("exposed_ratio", "10%%, or +3pt more than the baseline: share of a step"),
    ("overlap_ratio", "'>=0.7', or -5pt (write --overlap-ratio=-5pt)"),
    ("collective_bytes", "+0%%, or 500 MB: of a step and rank"),
    ("collective_count", "+0%%, or 48: of a step and rank"),
    ("collective_bytes_law", "'3 psi': bytes in units of the parameters"),
    ("step_time", "'+3%%@0.95': with an interval of that confidence"),
    ("exposed_wait", "+10%%: fails only where one rank is late in nearly all steps"),
)


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    """Declare one flag per gate; ``off`` disables it."""
    group = parser.add_argument_group(
        "limits", "stronger than those of zprof.toml, pyproject.toml and zprof itself; off turns one off"
    )
    for gate, help_text in _FLAGS:
        group.add_argument(_flag_name(gate), metavar="LIMIT", help=help_text)
    group.add_argument(
        "--tenant",
        metavar="NAME=LIMIT",
        action="append",
        default=[],
        help="activations=+0%%: a part of the peak; may be repeated",
    )


def read_limits(arguments: argparse.Namespace) -> "list[StatedLimit]":
    """Return the limits of the command line, in the order of the flags; the last of a repeated one counts.

    Raises:
        BadInput: a ``--tenant`` has no name or no limit, or there is no such tenant.
    """
    return [*_read_gate_flags(arguments), *map(_read_tenant_flag, arguments.tenant)]


def _read_gate_flags(arguments: argparse.Namespace) -> "Iterator[StatedLimit]":
    from zprof.checks.config import StatedLimit

    for gate, _ in _FLAGS:
        said: str | None = getattr(arguments, gate)
        if said is not None:
            yield StatedLimit(gate=gate, said=said, origin=_flag_name(gate), place=_flag_name(gate))


def _read_tenant_flag(said: str) -> "StatedLimit":
    from zprof.checks.config import StatedLimit
    from zprof.checks.limit_text import quote_input
    from zprof.checks.limits import MEMORY_PARTS, PEAK_MEMORY, suggest_names

    name, _, limit = (part.strip() for part in said.partition("="))
    name = name.replace("-", "_")
    if not name or not limit:
        raise BadInput(
            f"--tenant: {quote_input(said)} is no tenant with a limit", hint="--tenant activations=+0%"
        )
    if name not in MEMORY_PARTS:
        raise BadInput(
            f"--tenant: there is no tenant {quote_input(name)}", hint=suggest_names(name, MEMORY_PARTS)
        )
    origin = f"--tenant {name}"
    return StatedLimit(gate=f"{PEAK_MEMORY}.{name}", said=limit, origin=origin, place=origin)


def _flag_name(gate: str) -> str:
    return f"--{gate.replace('_', '-')}"
