"""Run a check in a process of its own, with a time limit: a hang or crash is one failed row.

The child is  python -m benchmarks.device.isolate CHECK ROW.json
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.device.checks import Check, CheckFailed, NotMeasured, Row, Status, find_check, one_line

ROOT = Path(__file__).parents[2]


def isolated(name: str, folder: Path, limit_s: float, command: Sequence[str] | None = None) -> Row:
    """Return the row of a check; after ``limit_s`` it is killed with the processes that it started."""
    path, log = folder / f"{name}.json", folder / f"{name}.log"
    command = command or [sys.executable, "-m", "benchmarks.device.isolate", name, str(path)]
    begin = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=_make_environment(), stdout=output, stderr=output, start_new_session=True
        )
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        seconds = round(time.monotonic() - begin, 2)
        return Row(
            check=name, status=Status.FAILED, reason=f"took longer than {limit_s:.0f} s", seconds=seconds
        )
    finally:
        _end_group(process)
    if path.exists():
        row = json.loads(path.read_text())
        return Row(**{**row, "status": Status(row["status"])})
    seconds = round(time.monotonic() - begin, 2)
    reason = f"ended with code {process.returncode}: {_last_line(log)}"
    return Row(check=name, status=Status.FAILED, reason=reason, seconds=seconds)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    # The check leads a process group of its own, which includes the ranks that it started.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _make_environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else "no output"


def make_row(check: Check) -> Row:
    """Return the row of a check, whatever happens in it."""
    begin = time.monotonic()

    def seconds() -> float:
        return round(time.monotonic() - begin, 2)

    try:
        figures = check.measure()
    except NotMeasured as why:
        return Row(check=check.name, status=Status.NOT_MEASURED, reason=one_line(why), seconds=seconds())
    except CheckFailed as failed:
        return Row(
            check=check.name,
            status=Status.FAILED,
            reason=one_line(failed),
            seconds=seconds(),
            figures=failed.figures,
        )
    except ImportError as error:
        return Row(
            check=check.name,
            status=Status.NOT_MEASURED,
            reason=f"{error.name or 'a package'} is missing: {one_line(error)}",
            seconds=seconds(),
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        return Row(check=check.name, status=Status.FAILED, reason=reason, seconds=seconds())
    return Row(check=check.name, status=Status.OK, seconds=seconds(), figures=figures)


def main() -> None:
    name, path = sys.argv[1:]
    row = make_row(find_check(name))
    Path(path).write_text(json.dumps(row.as_dict()))


if __name__ == "__main__":
    main()
