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
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.conditions import conditions, load_average, today

RESULTS = Path(__file__).parent / "results"
#: Prints seconds, processor seconds, the peak KiB before and after, and the number of events read.
#: ``VmHWM`` instead of ``ru_maxrss``, which starts with the peak of the parent process.
_MEASURE = """
import json, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
path = Path(sys.argv[1])
{before}
status = Path("/proc/self/status")
peak = lambda: int(status.read_text().partition("VmHWM:")[2].split()[0])
idle, begin, processor = peak(), time.perf_counter(), time.process_time()
{work}
seconds, processor = time.perf_counter() - begin, time.process_time() - processor
print(json.dumps([seconds, processor, idle, peak(), events]))
"""
READERS = {
    "zprof": (
        "from zprof.collectors.kineto.reading.reader import read_trace",
        "trace = read_trace(path); events = trace.report.events",
    ),
    "hta": (
        "import logging; logging.disable(logging.CRITICAL); from hta.trace_analysis import TraceAnalysis",
        "loaded = TraceAnalysis(trace_files={0: str(path)}, trace_dir=''); "
        "events = len(loaded.t.get_trace(0))",
    ),
    "json": (
        "import gzip",
        "loaded = json.loads(gzip.open(path).read()); events = len(loaded['traceEvents'])",
    ),
}


def measure(reader: str, path: Path) -> dict[str, float]:
    """Return the figures of one read in a process of its own."""
    before, work = READERS[reader]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE.format(before=before, work=work), str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    seconds, processor, idle, peak, events = json.loads(done.stdout.splitlines()[-1])
    return {
        "seconds": seconds,
        "processor_s": processor,
        "idle_mib": idle / 1024,
        "peak_mib": peak / 1024,
        "events": events,
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


def write(path: Path, megabytes: int) -> None:
    """Write a trace in a process of its own: peak memory would count that of the parent process."""
    code = (
        "import sys; from pathlib import Path; from benchmarks.synthetic_trace import write\n"
        "write(Path(sys.argv[1]), int(sys.argv[2]) * 10**6)"
    )
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code, str(path), str(megabytes)], check=True, cwd=root)


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
            write(path, megabytes)
            result["rows"].append(row(path, megabytes, readers, options.rounds))
            print(json.dumps(result["rows"][-1], indent=1), flush=True)
            path.unlink()
    (RESULTS / f"traces-{today()}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
