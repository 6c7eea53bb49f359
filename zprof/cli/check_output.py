"""Write the outputs of ``zprof check``: stdout, files, GitHub annotations and step summary."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from zprof.cli import console
from zprof.cli.output import PAGE_FORMATS, check_output_targets, print_document, write_document
from zprof.model.errors import BadInput
from zprof.model.formatting import printable

if TYPE_CHECKING:
    from zprof.model.check import Check
    from zprof.model.report import Report
    from zprof.reports.formats import Checked, Format


#: Environment variable with the file to which a GitHub workflow step may append Markdown.
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


class Outputs(Struct, frozen=True, kw_only=True):
    """Formats for stdout in print order, formats and paths of files, and GitHub's step summary."""

    stdout_formats: "tuple[Format[Checked], ...]"
    files: "tuple[tuple[Format[Checked], Path], ...]"
    summary: Path | None
    force: bool


def add_check_outputs(parser: argparse.ArgumentParser) -> None:
    """Declare the output options."""
    group = parser.add_argument_group("output", "the result is always printed to stdout as well")
    group.add_argument(
        "-f",
        "--format",
        metavar="FORMAT",
        choices=(*PAGE_FORMATS, "junit", "sarif", "github"),
        help="text, json, md, html, junit, sarif or github (default: text)",
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
        "--github",
        action="store_true",
        help=f"print annotations to stdout and append Markdown to ${STEP_SUMMARY}",
    )
    group.add_argument("--force", action="store_true", help="overwrite files")


def choose_outputs(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Outputs:
    """Return the requested outputs; raise before any work if one of them cannot be written.

    Raises:
        BadInput: a format is unknown, a file cannot be written, or two outputs share a file.
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
    from zprof.reports.formats import CHECKS, by_name

    files = [(_choose_format(path, arguments.format), path) for path in arguments.output]
    files += [
        (by_name(name, CHECKS), path)
        for name, path in (("junit", arguments.junit), ("sarif", arguments.sarif))
        if path is not None
    ]
    check_output_targets([path for _, path in files], force=arguments.force)
    return Outputs(
        stdout_formats=(stdout_format, by_name("github", CHECKS)) if is_annotated else (stdout_format,),
        files=tuple(files),
        summary=Path(summary) if summary else None,
        force=arguments.force,
    )


def write_outputs(check: "Check", report: "Report", outputs: Outputs) -> None:
    """Write all outputs, stdout first.

    Raises:
        BadInput: a file cannot be written.
    """
    from zprof.reports.layout import WIDTH, page_columns

    for output_format in outputs.stdout_formats:
        print_document((check, report), output_format)
    for output_format, path in outputs.files:
        with page_columns(WIDTH):
            document = output_format.render((check, report))
        write_document(document, path, force=outputs.force)
    if outputs.summary is not None:
        # Append Markdown to GitHub's step summary; a failure prints a note and does not change the outcome.
        from zprof.reports.formats import CHECKS, by_name

        try:
            with outputs.summary.open("ab") as file:
                markdown = by_name("md", CHECKS).render((check, report))
                file.write(markdown.encode("utf-8", errors="backslashreplace"))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "an invalid path"
            console.print_note(printable(f"zprof: ${STEP_SUMMARY} cannot be written ({reason})"))


def _choose_format(path: Path, name: str | None) -> "Format[Checked]":
    from zprof.reports.formats import CHECKS, by_name, by_path

    is_known_suffix = any(path.suffix.lower() in entry.suffixes for entry in CHECKS)
    return by_name(name, CHECKS) if name and not is_known_suffix else by_path(path, CHECKS)
