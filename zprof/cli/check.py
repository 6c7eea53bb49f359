"""``zprof check``: check a run against limits and a baseline, with one flag per gate."""

import argparse
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput, suggest_names, suggest_path
from zprof.base.formatting import printable
from zprof.cli import console
from zprof.cli.inputs import (
    BASELINE_FILE,
    MeasuredRun,
    diagnose_or_recall,
    is_missing_baseline,
    is_saved_baseline,
    load_baseline,
    measure_run,
)
from zprof.cli.output import PAGE_FORMATS, check_output_targets, print_document, write_document
from zprof.cli.shared_options import add_run, add_training_options
from zprof.model.comparison import Check, Limit

if TYPE_CHECKING:
    from zprof.checks.config import StatedLimit
    from zprof.model.baseline import Baseline
    from zprof.model.report import Report
    from zprof.reports.formats import Checked, Format

#: Environment variable with the path to which a GitHub workflow step may append Markdown.
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


class Outputs(Struct, frozen=True, kw_only=True):
    """Formats for stdout in print order, formats and paths of files, and GitHub's step summary."""

    stdout_formats: "tuple[Format[Checked], ...]"
    files: "tuple[tuple[Format[Checked], Path], ...]"
    summary: Path | None
    force: bool


class CheckCommand:
    """Check a run against limits and a baseline: fail if memory or overlap regressed.

    Bytes and counts are exact and compared directly; times fail only if the whole
    confidence interval over the steps is beyond the limit. Set limits in
    [tool.zprof.check] of pyproject.toml, in [check] of zprof.toml, or with the options
    below. Without --baseline only absolute limits are checked, and the check passes with
    a notice unless --require-baseline is given. A baseline that is named must exist.

    exit codes: 0 passed, 1 a gate failed, 2 bad input or a baseline recorded under
    different conditions, 3 not enough was measured to decide.

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
        add_run(parser)
        parser.add_argument(
            "--baseline",
            metavar="FILE|RUN",
            type=Path,
            help="baseline file from zprof baseline save, or another run",
        )
        parser.add_argument(
            "--require-baseline",
            action="store_true",
            help="fail with exit code 2 if no --baseline is given, with 3 if a gate cannot be judged",
        )
        parser.add_argument(
            "--config",
            metavar="FILE",
            type=Path,
            help="read limits from FILE instead of pyproject.toml and zprof.toml",
        )
        parser.add_argument(
            "--any-conditions",
            action="store_true",
            help="accept a baseline with a different device, world size, stage or torch version",
        )
        add_limit_options(parser)
        add_check_outputs(parser)
        add_training_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Read the limits, measure, judge, write the outputs."""
        from zprof.checks.config import resolve_limits

        outputs = choose_outputs(arguments)
        # Of repeated flags, the last one wins.
        limits = resolve_limits(
            _working_directory(),
            config=arguments.config,
            flags=[*_read_gate_flags(arguments), *map(_read_tenant_flag, arguments.tenant)],
        )
        checked = _run_check(arguments, limits)
        write_outputs(checked, outputs)
        return checked.check.exit_code


def _working_directory() -> Path:
    """Return the folder from which configuration files are looked up."""
    try:
        return Path.cwd()
    except OSError as error:
        reason = f"cannot use the working directory ({error.strerror})"
        raise BadInput(reason, hint="change to an existing folder") from None


def _run_check(arguments: argparse.Namespace, limits: Sequence[Limit]) -> "Checked":
    from zprof.checks.check import check
    from zprof.checks.config import adapt_to_device
    from zprof.reports.formats import Checked
    from zprof.reports.pages.check import name_causes, select_causes
    from zprof.reports.pages.findings import find_first_confident

    baseline, notices = _find_baseline(arguments)
    run = measure_run(arguments.run, arguments)
    result = check(
        run.report,
        adapt_to_device(limits, run.report.run.device),
        baseline,
        environment=run.environment,
        any_conditions=arguments.any_conditions,
        requires_baseline=arguments.require_baseline,
        baseline_file=arguments.baseline,
    )
    notices += _explain_downgraded(limits, result)
    has_failed = result.exit_code == 1
    causes = select_causes(result, _diagnose_failure(arguments, run)) if has_failed else ()
    first = None if has_failed else find_first_confident(run.report.findings)
    return Checked(
        check=replace(result, notices=(*name_causes(causes), *result.notices, *notices)),
        report=run.report,
        baseline=baseline,
        current=run.baseline(),
        causes=causes if first is None else (first,),
    )


