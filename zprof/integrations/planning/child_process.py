"""Run a task that imports torch or a user's code in a child process with limits.

The caller's process stays free of the task's process groups, patches and modules. The child's output goes to
stderr, because it is not data.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import to_builtins

from zprof.base.errors import BadInput
from zprof.process.memory_limit import check_address_space
from zprof.process.sandbox import Limits, Sandbox, make_program, read_lines

TASK, ANSWERS = "task.json", "answers.jsonl"
_MAX_ANSWER_BYTES = 64 << 20


LIMITS = Limits(memory_bytes=8 << 30, wall_s=600.0)


def run_task(task: Mapping[str, Any], limits: Limits) -> tuple[Sequence[Mapping[str, Any]], str]:
    """Run a task in a child process; return its answers, and how it failed: empty for a normal exit.

    A truncated answer is ignored.

    Raises:
        BadInput: the child refuses the task.
        MemoryError: the address-space limit, which the child inherits, is too low to import torch.
    """
    check_address_space("torch")
    with tempfile.TemporaryDirectory(prefix="zprof-plan-") as scratch:
        folder = Path(scratch)
        content = json.dumps({**to_builtins(task), "limits": to_builtins(limits)})
        (folder / TASK).write_text(content, encoding="ascii")
        try:
            stdout = sys.stderr.fileno()
        except (AttributeError, OSError, ValueError):  # a test or a notebook replaced stderr
            stdout = subprocess.DEVNULL
        with Sandbox(
            make_program("zprof.integrations.planning.child"),
            [scratch],
            limits,
            stdout=stdout,
            stderr=None,
        ) as child:
            failure = child.wait()
        answers = []
        for line in read_lines(folder / ANSWERS, _MAX_ANSWER_BYTES):
            with contextlib.suppress(msgspec.DecodeError):
                answers.append(msgspec.json.decode(line, type=dict[str, Any]))
    for answer in answers:
        if "refused" in answer:
            raise BadInput(str(answer["refused"]), hint=str(answer.get("hint", "")))
    return answers, failure.message if failure else ""


#: Writes one answer as a line of JSON.
WriteAnswer = Callable[[Mapping[str, Any]], None]
