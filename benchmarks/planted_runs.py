"""Every cause of lost time that the reference engine can be given, on real ranks: found, priced, and fixed.

    python -m benchmarks.planted_runs [--causes NAME ...] [--rounds 3] [--steps 10] [--keep FOLDER]

For each plant of ``zprof train --plant list`` about time, it records the planted run and the same run fixed,
in turn, on two ranks of this machine with a modelled link, and diagnoses the planted one as a user would
(against a healthy run of the same job if the cause is visible only in comparison).  Prints and writes
``benchmarks/results/planted-runs-DATE.json``: the first finding above low confidence of each round, its
range, and the real saving of the fix.  The saving is the difference of the median steps; its median over the
rounds is compared with the range of each round.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.conditions import conditions, load_average, today
from benchmarks.diagnosis_own import BESIDE_HEALTHY
from zprof.reference_engine.program.plants import PLANTS

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"


def zprof(*arguments: str) -> str:
    """Run one command and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "zprof", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"zprof {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def row(cause: str, folder: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Record the run with and without its cause, several times, and compare the findings with both."""
    seen = [one_round(cause, folder, number, steps) for number in range(rounds)]
    gained = median(one["step_ms"] - one["cured_ms"] for one in seen)
    for one in seen:
        saving = one["saving_ms"]
        one["within"] = bool(saving and saving[0] <= gained <= saving[1])
    return {
        "cause": cause,
        "rounds": seen,
        "first": sum(one["first"] == cause for one in seen),
        "within": sum(one["within"] for one in seen),
        "gained_ms": gained,
        "step_ms": median(one["step_ms"] for one in seen),
        "load_average_after": load_average(),
    }


def one_round(cause: str, folder: Path, number: int, steps: int) -> dict[str, Any]:
    """Return the first finding of one recording, its range, and the steps with and without the cause."""
    # with memory, as by default: what a rank keeps distinguishes longer inputs from a slower rank
    recorded = ("--time-steps", str(steps))
    planted, well = folder / f"{cause}-{number}.zprof", folder / f"{cause}-{number}-fixed.zprof"
    zprof("train", "--plant", cause, "-o", str(planted), *recorded)
    zprof("train", "--plant", cause, "--fixed", "-o", str(well), *recorded)
    beside = ("--baseline", str(well)) if cause in {str(each) for each in BESIDE_HEALTHY} else ()
    report = json.loads(zprof("report", str(planted), *beside, "-f", "json"))
    healthy = json.loads(zprof("report", str(well), "-f", "json"))
    found = [entry for entry in report["findings"] if entry["confidence"] != "low" and entry["saving_ns"][1]]
    mine = next((entry for entry in found if entry["cause"] == cause), None)
    return {
        "first": found[0]["cause"] if found else None,
        "others": [entry["cause"] for entry in found[1:]],
        "step_ms": step_ns(report) / 1e6,
        "cured_ms": step_ns(healthy) / 1e6,
        "saving_ms": [bound / 1e6 for bound in mine["saving_ns"]] if mine else None,
        "cured_still_says": [e["cause"] for e in healthy["findings"] if e["confidence"] != "low"],
    }


def step_ns(report: dict[str, Any]) -> float:
    """Return the median step in ns; each step is the mean over the ranks."""
    steps: dict[int, list[int]] = {}
    for entry in report["time"]["steps"]:
        steps.setdefault(entry["step"], []).append(entry["wall_ns"])
    return median(sum(walls) / len(walls) for walls in steps.values())


def line(row: dict[str, Any]) -> str:
    """Return one row of the table in the README."""
    rounds = row["rounds"]
    ranges = [one["saving_ms"] for one in rounds if one["saving_ms"]]
    saving = "{:.0f} to {:.0f}".format(*sorted(ranges)[len(ranges) // 2]) if ranges else "-"
    return (
        f"| {row['cause']} | {row['first']} of {len(rounds)} | {saving} | {row['gained_ms']:.0f} of "
        f"{row['step_ms']:.0f} | {row['within']} of {len(rounds)} |"
    )


def main() -> None:
    """Record, diagnose, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--causes", nargs="*", default=[], help="only these, and nothing is written")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="a folder where the recordings stay")
    arguments = parser.parse_args()
    causes = arguments.causes or [plant.cause for plant in PLANTS if plant.is_modelled]
    print("| planted | first finding | it says ms | the fix wins ms | its range holds that |")
    print("|---|---|---|---|---|")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for cause in causes:
            rows.append(row(cause, arguments.keep or Path(folder), arguments.rounds, arguments.steps))
            print(line(rows[-1]), flush=True)
    if not arguments.causes:
        result = {"conditions": conditions(), "benchmark": "planted runs", "rows": rows}
        target = RESULTS / f"planted-runs-{today()}.json"
        target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
