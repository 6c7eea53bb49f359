"""Time or count every contender on one rank.

Timing visits all contenders in the same processes, in a random order and its reverse.  Counting runs each
contender alone in the process.  Peak memory is the maximum of the live bytes of libc10's CPU allocator on all
threads, above what was live before the contender was made.  A preloaded counter sees each call
(tests/support/exact_counter); the profiler's memory events would miss what gloo's threads free.  gloo's own
buffers come from malloc and are not counted.

Bytes moved are counted from the launches of torch's own ``c10d::`` operators in a profiler's trace, the same
for every contender: the full (gathered) tensor times what a rank of a ring sends per byte of it.  That is
(N-1)/N for all-gather and reduce-scatter, 2 (N-1)/N for all-reduce, and (N-1)/N for broadcast, as all ranks
but the last send it on (mean over the ranks, for any root).  gloo itself runs a reduce-scatter as an
all-reduce; the requested collective is what counts.
"""

import gc
import json
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from benchmarks.steps.contenders import Contender, make_contender
from benchmarks.steps.launch import Plan
from tests.support.exact_counter import ExactCounter

#: Steps before the first round: the first has no prefetch order, and DDP rebuilds its buckets after it.
TIME_SETTLING_STEPS = 3


def time_all(plan: Plan, names: list[str], tokens: torch.Tensor) -> dict[str, Any]:
    """Return per contender and round the wall and CPU ns of a step on this rank, and the first losses."""
    contenders = {name: make_contender(name, plan) for name in names}
    losses = {
        name: [contender.step(tokens) for _ in range(TIME_SETTLING_STEPS)]
        for name, contender in contenders.items()
    }
    for contender in contenders.values():
        contender.finish()
    gc.collect()
    gc.freeze()  # makes the collection before each visit cheap
    wall: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(plan.rounds):
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for name in order_visits(names, seed=plan.seed, round_=round_):
            seen[name].append(_visit(contenders[name], plan, tokens))
        for name, both in seen.items():
            wall[name].append(sum(visit[0] for visit in both) / len(both))
            cpu[name].append(sum(visit[1] for visit in both) / len(both))
    return {"wall_ns": wall, "cpu_ns": cpu, "losses": losses}


def _visit(contender: Contender, plan: Plan, tokens: torch.Tensor) -> tuple[float, float]:
    for _ in range(plan.warm_up):
        contender.step(tokens)
    contender.finish()
    gc.collect()
    dist.barrier()
    begin_ns, begin_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(plan.steps):
        contender.step(tokens)
    contender.finish()
    wall_ns, cpu_ns = time.perf_counter_ns() - begin_ns, time.process_time_ns() - begin_cpu_ns
    return _max_over_ranks(wall_ns) / plan.steps, cpu_ns / plan.steps


def _max_over_ranks(wall_ns: int) -> float:
    """Return the maximum over the ranks: a step is over when it is over on all of them."""
    slowest = torch.tensor(wall_ns, dtype=torch.int64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def order_visits(contenders: Sequence[str], *, seed: int, round_: int) -> list[str]:
    """Return a random order and its reverse (A B C C B A), equal on all ranks, different in each round."""
    order = list(contenders)
    random.Random(seed * 1_000_003 + round_).shuffle(order)
    return order + order[::-1]


#: The first step has no prefetch order, and optimizers create their state in it.
COUNT_SETTLING_STEPS = 2


def count_all(plan: Plan, names: list[str], tokens: torch.Tensor) -> dict[str, Any]:
    """Return per contender the peak, resting and left-over bytes, and bytes moved per step (two counts)."""
    counter = ExactCounter()
    return {name: _count_contender(name, plan, tokens, counter) for name in names}


def _count_contender(name: str, plan: Plan, tokens: torch.Tensor, counter: ExactCounter) -> dict[str, Any]:
    gc.freeze()  # existing objects are never scanned again, so collections below are cheap
    base = counter.live_bytes()
    contender = make_contender(name, plan)
    _run_steps(contender, COUNT_SETTLING_STEPS, tokens)
    resting = counter.live_bytes() - base
    peaks = []
    for _ in range(plan.memory_steps):
        counter.begin()
        _run_steps(contender, 1, tokens)
        peaks.append(counter.max_bytes() - base)
    result = {"peak_bytes": median(peaks), "largest_peak_bytes": max(peaks), "resting_bytes": resting}
    result |= _count_traffic(contender, plan, tokens)
    del contender
    gc.collect()
    return result | {"left_bytes": counter.live_bytes() - base}


def _count_traffic(contender: Contender, plan: Plan, tokens: torch.Tensor) -> dict[str, Any]:
    before = contender.moved()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        _run_steps(contender, plan.traffic_steps, tokens)
    after = contender.moved()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiled.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    item_bytes = getattr(torch, plan.dtype).itemsize
    seen = count_moved_bytes(events, ranks=plan.ranks, list_item_bytes=item_bytes)
    own = None if before is None or after is None else (after - before) / plan.traffic_steps
    by_kind = {kind: bytes_ / plan.traffic_steps for kind, bytes_ in seen.items()}
    return {"moved_bytes": sum(by_kind.values()), "moved_by_kind": by_kind, "own_moved_bytes": own}


def _run_steps(contender: Contender, steps: int, tokens: torch.Tensor) -> None:
    for _ in range(steps):
        contender.step(tokens)
    contender.finish()
    dist.barrier()


_ITEM_BYTES = {"double": 8, "float": 4, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "int": 4}
_ITEM_BYTES |= {"unsigned char": 1, "signed char": 1, "bool": 1}
#: Operator: name of the collective, index of the input that is the full tensor.
_FULL_TENSOR = {
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::broadcast_": ("broadcast", 0),
}
_CONTROL = frozenset(("c10d::barrier", "c10d::monitored_barrier_"))


def count_moved_bytes(events: Iterable[dict[str, Any]], *, ranks: int, list_item_bytes: int) -> Counter[str]:
    """Count bytes by collective in a trace that was recorded with ``record_shapes``.

    ``list_item_bytes`` is the size of an element in a list of tensors, whose type a trace does not contain.

    Raises:
        ValueError: an operator of c10d has no rule here, or its sizes were not recorded.
    """
    moved: Counter[str] = Counter()
    for event in events:
        name = event.get("name", "")
        if event.get("cat") != "cpu_op" or not name.startswith("c10d::") or name in _CONTROL:
            continue
        if name not in _FULL_TENSOR:
            raise ValueError(f"{name} in the trace: no rule says what it moves")
        kind, index = _FULL_TENSOR[name]
        moved[kind] += round(_input_bytes(event["args"], index, list_item_bytes) * ring_factor(kind, ranks))
    return moved


def ring_factor(kind: str, ranks: int) -> float:
    """Return the bytes that a rank sends per byte of the full tensor."""
    return (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks


def _input_bytes(arguments: dict[str, Any], index: int, list_item_bytes: int) -> int:
    dims = arguments.get("Input Dims", [])
    if len(dims) <= index or not dims[index]:
        raise ValueError("sizes of a collective are missing in the trace: record it with record_shapes")
    kind = arguments["Input type"][index]
    if kind == "TensorList":
        return list_item_bytes * sum(int(math.prod(shape)) for shape in dims[index])
    if kind not in _ITEM_BYTES:
        raise ValueError(f"a collective of type {kind}: its size is not known here")
    return int(math.prod(dims[index])) * _ITEM_BYTES[kind]
