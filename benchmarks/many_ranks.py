"""A folder of many ranks' traces, from files to a report: import, and report of what was imported.

    python -m benchmarks.many_ranks [--ranks 1024] [--megabytes 5]

Simulates a job with one late rank, each rank's trace padded to about that size, and runs ``zprof import`` and
``zprof report`` on it as a user would, each in processes of its own.  Prints and writes
``benchmarks/results/many-ranks-DATE.json``: wall seconds and processor seconds (other load stretches the
former), ranks and megabytes of JSON per second, the peak memory of the command's own process (readers of an
import have their own), and whether the report names the late rank and no other.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.conditions import conditions, load_average, today

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
_SIMULATE = """
import sys
from pathlib import Path
from zprof.simulator.plan import Plan, Recording
from zprof.simulator.simulate import simulate
ranks, size = int(sys.argv[2]), int(sys.argv[3])
plan = Plan(ranks=ranks, speed={ranks // 3: 0.8}, recording=Recording(pad_to_bytes=size))
simulate(plan, Path(sys.argv[1]))
"""
#: Runs a command and prints its wall seconds, processor seconds, and peak KiB.
_MEASURE = """
import json, resource, subprocess, sys, time
begin = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
seconds = time.perf_counter() - begin
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([seconds, used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""


def measure(*arguments: str) -> dict[str, float]:
    """Return the figures of one ``zprof`` command."""
    command = [sys.executable, "-c", _MEASURE, sys.executable, "-m", "zprof", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    seconds, cpu_s, peak = json.loads(done.stdout)
    return {"seconds": seconds, "cpu_s": cpu_s, "peak_mib": peak / 1024}


def row(folder: Path, ranks: int, size_bytes: int) -> dict[str, Any]:
    """Simulate, import and report, and return the figures."""
    traces, run, report = folder / "traces", folder / "job.zprof", folder / "report.json"
    begin = time.perf_counter()
    simulated = [sys.executable, "-c", _SIMULATE, str(traces), str(ranks), str(size_bytes)]
    subprocess.run(simulated, check=True, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})
    simulation_s = time.perf_counter() - begin
    imported = measure("import", str(traces), "-o", str(run))
    reported = measure("report", str(run), "-f", "json", "-o", str(report))
    text_mb = ranks * size_bytes / 1e6
    return {
        "benchmark": "many ranks",
        "ranks": ranks,
        "text_mb": text_mb,
        "file_mb": sum(path.stat().st_size for path in traces.glob("rank*")) / 1e6,
        "run_mb": sum(path.stat().st_size for path in run.rglob("*.parquet")) / 1e6,
        "simulation_s": simulation_s,
        "import": imported | {"text_mb_per_s": text_mb / imported["seconds"]},
        "report": reported | {"ranks_per_s": ranks / reported["seconds"]},
        "answer": _answer(json.loads(report.read_text())) | {"planted": ranks // 3},
        "load_average_after": load_average(),
    }


def _answer(report: dict[str, Any]) -> dict[str, Any]:
    blame = report["time"]["blame"]["per_rank"]
    charged = sorted(blame, key=lambda entry: -entry["exposed_wait_ns"])
    total = sum(entry["exposed_wait_ns"] for entry in blame)
    return {
        "verdict": report["verdict"]["sentence"],
        "most_blamed": charged[0]["rank"],
        "its_share": charged[0]["exposed_wait_ns"] / total if total else 0.0,
        "uncertainty_ns": report["time"]["alignment"]["uncertainty_ns"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--megabytes", type=int, default=5, help="of JSON a rank")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zprof-bench-") as folder:
        found = row(Path(folder), options.ranks, options.megabytes * 10**6)
    result = {"conditions": conditions(), "benchmark": "many_ranks", "rows": [found]}
    print(json.dumps(found, indent=1))
    (RESULTS / f"many-ranks-{today()}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
