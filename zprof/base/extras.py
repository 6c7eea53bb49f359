"""Say which extra of zprof a feature needs, and how to install it.

The default install has what looking at runs needs; the extras of pyproject.toml bring the rest.
"""

from enum import StrEnum
from importlib.util import find_spec

from msgspec import Struct

from zprof.base.errors import BadInput


def require_extra(extra: "Extra", feature: str) -> None:
    """Check that the package of an extra is installed, without importing it.

    Raises:
        MissingPackage: it is not; the message starts with ``feature``, a command, an option or a function.
    """
    if not is_installed(extra):
        raise make_missing_package_error(feature, _MODULES[extra].package, get_install_command(extra))


def is_installed(extra: "Extra") -> bool:
    """Return True if the package of an extra is installed; it may still fail to import."""
    try:
        return find_spec(_MODULES[extra].name) is not None
    except ValueError:  # imported, but without a spec
        return True


def get_install_command(extra: "Extra") -> str:
    """Return the command that installs an extra."""
    return f"pip install 'zprof[{extra}]'"


def make_missing_package_error(feature: str, package: str, command: str) -> "MissingPackage":
    """Return the error of a feature whose package is not installed."""
    return MissingPackage(f"{feature} needs {package}, which is not installed", hint=command)


class MissingPackage(BadInput, ImportError):
    """A package that the default install does not bring is missing.

    It is an ImportError as well, because imports such as ``from zprof import record`` raise it.  Programs
    print an ImportError that they catch, so the command is in the text instead of a note.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.__notes__ = []

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}"


class Extra(StrEnum):
    """An extra that adds features, by its name in pyproject.toml."""

    RECORD = "record"
    HTA = "hta"
    DASK = "dask"
    CUDA = "cuda"


class _Module(Struct, frozen=True):
    """The module that shows that an extra is installed, and the package that has it."""

    name: str
    package: str


_MODULES = {
    Extra.RECORD: _Module("torch", "torch"),
    Extra.HTA: _Module("hta", "HolisticTraceAnalysis"),
    Extra.DASK: _Module("distributed", "distributed"),
    Extra.CUDA: _Module("cuda", "cuda-core"),
}
