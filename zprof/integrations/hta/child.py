"""The child process that runs HTA on one trace: silent, bound by limits, one line of JSON per answer.

Run as ``python -I -c BOOT ROOT JOB`` by ``process``, which reads the lines from a file in the child's
folder; what was answered before the process is ended counts.
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
    """The child's whole life; it ends without taking its objects apart."""
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
    """HTA may fail in any way, also by ``assert``, by recursion or for want of memory."""
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


if __name__ == "__main__":
    start(sys.argv[1:])


_MEBIBYTE = 1 << 20
#: HTA keeps a trace as Python objects and as a table: about 80 bytes for each byte of a .json.gz.
_MEMORY_PER_FILE_BYTE = 250
_MIN_MEMORY_BYTES = 2 << 30
_OUTPUT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``memory_bytes`` come on top of what Python and its libraries have mapped when they are loaded."""

    memory_bytes: int
    processor_s: int
    wall_s: float


def limits_for(file_bytes: int, wall_s: float | None = None, children: int = 1) -> Limits:
    """The bounds for a file of this size; ``wall_s`` where the user names one.

    ``children`` that run at once share the machine's memory.
    """
    processor_s = 120 + 30 * file_bytes // _MEBIBYTE if wall_s is None else round(wall_s) + 1
    memory_bytes = max(_MIN_MEMORY_BYTES, _MEMORY_PER_FILE_BYTE * file_bytes)
    return Limits(
        memory_bytes=min(memory_bytes, _max_memory_bytes() // children),
        processor_s=processor_s,
        wall_s=wall_s or 2.0 * processor_s,
    )


def apply_limits(limits: Limits) -> None:
    """Bind this process, for good."""
    _lower_limit(resource.RLIMIT_AS, _mapped_bytes() + limits.memory_bytes)
    _lower_limit(resource.RLIMIT_CPU, limits.processor_s)
    _lower_limit(resource.RLIMIT_FSIZE, _OUTPUT_BYTES)
    _lower_limit(resource.RLIMIT_CORE, 0)


def _lower_limit(which: int, value: int) -> None:
    """A limit that is lower already stays."""
    bounds = [bound for bound in resource.getrlimit(which) if bound != resource.RLIM_INFINITY]
    chosen = min([value, *bounds])
    resource.setrlimit(which, (chosen, chosen))


def _mapped_bytes() -> int:
    return _read_pages("/proc/self/statm") or 1 << 30


def _read_pages(path: str) -> int:
    """The first number of a file, in pages; 0 where the system has no such file."""
    try:
        pages = int(Path(path).read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def _max_memory_bytes() -> int:
    """Three quarters of what the machine has."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        total = int(lines[0].split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return 16 << 30
    return total * 3 // 4
