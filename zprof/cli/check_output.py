"""Write the outputs of ``zprof check``: a page on stdout, files, GitHub annotations and step summary."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli import console
from zprof.cli.output import check_target, deliver
from zprof.model.errors import BadInput
from zprof.model.formatting import printable

if TYPE_CHECKING:
    from zprof.model.check import Check
    from zprof.model.report import Report
    from zprof.reports.formats import Checked, Format


#: Variable with the file to which a step of a GitHub workflow may append Markdown.
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Outputs to write: to stdout in this order, to files, and to GitHub's step summary."""

    shown: "tuple[Format[Checked], ...]"
    files: "tuple[tuple[Format[Checked], Path], ...]"
    summary: Path | None
    force: bool


def add_check_outputs(parser: argparse.ArgumentParser) -> None:
    """Declare the output options."""
    group = parser.add_argument_group("output", "the page goes to stdout, whatever else is written")
    group.add_argument(
        "-f",
        "--format",
        metavar="FORMAT",
        help="text, json, md, html, junit, sarif or github (default: text)",
    )
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="write here too, by its suffix (.txt .json .md .html .xml .sarif) or -f; may be repeated",
    )
    group.add_argument("--junit", metavar="FILE", type=Path, help="write JUnit XML here")
    group.add_argument("--sarif", metavar="FILE", type=Path, help="write SARIF here")
    group.add_argument(
        "--github", action="store_true", help=f"annotations on stdout, Markdown to ${STEP_SUMMARY}"
    )
    group.add_argument("--force", action="store_true", help="overwrite files")


def choose_outputs(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Outputs:
    """Return the requested outputs; raise before any work if one cannot be written.

    Raises:
        BadInput: no such format, a file that cannot be written, or one file for two outputs.
    """
    from zprof.reports.formats import CHECKS, by_name

    shown = by_name(arguments.format or "text", CHECKS)
    if arguments.github and shown.name not in ("text", "github"):
        raise BadInput(
            f"--github: its annotations would stand amid the {shown.name} on stdout",
            hint=f"leave out -f {shown.name}, and write it with -o FILE",
        )
    annotates = arguments.github and shown.name != "github"
    summary = environment.get(STEP_SUMMARY) if arguments.github else None
    return Outputs(
        shown=(shown, by_name("github", CHECKS)) if annotates else (shown,),
        files=_choose_files(arguments),
        summary=Path(summary) if summary else None,
        force=arguments.force,
    )


def write_outputs(check: "Check", report: "Report", wanted: Outputs) -> None:
    """Write all outputs, stdout first.

    Raises:
        BadInput: a file cannot be written.
    """
    for entry in wanted.shown:
        console.data(entry.render((check, report)))
    for entry, path in wanted.files:
        deliver(entry.render((check, report)), path, force=wanted.force)
    if wanted.summary is not None:
        _append_summary(check, report, wanted.summary)


def _choose_files(arguments: argparse.Namespace) -> "tuple[tuple[Format[Checked], Path], ...]":
    from zprof.reports.formats import CHECKS, by_name

    files = [(_choose_format(path, arguments.format), path) for path in arguments.output]
    files += [
        (by_name(name, CHECKS), path)
        for name, path in (("junit", arguments.junit), ("sarif", arguments.sarif))
        if path is not None
    ]
    _check_files([path for _, path in files], force=arguments.force)
    return tuple(files)


def _choose_format(path: Path, said: str | None) -> "Format[Checked]":
    from zprof.reports.formats import CHECKS, by_name, by_path

    known = any(path.suffix.lower() in entry.suffixes for entry in CHECKS)
    return by_name(said, CHECKS) if said and not known else by_path(path, CHECKS)


def _check_files(paths: Sequence[Path], *, force: bool) -> None:
    seen: set[Path] = set()
    for path in paths:
        check_target(path, force=force)
        if (place := path.resolve()) in seen:
            raise BadInput(f"{path}: asked for twice", hint="name a file for each")
        seen.add(place)


def _append_summary(check: "Check", report: "Report", path: Path) -> None:
    """Append Markdown to GitHub's summary; a failure is only a note and leaves the check's outcome."""
    from zprof.reports.formats import CHECKS, by_name

    try:
        with path.open("ab") as file:
            markdown = by_name("md", CHECKS).render((check, report))
            file.write(markdown.encode("utf-8", errors="backslashreplace"))
    except (OSError, ValueError) as error:
        console.note(printable(f"zprof: ${STEP_SUMMARY} cannot be written ({error})"))