def _diagnose_failure(arguments: argparse.Namespace, run: MeasuredRun) -> "Report":
    """Return the report of the run against its baseline, or of the run alone for a saved baseline."""
    path: Path | None = arguments.baseline
    if path is None or is_saved_baseline(path):
        return run.report
    return diagnose_or_recall(run.run, measure_run(path, arguments).run)


def _find_baseline(arguments: argparse.Namespace) -> "tuple[Baseline | None, tuple[str, ...]]":
    """Return the baseline, or None and a notice on how to save one if none is given."""
    path: Path | None = arguments.baseline
    if path is not None and not is_missing_baseline(path):
        return load_baseline(path, arguments), ()
    run, file = (shlex.quote(printable(part)) for part in (arguments.run, path or BASELINE_FILE))
    save = f"zprof baseline save {run} -o {file}"
    if path is not None:
        hint = suggest_path(path) or f"check the name, or on a first run, save one: {save}"
        raise BadInput(f"{printable(path)}: no such baseline", hint=hint)
    if arguments.require_baseline:
        raise BadInput("--baseline: a baseline is required but none is named", hint=save)
    return None, (f"to compare later runs with this one, commit a baseline and pass --baseline: {save}",)


def _explain_downgraded(limits: Sequence[Limit], result: Check) -> tuple[str, ...]:
    """Return a notice on the gates that only warned because default time limits warn on CPU ranks."""
    from zprof.checks.config import list_downgraded_gates

    gates = list_downgraded_gates(limits, result)
    if not gates:
        return ()
    return (f"{', '.join(gates)}: default time limits only warn on CPU ranks; a limit that you set can fail",)


_FLAGS = (
    ("peak_memory", "+2%%, exact, or 24 MiB: highest peak of any rank"),
    ("untagged_ratio", "0.1%%: untagged share of the peak"),
    ("exposed_ratio", "10%%, or +3pt above the baseline: exposed share of the step"),
    ("overlap_ratio", "'>=0.7', or -5pt (write --overlap-ratio=-5pt): hidden share of communication"),
    ("collective_bytes", "+0%%, or 500 MB: per step and rank"),
    ("collective_count", "+0%%, or 48: per step and rank"),
    ("collective_bytes_law", "'3 psi': bytes relative to the size of all parameters"),
    ("step_time", "'+3%%@0.95': fail only if the 95%% interval is beyond +3%%"),
    ("exposed_wait", "+10%%: fail only if one rank is late in nearly all steps"),
)


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    """Declare one flag per gate; ``off`` disables it."""
    group = parser.add_argument_group(
        "limits", "override zprof.toml, pyproject.toml and the defaults; off disables a gate"
    )
    for gate, help_text in _FLAGS:
        group.add_argument(_format_flag(gate), metavar="LIMIT", help=help_text)
    group.add_argument(
        "--tenant",
        metavar="NAME=LIMIT",
        action="append",
        default=[],
        help="activations=+0%%: limit one tenant's part of the peak; may be repeated",
    )


def _read_gate_flags(arguments: argparse.Namespace) -> "Iterator[StatedLimit]":
    from zprof.checks.config import StatedLimit

    for gate, _ in _FLAGS:
        value: str | None = getattr(arguments, gate)
        if value is not None:
            yield StatedLimit(gate=gate, value=value, origin=_format_flag(gate), location=_format_flag(gate))


def _read_tenant_flag(text: str) -> "StatedLimit":
    from zprof.checks.config import StatedLimit
    from zprof.checks.limit_text import quote_input
    from zprof.checks.limits import MEMORY_PARTS, PEAK_MEMORY

    name, _, limit = (part.strip() for part in text.partition("="))
    name = name.replace("-", "_")
    if not name or not limit:
        raise BadInput(
            f"--tenant: {quote_input(text)} is not NAME=LIMIT", hint="write --tenant activations=+0%"
        )
    if name not in MEMORY_PARTS:
        raise BadInput(
            f"--tenant: unknown tenant {quote_input(name)}", hint=suggest_names(name, MEMORY_PARTS)
        )
    origin = f"--tenant {name}"
    return StatedLimit(gate=f"{PEAK_MEMORY}.{name}", value=limit, origin=origin, location=origin)


