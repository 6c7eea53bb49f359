"""Which kernel is launched, over how many blocks, and what is refused before a pointer is handed out."""

import ctypes
from dataclasses import replace

import pytest
import torch

from tests.support.adamw_kernel.cases import control, numbers, shard
from zprof.reference_engine.optimizer.cuda import CudaAdamW
from zprof.reference_engine.optimizer.cuda.launch import (
    MAX_SUM_TILES,
    THREAD_ELEMENTS,
    THREADS,
)

CPU = torch.device("cpu")
BLOCK = THREADS * THREAD_ELEMENTS


class Recorder:
    """A runtime that computes nothing; it keeps what the kernels would have read."""

    threads = THREADS

    def __init__(self) -> None:
        self.launched: list[tuple[str, int]] = []
        self.arguments: list[tuple[int | float, ...]] = []

    def stream(self) -> int:
        return 0

    def resident_blocks(self, kernel: str) -> int:
        return 5

    def launch(self, kernel: str, blocks: int, *arguments: int | float) -> None:
        self.launched.append((kernel, blocks))
        self.arguments.append(arguments)


@pytest.mark.parametrize(
    ("elements", "blocks"),
    [(0, None), (1, 1), (BLOCK, 1), (BLOCK + 1, 2), (4 * BLOCK + 1, 5), (100 * BLOCK, 5)],
)
def test_the_grid_covers_a_shard_and_is_never_more_than_one_wave(elements, blocks):
    runtime = Recorder()
    CudaAdamW(CPU, runtime).adamw([shard(elements, torch.float32, torch.float16)], numbers(), None)
    assert runtime.launched == ([] if blocks is None else [("adamw_float32_float16", blocks)])


def test_the_grid_of_a_sum_does_not_depend_on_the_gpu():
    runtime = Recorder()
    CudaAdamW(CPU, runtime).sum_of_squares([torch.zeros(3 * BLOCK * MAX_SUM_TILES + 1)])
    assert runtime.launched == [("sum_of_squares_float32", 4), ("sum_partials", 1)]


def test_the_kernel_reads_the_pointers_of_the_shards_that_it_is_given():
    runtime = Recorder()
    kernel = CudaAdamW(CPU, runtime)
    shards = [shard(9, torch.float32, None), shard(5000, torch.float32, None)]
    moved = [shards[0], replace(shards[1], gradient=shards[1].gradient.clone())]
    skipping = [shards[0], replace(shards[1], skip=torch.zeros(()))]
    for listed in (shards, shards, moved, skipping, shards[:1], shards):
        kernel.adamw(listed, numbers(), None)
        width = 10  # five tensors, step, skip, length, first and last tile
        table = (ctypes.c_int64 * (width * len(listed))).from_address(runtime.arguments[-1][0])
        for row, one in enumerate(listed):
            pointers = [one.weights.data_ptr(), one.gradient.data_ptr()]
            assert table[width * row : width * row + 2] == pointers
            assert table[width * row + 6] == (0 if one.skip is None else one.skip.data_ptr())
            assert table[width * row + 7] == one.weights.numel()


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("gradient", torch.zeros(9, dtype=torch.float64)),
        ("gradient", torch.zeros(18)[::2]),
        ("weights", torch.zeros(9, dtype=torch.bfloat16)),
        ("weights", torch.zeros(9, device="meta")),
        ("exp_avg", torch.zeros(8)),
        ("exp_avg_sq", torch.zeros(9, dtype=torch.float64)),
        ("low_precision", torch.zeros(9)),
        ("low_precision", torch.zeros(8, dtype=torch.float16)),
        ("step", torch.zeros((), dtype=torch.int64)),
        ("skip", torch.zeros(2)),
    ],
)
def test_what_the_pointers_would_misread_is_refused(name, tensor):
    runtime = Recorder()
    state = replace(shard(9, torch.float32, torch.float16), **{name: tensor})
    with pytest.raises(ValueError, match=f"^[^\n]*{name}[^\n]*$"):
        CudaAdamW(CPU, runtime).adamw([state], numbers(), None)
    wrong = replace(control(), found_inf=torch.zeros((), dtype=torch.float64))
    with pytest.raises(ValueError, match="found_inf"):
        CudaAdamW(CPU, runtime).adamw([shard(9, torch.float32, None)], numbers(), wrong)
    with pytest.raises(ValueError, match="int32"):
        CudaAdamW(CPU, runtime).sum_of_squares([torch.zeros(3, dtype=torch.int32)])
    assert runtime.launched == []
