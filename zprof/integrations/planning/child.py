"""Run the planner's child process: it reads a task, answers in lines of JSON, and prints to stderr only.

``child_process`` starts it. The user's folder is added to the search path after zprof and torch are loaded,
so that nothing in it can shadow them.
"""

import logging
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from zprof.integrations.planning.child_process import ANSWERS, TASK, Tell
from zprof.model.errors import ZprofError
from zprof.model.memory_limit import is_memory_shortage


def start(folder: str) -> None:
    """Run the child and exit without tearing down its objects."""
    task = msgspec.json.decode((Path(folder) / TASK).read_bytes())
    with (Path(folder) / ANSWERS).open("wb") as out:
        _run_task(task, _answer_writer(out))
    sys.stderr.flush()
    os._exit(0)


def _run_task(task: dict[str, Any], tell: Tell) -> None:
    try:
        from zprof.integrations.planning import count_task, verify_task
    except Exception as error:
        if not is_memory_shortage(error):
            raise
        tell({"refused": "there is not enough memory to import torch", "hint": "raise ulimit -v"})
        return
    tasks = {"count": count_task.count_units, "verify": verify_task.verify_stages}
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # it logs tracebacks of errors that are caught here
    _limit_memory(task["limits"]["memory_bytes"])
    sys.path.insert(0, os.getcwd())
    try:
        tasks[task["what"]](task, tell)
    except ZprofError as error:
        tell({"refused": error.message, "hint": error.hint})


def _answer_writer(out: BinaryIO) -> Tell:
    def tell(answer: Mapping[str, Any]) -> None:
        out.write(msgspec.json.encode(answer) + b"\n")
        out.flush()

    return tell


def _limit_memory(more_bytes: int) -> None:
    """Limit this process for good to its currently mapped memory plus ``more_bytes``; disable core files."""
    try:
        mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):  # this system has no such file
        return
    for which, value in ((resource.RLIMIT_AS, mapped + more_bytes), (resource.RLIMIT_CORE, 0)):
        lowest = min([value, *(b for b in resource.getrlimit(which) if b != resource.RLIM_INFINITY)])
        resource.setrlimit(which, (lowest, lowest))
