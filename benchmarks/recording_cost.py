"""What recording costs per step, and in memory: two jobs of two gloo ranks that take turns.

    python -m benchmarks.recording_cost window   recorded steps of the time window, beside no recording
    python -m benchmarks.recording_cost watch    ``--watch 60`` after the windows, beside a recording without
    python -m benchmarks.recording_cost log      a training log that has a window every 100 steps, beside none

Both jobs run at the same time, and only one of them computes: a block of steps of one, then the same of the
other, in a random order. What else the machine does meets both; the ratio is taken per pair. Memory is the
resident set of rank 0 after the last block. Writes ``recording-cost-NAME-DATE.json`` into
``benchmarks/results``. With the path of a socket, the module is one rank of a job.
"""

import json
import math
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.conditions import ROOT, conditions, load_average, today
from tests.support.forked_ranks import free_port

RESULTS = Path(__file__).parent / "results"
RANKS = 2
PAIRS, STEPS, WARM_UP_STEPS = 150, 10, 20
#: Options of ``zprof record`` of the two jobs; None: not recorded.
TRAINING_LOG = ("training log",)
CONTENDERS: Mapping[str, tuple[Sequence[str] | None, Sequence[str]]] = {
    "window": (None, ("--memory-steps", "0", "--time-steps", "1000000")),
    "watch": ((), ("--watch", "60")),
    "log": (None, TRAINING_LOG),
}
#: Pairs and steps per block, if others: with a training log each block has one window.
LOG_EVERY = 100
SIZES = {"log": (20, LOG_EVERY)}
_LOG_FOLDER = "ZPROF_BENCHMARK_LOG"
LAYERS, WIDTH, BATCH = 4, 256, 32
#: Half the width of a normal distribution's interval of 95 %.
_NORMAL_95 = 1.96
_TIME_LIMIT_S = 120.0
#: What rank 0 answers to a number of steps: the ns that they took, and the KiB that it holds.
_ANSWER = struct.Struct("<QQ")


def main(name: str) -> None:
    """Measure, print and write the cost."""
    cost = measure_cost(name)
    print(format_cost(cost))
    (RESULTS / f"recording-cost-{name}-{today()}.json").write_text(json.dumps(cost, indent=1) + "\n")


def measure_cost(name: str) -> dict[str, Any]:
    """Return the median of the paired ratios (second over first), its interval, times and memory."""
    before, chooser = conditions(), random.Random(1)
    pairs, steps = SIZES.get(name, (PAIRS, STEPS))
    with tempfile.TemporaryDirectory(prefix="recording-cost-") as temporary:
        jobs = [_Job(Path(temporary) / str(at), options) for at, options in enumerate(CONTENDERS[name])]
        try:
            for job in jobs:
                job.run_block(WARM_UP_STEPS)
            times_ns: list[list[int]] = [[], []]
            for _ in range(pairs):
                for number in chooser.sample(range(len(jobs)), len(jobs)):
                    times_ns[number].append(jobs[number].run_block(steps) // steps)
            resident_mib = [job.resident_kib / 1024 for job in jobs]
        finally:
            for job in jobs:
                job.end()
    ratios = sorted(second / first for first, second in zip(*times_ns, strict=True))
    low, high = find_median_interval(ratios)
    return {
        "conditions": before | {"load_average_after": load_average()},
        "benchmark": f"recording_cost {name}",
        "options": CONTENDERS[name],
        "pairs": pairs,
        "steps_per_block": steps,
        "step_ms": [median(times) / 1e6 for times in times_ns],
        "resident_mib": resident_mib,
        "ratio": median(ratios),
        "ratio_low": low,
        "ratio_high": high,
    }


def find_median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of 95 % of the median of sorted values, from their ranks alone."""
    half = _NORMAL_95 * math.sqrt(len(values)) / 2
    low = max(0, math.floor(len(values) / 2 - half))
    return values[low], values[len(values) - 1 - low]


def format_cost(result: dict[str, Any]) -> str:
    """Return the figures as one line."""
    low, ratio, high = (result[name] - 1 for name in ("ratio_low", "ratio", "ratio_high"))
    (first_ms, second_ms), (first_mib, second_mib) = result["step_ms"], result["resident_mib"]
    return (
        f"{result['benchmark']}: {ratio:+.2%} of a step ({low:+.2%} to {high:+.2%}), "
        f"median of {result['pairs']} pairs of {result['steps_per_block']} steps, {first_ms:.2f} and "
        f"{second_ms:.2f} ms/step; rank 0 has {first_mib:.0f} and {second_mib:.0f} MiB"
    )


class _Job:
    """A job that waits for the number of steps to run; without ``options`` it is not recorded."""

    resident_kib = 0

    def __init__(self, folder: Path, options: Sequence[str] | None) -> None:
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder / "socket"))
            server.listen(1)
            server.settimeout(_TIME_LIMIT_S)
            launch = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
            launch += [f"--master-port={free_port()}", "-m", "benchmarks.recording_cost"]
            if options is not None and options != TRAINING_LOG:
                record = ["-m", "zprof", "record", *options, "-o", str(folder / "run.zprof"), "--"]
                launch = [sys.executable, *record, *launch]
            self._log = (folder / "log").open("wb")
            self._process = subprocess.Popen(
                [*launch, str(folder / "socket")],
                cwd=ROOT,
                env=os.environ
                | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
                | ({_LOG_FOLDER: str(folder / "log-folder")} if options == TRAINING_LOG else {}),
                stdout=self._log,
                stderr=self._log,
            )
            self._connection, _ = server.accept()
            self._connection.settimeout(_TIME_LIMIT_S)

    def run_block(self, steps: int) -> int:
        """Run steps, and return how many ns they took."""
        self._connection.sendall(steps.to_bytes(8, "little"))
        took_ns, self.resident_kib = _ANSWER.unpack(self._connection.recv(_ANSWER.size, socket.MSG_WAITALL))
        return int(took_ns)

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

    log = None
    if folder := os.environ.get(_LOG_FOLDER):
        from zprof.integrations.training_log import TrainingLog

        log = TrainingLog(folder, model=model, optimizer=optimizer, every=LOG_EVERY)

    def run_steps(count: int) -> int:
        begin_ns = time.perf_counter_ns()
        for _ in range(count):
            model(torch.ones(BATCH, WIDTH)).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            if log is not None:
                log.step()
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
                connection.sendall(_ANSWER.pack(took_ns, _read_resident_kib()))
    dist.destroy_process_group()


def _read_resident_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


if __name__ == "__main__":
    if sys.argv[1] in CONTENDERS:
        main(sys.argv[1])
    else:
        _run_rank(sys.argv[1])
