"""Starts real ranks, each a process, and collects what they saw."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("engine_worker.py")


@dataclass(frozen=True)
class Ended:
    """How a rank ended: exit code, the last line that it wrote, and its results by case."""

    code: int
    error: str
    results: dict[str, Any]


def run_ranks(
    cases: dict[str, Any], world_size: int, folder: Path, *, timeout_s: float, worker: Path = WORKER
) -> list[Ended]:
    """Run the cases on every rank; the ranks are ended if they take longer than ``timeout_s``."""
    (folder / "cases.json").write_text(json.dumps(cases))
    port = _free_port()
    ranks = [_start(rank, world_size, port, folder, worker) for rank in range(world_size)]
    try:
        return [_ended(process, folder / f"rank{rank}.json", timeout_s) for rank, process in enumerate(ranks)]
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.communicate()


def _start(rank: int, world_size: int, port: int, folder: Path, worker: Path) -> subprocess.Popen[str]:
    environment = os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, str(worker), str(folder / "cases.json"), str(folder / f"rank{rank}.json")]
    root = Path(__file__).parents[3]
    return subprocess.Popen(
        command, env=environment, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _ended(process: subprocess.Popen[str], result: Path, timeout_s: float) -> Ended:
    output, _ = process.communicate(timeout=timeout_s)
    lines = [line for line in output.splitlines() if line.strip()]
    results = json.loads(result.read_text()) if result.exists() else {}
    return Ended(code=process.returncode, error=lines[-1] if lines else "", results=results)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
