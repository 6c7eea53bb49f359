"""Write a document to stdout or, atomically, to a file; declare ``-f``, ``-o`` and ``--force``."""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from zprof.cli import console
from zprof.model.errors import BadInput

if TYPE_CHECKING:
    from zprof.reports.formats import Format


def check_output_target(path: Path, *, force: bool) -> None:
    """Raise if the target cannot be written or would be overwritten without ``force``."""
    try:
        _check_path(path, force=force)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="choose another file") from None


def _check_path(path: Path, *, force: bool) -> None:
    if path.is_dir():
        raise BadInput(f"{path}: is a folder", hint="pass a file name")
    if path.exists() and not force:
        raise BadInput(f"{path}: already exists", hint="use --force to overwrite it")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent}: no such folder", hint="create it, or choose another file")


def write_document(document: str, path: Path | None, *, force: bool = False, page: bool = False) -> None:
    """Write to ``path``, or to stdout if it is None; ``page`` marks text that may be coloured.

    Raises:
        BadInput: the file exists and ``force`` is not given, or it cannot be written.
    """
    if path is None:
        (console.print_page if page else console.print_data)(document)
        return
    check_output_target(path, force=force)
    try:
        _write_text(document, path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="choose another file") from None
    console.print_note(f"zprof: wrote {path}")


@contextmanager
def open_atomically(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Yield a file that becomes ``path`` when the context ends, and is removed if it fails.

    Raises:
        BadInput: the file exists and ``force`` is not given, or it cannot be written.
    """
    check_output_target(path, force=force)
    try:
        with _replace_atomically(path) as file:
            yield file
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="choose another file") from None


def _write_text(document: str, path: Path) -> None:
    with _replace_atomically(path) as file:
        file.write(document.encode("utf-8", errors="backslashreplace"))


@contextmanager
def _replace_atomically(path: Path) -> Iterator[BinaryIO]:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            yield file
        os.chmod(temporary, 0o666 & ~_get_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _get_umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


Document = TypeVar("Document")


def add_output_options(parser: argparse.ArgumentParser, formats: str = "text or json") -> None:
    """Declare the three output options."""
    parser.add_argument("-f", "--format", metavar="FORMAT", help=f"{formats} (default: text)")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write to FILE; its suffix selects the format"
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE")


def render_to(
    arguments: argparse.Namespace, formats: "Sequence[Format[Document]]", make: Callable[[], Document]
) -> None:
    """Write the document that ``make`` returns; raise before calling it if the target cannot be written.

    Raises:
        BadInput: the format is unknown, or the file cannot be written.
    """
    from zprof.reports.formats import by_name, by_path
    from zprof.reports.layout import WIDTH, page_columns

    output: Path | None = arguments.output
    if arguments.format or output is None:
        output_format = by_name(arguments.format or "text", formats)
    else:
        output_format = by_path(output, formats)
    if output is not None:
        check_output_target(output, force=arguments.force)
    page = output_format.name == "text"
    with page_columns(WIDTH) if output else nullcontext():
        document = output_format.render(make())
    write_document(document, output, force=arguments.force, page=page)
