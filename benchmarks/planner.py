"""What-if against what truly comes: runs of the reference engine, predicted from one and recorded changed.

    python -m benchmarks.planner [--ranks 2 4] [--rounds 5] [--steps 8] [--keep FOLDER]

On real ranks of this machine, with a modelled link and modelled compute (sleeping blocks leave the cores to
others), each round records a stage-3 run and the same run with one thing changed, one after the other in
random order.  From the first, the step and the peak of each other one are predicted (and from the one without
prefetch those of the first), and compared with the recording.  Prints a line per change, with medians over
the rounds, and writes ``benchmarks/results/planner-DATE.json``.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.conditions import conditions, load_average, today
from zprof.analysis.analysis import RunAnalysis, analyse
from zprof.model.plan import Change
from zprof.planner.whatif import predict_changes
from zprof.run.reader import load

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
GBPS = 0.15
#: Little real work; a block's gather takes 21 ms with two ranks and 32 ms with four, its forward 40 ms.
JOB = (
    *("--layers", "4", "--hidden", "128", "--vocabulary", "64", "--context", "16", "--batch", "4"),
    *("--link-latency-us", "50", "--compute-forward-ms", "40", "--compute-backward-ms", "80"),
)
RUNS: Mapping[str, tuple[str, ...]] = {
    "stage 3": ("--stage", "3", "--link-gbps", str(GBPS)),
    "stage 2": ("--stage", "2", "--link-gbps", str(GBPS)),
    "no prefetch": ("--stage", "3", "--prefetch", "0", "--link-gbps", str(GBPS)),
    "link x2": ("--stage", "3", "--link-gbps", str(2 * GBPS)),
    "link x0.5": ("--stage", "3", "--link-gbps", str(GBPS / 2)),
}
#: Run to predict from, the change, and the run recorded with it.
PAIRS: tuple[tuple[str, Change, str], ...] = (
    ("stage 3", Change(stage=2), "stage 2"),
    ("stage 3", Change(prefetch=0), "no prefetch"),
    ("no prefetch", Change(prefetch=1), "stage 3"),
    ("stage 3", Change(bandwidth_ratio=2.0), "link x2"),
    ("stage 3", Change(bandwidth_ratio=0.5), "link x0.5"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One prediction of one round, and its recording; steps in ms, peaks in bytes."""

    ranks: int
    change: str
    round: int
    measured_ms: float
    modelled_ms: float
    predicted_ms: float
    range_ms: tuple[float, float]
    recorded_ms: float
    predicted_peak: int
    recorded_peak: int

    @property
    def step_error(self) -> float:
        """Relative error of the predicted step."""
        return self.predicted_ms / self.recorded_ms - 1

    @property
    def peak_error(self) -> float:
        """Relative error of the predicted peak."""
        return self.predicted_peak / self.recorded_peak - 1

    @property
    def within(self) -> bool:
        """True if the range contains the recorded step."""
        return self.range_ms[0] <= self.recorded_ms <= self.range_ms[1]


def recorded(name: str, folder: Path, ranks: int, steps: int) -> RunAnalysis:
    """Record and analyse one run."""
    target = folder / f"{name.replace(' ', '-')}.zprof"
    command = ["train", "-o", str(target), "--force", "--ranks", str(ranks), "--time-steps", str(steps)]
    done = subprocess.run(
        [sys.executable, "-m", "zprof", *command, *JOB, *RUNS[name]],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"zprof {' '.join(command)}: {done.stderr.strip()}")
    return analyse(load(target))


def one_round(folder: Path, ranks: int, number: int, steps: int) -> list[Pair]:
    """Record all runs once, in random order, and make every prediction between them."""
    order = list(RUNS)
    random.Random(number).shuffle(order)
    folder.mkdir(parents=True, exist_ok=True)
    runs = {name: recorded(name, folder, ranks, steps) for name in order}
    return [_pair(runs, before, change, after, ranks, number) for before, change, after in PAIRS]


def _pair(
    runs: Mapping[str, RunAnalysis], before: str, change: Change, after: str, ranks: int, number: int
) -> Pair:
    made = predict_changes(runs[before], [change]).predictions[0]
    wall, peak = made.step[0], made.memory[0]
    return Pair(
        ranks=ranks,
        change=f"{before} to {made.words}",
        round=number,
        measured_ms=_known(wall.measured) / 1e6,
        modelled_ms=_known(wall.modelled) / 1e6,
        predicted_ms=_known(wall.predicted) / 1e6,
        range_ms=(_known(wall.low) / 1e6, _known(wall.high) / 1e6),
        recorded_ms=float(runs[after].steps["wall_ns"].mean()) / 1e6,
        predicted_peak=_known(peak.predicted),
        recorded_peak=max(rank.peak_bytes for rank in runs[after].memory.per_rank),
    )


def _known(value: int | None) -> int:
    if value is None:
        raise SystemExit("a figure was not predicted: see the gaps of zprof whatif")
    return value


def row(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the medians over the rounds of one change on one number of ranks."""
    return {
        "ranks": pairs[0].ranks,
        "change": pairs[0].change,
        "rounds": len(pairs),
        "measured_ms": median(each.measured_ms for each in pairs),
        "fit_error": median(each.modelled_ms / each.measured_ms - 1 for each in pairs),
        "predicted_ms": median(each.predicted_ms for each in pairs),
        "recorded_ms": median(each.recorded_ms for each in pairs),
        "step_error": median(each.step_error for each in pairs),
        "worst_step_error": max((each.step_error for each in pairs), key=abs),
        "within_range": sum(each.within for each in pairs),
        "peak_error": median(each.peak_error for each in pairs),
    }


def line(made: Mapping[str, Any]) -> str:
    """Return one row of the table."""
    return (
        f"| {made['ranks']} | {made['change']} | {made['measured_ms']:.0f} | {made['predicted_ms']:.0f} | "
        f"{made['recorded_ms']:.0f} | {made['step_error']:+.1%} | {made['worst_step_error']:+.1%} | "
        f"{made['within_range']} of {made['rounds']} | {made['fit_error']:+.1%} | {made['peak_error']:+.1%} |"
    )


def main() -> None:
    """Record, predict, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="a folder where the recordings stay")
    arguments = parser.parse_args()
    before = conditions()
    print("| ranks | from, to | measured ms | predicted | recorded | step | worst | in range | fit | peak |")
    print("|---" * 10 + "|")
    pairs: list[Pair] = []
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        at = arguments.keep or Path(folder)
        for ranks in arguments.ranks:
            mine = [
                pair
                for number in range(arguments.rounds)
                for pair in one_round(at / f"{ranks}-{number}", ranks, number, arguments.steps)
            ]
            pairs += mine
            for change in dict.fromkeys(pair.change for pair in mine):
                rows.append(row([pair for pair in mine if pair.change == change]))
                print(line(rows[-1]), flush=True)
    result = {
        "conditions": before,
        "load_average_after": load_average(),
        "benchmark": "what-if against recorded runs",
        "job": JOB,
        "runs": RUNS,
        "rows": rows,
        "pairs": [asdict(pair) | {"step_error": pair.step_error, "within": pair.within} for pair in pairs],
    }
    target = RESULTS / f"planner-{today()}.json"
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {target.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
