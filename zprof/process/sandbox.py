"""Run readers of untrusted files, or a user's code, in a child process with limits, and report how it failed.

A hostile file can at worst end its child: the limits bound its memory, processor time, output and wall time,
and the child's whole session is killed at its end.
"""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from msgspec import Struct

import zprof
from zprof.process.child import Child
from zprof.process.memory_limit import LOW_MEMORY_ENVIRONMENT

#: Arrow's own allocators map gigabytes at once, and each thread maps a stack: both would exceed the limit.
_ISOLATED_ENVIRONMENT = {**LOW_MEMORY_ENVIRONMENT, "MALLOC_ARENA_MAX": "1"}
#: Its search path is the standard library, then the running zprof, then installed packages.
_PROGRAM = (
    "import sys;"
    "at = next((i for i, p in enumerate(sys.path) if p.endswith('-packages')), len(sys.path));"
    "sys.path.insert(at, sys.argv[1]);"
    "from {module} import start;"
    "start(sys.argv[2:])"
)
_UNKNOWN_MAPPED_BYTES = 1 << 30


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of one child; None is no limit.

    ``memory_bytes`` is added to the memory that Python and its libraries have mapped when the limits are
    applied.
    """

    memory_bytes: int
    wall_s: float
    cpu_s: int | None = None
    output_bytes: int | None = None
    open_files: int | None = None


class ChildFailure(Struct, frozen=True, kw_only=True):
    """How a child failed; ``exceeded_limit`` if more memory or time could have helped."""

    message: str
    exceeded_limit: bool = False


class Sandbox:
    """A running child, as a context manager: on exit the child and all its descendants are killed.

    ``program`` is Python code; ``sys.argv[1]`` is zprof's parent folder, followed by ``arguments``. With a
    ``folder`` the child is isolated: it runs there, without the user's packages and with one thread. The
    child applies its limits itself, with ``apply_limits``, after its imports.
    """

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        limits: Limits,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
        stderr: int | None = subprocess.DEVNULL,
    ) -> None:
        root = str(Path(zprof.__file__).parents[1])
        isolated = _ISOLATED_ENVIRONMENT if folder else {}
        self._limits = limits
        self._is_late = False
        self._child = Child(
            [sys.executable, "-I" if folder else "-P", "-c", program, root, *arguments],
            environment={**os.environ, **isolated, **(environment or {})},
            folder=folder,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            leads_session=True,
        )
        self._deadline = time.monotonic() + limits.wall_s

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self._child.end()

    def is_finished(self) -> bool:
        """Return True if the child has exited or exceeded its wall time."""
        if self._child.poll() is not None:
            return True
        self._is_late = time.monotonic() > self._deadline
        return self._is_late

    def wait(self) -> ChildFailure | None:
        """Wait for the child to finish, end it, and return how it failed."""
        self._child.wait(max(0.0, self._deadline - time.monotonic()))
        self._is_late = self._child.poll() is None
        return self.end()

    def end(self) -> ChildFailure | None:
        """Kill the child if it still runs, and its descendants; return how it failed, or None."""
        status, cpu_s = self._child.end(), self._limits.cpu_s
        if self._is_late:
            return ChildFailure(
                message=f"it exceeded {self._limits.wall_s:g} s and was killed", exceeded_limit=True
            )
        if status in (-signal.SIGXCPU, -signal.SIGKILL):
            cpu_limit = "" if cpu_s is None else f"{cpu_s} s of processor time or "
            return ChildFailure(message=f"it exceeded {cpu_limit}the memory limit", exceeded_limit=True)
        return ChildFailure(message=f"it exited with status {status}") if status else None


def make_program(module: str) -> str:
    """Return the code of a child that calls ``start(arguments)`` of a module of zprof."""
    return _PROGRAM.format(module=module)


def apply_limits(limits: Limits) -> None:
    """Apply the limits to this process irrevocably; the child calls this.

    Raises:
        OSError, ValueError: The system rejects a limit.
    """
    for limit_id, value in (
        (resource.RLIMIT_AS, _read_mapped_bytes() + limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_FSIZE, limits.output_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
    ):
        if value is not None:
            finite = [limit for limit in resource.getrlimit(limit_id) if limit != resource.RLIM_INFINITY]
            lowest = min([value, *finite])
            resource.setrlimit(limit_id, (lowest, lowest))


def read_lines(path: Path, max_bytes: int) -> list[bytes]:
    """Return the lines that a child wrote, up to a size limit; empty without a file."""
    try:
        with path.open("rb") as file:
            return file.read(max_bytes).splitlines()
    except OSError:
        return []


def _read_mapped_bytes() -> int:
    """Return the address space of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):  # not available on this system
        return _UNKNOWN_MAPPED_BYTES
    return pages * resource.getpagesize()
