"""Starts the ranks of one pass and collects what they wrote."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.steps.plan import Plan

ROOT = Path(__file__).parents[2]


class RanksFailed(Exception):
    """A rank ended without a result; the message says how."""


def run_pass(
    measure: str, plan: Plan, folder: Path, *, timeout_s: float, preload: Path | None = None
) -> list[dict[str, Any]]:
    """The result of every rank.  They are ended if they take longer than ``timeout_s``.

    Raises:
        RanksFailed: a rank has left no result; all output is in ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan.as_dict()))
    port = free_port()
    ranks = [_start(measure, rank, plan, folder, port, preload) for rank in range(plan.ranks)]
    try:
        for process in ranks:
            process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise RanksFailed(f"the {measure} pass took longer than {timeout_s:g} s") from None
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
    return [_result(measure, rank, folder, process.returncode) for rank, process in enumerate(ranks)]


def free_port() -> int:
    """One that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(
    measure: str, rank: int, plan: Plan, folder: Path, port: int, preload: Path | None
) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
    if preload is not None:
        environment["LD_PRELOAD"] = str(preload)
    module, plan_path = "benchmarks.steps.rank", folder / "plan.json"
    command = [
        sys.executable,
        "-m",
        module,
        measure,
        str(plan_path),
        str(_result_path(measure, rank, folder)),
    ]
    with _log_path(measure, rank, folder).open("wb") as log:
        return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)


def _result(measure: str, rank: int, folder: Path, code: int) -> dict[str, Any]:
    path = _result_path(measure, rank, folder)
    if path.exists():
        result: dict[str, Any] = json.loads(path.read_text())
        return result
    lines = _log_path(measure, rank, folder).read_text(errors="replace").strip().splitlines()
    last = lines[-1] if lines else "no output"
    raise RanksFailed(f"rank {rank} of the {measure} pass ended with code {code}: {last}")


def _result_path(measure: str, rank: int, folder: Path) -> Path:
    return folder / f"{measure}.rank{rank}.json"


def _log_path(measure: str, rank: int, folder: Path) -> Path:
    return folder / f"{measure}.rank{rank}.log"
