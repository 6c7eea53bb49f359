"""Identify processes, even after they have ended: process numbers are reused."""

import os
from pathlib import Path

from msgspec import Struct

_PROC = Path("/proc")
#: Fields of proc_pid_stat(5), counted after the name in parentheses; the start is in ticks since boot.
STATE, PARENT, THREADS, START = 0, 1, 17, 19


class ProcessIdentity(Struct, frozen=True, kw_only=True):
    """A process: its number and start time, and the boot and process namespace in which these are valid.

    ``start`` is 0 and ``space`` empty if unknown.
    """

    number: int
    start: int = 0
    space: str = ""

    @property
    def is_gone(self) -> bool:
        """Return True if the process has certainly ended; False if it runs or is not visible from here."""
        if not self.start or self.space != _read_space():
            return False
        return _read_start(self.number) != self.start


def identify_this_process() -> ProcessIdentity:
    """Return the identity of this process."""
    number = os.getpid()
    return ProcessIdentity(number=number, start=_read_start(number), space=_read_space())


def read_name_and_fields(number: int) -> tuple[str, list[str]]:
    """Return the name of a process, and its other fields of proc_pid_stat(5).

    Raises:
        OSError: The process has ended, or the system does not provide them.
    """
    before, _, after = (_PROC / str(number) / "stat").read_text(errors="replace").rpartition(")")
    return before.partition("(")[2], after.split()


def _read_start(number: int) -> int:
    """Return the start time of a process; 0 if it is unknown."""
    try:
        return int(read_name_and_fields(number)[1][START])
    except (OSError, ValueError, IndexError):
        return 0


def _read_space() -> str:
    """Return the boot and the namespace in which process numbers are unique; empty if unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""
