"""One rank of the memory tests: trains each case, records a memory window, and writes the exact maximum.

Started with the exact counter preloaded: memory_worker.py FOLDER CASE...   Environment: RANK, WORLD_SIZE,
MASTER_ADDR, MASTER_PORT.  Writes FOLDER/CASE.zprof (a run) and FOLDER/CASE.rankN.json.
"""

import gc
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from engine_cases import ENGINE_CASES
from memory_cases import CASES, Case
from one_rank_cases import ONE_RANK_CASES
from parallel_cases import PARALLEL_CASES

from tests.support.exact_counter import ExactCounter
from zprof.collectors.logs import MarkLog
from zprof.collectors.memory.collector import MemoryCollector
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.writer import RankWriter

ALL_CASES = CASES | ONE_RANK_CASES | PARALLEL_CASES | ENGINE_CASES
WARM_STEPS, STEPS = 2, 2


@dataclass(frozen=True)
class Place:
    folder: Path
    rank: int
    world_size: int


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    place = Place(folder, int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    torch.set_num_threads(1)
    if place.world_size > 1:
        dist.init_process_group("gloo")
    for name in names:
        run_case(name, place)
        gc.collect()
    if place.world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


def run_case(name: str, place: Place) -> None:
    torch.manual_seed(0)
    counter = ExactCounter()
    case = ALL_CASES[name](place.rank, place.world_size)
    for step in range(WARM_STEPS):
        case.step(step)
    before, proven = counter.live_bytes(), case.proof()
    collector = MemoryCollector(case.model, case.optimizer)
    marks = MarkLog()
    collector.start()
    marks.add("window_begin", WARM_STEPS, "memory")
    counter.begin()
    for step in range(WARM_STEPS, WARM_STEPS + STEPS):
        marks.add("step_begin", step)
        case.step(step)
        marks.add("step_end", step)
    exact = counter.max_bytes()
    marks.add("window_end", WARM_STEPS + STEPS, "memory")
    collector.stop()
    write(name, place, case, collector, marks)
    proof = {name: count - proven[name] for name, count in case.proof().items()}
    truth = {"max_bytes": exact, "begin_bytes": before, **proof}
    (place.folder / f"{name}.rank{place.rank}.json").write_text(json.dumps(truth))
    case.close()


def write(name: str, place: Place, case: Case, collector: MemoryCollector, marks: MarkLog) -> None:
    manifest = RunManifest(
        zprof_version="test",
        created_ns=time.time_ns(),
        world_size=place.world_size,
        backend="gloo",
        device="cpu",
        training=case.training or TrainingFacts(),
    )
    writer = RankWriter(place.folder / f"{name}.zprof", place.rank, manifest)
    gaps = collector.gaps()
    for table, columns in collector.tables().items():
        if table == "mark":
            marks.extend(columns)
        else:
            writer.write_table(table, columns)
    writer.write_table("mark", marks.columns())
    steps = range(WARM_STEPS, WARM_STEPS + STEPS)
    writer.finish(memory_steps=tuple(steps), time_steps=(), gaps=gaps, status="complete")


if __name__ == "__main__":
    main()
