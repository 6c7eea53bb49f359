"""Trains all cases of the memory tests once: those of one rank in one process, the rest on two ranks."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from case_names import FOUR_RANKS, HIDING, ONE_RANK, TWO_RANKS

from tests.support import exact_counter
from tests.support.forked_ranks import free_port
from zprof.analysis.memory.analyse import analyse_memory
from zprof.analysis.memory.live_bytes import RankLives, list_devices, read_rank_lives
from zprof.analysis.memory.timeline import read_timeline
from zprof.model.memory import Memory, RankMemory
from zprof.run.reader import Run, load

WORKER = Path(__file__).with_name("memory_worker.py")
ROOT = Path(__file__).parents[3]
TIME_LIMIT_S = 400


class Recorded:
    """Everything that the workers left; each run is analysed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = cache(self._run)
        self.memory = cache(self._memory)
        self.lives = cache(self._lives)

    def ranks(self, case: str) -> tuple[RankMemory, ...]:
        return self.memory(case).per_rank

    def exact_bytes(self, case: str, rank: int) -> int:
        """The exact counter's maximum within the window."""
        return self.noted(case, rank)["max_bytes"]

    def noted(self, case: str, rank: int) -> dict[str, int]:
        """What the worker itself wrote down."""
        return json.loads((self.folder / f"{case}.rank{rank}.json").read_text())

    def _run(self, case: str) -> Run:
        return load(self.folder / f"{case}.zprof")

    def _memory(self, case: str) -> Memory:
        return analyse_memory(self.run(case)).memory

    def _lives(self, case: str) -> list[RankLives]:
        return [lives_of_rank(self.run(case), rank) for rank in self.run(case).ranks]


def lives_of_rank(run: Run, rank: int) -> RankLives:
    alloc, timeline = run.frame(rank, "alloc"), read_timeline(run.frame(rank, "mark"))
    assert timeline is not None
    return read_rank_lives(alloc, run.frame(rank, "role"), timeline, list_devices(alloc)[0])


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    if exact_counter.compiler() is None:
        pytest.skip("no C compiler: the exact counter cannot be built")
    folder = tmp_path_factory.mktemp("memory")
    library = exact_counter.build(folder)
    _train(folder, library, [*ONE_RANK, *HIDING], ranks=1)
    _train(folder, library, TWO_RANKS, ranks=2)
    _train(folder, library, FOUR_RANKS, ranks=4)
    return Recorded(folder)


def _train(folder: Path, library: Path, cases: list[str], *, ranks: int) -> None:
    shared = os.environ | {
        "LD_PRELOAD": str(library),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
    }
    command = [sys.executable, str(WORKER), str(folder), *cases]
    logs = [folder / f"worker{ranks}.rank{rank}.log" for rank in range(ranks)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank, log in enumerate(logs):
            with log.open("wb") as output:
                environment = shared | {"RANK": str(rank)}
                started.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
        codes = [process.wait(TIME_LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    assert codes == [0] * ranks, "\n".join(log.read_text(errors="replace")[-3000:] for log in logs)
