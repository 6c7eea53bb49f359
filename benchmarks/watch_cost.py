"""What ``zprof record --watch 60`` costs per step, beside ``zprof record`` alone: two jobs that take turns.

Both jobs of two gloo ranks run at the same time, and only one of them computes: a block of steps of one, then
the same of the other, in a random order. What else the machine does meets both; the ratio is taken per pair.
The recordings have ended before the first block, so that what is left is the watch and the flight recorder.
Called by ``python -m benchmarks.hang_bed --cost``; as a module it is one rank of a job.
"""

import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.conditions import ROOT, conditions, load_average
from tests.support.forked_ranks import free_port

RANKS, WATCH_S = 2, 60
PAIRS, STEPS, WARM_UP_STEPS = 150, 10, 20
LAYERS, WIDTH, BATCH = 4, 256, 32
#: Half the width of a normal distribution's interval of 95 %.
_NORMAL_95 = 1.96
_TIME_LIMIT_S = 120.0


def measure_cost(pairs: int = PAIRS) -> dict[str, Any]:
    """Return the median of the paired ratios (watched over not watched), its interval, and the times."""
    before, chooser = conditions(), random.Random(1)
    with tempfile.TemporaryDirectory(prefix="watch-cost-") as temporary:
        jobs = [_Job(Path(temporary) / name, options) for name, options in _CONTENDERS]
        try:
            for job in jobs:
                job.run_block(WARM_UP_STEPS)
            times_ns: list[list[int]] = [[], []]
            for _ in range(pairs):
                for number in chooser.sample(range(len(jobs)), len(jobs)):
                    times_ns[number].append(jobs[number].run_block(STEPS) // STEPS)
        finally:
            for job in jobs:
                job.end()
    ratios = sorted(watched / alone for alone, watched in zip(*times_ns, strict=True))
    low, high = find_median_interval(ratios)
    return {
        "conditions": before | {"load_average_after": load_average()},
        "benchmark": "watch_cost",
        "watch_s": WATCH_S,
        "pairs": pairs,
        "steps_per_block": STEPS,
        "step_alone_ms": median(times_ns[0]) / 1e6,
        "step_watched_ms": median(times_ns[1]) / 1e6,
        "ratio": median(ratios),
        "ratio_low": low,
        "ratio_high": high,
    }


_CONTENDERS = (("alone", ()), ("watched", ("--watch", str(WATCH_S))))


def find_median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of 95 % of the median of sorted values, from their ranks alone."""
    half = _NORMAL_95 * math.sqrt(len(values)) / 2
    low = max(0, math.floor(len(values) / 2 - half))
    return values[low], values[len(values) - 1 - low]


def format_cost(result: dict[str, Any]) -> str:
    """Return the figures as one line."""
    low, ratio, high = (result[name] - 1 for name in ("ratio_low", "ratio", "ratio_high"))
    return (
        f"watching costs {ratio:+.2%} of a step ({low:+.2%} to {high:+.2%}), "
        f"median of {result['pairs']} pairs of {result['steps_per_block']} steps: "
        f"{result['step_alone_ms']:.2f} ms/step alone, {result['step_watched_ms']:.2f} watched"
    )


class _Job:
    """A recorded job that waits for the number of steps to run."""

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder / "socket"))
            server.listen(1)
            server.settimeout(_TIME_LIMIT_S)
            record = ["-m", "zprof", "record", *options, "-o", str(folder / "run.zprof"), "--"]
            launch = ["-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
            launch += [f"--master-port={free_port()}", "-m", "benchmarks.watch_cost"]
            self._log = (folder / "log").open("wb")
            self._process = subprocess.Popen(
                [sys.executable, *record, sys.executable, *launch, str(folder / "socket")],
                cwd=ROOT,
                env=os.environ
                | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                stdout=self._log,
                stderr=self._log,
            )
            self._connection, _ = server.accept()
            self._connection.settimeout(_TIME_LIMIT_S)

    def run_block(self, steps: int) -> int:
        """Run steps, and return how many ns they took."""
        self._connection.sendall(steps.to_bytes(8, "little"))
        return int.from_bytes(self._connection.recv(8, socket.MSG_WAITALL), "little")

    def end(self) -> None:
        """Let the job end by itself, or terminate it."""
        self._connection.close()
        try:
            self._process.wait(_TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._log.close()


def _run_rank(path: str) -> None:
    """Train in blocks, as long as the parent asks rank 0 for more."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters())

    def run_steps(count: int) -> int:
        begin_ns = time.perf_counter_ns()
        for _ in range(count):
            model(torch.ones(BATCH, WIDTH)).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter_ns() - begin_ns

    steps = torch.zeros(1, dtype=torch.int64)
    with socket.socket(socket.AF_UNIX) as connection:
        if dist.get_rank() == 0:
            connection.connect(path)
        while True:
            if dist.get_rank() == 0:
                steps[0] = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")
            dist.broadcast(steps, src=0)
            if not steps.item():
                break
            took_ns = run_steps(int(steps.item()))
            if dist.get_rank() == 0:
                connection.sendall(took_ns.to_bytes(8, "little"))
    dist.destroy_process_group()


if __name__ == "__main__":
    _run_rank(sys.argv[1])
