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
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.conditions import conditions, load_average, today
from benchmarks.inputs import find_late_rank, simulate_traces
from benchmarks.processes import run_process

RESULTS = Path(__file__).parent / "results"


def measure(*arguments: str) -> dict[str, float]:
    """Return the figures of one ``zprof`` command."""
    used = run_process([sys.executable, "-m", "zprof", *arguments])
    return {"seconds": used.seconds, "cpu_s": used.cpu_s, "peak_mib": used.peak_mib}


def row(folder: Path, ranks: int, size_bytes: int) -> dict[str, Any]:
    """Simulate, import and report, and return the figures."""
    traces, run, report = folder / "traces", folder / "job.zprof", folder / "report.json"
    begin = time.perf_counter()
    simulate_traces(traces, ranks, least_bytes=size_bytes)
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
        "answer": _answer(json.loads(report.read_text())) | {"planted": find_late_rank(ranks)},
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
