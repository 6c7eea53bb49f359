"""Run a task that imports torch or a user's code in a child process with limits.

The caller's process stays free of the task's process groups, patches and modules. The child's output goes to
stderr, because it is not data.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, to_builtins

from zprof.model.errors import BadInput
from zprof.model.memory_limit import check_address_space
from zprof.model.sandbox import Limits, Sandbox, make_program, read_lines

TASK, ANSWERS = "task.json", "answers.jsonl"
_MAX_ANSWER_BYTES = 64 << 20


LIMITS = Limits(memory_bytes=8 << 30, wall_s=600.0)


class ChildAnswers(Struct, frozen=True, kw_only=True):
    """The child's answers; ``failure`` tells how it failed, empty for a normal exit."""

    lines: tuple[Mapping[str, Any], ...]
    failure: str


def run_task(task: Mapping[str, Any], limits: Limits) -> ChildAnswers:
    """Run a task in a child process and return its answers.

    Raises:
        BadInput: the child refuses the task.
        MemoryError: the address-space limit, which the child inherits, is too low to import torch.
    """
    check_address_space("torch")
    with tempfile.TemporaryDirectory(prefix="zprof-plan-") as scratch:
        folder = Path(scratch)
        content = json.dumps({**to_builtins(task), "limits": to_builtins(limits)})
        (folder / TASK).write_text(content, encoding="ascii")
        with Sandbox(
            make_program("zprof.integrations.planning.child"),
            [scratch],
            limits,
            stdout=sys.stderr.fileno() if _has_descriptor() else subprocess.DEVNULL,
            stderr=None,
        ) as child:
            failure = child.wait()
        lines = _decode_lines(read_lines(folder / ANSWERS, _MAX_ANSWER_BYTES))
    for line in lines:
        if "refused" in line:
            raise BadInput(str(line["refused"]), hint=str(line.get("hint", "")))
    return ChildAnswers(lines=lines, failure=failure.message if failure else "")


def _has_descriptor() -> bool:
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # a test or a notebook replaced stderr
        return False
    return True


def _decode_lines(lines: Iterable[bytes]) -> tuple[Mapping[str, Any], ...]:
    """Return the complete answers; a truncated line is ignored."""
    answers = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            answers.append(msgspec.json.decode(line, type=dict[str, Any]))
    return tuple(answers)


#: Writes one answer as a line of JSON.
WriteAnswer = Callable[[Mapping[str, Any]], None]
