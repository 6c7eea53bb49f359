"""Starts real ranks, each a process, and collects what they saw."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import forked_ranks

WORKER = Path(__file__).with_name("engine_worker.py")


@dataclass(frozen=True)
class Ended:
    """How a rank ended: exit code, the last line that it wrote, and its results by case."""

    code: int | None
    error: str
    results: dict[str, Any]


def run_ranks(
    cases: dict[str, Any], world_size: int, folder: Path, *, timeout_s: float, worker: Path = WORKER
) -> list[Ended]:
    """Run the cases on every rank; the ranks are ended if they take longer than ``timeout_s``."""
    (folder / "cases.json").write_text(json.dumps(cases))
    arguments = [str(worker), str(folder)]
    ranks = forked_ranks.run_forked(arguments, world_size, folder, timeout_s=timeout_s)
    return [_ended(ended, folder / f"rank{rank}.json") for rank, ended in enumerate(ranks)]


def _ended(ended: forked_ranks.Ended, result: Path) -> Ended:
    results = json.loads(result.read_text()) if result.exists() else {}
    return Ended(code=ended.code, error=ended.lines[-1] if ended.lines else "", results=results)
