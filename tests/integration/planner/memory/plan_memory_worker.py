"""Ranks that train the cases of the planner's memory tests, and record two steps of each.

plan_memory_worker.py FOLDER: there is cases.json, {number of ranks: {name: options of the training program}},
and NAME.zprof is written.  What ranks need is imported once: they are forks of this process, in which torch
has done nothing yet.
"""

import argparse
import dataclasses
import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from zprof.collectors.logs import MarkLog
from zprof.collectors.memory.collector import MemoryCollector
from zprof.model.training import TrainingFacts
from zprof.reference_engine.comm.mesh import make_mesh
from zprof.reference_engine.comm.native import NativeComm
from zprof.reference_engine.engine import ZeroModel
from zprof.reference_engine.program.data import iter_micro_batches
from zprof.reference_engine.program.options import add_arguments, make_config
from zprof.reference_engine.program.train_config import TrainConfig
from zprof.reference_engine.train import build_program, make_batches, train_step
from zprof.run.manifest import RunManifest
from zprof.run.writer import RankWriter

WARM_STEPS, STEPS = 2, 2
#: What torch and the writer import when they are first used: seconds, which ranks need not spend each.
USED_LATER = ("torch._dynamo", "torch.profiler", "pandas", "pyarrow.compute", "pyarrow.pandas_compat")


def main() -> None:
    folder = Path(sys.argv[1])
    for module in USED_LATER:
        importlib.import_module(module)
    for ranks, cases in json.loads((folder / "cases.json").read_text()).items():
        children = [_fork(rank, int(ranks), folder, cases) for rank in range(int(ranks))]
        if any([os.waitpid(child, 0)[1] for child in children]):
            sys.exit(1)


def _fork(rank: int, ranks: int, folder: Path, cases: Mapping[str, Sequence[str]]) -> int:
    """The child's process id; the child leaves without the parent's clean-up."""
    child = os.fork()
    if child:
        return child
    try:
        train(rank, ranks, folder, cases)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def train(rank: int, ranks: int, folder: Path, cases: Mapping[str, Sequence[str]]) -> None:
    """One rank's life."""
    torch.set_num_threads(1)
    meeting = f"file://{folder / f'store{ranks}'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name, options in cases.items():
        record(folder / f"{name}.zprof", make_config(parser.parse_args(options)))
        gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def record(path: Path, config: TrainConfig) -> None:
    """Train a model from its start, and write what the collector saw of two steps."""
    mesh = make_mesh(NativeComm, dp=dist.get_world_size() // config.mp, mp=config.mp)
    built = build_program(config, mesh)
    batches = iter_micro_batches(make_batches(config, mesh), range(WARM_STEPS + STEPS))
    marks, each = MarkLog(), config.zero.micro_batches
    for step in range(WARM_STEPS):
        train_step(built, batches, step, micro_batches=each)
    collector = MemoryCollector(built.model, built.optimizer)
    collector.start()
    marks.add("window_begin", WARM_STEPS, "memory")
    for step in range(WARM_STEPS, WARM_STEPS + STEPS):
        marks.add("step_begin", step)
        train_step(built, batches, step, micro_batches=each)
        marks.add("step_end", step)
    marks.add("window_end", WARM_STEPS + STEPS, "memory")
    collector.stop()
    write(path, collector, marks, facts(built.model, config.mp))
    unhook(built.model)
    mesh.close()


def facts(model: ZeroModel, mp: int) -> TrainingFacts:
    named = {field.name for field in dataclasses.fields(TrainingFacts)}
    known = {key: value for key, value in dataclasses.asdict(model.facts).items() if key in named}
    return TrainingFacts(**known | {"model_parallel_ranks": mp})


def write(path: Path, collector: MemoryCollector, marks: MarkLog, training: TrainingFacts) -> None:
    manifest = RunManifest(
        zprof_version="test",
        created_ns=time.time_ns(),
        world_size=dist.get_world_size(),
        backend="gloo",
        device="cpu",
        training=training,
    )
    writer = RankWriter(path, dist.get_rank(), manifest)
    gaps = collector.gaps()
    for table, columns in collector.tables().items():
        if table == "mark":
            marks.extend(columns)
        else:
            writer.write_table(table, columns)
    writer.write_table("mark", marks.columns())
    steps = tuple(range(WARM_STEPS, WARM_STEPS + STEPS))
    writer.finish(memory_steps=steps, time_steps=(), gaps=gaps, status="complete")


def unhook(model: nn.Module) -> None:
    """Hooks hold the engine, which holds the model: without them its memory goes before the next case."""
    for module in model.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        for parameter in module._parameters.values():
            (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).clear()


if __name__ == "__main__":
    main()
