"""Run a task that imports torch or a user's code in a child process with limits.

The caller's process stays free of the task's process groups, patches and modules. The child's output goes to
stderr, because it is not data.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

import zprof
from zprof.model.errors import BadInput
from zprof.model.memory_limit import check_address_space

TASK, ANSWERS = "task.json", "answers.jsonl"
#: Code of the child. Its search path is the standard library, then the running zprof; the user's folder is
#: added later.
_BOOT = (
    "import sys;"
    "at = next((i for i, p in enumerate(sys.path) if p.endswith('-packages')), len(sys.path));"
    "sys.path.insert(at, sys.argv[1]);"
    "from zprof.integrations.planning.child import start;"
    "start(sys.argv[2])"
)
_MAX_ANSWER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the child; ``memory_bytes`` is added to the memory mapped once torch is loaded."""

    memory_bytes: int = 8 << 30
    wall_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The child's answers; ``failure`` tells how it failed, empty for a normal exit."""

    lines: tuple[Mapping[str, Any], ...]
    failure: str


def run_task(task: Mapping[str, Any], limits: Limits) -> Answers:
    """Run a task in a child process and return its answers.

    Raises:
        BadInput: the child refuses the task.
        MemoryError: the address-space limit, which the child inherits, is too low to import torch.
    """
    check_address_space("torch")
    with tempfile.TemporaryDirectory(prefix="zprof-plan-") as scratch:
        folder = Path(scratch)
        (folder / TASK).write_bytes(msgspec.json.encode({**task, "limits": asdict(limits)}))
        failure = _run_child(folder, limits.wall_s)
        lines = _read_lines(folder / ANSWERS)
    for line in lines:
        if "refused" in line:
            raise BadInput(str(line["refused"]), hint=str(line.get("hint", "")))
    return Answers(lines=lines, failure=failure)


def _run_child(folder: Path, wall_s: float) -> str:
    """Run the child and kill its process group; return how it failed, empty for a normal exit."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, str(Path(zprof.__file__).parents[1]), str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if _has_descriptor() else subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        status = child.wait(wall_s)
    except subprocess.TimeoutExpired:
        return f"it exceeded {wall_s:g} s and was killed"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return f"it exited with status {status}" if status else ""


def _has_descriptor() -> bool:
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # a test or a notebook replaced stderr
        return False
    return True


def _read_lines(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Return the complete answers; a truncated line is ignored."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_ANSWER_BYTES)
    except OSError:
        return ()
    answers = []
    for line in content.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            answers.append(msgspec.json.decode(line, type=dict[str, Any]))
    return tuple(answers)


#: Writes one answer as a line of JSON.
WriteAnswer = Callable[[Mapping[str, Any]], None]
