"""Reading a CUDA memory snapshot of a million entries, beside a plain ``pickle.load`` in the same run.

    python -m benchmarks.snapshot [--entries N] [--times K]

Prints, and writes ``benchmarks/results/snapshot-DATE.json``: seconds of the import's reading part (with its
child process), of a plain ``pickle.load`` in a process of its own, their ratio, and the peak memory of each.
The goal: a million entries in less than 5 seconds and 1 GB.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.conditions import conditions, today
from benchmarks.processes import ROOT, run_code

RESULTS = Path(__file__).parent / "results"
_PLAIN = """
import pickle, gc
gc.disable()
with open(path, 'rb') as file:
    found = len(pickle.load(file))
"""
_ZPROF = """
from zprof.collectors.read.snapshot.reader import read_snapshot
with read_snapshot(path) as read:
    found = read.tables['block'].num_rows
    assert found
"""


def synthetic(entries: int, seed: int = 0) -> dict[str, Any]:
    """Return a training loop's history: blocks with one of 20,000 stacks of 24 frames each, freed at
    random.
    """
    chance = random.Random(seed)
    frames = [
        {"filename": f"/opt/app/models/layer_{i % 97}.py", "line": i, "name": f"forward_{i % 301}"}
        for i in range(4000)
    ]
    stacks = [[chance.choice(frames) for _ in range(24)] for _ in range(20_000)]
    live: list[tuple[int, int]] = []
    free = [(0x7F00_0000_0000 + i * (1 << 21), 1 << 21) for i in range(4000)]
    trace: list[dict[str, Any]] = []
    now = 1_760_000_000_000_000
    while len(trace) < entries:
        now += chance.randrange(5)
        if free and (len(live) < 1000 or chance.random() < 0.4):
            address, _ = free.pop(chance.randrange(len(free)))
            size = chance.randrange(1, 1 << 21)
            live.append((address, size))
            trace.append(_entry("alloc", address, size, now, chance.choice(stacks)))
        else:
            address, size = live.pop(chance.randrange(len(live)))
            stack = chance.choice(stacks)
            trace.append(_entry("free_requested", address, size, now, stack))
            trace.append(_entry("free_completed", address, size, now, stack))
            free.append((address, 1 << 21))
    return {"segments": _segments(live), "device_traces": [trace], "external_annotations": []}


def _entry(action: str, address: int, size: int, now: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": now,
        "frames": frames,
        "pool_id": (0, 0),
        "user_metadata": "",
        "compile_context": "N/A",
    }


def _segments(live: list[tuple[int, int]]) -> list[dict[str, Any]]:
    return [
        {
            "device": 0,
            "address": address,
            "total_size": 1 << 21,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "blocks": [
                {"address": address, "size": 1 << 21, "requested_size": size, "state": "active_allocated"}
            ],
        }
        for address, size in live
    ]


def measure(work: str, path: Path) -> dict[str, float]:
    """Return seconds, processor seconds, and peak MiB of the process and of its largest child."""
    used = run_code("", work, path)
    return {
        "seconds": used.seconds,
        "processor_s": used.processor_s,
        "peak_mib": used.peak_mib,
        "child_peak_mib": used.child_peak_mib,
    }


def write(path: Path, entries: int) -> None:
    """Write a snapshot in a process of its own: peak memory would count that of the parent process."""
    code = (
        "import pickle, sys; from benchmarks.snapshot import synthetic\n"
        "with open(sys.argv[1], 'wb') as file:\n"
        "    pickle.dump(synthetic(int(sys.argv[2])), file, protocol=4)"
    )
    subprocess.run([sys.executable, "-c", code, str(path), str(entries)], check=True, cwd=ROOT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zprof-bench-") as folder:
        path = Path(folder) / "snapshot.pickle"
        write(path, options.entries)
        size = path.stat().st_size
        runs = [(measure(_PLAIN, path), measure(_ZPROF, path)) for _ in range(options.times)]
    plain = min((run[0] for run in runs), key=lambda each: each["seconds"])
    read = min((run[1] for run in runs), key=lambda each: each["seconds"])
    result = {
        "conditions": conditions(),
        "benchmark": "snapshot",
        "entries": options.entries,
        "file_bytes": size,
        "times": options.times,
        "best_of": {"pickle_load": plain, "read_snapshot": read},
        "ratio": read["seconds"] / plain["seconds"],
        "processor_ratio": read["processor_s"] / plain["processor_s"],
        "seconds_of_each": [[each["seconds"] for each in run] for run in runs],
    }
    print(json.dumps(result, indent=1))
    (RESULTS / f"snapshot-{today()}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
