"""What a program knows of its own steps, written at its end: when each began, and what a plant added to it.

If ``STEP_TRUTH`` names a folder, each rank writes ``steps<rank>.json`` there, a list of ns, and
``added<rank>.json``, a list of sums by name.
"""

import atexit
import json
import os
import time
from collections import Counter
from pathlib import Path

_starts_ns: list[int] = []
_added: list[Counter[str]] = []


def start_step() -> None:
    """Note that a training step begins."""
    if not _starts_ns:
        atexit.register(_write, os.environ.get("RANK", "0"))
    _starts_ns.append(time.time_ns())
    _added.append(Counter())


def note(name: str, value: int) -> None:
    """Add a value to the sum of this step."""
    if _added:
        _added[-1][name] += value


def _write(rank: str) -> None:
    if folder := os.environ.get("STEP_TRUTH"):
        Path(folder, f"steps{rank}.json").write_text(json.dumps(_starts_ns))
        Path(folder, f"added{rank}.json").write_text(json.dumps(_added))
