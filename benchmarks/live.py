"""What the live view costs the job beside it: steps with and without it, by turns within one job.

python -m benchmarks.live [--quick] [--steps 1200] [--output FILE]

A job of real ranks trains; ``zprof tui RUN --live`` runs on a terminal of its own and is stopped and let go
on again every few steps (SIGSTOP, SIGCONT), so that what else the machine does falls on both alike.  A second
part times the line that a rank writes after each step: as it was before there was a view, and as it is now.
"""

import argparse
import json
import os
import pty
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.conditions import conditions, load_average, today
from zprof.integrations.reference_job import ReferenceJob, train_reference
from zprof.run.manifest import STEPS_NAME, StepLine, decode_step, encode_step, rank_folder

SCHEMA = "zprof.benchmark.live/1"
RESULTS = Path(__file__).with_name("results")
MODEL = {"layers": 4, "hidden": 128, "heads": 4, "vocabulary": 256, "context": 64, "batch": 4, "stage": 3}
RANKS, TURN, WARM = 2, 20, 40
_SHOWN_AFTER_S = 4.0


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A period in which the view ran, or was stopped."""

    shown: bool
    begin_ns: int
    end_ns: int


class View:
    """A live view on a terminal that nobody reads, stopped and continued as the job's steps go by."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._pid = 0
        self._handle = -1
        self._began_s = 0.0
        self._from_step = 0
        self._since_ns = 0
        self._shown = True
        self.turns: list[Turn] = []

    def on_step(self, steps: int) -> None:
        """Handle the end of rank 0's step number ``steps``."""
        if not self._pid and steps >= WARM:
            self._start()
        elif self._pid and not self._since_ns and time.monotonic() - self._began_s > _SHOWN_AFTER_S:
            self._since_ns, self._from_step = time.time_ns(), steps
        elif self._since_ns and steps >= self._from_step + TURN:
            self._turn(steps)

    def close(self) -> None:
        """Kill the view."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _start(self) -> None:
        self._pid, self._handle = pty.fork()
        if self._pid == 0:
            command = [sys.executable, "-m", "zprof", "tui", str(self._run), "--live"]
            os.execvpe(command[0], command, dict(os.environ) | {"TERM": "xterm-256color"})
        self._began_s = time.monotonic()
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        """Read what is drawn, as a terminal does."""
        try:
            while os.read(self._handle, 1 << 16):
                pass
        except OSError:
            pass

    def _turn(self, steps: int) -> None:
        now = time.time_ns()
        self.turns.append(Turn(shown=self._shown, begin_ns=self._since_ns, end_ns=now))
        self._shown = not self._shown
        os.kill(self._pid, signal.SIGCONT if self._shown else signal.SIGSTOP)
        self._since_ns, self._from_step = time.time_ns(), steps


def job_with_view(steps: int) -> dict[str, Any]:
    """Train, show the view in turns, and compare the steps."""
    with tempfile.TemporaryDirectory(prefix="zprof-live-") as folder:
        run = Path(folder) / "job.zprof"
        job = ReferenceJob(
            world_size=RANKS, options=MODEL | {"steps": steps}, run=run,
            skip_steps=steps, memory_steps=0, time_steps=0,
        )  # fmt: skip
        view = View(run)
        try:
            train_reference(job, on_step=view.on_step)
        finally:
            view.close()
        return compared(steps_of(run), view.turns)


def steps_of(run: Path) -> list[StepLine]:
    """Return the steps of rank 0: the ranks wait for each other."""
    lines = (rank_folder(run, 0) / STEPS_NAME).read_bytes().splitlines()
    return [step for line in lines if (step := decode_step(line)) is not None]


def compared(steps: Sequence[StepLine], turns: Sequence[Turn]) -> dict[str, Any]:
    """Return median steps with and without the view, and the ratio of each turn to the next."""
    walls = [
        [s.wall_ns for s in steps if turn.begin_ns <= s.begin_ns and s.end_ns <= turn.end_ns]
        for turn in turns
    ]
    known = [(turn.shown, wall) for turn, wall in zip(turns, walls, strict=True) if wall]
    shown = [wall for is_shown, each in known if is_shown for wall in each]
    alone = [wall for is_shown, each in known if not is_shown for wall in each]
    pairs = [
        median(first) / median(second) if is_shown else median(second) / median(first)
        for (is_shown, first), (_, second) in zip(known[::2], known[1::2], strict=False)
    ]
    if not pairs:
        return {"turns": len(known)}
    return {
        "turns": len(known),
        "steps_shown": len(shown),
        "steps_alone": len(alone),
        "median_shown_ns": median(shown),
        "median_alone_ns": median(alone),
        "ratio": median(shown) / median(alone),
        "pair_ratio_median": median(pairs),
        "pair_ratio_quartiles": [sorted(pairs)[len(pairs) // 4], sorted(pairs)[len(pairs) * 3 // 4]],
    }


def line_costs(times: int) -> dict[str, Any]:
    """Return the time in ns to write a line, old and new in turns; reading the new figures is excluded."""
    now = time.time_ns()
    full = StepLine(
        step=12345, begin_ns=now, end_ns=now + 10**8, window="memory", device="cuda:0",
        allocated_bytes=10**11, peak_allocated_bytes=10**11, process_bytes=10**10,
    )  # fmt: skip

    def before() -> bytes:
        line = {"step": full.step, "begin_ns": full.begin_ns, "end_ns": full.end_ns}
        return (json.dumps(line) + "\n").encode()

    costs: dict[str, list[int]] = {"before": [], "now": []}
    makers: dict[str, Callable[[], bytes]] = {"before": before, "now": lambda: encode_step(full)}
    with tempfile.TemporaryDirectory(prefix="zprof-live-") as folder:
        for _ in range(times):
            for name, make in makers.items():
                costs[name].append(_written(Path(folder) / name, make))
    return {
        "bytes_before": len(before()),
        "bytes_now": len(encode_step(full)),
        **{f"{name}_ns": median(each) for name, each in costs.items()},
    }


def _written(path: Path, make: Callable[[], bytes]) -> int:
    begin = time.perf_counter_ns()
    with path.open("ab") as file:
        file.write(make())
    return time.perf_counter_ns() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test; keeps no file")
    parser.add_argument("--steps", type=int, default=1200, help="steps of the job")
    parser.add_argument("--output", type=Path, help="where to write the figures")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {"schema": SCHEMA, "conditions": conditions()}
    result["plan"] = {"ranks": RANKS, "model": MODEL, "turn_steps": TURN, "steps": options.steps}
    result["line"] = line_costs(200 if options.quick else 5000)
    result["view"] = job_with_view(options.steps)
    result["conditions"]["load_average_after"] = load_average()
    print(json.dumps({"line": result["line"], "view": result["view"]}, indent=1))
    if options.output is not None or not options.quick:
        path = options.output or RESULTS / f"live-{today()}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written to {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