def _format_flag(gate: str) -> str:
    return f"--{gate.replace('_', '-')}"


def add_check_outputs(parser: argparse.ArgumentParser) -> None:
    """Declare the output options."""
    group = parser.add_argument_group("output", "the result is always printed to stdout as well")
    group.add_argument(
        "-f",
        "--format",
        metavar="FORMAT",
        choices=(*PAGE_FORMATS, "junit", "sarif", "github", "comment"),
        help="text, json, md, html, junit, sarif, github or comment (default: text)",
    )
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="also write FILE, in the format of its suffix (.txt .json .md .html .xml .sarif) or of -f; "
        "may be repeated",
    )
    group.add_argument("--junit", metavar="FILE", type=Path, help="write JUnit XML to FILE")
    group.add_argument("--sarif", metavar="FILE", type=Path, help="write SARIF to FILE")
    group.add_argument(
        "--comment",
        metavar="FILE",
        type=Path,
        help="write the comment of a pull request to FILE: Markdown of at most 60 lines",
    )
    group.add_argument(
        "--github",
        action="store_true",
        help=f"print annotations to stdout and append Markdown to ${STEP_SUMMARY}",
    )
    group.add_argument("--force", action="store_true", help="overwrite files")


def choose_outputs(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Outputs:
    """Return the requested outputs; raise before any work if one of them cannot be written.

    Raises:
        BadInput: A format is unknown, a file cannot be written, or two outputs share a file.
    """
    from zprof.reports.formats import CHECKS, by_name

    stdout_format = by_name(arguments.format or "text", CHECKS)
    if arguments.github and stdout_format.name not in ("text", "github"):
        raise BadInput(
            f"--github would mix annotations into the {stdout_format.name} on stdout",
            hint=f"write the {stdout_format.name} to a file with -o FILE instead of -f {stdout_format.name}",
        )
    is_annotated = arguments.github and stdout_format.name != "github"
    summary = environment.get(STEP_SUMMARY) if arguments.github else None
    files = [(_choose_format(path, arguments.format), path) for path in arguments.output]
    files += [
        (by_name(name, CHECKS), path)
        for name in ("junit", "sarif", "comment")
        if (path := getattr(arguments, name)) is not None
    ]
    check_output_targets([path for _, path in files], force=arguments.force)
    return Outputs(
        stdout_formats=(stdout_format, by_name("github", CHECKS)) if is_annotated else (stdout_format,),
        files=tuple(files),
        summary=Path(summary) if summary else None,
        force=arguments.force,
    )


def write_outputs(checked: "Checked", outputs: Outputs) -> None:
    """Write all outputs, stdout first.

    Raises:
        BadInput: A file cannot be written.
    """
    from zprof.reports.layout import WIDTH, page_columns

    for output_format in outputs.stdout_formats:
        print_document(checked, output_format)
    for output_format, path in outputs.files:
        with page_columns(WIDTH):
            document = output_format.render(checked)
        write_document(document, path, force=outputs.force)
    if outputs.summary is not None:
        # Append Markdown to GitHub's step summary; a failure prints a note and does not change the outcome.
        from zprof.reports.formats import CHECKS, by_name

        try:
            with outputs.summary.open("ab") as file:
                markdown = by_name("md", CHECKS).render(checked)
                file.write(markdown.encode("utf-8", errors="backslashreplace"))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "an invalid path"
            console.print_note(printable(f"zprof: ${STEP_SUMMARY} cannot be written ({reason})"))


def _choose_format(path: Path, name: str | None) -> "Format[Checked]":
    from zprof.reports.formats import CHECKS, by_name, by_path

    is_known_suffix = any(path.suffix.lower() in entry.suffixes for entry in CHECKS)
    return by_name(name, CHECKS) if name and not is_known_suffix else by_path(path, CHECKS)
