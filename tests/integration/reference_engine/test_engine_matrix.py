"""Every two choices of the engine meet in a training, and its losses are those of plain torch in one process.

AdamW's eps is large here, so that an update depends on the size of a gradient and not only on its direction:
a gradient that is counted twice, or clipped by a wrong norm, changes the losses by percents.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch
from plain_training import PlainTraining

from tests.support.pairwise import covering_rows
from zprof.reference_engine.program.gpt import GPTConfig

pytestmark = pytest.mark.ranks

#: dtype, reduce_dtype
PRECISIONS = {
    "fp32": ("float32", None),
    "bf16": ("bfloat16", None),
    "bf16 reduced in fp32": ("bfloat16", "float32"),
    "fp16": ("float16", None),
}
FACTORS = {
    "stage": ["0", "1", "2", "3"],
    "precision": list(PRECISIONS),
    "micro-batches": ["1", "2", "2 the other way"],
    "checkpoints": ["none", "whole", "md", "pa", "pa+cpu", "pa+md"],
    "tensor parallel": ["1", "2"],
    "buffers": ["unit", "cb", "md", "cb+md"],
    "prefetch": ["1", "0", "2"],
    "overlap": ["on", "off"],
    "keep": ["none", "last", "all"],
    "clip": ["off", "on"],
    "tied": ["no", "yes"],
}
#: Relative.  The order of sums is another (fp32); the 16-bit types round where the truth does not: sums over
#: ranks and micro-batches, and the partial results of tensor parallelism.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-3, "float16": 2e-4}
SIZES = {"layers": 3, "hidden": 32, "heads": 2, "vocabulary": 64, "context": 16}
DATA_PARALLEL, STEPS, BATCH = 2, 3, 8
CLIP, LEARNING_RATE, EPS, SCALE = 0.5, 1e-2, 1e-2, 1024.0


def is_possible(row: Mapping[str, str]) -> bool:
    """Checkpoints are partitioned over a tensor-parallel group."""
    return not (row.get("checkpoints", "").startswith("pa") and row.get("tensor parallel") == "1")


ROWS = covering_rows(FACTORS, is_possible)


def name_of(row: Mapping[str, str]) -> str:
    return ", ".join(f"{factor} {choice}" for factor, choice in row.items())


def case_of(row: Mapping[str, str]) -> dict[str, Any]:
    checkpoints, stage = row["checkpoints"], int(row["stage"])
    dtype, reduce_dtype = PRECISIONS[row["precision"]]
    zero = {
        "stage": stage,
        "dtype": dtype,
        "reduce_dtype": reduce_dtype,
        "loss_scale": {"initial": SCALE},
        "clip_norm": clip_of(row),
        "micro_batches": micro_batches_of(row),
        "reduce_each_micro_batch": stage < 2 if "other" in row["micro-batches"] else None,
        "forward_prefetch": int(row["prefetch"]),
        "backward_prefetch": int(row["prefetch"]),
        "keep_after_forward": row["keep"],
        "overlap_reduce": row["overlap"] == "on",
        "overlap_gather": row["overlap"] == "on",
        "constant_buffers": 512 if "cb" in row["buffers"] else None,
        "defragment": "md" in row["buffers"],
        "learning_rate": LEARNING_RATE,
        "eps": EPS,
    }
    activations = {
        "checkpoint": checkpoints != "none",
        "partition": checkpoints.startswith("pa"),
        "host": "cpu" in checkpoints,
        "contiguous": "md" in checkpoints,
    }
    return {
        "zero": zero,
        "gpt": SIZES | {"tied": row["tied"] == "yes"},
        "mp": int(row["tensor parallel"]),
        "activations": activations,
        "steps": STEPS,
        "batch": BATCH,
    }


def micro_batches_of(row: Mapping[str, str]) -> int:
    return int(row["micro-batches"].split()[0])


def clip_of(row: Mapping[str, str]) -> float | None:
    return CLIP if row["clip"] == "on" else None


@cache
def true_losses(dtype: str, slices: int, clip_norm: float | None, tied: bool) -> list[float]:
    return PlainTraining(
        gpt=GPTConfig(**SIZES, tied=tied),
        dtype=getattr(torch, dtype),
        steps=STEPS,
        batch=BATCH,
        slices=slices,
        clip_norm=clip_norm,
        learning_rate=LEARNING_RATE,
        eps=EPS,
        scale=SCALE,
    ).losses()


@pytest.fixture(scope="module")
def losses(run_on) -> dict[str, list[list[float]]]:
    """Of every row, the losses that each rank saw."""
    seen: dict[str, list[list[float]]] = {}
    for tensor_parallel in (1, 2):
        rows = [row for row in ROWS if int(row["tensor parallel"]) == tensor_parallel]
        cases = {name_of(row): case_of(row) for row in rows}
        ranks = run_on(DATA_PARALLEL * tensor_parallel, "engine_worker", cases)
        seen |= {name: [rank[name]["losses"] for rank in ranks] for name in cases}
    return seen


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_losses_equal_those_of_one_process(losses, row: Mapping[str, str]) -> None:
    dtype, _ = PRECISIONS[row["precision"]]
    slices = DATA_PARALLEL * micro_batches_of(row)
    truth = true_losses(dtype, slices, clip_of(row), row["tied"] == "yes")
    for of_rank in losses[name_of(row)]:
        assert of_rank == pytest.approx(truth, rel=TOLERANCE[dtype])
