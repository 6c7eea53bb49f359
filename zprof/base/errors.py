"""Define errors that users see on one line: the problem, its location, and what to do.

Only ``main()`` of the command line prints them and converts them to an exit code. In Python the hint is a
note on the exception, and a notebook shows one line.
"""

import os
from collections.abc import Iterable
from enum import StrEnum
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from zprof.base.formatting import printable, shorten

_MAX_SUGGESTIONS = 3
_CUTOFF = 0.6
#: Comparing names is quadratic in their length, and a hint is one line.
_MAX_COMPARED, _MAX_SHOWN = 64, 80
#: Maximum folder entries that are compared; trace folders may have very many.
_MAX_ENTRIES, _MAX_PATHS = 4096, 2


class ZprofError(Exception):
    """Base class of all errors that zprof raises deliberately."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(hint)

    def _render_traceback_(self) -> list[str]:
        """Return the one line that a notebook shows instead of a traceback; IPython looks for this method."""
        return [f"{type(self).__name__}: {self.message}" + (f"; {self.hint}" if self.hint else "")]


class CheckFailed(ZprofError):
    """A limit was exceeded."""

    exit_code = 1


class BadInput(ZprofError):
    """A file or an argument cannot be used."""

    exit_code = 2


class MissingData(ZprofError):
    """The input is valid but does not contain enough data."""

    exit_code = 3


def require_extra(extra: "Extra", feature: str) -> None:
    """Check, without importing it, that the package of an extra is installed.

    Raises:
        MissingPackage: The package is not installed; the message starts with ``feature`` (a command, option
        or function).
    """
    if not is_installed(extra):
        raise make_missing_package_error(feature, _MODULES[extra].package, get_install_command(extra))


def is_installed(extra: "Extra") -> bool:
    """Return True if the package of an extra is installed; it may still fail to import."""
    try:
        return find_spec(_MODULES[extra].name) is not None
    except ValueError:  # imported without a spec
        return True


def get_install_command(extra: "Extra") -> str:
    """Return the command that installs an extra."""
    return f"pip install 'zprof[{extra}]'"


def make_missing_package_error(feature: str, package: str, command: str) -> "MissingPackage":
    """Return the error for a feature whose package is not installed."""
    return MissingPackage(f"{feature} needs {package}, which is not installed", hint=command)


class MissingPackage(BadInput, ImportError):
    """A package is missing that the default install does not include.

    It is an ImportError as well, because imports such as ``from zprof import record`` raise it.  Programs
    print the text of a caught ImportError, so the command is in the text instead of a note.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.__notes__ = []

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}"


class Extra(StrEnum):
    """An extra that adds features, named as in pyproject.toml."""

    RECORD = "record"
    HTA = "hta"
    DASK = "dask"
    CUDA = "cuda"
    SQL = "sql"
    MCP = "mcp"


class _Module(NamedTuple):
    """A module that proves that an extra is installed, and the package that contains it."""

    name: str
    package: str


_MODULES = {
    Extra.RECORD: _Module("torch", "torch"),
    Extra.HTA: _Module("hta", "HolisticTraceAnalysis"),
    Extra.DASK: _Module("distributed", "distributed"),
    Extra.CUDA: _Module("cuda", "cuda-core"),
    Extra.SQL: _Module("duckdb", "duckdb"),
    Extra.MCP: _Module("mcp", "mcp"),
}


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Return a hint with similar names (``did you mean peak_memory?``), or with all names."""
    names = list(known)
    return ask_for_name(name, names) or f"known: {', '.join(names)}"


def ask_for_name(name: str, known: Iterable[str]) -> str:
    """Return the question ``did you mean A or B?``, or an empty string if no name is similar."""
    near = find_similar(name, known)
    shown = [shorten(printable(entry), _MAX_SHOWN) for entry in near]
    return f"did you mean {' or '.join(shown)}?" if shown else ""


def find_similar(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three similarly spelled names, best first; case and leading dashes are ignored."""
    from difflib import get_close_matches  # only errors need it

    by_key: dict[str, str] = {}
    for entry in known:
        by_key.setdefault(_make_key(entry), entry)
    keys = get_close_matches(_make_key(name), by_key, n=_MAX_SUGGESTIONS, cutoff=_CUTOFF)
    return [by_key[key] for key in keys]


def _make_key(name: str) -> str:
    return name.lstrip("-")[:_MAX_COMPARED].lower()


def make_missing_error(path: Path) -> BadInput:
    """Return the error for a path without a run, with suggested paths."""
    return BadInput(f"{path}: no such run", hint=suggest_path(path) or "give the folder of a recording")


def suggest_path(path: Path) -> str:
    """Return the question ``did you mean runs/zero3.zprof?`` with entries spelled like a missing path.

    The first missing part of the path is compared. A name that differs only in its suffix is the best match.
    The result is empty if nothing is similar or the folder cannot be read.
    """
    missing = path
    try:
        while missing.parent != missing and not missing.parent.exists():
            missing = missing.parent
        with os.scandir(missing.parent) as entries:
            names = [entry.name for entry in islice(entries, _MAX_ENTRIES)]
        if not missing.name.startswith("."):
            names = [name for name in names if not name.startswith(".")]
    except (OSError, ValueError):
        return ""
    # Names that differ only after the first dot; folders with the suffix of a run come first.
    stem = missing.name.partition(".")[0]
    same = [entry for entry in names if stem and entry.partition(".")[0] == stem]
    near = sorted(same, key=lambda entry: (not entry.endswith(".zprof"), entry)) or find_similar(
        missing.name, names
    )
    shown = [printable(missing.parent / name) for name in near[:_MAX_PATHS]]
    return f"did you mean {' or '.join(shown)}?" if shown else ""
