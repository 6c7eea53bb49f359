"""Run HTA on one trace in a child process: silent, with resource limits, one line of JSON per answer.

``process`` runs it as ``python -I -c BOOT ROOT JOB`` and reads the lines from a file in the child's folder.
Answers written before the process is killed are used.
"""

import json
import logging
import os
import resource
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

ANSWERS = "answers.jsonl"
_MAX_ERROR_LENGTH = 200


def start(arguments: list[str]) -> None:
    """Run the child and exit without tearing down its objects."""
    job = json.loads(arguments[0])
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with open(ANSWERS, "w", encoding="ascii") as out:
        _answer_all(job, out)
    os._exit(0)


def _answer_all(job: dict[str, Any], out: TextIO) -> None:
    try:
        from zprof.integrations.hta import questions

        apply_limits(Limits(**job["limits"]))
    except Exception as error:
        _write_answer(out, "load", _describe_error(error))
        return
    _write_answer(out, "version", {"value": questions.version()})
    loaded = _ask(lambda: questions.load(job["path"], job["rank"]))
    if "error" in loaded:
        _write_answer(out, "load", loaded)
        return
    trace = loaded["value"]
    for name in job["questions"]:
        question = questions.QUESTIONS[name]
        _write_answer(out, name, _ask(lambda question=question: question(trace)))  # type: ignore[misc]


def _ask(question: Callable[[], Any]) -> dict[str, Any]:
    """Return the answer or the error; HTA may fail in any way, including recursion and lack of memory."""
    try:
        return {"value": question()}
    except Exception as error:
        return _describe_error(error)


def _describe_error(error: BaseException) -> dict[str, str]:
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return {"error": text[:_MAX_ERROR_LENGTH]}


def _write_answer(out: TextIO, what: str, answer: dict[str, Any]) -> None:
    out.write(json.dumps({"what": what, **answer}, allow_nan=False) + "\n")
    out.flush()


_MEBIBYTE = 1 << 20
#: HTA keeps a trace as Python objects and as a table: about 80 bytes per byte of a .json.gz.
_MEMORY_PER_FILE_BYTE = 250
_MIN_MEMORY_BYTES = 2 << 30
_OUTPUT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits; ``memory_bytes`` is added to the memory mapped by Python and its libraries."""

    memory_bytes: int
    processor_s: int
    wall_s: float


def choose_limits(file_bytes: int, wall_s: float | None = None, children: int = 1) -> Limits:
    """Return the limits for a file of this size; ``wall_s`` is the user's limit, if any.

    The machine's memory is divided among ``children`` concurrent processes.
    """
    processor_s = 120 + 30 * file_bytes // _MEBIBYTE if wall_s is None else round(wall_s) + 1
    memory_bytes = max(_MIN_MEMORY_BYTES, _MEMORY_PER_FILE_BYTE * file_bytes)
    return Limits(
        memory_bytes=min(memory_bytes, _max_memory_bytes() // children),
        processor_s=processor_s,
        wall_s=wall_s or 2.0 * processor_s,
    )


def apply_limits(limits: Limits) -> None:
    """Limit this process permanently."""
    _lower_limit(resource.RLIMIT_AS, _mapped_bytes() + limits.memory_bytes)
    _lower_limit(resource.RLIMIT_CPU, limits.processor_s)
    _lower_limit(resource.RLIMIT_FSIZE, _OUTPUT_BYTES)
    _lower_limit(resource.RLIMIT_CORE, 0)


def _lower_limit(resource_id: int, value: int) -> None:
    """Lower a resource limit, unless it is already lower."""
    bounds = [bound for bound in resource.getrlimit(resource_id) if bound != resource.RLIM_INFINITY]
    limit = min([value, *bounds])
    resource.setrlimit(resource_id, (limit, limit))


def _mapped_bytes() -> int:
    return _read_pages("/proc/self/statm") or 1 << 30


def _read_pages(path: str) -> int:
    """Return the first number of a file, in pages, as bytes; 0 if the file does not exist."""
    try:
        pages = int(Path(path).read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def _max_memory_bytes() -> int:
    """Return three quarters of the machine's memory."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        total = int(lines[0].split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return 16 << 30
    return total * 3 // 4


if __name__ == "__main__":
    start(sys.argv[1:])
