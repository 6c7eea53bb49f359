"""What watching memory costs an operator and a step, beside torch's MemTracker and profiler, in one run.

python -m benchmarks.recorder [--quick] [--rounds 24] [--output FILE]

Prints a table for a tiny batch (cost of an operator) and for a normal one (share of the step), in CPU time
of the training thread, and writes all figures with their conditions into benchmarks/results/.

Each contender is opened anew for every visit and watches every step until it is closed; opening and
closing are timed apart. The cost is the difference to a step that nobody watches, once of the medians
(paired within each round) and once of the minima, which hardly contain what other programs on the machine
add.
"""

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.conditions import conditions, load_average, today
from tests.integration.memory.memory_models import BATCH, LENGTH, VOCABULARY, Transformer
from zprof.collectors.record.memory.collector import MemoryCollector
from zprof.collectors.record.schedule import MemoryMode

SCHEMA = "zprof.benchmark.recorder/1"
RESULTS = Path(__file__).with_name("results")
STEPS, SEED = 3, 1


def measure(rounds: int) -> dict[str, Any]:
    """Measure all contenders on both batches and return all results."""
    torch.set_num_threads(1)
    result: dict[str, Any] = {"schema": SCHEMA, "device": "cpu", "conditions": conditions()}
    result["plan"] = {"rounds": rounds, "steps": STEPS, "seed": SEED, "batches": BATCHES}
    result["batches"] = {}
    for name, (sequences, length) in BATCHES.items():
        work = make_workload(sequences, length)
        visits = time_all(work, rounds=rounds, steps=STEPS, seed=SEED)
        operators = count_operators(work.step)
        rows = compute_figures(visits, operators)
        result["batches"][name] = {"operators": operators, "base": BASE, "contenders": rows}
    result["conditions"]["load_average_after"] = load_average()
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write the results."""
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
        print("\n" + format_table(name, batch["operators"], batch["contenders"]))
    if options.output is not None or not options.quick:
        path = options.output or RESULTS / f"recorder-{result['device']}-{today()}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written to {path}", file=sys.stderr)
    return 0


BASE = "base"
FULL, LIGHT = "zprof full", "zprof light"

#: Watches while entered; the yielded function is called after each step.
Watch = Callable[[nn.Module, torch.optim.Optimizer], "Iterator[Callable[[], None]]"]


def _do_nothing() -> None:
    pass


def _watch_nothing(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Callable[[], None]]:
    yield _do_nothing


def _watch_with_zprof(mode: MemoryMode) -> Watch:
    def watch(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Callable[[], None]]:
        collector = MemoryCollector(model, optimizer, mode)
        collector.start()
        try:
            yield _do_nothing
        finally:
            collector.stop()
        collector.tables()
        faults = [gap for gap in collector.gaps() if "of this window" in gap.what]
        if faults:
            raise RuntimeError(f"the recording failed, its cost says nothing: {faults[0].reason}")

    return watch


def _watch_with_mem_tracker(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[Callable[[], None]]:
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        yield tracker.reset_mod_stats  # it rejects a second step otherwise


def _watch_with_profiler(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Callable[[], None]]:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True):
        yield _do_nothing


_WATCHES: dict[str, Watch] = {
    BASE: _watch_nothing,
    FULL: _watch_with_zprof(MemoryMode.FULL),
    LIGHT: _watch_with_zprof(MemoryMode.LIGHT),
    "torch MemTracker": _watch_with_mem_tracker,
    "torch profiler, profile_memory": _watch_with_profiler,
}
NAMES = tuple(_WATCHES)
CONTENDERS = {name: contextmanager(watch) for name, watch in _WATCHES.items()}


#: Name to (sequences, tokens in each): a tiny batch shows the cost per operator, the other its share.
BATCHES = {"tiny": (1, 8), "normal": (BATCH, LENGTH)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model in training and its step."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[], None]


def make_workload(sequences: int, length: int) -> Workload:
    """Return a workload with AdamW, one fixed batch, and gradients dropped at the end of the step."""
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(VOCABULARY, (sequences, length + 1))

    def step() -> None:
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Workload(model=model, optimizer=optimizer, step=step)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def count_operators(step: Callable[[], None]) -> int:
    """Return the number of operators that one step dispatches."""
    with _Counter() as counter:
        step()
    return counter.count


CLOCKS = {"cpu": time.thread_time_ns, "process": time.process_time_ns, "wall": time.perf_counter_ns}


@dataclass(slots=True)
class Visits:
    """Nanoseconds by clock: of each visit's first step, of its later steps, and of opening and closing."""

    first: dict[str, list[int]] = field(default_factory=lambda: {clock: [] for clock in CLOCKS})
    later: dict[str, list[list[int]]] = field(default_factory=lambda: {clock: [] for clock in CLOCKS})
    around_ns: list[int] = field(default_factory=list)


