"""Run HTA on one trace in a child process: silent, with resource limits, one line of JSON per answer.

``process`` runs it as ``python -I -c BOOT ROOT JOB`` and reads the lines from a file in the child's folder.
Answers written before the process is killed are used.
"""

import json
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any, TextIO

from zprof.process.sandbox import Limits, apply_limits

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
