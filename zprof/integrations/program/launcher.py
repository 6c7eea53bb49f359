"""When this rank's launcher was started: a run that came later is the work of another rank of its job."""

import os
import time
from pathlib import Path

_START_FIELD = 19  # the 22nd of proc_pid_stat(5), counted after the name in brackets
_PROC = Path("/proc")


def launched_ns() -> int:
    """Start of torchrun where it started this process; else now: nobody else can have begun before."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return time.time_ns()
    try:
        stat = (_PROC / str(os.getppid()) / "stat").read_text()
        ticks = int(stat.rpartition(")")[2].split()[_START_FIELD])
        up_s = float((_PROC / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time_ns()
    age_s = up_s - ticks / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - int(age_s * 1e9)
