"""Runs of the reference engine that plans are held against: their recording, and what a planner is told.

The job says what a person would say of the run before it: shape, degrees, batch, element sizes, schedule.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zprof.analysis.memory.analyse import analyse_memory
from zprof.model.job import Backend, Batch, Degrees, ElementBytes, Job, Overlap, Residual, Shape
from zprof.model.memory import RankMemory
from zprof.model.training import TrainingFacts
from zprof.planner.gpt_units import with_units
from zprof.reference_engine.program.options import add_arguments, make_config
from zprof.reference_engine.program.train_config import TrainConfig
from zprof.run.reader import load

WORKER = Path(__file__).with_name("plan_memory_worker.py")
ROOT = Path(__file__).parents[4]
TIME_LIMIT_S = 900
_FP32 = 4

#: Sizes of the model, and sequences a step of each rank.
SHAPES: Mapping[str, tuple[str, int]] = {
    "balanced": ("--layers 4 --hidden 64 --heads 4 --vocabulary 128 --context 32", 4),
    "activations": ("--layers 3 --hidden 32 --heads 2 --vocabulary 256 --context 64", 16),
    "states": ("--layers 5 --hidden 192 --heads 4 --vocabulary 64 --context 16", 2),
    "logits": ("--layers 3 --hidden 64 --heads 2 --vocabulary 2048 --context 64", 4),
}


@dataclass(frozen=True)
class Recorded:
    """A run: what was asked of the engine, and what each rank's memory was."""

    config: TrainConfig
    ranks: int
    memory: tuple[RankMemory, ...]
    training: TrainingFacts

    @property
    def highest(self) -> RankMemory:
        """The rank with the highest peak, as a plan is of the device with the most."""
        return max(self.memory, key=lambda memory: memory.peak_bytes)


def options_of(shape: str, ranks: int, *more: object) -> list[str]:
    """Options of the training program for a shape on so many ranks."""
    sizes, each = SHAPES[shape]
    return [*sizes.split(), "--batch", str(each * ranks), *map(str, more)]


def record(folder: Path, cases: Mapping[int, Mapping[str, Sequence[str]]]) -> dict[str, Recorded]:
    """Train the cases of each number of ranks on this machine, in one start of Python."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    (folder / "cases.json").write_text(json.dumps(cases))
    log = folder / "ranks.log"
    with log.open("wb") as output:
        command = [sys.executable, str(WORKER), str(folder)]
        worker = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = worker.wait(TIME_LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)  # its ranks too
    assert code == 0, log.read_text(errors="replace")[-6000:]
    return {
        name: _read(folder / f"{name}.zprof", given, ranks)
        for ranks, each in cases.items()
        for name, given in each.items()
    }


def job_of(config: TrainConfig, ranks: int) -> Job:
    """What a planner is told of a run."""
    zero, gpt, activations = config.zero, config.gpt, config.activations
    element, reduced, dp = zero.dtype.itemsize, zero.wire_dtype.itemsize, ranks // config.mp
    gradient = reduced if zero.stage >= 2 else element
    copied = gradient < _FP32 or zero.clip_norm is not None
    return with_units(
        Job(
            parameters=1,
            degrees=Degrees(dp=dp, mp=config.mp),
            shape=Shape(
                layers=gpt.layers,
                hidden=gpt.hidden,
                vocabulary=gpt.vocabulary,
                context=gpt.context,
                heads=gpt.heads,
                tied=gpt.tied,
            ),
            element_bytes=ElementBytes(
                parameter=element,
                gradient=element,
                optimizer_state=8 if element == _FP32 else 12,
                gathered=element,
                reduced=reduced,
                gradient_copy=_FP32 if copied else 0,
            ),
            batch=Batch(
                samples=config.batch // dp // zero.micro_batches,
                sequence=gpt.context,
                micro_batches=zero.micro_batches,
            ),
            residual=Residual(
                checkpointing=activations.checkpoint,
                partition=activations.partition,
                offload=activations.host,
                constant_buffer_elements=zero.constant_buffers,
                defragment=zero.defragment,
            ),
            overlap=Overlap(
                prefetch=zero.forward_prefetch,
                keep_last=zero.keep_after_forward == "last",
                reductions_in_flight=zero.reduce_buckets,
                alignment_elements=zero.alignment,
            ),
            backend=Backend.GLOO,
        )
    )


def config_of(options: Sequence[str]) -> TrainConfig:
    """The run that options ask for."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return make_config(parser.parse_args(options))


def _read(path: Path, options: Sequence[str], ranks: int) -> Recorded:
    run = load(path)
    assert len(run.ranks) == ranks
    training = run.manifest.training
    return Recorded(config_of(options), ranks, analyse_memory(run).memory.per_rank, training)
