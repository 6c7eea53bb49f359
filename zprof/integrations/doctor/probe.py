"""Asks a question in a process of its own: a library that crashes or hangs takes only that one with it."""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

_SECONDS = 120
_MOST_LETTERS = 200
#: The answer's line, among whatever libraries print.
_MARK = "zprof-answer:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``value`` as JSON holds it, or None and why."""

    value: Any
    failure: str = ""


def ask(code: str, seconds: float = _SECONDS) -> Answer:
    """Run ``code``, which leaves its answer in the variable ``answer``."""
    program = f"{code}\nimport json\nprint({_MARK!r} + json.dumps(answer))"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer(value=None, failure=f"it gave no answer ({type(error).__name__})")
    lines = [line for line in ended.stdout.splitlines() if line.startswith(_MARK)]
    if ended.returncode or not lines:
        return Answer(value=None, failure=_last_line(ended.stderr) or f"it ended with {ended.returncode}")
    return Answer(value=json.loads(lines[-1].removeprefix(_MARK)))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:_MOST_LETTERS] if lines else ""
