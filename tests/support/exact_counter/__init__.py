"""Builds the exact counter, and reads it from inside a process that it was preloaded into."""

import ctypes
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("counter.c")
LIBRARY = "libexact_counter.so"


def compiler() -> str | None:
    """A C compiler, if this machine has one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path) -> Path:
    """Compile the counter into ``folder``."""
    found = compiler()
    assert found is not None, "no C compiler"
    library = folder / LIBRARY
    command = [found, "-O2", "-shared", "-fPIC", "-fexceptions", "-o", str(library), str(SOURCE)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return library


class ExactCounter:
    """The counter of this process, which must have been started with the library preloaded."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.exact_live_bytes.restype = ctypes.c_int64
        self._library.exact_max_bytes.restype = ctypes.c_int64

    def live_bytes(self) -> int:
        return int(self._library.exact_live_bytes())

    def begin(self) -> None:
        """The maximum counts from now on."""
        self._library.exact_begin()

    def max_bytes(self) -> int:
        return int(self._library.exact_max_bytes())
