"""Runs a check in a process of its own, for a limited time: what hangs or crashes there is a row, no more."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.device.row import Row, Status, one_line

ROOT = Path(__file__).parents[2]


def isolated(name: str, folder: Path, limit_s: float, command: Sequence[str] | None = None) -> Row:
    """The row of a check.  After ``limit_s`` it is ended, with the processes that it started."""
    path, log = folder / f"{name}.json", folder / f"{name}.log"
    command = command or [sys.executable, "-m", "benchmarks.device.child", name, str(path)]
    begin = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=_environment(), stdout=output, stderr=output, start_new_session=True
        )
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        seconds = round(time.monotonic() - begin, 2)
        return Row(
            check=name, status=Status.FAILED, reason=f"took longer than {limit_s:.0f} s", seconds=seconds
        )
    finally:
        _end(process)
    if path.exists():
        row = json.loads(path.read_text())
        return Row(**{**row, "status": Status(row["status"])})
    seconds = round(time.monotonic() - begin, 2)
    reason = f"ended with code {process.returncode}: {_last_line(log)}"
    return Row(check=name, status=Status.FAILED, reason=reason, seconds=seconds)


def _end(process: subprocess.Popen[bytes]) -> None:
    # The check leads a process group of its own; ranks that it started are in it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else "no output"
