"""Starts real ranks, each a process, gives them cases, and collects what they saw."""

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import forked_ranks

PROGRAM = Path(__file__).with_name("rank_program.py")
TIMEOUT_S = 240


@dataclass(frozen=True)
class Ended:
    """How a rank ended: exit code, the last line that it wrote, and its results by case."""

    code: int | None
    error: str
    results: dict[str, Any]


def run_alone(
    program: str, cases: dict[str, Any], world_size: int, folder: Path, *, timeout_s: float = 60
) -> list[Ended]:
    """Start ranks for these cases alone, which may end them."""
    _write_job(folder, 0, program, cases)
    (folder / "stop").touch()
    arguments = [str(PROGRAM), str(folder)]
    ranks = forked_ranks.run_forked(arguments, world_size, folder, timeout_s=timeout_s)
    return [
        Ended(ended.code, ended.lines[-1] if ended.lines else "", _read(folder, rank, 0) or {})
        for rank, ended in enumerate(ranks)
    ]


class RankPool:
    """Ranks in one process group that take one job after the other."""

    def __init__(self, world_size: int, folder: Path) -> None:
        self._world_size = world_size
        self._folder = folder
        self._jobs = 0
        arguments = [str(PROGRAM), str(folder)]
        self._thread = threading.Thread(
            target=forked_ranks.run_forked, args=(arguments, world_size, folder), kwargs={"timeout_s": 3600}
        )
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not (self._folder / "stop").exists()

    def run(self, program: str, cases: dict[str, Any]) -> list[dict[str, Any]]:
        """Run the cases; a rank that fails ends the pool and the test."""
        number, self._jobs = self._jobs, self._jobs + 1
        _write_job(self._folder, number, program, cases)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            results = [_read(self._folder, rank, number) for rank in range(self._world_size)]
            if all(result is not None for result in results):
                return results  # type: ignore[return-value]
            failed = any(self._folder.glob("*.failed")) or not self._thread.is_alive()
            if failed or time.monotonic() > deadline:
                self.close()
                logs = [self._folder / f"rank{rank}.log" for rank in range(self._world_size)]
                raise AssertionError("\n".join(log.read_text()[-2000:] for log in logs if log.exists()))
            time.sleep(0.01)

    def close(self) -> None:
        (self._folder / "stop").touch()
        self._thread.join()


def _write_job(folder: Path, number: int, program: str, cases: dict[str, Any]) -> None:
    draft = folder / "draft"
    draft.write_text(json.dumps({"program": program, "cases": cases}))
    draft.rename(folder / f"job{number}.json")


def _read(folder: Path, rank: int, number: int) -> dict[str, Any] | None:
    path = folder / f"rank{rank}.{number}.json"
    return dict(json.loads(path.read_text())) if path.exists() else None
