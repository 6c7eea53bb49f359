"""The reference engine beside tensor parallelism with Pa, alone on one rank, and on four."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from memory_cases import Case, facts_of_engine, unhook, zero_engine

from zprof.reference_engine import ZeroConfig
from zprof.reference_engine.activation_checkpointing import ActivationConfig
from zprof.reference_engine.comm.mesh import make_mesh
from zprof.reference_engine.comm.native import NativeComm
from zprof.reference_engine.program.data import iter_micro_batches
from zprof.reference_engine.program.gpt import GPTConfig
from zprof.reference_engine.program.train_config import TrainConfig
from zprof.reference_engine.train import build_program, make_batches, train_step

MODEL_PARALLEL = 2
PA_MODEL = GPTConfig(layers=4, hidden=128, heads=4, vocabulary=256, context=64)
MANY_STEPS = range(100)


def partitioned(rank: int, world_size: int, *, stage: int, dtype: torch.dtype) -> Case:
    """Blocks split over two ranks, their checkpoints partitioned over the same two (Pa)."""
    config = TrainConfig(
        zero=ZeroConfig(stage=stage, dtype=dtype),
        activations=ActivationConfig(checkpoint=True, partition=True),
        gpt=PA_MODEL,
        mp=MODEL_PARALLEL,
        batch=8,
    )
    mesh = make_mesh(NativeComm, dp=world_size // MODEL_PARALLEL, mp=MODEL_PARALLEL)
    built = build_program(config, mesh)
    batches = iter_micro_batches(make_batches(config, mesh), MANY_STEPS)
    case = Case(
        built.model,
        built.optimizer,
        lambda number: train_step(built, batches, number, micro_batches=1) and None,
        training=facts_of_engine(built.model, MODEL_PARALLEL),
    )

    def close() -> None:
        unhook(built.model)
        mesh.close()

    case.close = close
    return case


def alone(rank: int, world_size: int, *, stage: int, dtype: torch.dtype) -> Case:
    """One rank has nobody to share with: each stage holds what stage 0 holds."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    case = zero_engine(rank, world_size, stage=stage, dtype=dtype, modelled=False)
    close = case.close

    def close_both() -> None:
        close()
        dist.destroy_process_group()

    case.close = close_both
    return case


ENGINE_CASES: dict[str, Callable[[int, int], Case]] = {
    **{f"zero{stage}_pa": partial(partitioned, stage=stage, dtype=torch.float32) for stage in range(4)},
    "zero3_pa_bf16": partial(partitioned, stage=3, dtype=torch.bfloat16),
    "zero0_alone": partial(alone, stage=0, dtype=torch.bfloat16),
    "zero3_alone": partial(alone, stage=3, dtype=torch.bfloat16),
    "zero2_of_four": partial(zero_engine, stage=2, dtype=torch.bfloat16, modelled=False),
    "zero3_of_four": partial(zero_engine, stage=3, dtype=torch.bfloat16, modelled=False),
    "zero3_pa_of_four": partial(partitioned, stage=3, dtype=torch.float32),
}
