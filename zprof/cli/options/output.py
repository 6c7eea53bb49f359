"""``-f``, ``-o`` and ``--force``: in which format a command writes, and where to."""

import argparse
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from zprof.cli.terminal.output import check_target, deliver

if TYPE_CHECKING:
    from zprof.reports.formats import Format

Document = TypeVar("Document")


def add_output_options(parser: argparse.ArgumentParser, formats: str = "text or json") -> None:
    """The three options."""
    parser.add_argument("-f", "--format", metavar="FORMAT", help=f"{formats} (default: text)")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write here; the suffix chooses the format"
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE")


def render_to(
    arguments: argparse.Namespace, formats: "Sequence[Format[Document]]", make: Callable[[], Document]
) -> None:
    """Write what ``make`` gives; what cannot be written is refused before it is asked for.

    Raises:
        BadInput: no such format, or the file cannot be written.
    """
    from zprof.reports.formats import by_name, by_path
    from zprof.reports.layout import WIDTH, page_columns

    output: Path | None = arguments.output
    if arguments.format or output is None:
        chosen = by_name(arguments.format or "text", formats)
    else:
        chosen = by_path(output, formats)
    if output is not None:
        check_target(output, force=arguments.force)
    page = chosen.name == "text"
    with page_columns(WIDTH) if output else nullcontext():
        document = chosen.render(make())
    deliver(document, output, force=arguments.force, page=page)
