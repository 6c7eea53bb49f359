"""Trainings of the engine on a device with real ranks, and what is kept of each."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.device.row import CheckFailed, one_line
from benchmarks.steps.launch import ROOT, free_port


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``zero`` and ``activations`` are fields of the engine's configs, dtypes by name.

    ``stream``: the whole loop runs on a stream of its own.
    """

    zero: dict[str, Any] = field(default_factory=dict)
    activations: dict[str, Any] = field(default_factory=dict)
    mp: int = 1
    stream: bool = False
    layers: int = 4
    hidden: int = 256
    steps: int = 4


def run_cases(
    cases: dict[str, Case],
    *,
    device: str = "cuda",
    ranks: int = 2,
    backend: str = "gloo",
    limit_s: float = 100,
) -> dict[str, list[dict[str, Any]]]:
    """Results by case, one entry for each rank.  A case that raised has only ``error``.

    Raises:
        CheckFailed: a rank has left nothing.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = {
            "device": device,
            "backend": backend,
            "cases": {k: asdict(case) for k, case in cases.items()},
        }
        (folder / "cases.json").write_text(json.dumps(asked))
        by_rank = _run(folder, ranks, limit_s)
    return {case: [results[case] for results in by_rank] for case in cases}


def _run(folder: Path, ranks: int, limit_s: float) -> list[dict[str, Any]]:
    port = free_port()
    processes = [_start(rank, ranks, port, folder) for rank in range(ranks)]
    try:
        outputs = [process.communicate(timeout=limit_s)[0] for process in processes]
    except subprocess.TimeoutExpired:
        raise CheckFailed(f"ranks took longer than {limit_s:.0f} s") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    results = []
    for rank, output in enumerate(outputs):
        path = folder / f"rank{rank}.json"
        if not path.exists():
            lines = output.strip().splitlines()
            raise CheckFailed(f"rank {rank} has left no result: {one_line(lines[-1] if lines else '')}")
        results.append(json.loads(path.read_text()))
    return results


def _start(rank: int, ranks: int, port: int, folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
    command = [sys.executable, "-m", "benchmarks.device.engine_rank"]
    command += [str(folder / "cases.json"), str(folder / f"rank{rank}.json")]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
