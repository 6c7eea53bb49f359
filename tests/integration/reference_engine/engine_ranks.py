"""Starts real ranks, each a process, and collects what they saw.

A rank is forked off a server that has imported torch already, which takes most of the time of a small one.
"""

import json
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

WORKER = Path(__file__).with_name("engine_worker.py")
_SHARED = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
#: An optimizer imports the compiler.
_IMPORTED = ["torch._dynamo", "zprof.reference_engine.train"]


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
    context, port = _server(), _free_port()
    ranks = []
    for rank in range(world_size):
        place = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = _SHARED | {name: str(value) for name, value in place.items()}
        ranks.append(context.Process(target=_be_rank, args=(worker, folder, rank, environment)))
    try:
        for process in ranks:
            process.start()
        deadline = time.monotonic() + timeout_s
        for process in ranks:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [rank for rank, process in enumerate(ranks) if process.is_alive()]
        assert not late, f"ranks {late} took longer than {timeout_s} s"
        return [_ended(process.exitcode, folder, rank) for rank, process in enumerate(ranks)]
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
                process.join()


def _server() -> multiprocessing.context.ForkServerContext:
    """The one of this process; its threads are counted when it imports torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    with mock.patch.dict(os.environ, _SHARED):
        multiprocessing.forkserver.ensure_running()
    return context


def _be_rank(worker: Path, folder: Path, rank: int, environment: Mapping[str, str]) -> None:
    """Become the program of a rank: what it writes goes to a file."""
    with (folder / f"rank{rank}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(environment)
    sys.argv = [str(worker), str(folder / "cases.json"), str(folder / f"rank{rank}.json")]
    sys.path.insert(0, str(worker.parent))
    runpy.run_path(str(worker), run_name="__main__")


def _ended(code: int | None, folder: Path, rank: int) -> Ended:
    lines = [line for line in (folder / f"rank{rank}.log").read_text().splitlines() if line.strip()]
    result = folder / f"rank{rank}.json"
    results = json.loads(result.read_text()) if result.exists() else {}
    return Ended(code=code, error=lines[-1] if lines else "", results=results)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
