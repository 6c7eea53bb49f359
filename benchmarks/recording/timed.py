"""Times steps under each contender, visit after visit, in one process."""

import gc
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.recording.contenders import NAMES, watching
from benchmarks.recording.workload import Workload

CLOCKS = {"cpu": time.thread_time_ns, "process": time.process_time_ns, "wall": time.perf_counter_ns}


@dataclass(slots=True)
class Visits:
    """Nanoseconds by clock: of each visit's first step, of its later steps, and of opening and closing."""

    first: dict[str, list[int]] = field(default_factory=lambda: {clock: [] for clock in CLOCKS})
    later: dict[str, list[list[int]]] = field(default_factory=lambda: {clock: [] for clock in CLOCKS})
    around_ns: list[int] = field(default_factory=list)


def time_all(workload: Workload, *, rounds: int, steps: int, seed: int) -> Mapping[str, Visits]:
    """Every round visits all contenders once, in an order of its own."""
    for _ in range(3):
        workload.step()
    result = {name: Visits() for name in NAMES}
    for round_ in range(rounds + 1):
        names = list(NAMES)
        random.Random(seed + round_).shuffle(names)
        for name in names:
            # The first round only warms up: what tools import and build once.
            _visit(name, workload, steps, result[name] if round_ else Visits())
    return result


def _visit(name: str, workload: Workload, steps: int, visits: Visits) -> None:
    gc.collect()
    begin_ns = time.perf_counter_ns()
    with watching[name](workload.model, workload.optimizer) as step_done:
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
