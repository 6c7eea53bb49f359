"""The recorded cases of the memory tests, trained in three jobs: default, slow, four ranks."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from memory_cases import MEMORY_CASES

from tests.support import exact_counter
from tests.support.forked_ranks import free_port
from zprof.analysis.memory.analyse import analyse_memory
from zprof.analysis.memory.live_bytes import (
    RankLives,
    compute_live_curve,
    find_live_segments,
    find_peak,
    list_devices,
    read_rank_lives,
)
from zprof.analysis.memory.tables import TENANT_CODES, read_checked_table, read_timeline
from zprof.model.memory import Memory, RankMemory
from zprof.model.tenants import Tenant
from zprof.model.training import Phase
from zprof.run.reader import Run, load

WORKER = Path(__file__).with_name("memory_worker.py")
ROOT = Path(__file__).parents[3]
TIME_LIMIT_S = 900


class Recorded:
    """Recorded cases; each job is trained, and each run analysed, when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._library = folder, exact_counter.build(folder)
        self._job = cache(self._train)
        self.run: Callable[[str], Run] = cache(self._run)
        self.memory: Callable[[str], Memory] = cache(lambda case: analyse_memory(self.run(case)).memory)
        self.lives: Callable[[str], list[RankLives]] = cache(
            lambda case: [lives_of_rank(self.run(case), rank) for rank in self.run(case).ranks]
        )

    def ranks(self, case: str) -> tuple[RankMemory, ...]:
        return self.memory(case).per_rank

    def noted(self, case: str, rank: int) -> dict[str, int]:
        """Return what the worker itself counted; ``max_bytes`` is the exact counter's maximum."""
        self.run(case)
        return json.loads((self._folder / f"{case}.rank{rank}.json").read_text())

    def _run(self, case: str) -> Run:
        self._job(max(2, MEMORY_CASES[case].ranks), MEMORY_CASES[case].slow)
        return load(self._folder / f"{case}.zprof")

    def _train(self, ranks: int, slow: bool) -> None:
        cases = [
            name for name, case in MEMORY_CASES.items() if (max(2, case.ranks), case.slow) == (ranks, slow)
        ]
        shared = os.environ | {
            "LD_PRELOAD": str(self._library),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(ranks),
        }
        command = [sys.executable, str(WORKER), str(self._folder), *cases]
        logs = [self._folder / f"worker{ranks}.{slow}.rank{rank}.log" for rank in range(ranks)]
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


def lives_of_rank(run: Run, rank: int) -> RankLives:
    alloc, role, mark = (read_checked_table(run, rank, name) for name in ("alloc", "role", "mark"))
    timeline = read_timeline(mark)
    assert timeline is not None
    return read_rank_lives(alloc, role, timeline, list_devices(alloc)[0])


def held_at_first_backward(lives: RankLives, tenant: Tenant, sub: str | None = None) -> int:
    parts = lives.segments
    begins = [time for time, name in lives.timeline.phases if name == Phase.BACKWARD]
    rows = find_live_segments(parts, min(t for t in begins if t >= lives.timeline.begin_ns))
    ours = (parts.tenant[rows] == TENANT_CODES[tenant]) & (True if sub is None else parts.sub[rows] == sub)
    return int(parts.bytes[rows][ours].sum())


def most(lives: RankLives, tenant: Tenant, sub: str | None = None, but: str = "") -> int:
    """Return the most live bytes of a tenant at once within the window."""
    parts = lives.segments
    ours = (parts.tenant == TENANT_CODES[tenant]) & (parts.sub != but)
    ours &= True if sub is None else parts.sub == sub
    times, live = compute_live_curve(parts.begin_ns[ours], parts.end_ns[ours], parts.bytes[ours])
    return find_peak(times, live, lives.timeline.begin_ns, lives.timeline.end_ns)[1]
