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
import json
from dataclasses import replace
from zprof.simulator.job import Pace
from zprof.simulator.kineto import write_traces
from zprof.simulator.regular import make_job
from zprof.simulator.run import run_job
late, least_bytes, settings = json.loads(sys.argv[2])
job = make_job(**settings)
paces = tuple(Pace(gpu=1.25) if rank == late else Pace() for rank in range(job.world))
job = replace(job, ranks=paces, dialect=replace(job.dialect, min_bytes=least_bytes))
write_traces(run_job(job), Path(sys.argv[1]), range(job.world))
"""


def write_trace(path: Path, megabytes: int, rank: int = 0) -> None:
    """Write a rank's synthetic trace of so much JSON, compressed."""
    _run("-c", _WRITE, str(path), str(megabytes * 10**6), str(rank))


def simulate_traces(
    folder: Path, ranks: int, settings: Mapping[str, object] | None = None, least_bytes: int = 0
) -> None:
    """Write the traces of a simulated job in which the rank at a third is late.

    ``settings``: further ones of ``make_job``; ``least_bytes``: of each file, uncompressed.
    """
    job = (find_late_rank(ranks), least_bytes, {"ranks": ranks, **(settings or {})})
    _run("-c", _SIMULATE, str(folder), json.dumps(job))


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
