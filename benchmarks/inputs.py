"""Make what benchmarks read, each in a process of its own: peak memory counts that of the parent process."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.processes import ROOT

_WRITE = """
import sys; from pathlib import Path; from benchmarks.synthetic_trace import write
write(Path(sys.argv[1]), int(sys.argv[2]), seed=int(sys.argv[3]), rank=int(sys.argv[3]))
"""
_SIMULATE = """
import sys
from pathlib import Path
import msgspec
from zprof.simulator.plan import SimulationPlan
from zprof.simulator.simulate import simulate
simulate(msgspec.json.decode(sys.argv[2], type=SimulationPlan), Path(sys.argv[1]))
"""


def write_trace(path: Path, megabytes: int, rank: int = 0) -> None:
    """Write a rank's synthetic trace of so much JSON, compressed."""
    _run("-c", _WRITE, str(path), str(megabytes * 10**6), str(rank))


def simulate_traces(folder: Path, ranks: int, plan: Mapping[str, object] | None = None) -> None:
    """Write the traces of a simulated job in which the rank at a third is late; ``plan`` has other settings
    of ``SimulationPlan``.
    """
    settings = {"ranks": ranks, "speed": {str(find_late_rank(ranks)): 0.8}, **(plan or {})}
    _run("-c", _SIMULATE, str(folder), json.dumps(settings))


def find_late_rank(ranks: int) -> int:
    """Return the rank that ``simulate_traces`` makes late."""
    return ranks // 3


def import_traces(traces: Path, run: Path) -> None:
    """Import a folder of traces as a run."""
    _run("-m", "zprof", "import", str(traces), "-o", str(run))


def _run(*arguments: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
