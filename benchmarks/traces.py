"""Loading one rank's trace: zprof's reader, HTA, and the standard library's json, on the same file.

    python -m benchmarks.traces [--sizes 50 100 500] [--rounds K] [--no-hta]

Writes synthetic traces (``benchmarks.synthetic_trace``), reads each as .json.gz in processes of their own, in
turn, and prints and writes ``benchmarks/results/traces-DATE.json``: the median seconds of the reading alone
(imports are not timed), the peak memory of the process, and the ratios.  The goal: 15 times faster than HTA
at 50 MB, 20 times from 100 MB, with a tenth of its memory from 100 MB.  Regressions are judged by the ratio
to json, which needs no other package.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.conditions import conditions, load_average, today
from benchmarks.inputs import write_trace
from benchmarks.processes import run_code

RESULTS = Path(__file__).parent / "results"
#: What is imported before, and the reading, which sets ``found`` to the number of events.
READERS = {
    "zprof": (
        "from zprof.collectors.read.kineto.reading.reader import read_trace",
        "trace = read_trace(path); found = trace.report.events",
    ),
    "hta": (
        "import logging; logging.disable(logging.CRITICAL); from hta.trace_analysis import TraceAnalysis",
        "loaded = TraceAnalysis(trace_files={0: str(path)}, trace_dir=''); "
        "found = len(loaded.t.get_trace(0))",
    ),
    "json": (
        "import gzip",
        "loaded = json.loads(gzip.open(path).read()); found = len(loaded['traceEvents'])",
    ),
}


def measure(reader: str, path: Path) -> dict[str, float]:
    """Return the figures of one read in a process of its own."""
    before, work = READERS[reader]
    used = run_code(before, work, path, os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
    return {
        "seconds": used.seconds,
        "processor_s": used.processor_s,
        "idle_mib": used.idle_mib,
        "peak_mib": used.peak_mib,
        "events": used.found,
    }


def row(path: Path, megabytes: int, readers: list[str], rounds: int) -> dict[str, Any]:
    """Run the readers in turn, so that other load on the machine affects all of them."""
    runs: dict[str, list[dict[str, float]]] = {reader: [] for reader in readers}
    for _ in range(rounds):
        for reader in readers:
            runs[reader].append(measure(reader, path))
    medians = {
        reader: {key: median(run[key] for run in each) for key in each[0]} for reader, each in runs.items()
    }
    return {
        "benchmark": "load",
        "text_mb": megabytes,
        "file_bytes": path.stat().st_size,
        "median_of": medians,
        "compared_with_zprof": {reader: _times(medians[reader], medians["zprof"]) for reader in readers[1:]},
        "seconds_of_each": {reader: [run["seconds"] for run in each] for reader, each in runs.items()},
        "load_average_after": load_average(),
    }


def _times(other: dict[str, float], zprof: dict[str, float]) -> dict[str, float]:
    return {key: other[key] / zprof[key] for key in ("seconds", "processor_s", "peak_mib")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 100, 500], metavar="MB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-hta", action="store_true")
    options = parser.parse_args()
    readers = ["zprof", "json"] if options.no_hta else ["zprof", "hta", "json"]
    result: dict[str, Any] = {"conditions": conditions(), "benchmark": "traces", "rows": []}
    with tempfile.TemporaryDirectory(prefix="zprof-bench-") as folder:
        for megabytes in options.sizes:
            path = Path(folder) / f"trace-{megabytes}.json.gz"
            write_trace(path, megabytes)
            result["rows"].append(row(path, megabytes, readers, options.rounds))
            print(json.dumps(result["rows"][-1], indent=1), flush=True)
            path.unlink()
    (RESULTS / f"traces-{today()}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
