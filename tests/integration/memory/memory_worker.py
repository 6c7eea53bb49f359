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
from memory_cases import MEMORY_CASES
from memory_programs import PROGRAMS, Program

from tests.support.exact_counter import ExactCounter
from zprof.collectors.record.base import WindowRows
from zprof.collectors.record.logs import MarkLog
from zprof.collectors.record.memory.collector import MemoryCollector
from zprof.run.manifest import RunManifest
from zprof.run.writer import RankWriter

WARM_STEPS, STEPS = 2, 2


@dataclass(frozen=True)
class Place:
    folder: Path
    rank: int
    world_size: int


def main() -> None:
    """Train the cases of one rank on rank 0, then those of all ranks together."""
    place = Place(Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    torch.set_num_threads(1)
    alone = [name for name in sys.argv[2:] if MEMORY_CASES[name].ranks == 1]
    for name in alone if place.rank == 0 else ():
        run_case(name, Place(place.folder, 0, 1))
    dist.init_process_group("gloo")
    for name in sys.argv[2:]:
        if name not in alone:
            run_case(name, place)
    dist.barrier()
    dist.destroy_process_group()


def run_case(name: str, place: Place) -> None:
    torch.manual_seed(0)
    counter = ExactCounter()
    program = PROGRAMS[name](place.rank, place.world_size)
    for step in range(WARM_STEPS):
        program.step(step)
    before = program.proof()
    collector = MemoryCollector(program.model, program.optimizer)
    marks = MarkLog()
    chunk: WindowRows | None = None
    collector.start()
    marks.add("window_begin", WARM_STEPS, "memory")
    counter.begin()
    for step in range(WARM_STEPS, WARM_STEPS + STEPS):
        marks.add("step_begin", step)
        program.step(step)
        marks.add("step_end", step)
        chunk = collector.cut() if step == WARM_STEPS else chunk  # as a recorder does in a long window
    exact = counter.max_bytes()
    marks.add("window_end", WARM_STEPS + STEPS, "memory")
    collector.stop()
    write(name, place, program, collector, marks, chunk)
    proof = {name: count - before[name] for name, count in program.proof().items()}
    truth = {"max_bytes": exact, **proof}
    (place.folder / f"{name}.rank{place.rank}.json").write_text(json.dumps(truth))
    program.close()
    del program, collector
    gc.collect()


def write(
    name: str,
    place: Place,
    program: Program,
    collector: MemoryCollector,
    marks: MarkLog,
    chunk: WindowRows | None,
) -> None:
    assert chunk is not None
    marks.extend(chunk.complete["mark"])
    manifest = RunManifest(
        zprof_version="test",
        created_ns=time.time_ns(),
        world_size=place.world_size,
        backend="gloo",
        device="cpu",
        training=program.training,
    )
    writer = RankWriter(place.folder / f"{name}.zprof", place.rank, manifest)
    for table in ("alloc", "role"):
        writer.append(table, chunk.complete[table])
    gaps = collector.gaps()
    for table, columns in collector.tables().items():
        if table == "mark":
            marks.extend(columns)
        elif table in writer.list_unmerged():
            writer.merge_parts(table, columns)
        else:
            writer.write_table(table, columns)
    writer.write_table("mark", marks.columns())
    steps = range(WARM_STEPS, WARM_STEPS + STEPS)
    writer.finish(memory_steps=tuple(steps), time_steps=(), gaps=gaps, status="complete")


if __name__ == "__main__":
    main()
