"""Run a task that imports torch or user code in a child process with limits: parent and child side.

The caller's process stays free of the task's process groups, patches and modules. The child reads the task,
writes answers as JSON lines, and prints to stderr only, because its output is not data. The user's folder is
added to the search path after zprof and torch are loaded, so user modules cannot shadow them.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import to_builtins

from zprof.base.errors import BadInput, ZprofError
from zprof.base.formatting import escape_surrogates
from zprof.process.memory_limit import check_address_space, is_memory_shortage
from zprof.process.sandbox import Limits, Sandbox, apply_limits, make_program, read_lines

_TASK, _ANSWERS = "task.json", "answers.jsonl"
_MAX_ANSWER_BYTES = 64 << 20
LIMITS = Limits(memory_bytes=8 << 30, wall_s=600.0)
#: Writes one answer as a line of JSON.
WriteAnswer = Callable[[Mapping[str, Any]], None]


def run_task(task: Mapping[str, Any], limits: Limits) -> tuple[Sequence[Mapping[str, Any]], str]:
    """Run a task in a child process; return its answers and its failure (empty for a normal exit).

    A truncated answer is ignored.

    Raises:
        BadInput: the child refuses the task.
        MemoryError: the inherited address-space limit is too low to import torch.
    """
    check_address_space("torch")
    with tempfile.TemporaryDirectory(prefix="zprof-plan-") as scratch:
        folder = Path(scratch)
        content = json.dumps({**to_builtins(task), "limits": to_builtins(limits)})
        (folder / _TASK).write_text(content, encoding="ascii")
        try:
            stdout = sys.stderr.fileno()
        except (AttributeError, OSError, ValueError):  # a test or a notebook replaced stderr
            stdout = subprocess.DEVNULL
        with Sandbox(
            make_program(__name__),
            [scratch],
            limits,
            stdout=stdout,
            stderr=None,
        ) as child:
            failure = child.wait()
        answers = []
        for line in read_lines(folder / _ANSWERS, _MAX_ANSWER_BYTES):
            with contextlib.suppress(msgspec.DecodeError):
                answers.append(msgspec.json.decode(line, type=dict[str, Any]))
    for answer in answers:
        if "refused" in answer:
            raise BadInput(str(answer["refused"]), hint=str(answer.get("hint", "")))
    return answers, failure.message if failure else ""


def start(arguments: list[str]) -> None:
    """Run the child and exit without tearing down its objects."""
    folder = Path(arguments[0])
    task = msgspec.json.decode((folder / _TASK).read_bytes())
    with (folder / _ANSWERS).open("wb") as out:

        def write_answer(answer: Mapping[str, Any]) -> None:
            out.write(msgspec.json.encode(answer) + b"\n")
            out.flush()

        _run_task(task, write_answer)
    sys.stderr.flush()
    os._exit(0)


def _run_task(task: dict[str, Any], write_answer: WriteAnswer) -> None:
    try:
        from zprof.integrations.planning import count_task, verify_task
    except Exception as error:
        if not is_memory_shortage(error):
            raise
        write_answer({"refused": "not enough memory to import torch", "hint": "raise ulimit -v"})
        return
    tasks = {"count": count_task.count_units, "verify": verify_task.verify_stages}
    logging.getLogger("torch").setLevel(
        logging.CRITICAL
    )  # torch logs tracebacks of errors that are handled here
    apply_limits(Limits(**task["limits"]))
    sys.path.insert(0, os.getcwd())
    try:
        tasks[task["task"]](task, write_answer)
    except ZprofError as error:
        refused, hint = escape_surrogates(error.message), escape_surrogates(error.hint)
        write_answer({"refused": refused, "hint": hint})
