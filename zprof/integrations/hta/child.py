"""The process that runs HTA on one trace: silent, bound by limits, one line of JSON for each answer.

Run as ``python -I -c BOOT ROOT JOB`` by ``parent``, which reads the lines from a file in the child's folder;
what was answered before the process is ended counts.
"""

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, TextIO

from zprof.integrations.hta.limits import Limits, apply

ANSWERS = "answers.jsonl"
_LONGEST_ERROR = 200


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

        apply(Limits(**job["limits"]))
    except Exception as error:
        _tell(out, "load", _refusal(error))
        return
    _tell(out, "version", {"value": questions.version()})
    loaded = _asked(lambda: questions.load(job["path"], job["rank"]))
    if "error" in loaded:
        _tell(out, "load", loaded)
        return
    trace = loaded["value"]
    for name in job["questions"]:
        question = questions.QUESTIONS[name]
        _tell(out, name, _asked(lambda question=question: question(trace)))  # type: ignore[misc]


def _asked(question: Callable[[], Any]) -> dict[str, Any]:
    """HTA may fail in any way, also by ``assert``, by recursion or for want of memory."""
    try:
        return {"value": question()}
    except Exception as error:
        return _refusal(error)


def _refusal(error: BaseException) -> dict[str, str]:
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return {"error": text[:_LONGEST_ERROR]}


def _tell(out: TextIO, what: str, answer: dict[str, Any]) -> None:
    out.write(json.dumps({"what": what, **answer}, allow_nan=False) + "\n")
    out.flush()


if __name__ == "__main__":
    start(sys.argv[1:])
