"""What watching memory costs an operator and a step, beside torch's MemTracker and profiler, in one run.

python -m benchmarks.recorder [--quick] [--rounds 24] [--output FILE]

Prints a table for a tiny batch (cost of an operator) and for a normal one (share of the step), in CPU time
of the training thread, and writes all figures with their conditions into benchmarks/results/.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.conditions import conditions, load_average, today
from benchmarks.recording.contenders import BASE
from benchmarks.recording.figures import figures, table
from benchmarks.recording.timed import time_all
from benchmarks.recording.workload import BATCHES, operators_of, workload

SCHEMA = "zprof.benchmark.recorder/1"
RESULTS = Path(__file__).with_name("results")
STEPS, SEED = 3, 1


def measure(rounds: int) -> dict[str, Any]:
    """All contenders on both batches; everything that is kept."""
    torch.set_num_threads(1)
    result: dict[str, Any] = {"schema": SCHEMA, "device": "cpu", "conditions": conditions()}
    result["plan"] = {"rounds": rounds, "steps": STEPS, "seed": SEED, "batches": BATCHES}
    result["batches"] = {}
    for name, (sequences, length) in BATCHES.items():
        work = workload(sequences, length)
        visits = time_all(work, rounds=rounds, steps=STEPS, seed=SEED)
        operators = operators_of(work.step)
        rows = figures(visits, operators)
        result["batches"][name] = {"operators": operators, "base": BASE, "contenders": rows}
    result["conditions"]["load_average_after"] = load_average()
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recorder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test of seconds; keeps no file")
    parser.add_argument("--rounds", type=int, default=24, help="visits of each contender to each batch")
    parser.add_argument("--output", type=Path, help="where to write the figures")
    options = parser.parse_args(arguments)
    result = measure(2 if options.quick else options.rounds)
    at = result["conditions"]
    print(f"torch {at['torch']}, {at['cpu']}, {at['cores']} cores, load {at['load_average']} before and "
          f"{at['load_average_after']} after")  # fmt: skip
    for name, batch in result["batches"].items():
        print("\n" + table(name, batch["operators"], batch["contenders"]))
    if options.output is not None or not options.quick:
        path = options.output or RESULTS / f"recorder-{result['device']}-{today()}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written to {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
