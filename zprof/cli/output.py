"""Write a document to stdout or, atomically, to a file; declare ``-f``, ``-o`` and ``--force``."""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from zprof.base.errors import BadInput
from zprof.cli import console

if TYPE_CHECKING:
    from zprof.reports.formats import Format


def check_output_target(path: Path, *, force: bool) -> None:
    """Raise if the target cannot be written or would be overwritten without ``force``."""
    try:
        if path.is_dir():
            raise BadInput(f"{path}: is a folder", hint="pass a file name")
        if path.exists() and not force:
            raise BadInput(f"{path}: already exists", hint="use --force to overwrite it")
        if not path.parent.is_dir():
            raise BadInput(f"{path.parent}: no such folder", hint="create it, or choose another file")
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="choose another file") from None


def check_output_targets(paths: Sequence[Path], *, force: bool) -> None:
    """Raise if one of the targets cannot be written, or two of them are the same file."""
    seen: set[Path] = set()
    for path in paths:
        check_output_target(path, force=force)
        if (resolved := path.resolve()) in seen:
            raise BadInput(f"{path}: two outputs use this file", hint="choose a different file for each")
        seen.add(resolved)


def write_document(document: str, path: Path | None, *, force: bool = False) -> None:
    """Write to ``path``, or to stdout if it is None.

    Raises:
        BadInput: The file exists and ``force`` is not given, or it cannot be written.
    """
    if path is None:
        console.print_data(document)
        return
    check_output_target(path, force=force)
    try:
        with _replace_atomically(path) as file:
            file.write(document.encode("utf-8", errors="backslashreplace"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="choose another file") from None
    console.print_note(f"zprof: wrote {path}")


@contextmanager
def open_atomically(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Yield a file that becomes ``path`` when the context ends, and is removed if it fails.

    Raises:
        BadInput: The file exists and ``force`` is not given, or it cannot be written.
    """
    check_output_target(path, force=force)
    try:
        with _replace_atomically(path) as file:
            yield file
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="choose another file") from None


@contextmanager
def _replace_atomically(path: Path) -> Iterator[BinaryIO]:
    from tempfile import mkstemp

    handle, temporary = mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            yield file
        current = os.umask(0)
        os.umask(current)
        os.chmod(temporary, 0o666 & ~current)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


Document = TypeVar("Document")

#: The formats of every page.
PAGE_FORMATS = ("text", "json", "md", "html")


def add_output_options(
    parser: argparse.ArgumentParser, formats: Sequence[str] = PAGE_FORMATS, note: str = ""
) -> None:
    """Declare the three output options; ``note`` explains a format."""
    names = f"{', '.join(formats[:-1])} or {formats[-1]}"
    parser.add_argument(
        "-f", "--format", metavar="FORMAT", choices=formats, help=f"{names}{note} (default: text)"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="write to FILE; its suffix selects the format; repeat it to write several formats at once",
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE")


def render_to(
    arguments: argparse.Namespace, formats: "Sequence[Format[Document]]", make: Callable[[], Document]
) -> None:
    """Write the document that ``make`` returns; raise before calling it if a target cannot be written.

    Raises:
        BadInput: A format is unknown, a file cannot be written, or two outputs share a file.
    """
    from zprof.reports.formats import by_name, by_path
    from zprof.reports.layout import WIDTH, page_columns

    name: str | None = arguments.format
    paths: list[Path] = arguments.output
    if name is not None and len(paths) > 1:
        raise BadInput(
            f"-f {name} selects one format, but {len(paths)} files are to be written",
            hint="leave out -f: the suffix of each file selects its format",
        )
    files = [(path, by_name(name, formats) if name else by_path(path, formats)) for path in paths]
    if not files:
        output_format = by_name(arguments.format or "text", formats)
        print_document(make(), output_format)
        return
    check_output_targets([path for path, _ in files], force=arguments.force)
    document = make()
    with page_columns(WIDTH):
        rendered = [(path, output_format.render(document)) for path, output_format in files]
    for path, text in rendered:
        write_document(text, path, force=arguments.force)


def print_document(document: Document, output_format: "Format[Document]") -> None:
    """Print to stdout; text may be coloured."""
    if output_format.make_page is not None:
        console.print_page(output_format.make_page(document))
    else:
        console.print_data(output_format.render(document))
