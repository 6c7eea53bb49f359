"""Run the planner's child process: read a task, write answers as JSON lines, and print to stderr only.

``child_process`` starts it. The user's folder is added to the search path after zprof and torch are loaded,
so that its modules cannot shadow them.
"""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from zprof.base.errors import ZprofError
from zprof.base.formatting import escape_surrogates
from zprof.integrations.planning.child_process import ANSWERS, TASK, WriteAnswer
from zprof.process.memory_limit import is_memory_shortage
from zprof.process.sandbox import Limits, apply_limits


def start(arguments: list[str]) -> None:
    """Run the child and exit without tearing down its objects."""
    folder = Path(arguments[0])
    task = msgspec.json.decode((folder / TASK).read_bytes())
    with (folder / ANSWERS).open("wb") as out:

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