def time_all(workload: Workload, *, rounds: int, steps: int, seed: int) -> Mapping[str, Visits]:
    """Visit all contenders once per round, in a different order each time."""
    for _ in range(3):
        workload.step()
    result = {name: Visits() for name in NAMES}
    for round_ in range(rounds + 1):
        names = list(NAMES)
        random.Random(seed + round_).shuffle(names)
        for name in names:
            # The first round is only warm-up, for what tools import and build once.
            _visit(name, workload, steps, result[name] if round_ else Visits())
    return result


def _visit(name: str, workload: Workload, steps: int, visits: Visits) -> None:
    gc.collect()
    begin_ns = time.perf_counter_ns()
    with CONTENDERS[name](workload.model, workload.optimizer) as step_done:
        took = time.perf_counter_ns() - begin_ns
        rows = [_step(workload, step_done) for _ in range(1 + steps)]
        begin_ns = time.perf_counter_ns()
    visits.around_ns.append(took + time.perf_counter_ns() - begin_ns)
    for index, clock in enumerate(CLOCKS):
        visits.first[clock].append(rows[0][index])
        visits.later[clock].append([row[index] for row in rows[1:]])


def _step(workload: Workload, step_done: object) -> list[int]:
    begin = [read() for read in CLOCKS.values()]
    workload.step()
    end = [read() for read in CLOCKS.values()]
    assert callable(step_done)
    step_done()
    return [after - before for before, after in zip(begin, end, strict=True)]


_TABLE_HEAD = ("", "us an operator", "(of minima)", "later steps", "(of minima)", "first step", "(of minima)",
         "wall, later", "open+close")  # fmt: skip


def compute_figures(visits: Mapping[str, Visits], operators: int) -> dict[str, dict[str, Any]]:
    """Return by contender the times of a step and its cost relative to the base."""
    return {name: _compute_cost(visits[name], visits[BASE], operators) for name in visits}


def _compute_cost(visits: Visits, base: Visits, operators: int) -> dict[str, Any]:
    result: dict[str, Any] = {"open_close_ms": median(visits.around_ns) / 1e6}
    for clock in CLOCKS:
        later = _cost(_medians(visits.later[clock]), _medians(base.later[clock]))
        lowest, base_lowest = (min(map(min, one.later[clock])) for one in (visits, base))
        first = _cost(visits.first[clock], base.first[clock])  # a visit starts with cold caches
        result[clock] = {
            "step_ms": median(_medians(visits.later[clock])) / 1e6,
            "step_min_ms": lowest / 1e6,
            "operator_us": later["cost_ns"] / operators / 1e3,
            "operator_min_us": (lowest - base_lowest) / operators / 1e3,
            "later_share": later["share"],
            "later_min_share": lowest / base_lowest - 1,
            "first_share": first["share"],
            "first_min_share": min(visits.first[clock]) / min(base.first[clock]) - 1,
        }
    return result


def _cost(watched: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """Return the paired cost: each round's visit against the base's visit of the same round."""
    pairs = list(zip(watched, base, strict=True))
    return {"cost_ns": median(a - b for a, b in pairs), "share": median(a / b for a, b in pairs) - 1}


def _medians(visits: Sequence[Sequence[int]]) -> list[float]:
    return [median(steps) for steps in visits]


def format_table(batch: str, operators: int, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Format one batch's contenders, in thread CPU time unless a column says wall."""
    base = rows[BASE]["cpu"]
    lines = [
        f"{batch} batch: {operators} operators, base {base['step_ms']:.2f} ms (min {base['step_min_ms']:.2f})"
    ]
    cells = [list(_TABLE_HEAD)] + [_cells(name, row) for name, row in rows.items() if name != BASE]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_TABLE_HEAD))]
    for line in cells:
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        lines.append("  ".join([line[0].ljust(widths[0]), *rest]))
    return "\n".join(lines)


def _cells(name: str, row: Mapping[str, Any]) -> list[str]:
    cpu = row["cpu"]
    shares = (cpu["later_share"], cpu["later_min_share"], cpu["first_share"], cpu["first_min_share"])
    return [
        name,
        f"{cpu['operator_us']:.2f}",
        f"{cpu['operator_min_us']:.2f}",
        *(f"{share:+.2%}" for share in (*shares, row["wall"]["later_share"])),
        f"{row['open_close_ms']:.0f} ms",
    ]


if __name__ == "__main__":
    sys.exit(main())
