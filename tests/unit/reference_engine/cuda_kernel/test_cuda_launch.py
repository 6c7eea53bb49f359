"""Which kernel is launched, over how many blocks, and what is refused before a pointer is handed out."""

import itertools
import math
import re
from dataclasses import replace

import pytest
import torch

from tests.support.adamw_kernel.cases import GRADIENT_TYPES, LOW_TYPES, control, numbers, shard
from zprof.reference_engine.optimizer.adamw import Shard
from zprof.reference_engine.optimizer.cuda import CudaAdamW, compilation
from zprof.reference_engine.optimizer.cuda.launch import (
    MAX_SQUARES,
    MAX_SUM_TILES,
    MAX_TABLES,
    THREAD_ELEMENTS,
    THREADS,
)

CPU = torch.device("cpu")


class Recorder:
    """A runtime that computes nothing."""

    threads = THREADS

    def __init__(self) -> None:
        self.launched: list[tuple[str, int]] = []
        self.tables: list[int] = []
        self.asked = 0
        self.current_stream = 0

    def stream(self) -> int:
        return self.current_stream

    def resident_blocks(self, kernel: str) -> int:
        self.asked += 1
        return 5

    def launch(self, kernel: str, blocks: int, *arguments: int | float) -> None:
        self.launched.append((kernel, blocks))
        self.tables.append(arguments[0])


def test_source_and_launch_agree_on_the_shape_of_a_block():
    assert f"constexpr int THREADS = {THREADS};" in compilation.read_source()
    sizes = re.findall(r"constexpr int PACKS? = (\d+);", compilation.read_source())
    assert math.prod(map(int, sizes)) == THREAD_ELEMENTS


@pytest.mark.parametrize("gradient", GRADIENT_TYPES)
@pytest.mark.parametrize("low", LOW_TYPES)
def test_the_kernel_is_chosen_by_the_types(gradient, low):
    runtime = Recorder()
    CudaAdamW(CPU, runtime).adamw([shard(9, gradient, low)], numbers(), None)
    low_name = "none" if low is None else str(low).removeprefix("torch.")
    assert runtime.launched == [(f"adamw_{str(gradient).removeprefix('torch.')}_{low_name}", 1)]


def test_the_grid_covers_a_shard_and_is_never_more_than_one_wave():
    runtime = Recorder()
    kernel = CudaAdamW(CPU, runtime)
    block = THREADS * THREAD_ELEMENTS
    for elements in (1, block, block + 1, 4 * block + 1, 100 * block):
        kernel.adamw([shard(elements, torch.float32, None)], numbers(), None)
    assert [blocks for _, blocks in runtime.launched] == [1, 1, 2, 5, 5]
    assert runtime.asked == 1


def test_the_grid_of_a_sum_does_not_depend_on_the_gpu():
    runtime = Recorder()
    block = THREADS * THREAD_ELEMENTS * MAX_SUM_TILES
    CudaAdamW(CPU, runtime).sum_of_squares([torch.zeros(3 * block + 1)])
    assert runtime.launched == [("sum_of_squares_float32", 4), ("sum_partials", 1)]
    assert runtime.asked == 0


def test_one_launch_takes_all_shards_of_a_type():
    runtime = Recorder()
    shards = [shard(size, torch.bfloat16, torch.bfloat16) for size in range(1, 101)]
    CudaAdamW(CPU, runtime).adamw([*shards, shard(9, torch.float32, None)], numbers(), control())
    assert runtime.launched == [("adamw_bfloat16_bfloat16", 5), ("adamw_float32_none", 1)]
    runtime.launched.clear()
    CudaAdamW(CPU, runtime).sum_of_squares([one.gradient for one in shards])
    assert runtime.launched == [
        ("sum_of_squares_bfloat16", math.ceil(100 / MAX_SUM_TILES)),
        ("sum_partials", 1),
    ]


def test_a_table_is_made_again_only_when_the_list_or_the_stream_changes():
    runtime = Recorder()
    kernel = CudaAdamW(CPU, runtime)
    shards = [shard(9, torch.float32, None), shard(5000, torch.float32, None)]
    others = [shard(9, torch.float32, None)]
    moved = [shards[0], replace(shards[1], gradient=shards[1].gradient.clone())]
    skipping = [shards[0], replace(shards[1], skip=torch.zeros(()))]

    def table_of(listed: list[Shard]) -> tuple[int, ...]:
        kernel.adamw(listed, numbers(), None)
        (table,) = [one for key, one in kernel._tables.items() if key[1] == listed[0].weights.data_ptr()]
        assert runtime.tables[-1] == table.memory.data_ptr()
        return id(table), *table.memory.tolist()

    first = table_of(shards)
    kernel.adamw(others, numbers(learning_rate=0.5), control())
    assert table_of(shards) == first
    for listed in (moved, skipping, shards[:1]):
        made = table_of(listed)
        assert made[1:] != first[1:]
        assert table_of(listed) == made
    runtime.current_stream = 7
    assert table_of(shards[:1])[0] != made[0]


def test_old_tables_do_not_pile_up():
    kernel = CudaAdamW(CPU, Recorder())
    states = [shard(1, torch.float32, None) for _ in range(MAX_TABLES + 5)]
    for state in states:
        kernel.adamw([state], numbers(), None)
    assert len(kernel._tables) <= MAX_TABLES


@pytest.mark.parametrize("sizes", [[1], [2048, 2049], [5, 100_000, 1, 1, 7000], [3] * 50, [10**6, 3]])
def test_blocks_take_each_tile_once_and_begin_in_the_right_row(sizes):
    for kind in ("adamw", "sum"):
        made = CudaAdamW(CPU, Recorder())
        shards = [shard(size, torch.float32, None) for size in sizes]
        if kind == "adamw":
            made.adamw(shards, numbers(), None)
        else:
            made.sum_of_squares([one.gradient for one in shards])
        (table,) = made._tables.values()
        width = len(table.rows[0]) + 2
        values = table.memory.tolist()
        ends = [values[width * row + width - 1] for row in range(len(sizes))]
        firsts = [values[width * row + width - 2] for row in range(len(sizes))]
        starts = values[width * len(sizes) :]
        assert table.arguments == (
            table.memory.data_ptr(),
            table.memory[width * len(sizes) :].data_ptr(),
            ends[-1],
        )
        assert [end - first for first, end in zip(firsts, ends, strict=True)] == [
            math.ceil(size / (THREADS * THREAD_ELEMENTS)) for size in sizes
        ]
        edges = [
            table.tiles * block // table.blocks for block in range(table.blocks + 1)
        ]  # as the source has it
        assert all(firsts[row] <= tile < ends[row] for row, tile in zip(starts, edges[:-1], strict=True))
        most = max(after - before for before, after in itertools.pairwise(edges))
        assert min(after - before for before, after in itertools.pairwise(edges)) >= 1
        assert kind == "adamw" or most * (THREAD_ELEMENTS + 1) <= MAX_SQUARES


def test_an_empty_shard_launches_nothing_and_an_empty_sum_is_zero(kernel):
    runtime = Recorder()
    CudaAdamW(CPU, runtime).adamw([shard(0, torch.float32, None)], numbers(), control())
    assert runtime.launched == []
    assert kernel.sum_of_squares([torch.zeros(0)]).item() == 0.0


@pytest.mark.parametrize(
    ("name", "tensor", "complaint"),
    [
        ("gradient", torch.zeros(9, dtype=torch.float64), "gradient is torch.float64; the CUDA kernel takes"),
        ("weights", torch.zeros(9, dtype=torch.bfloat16), "weights is torch.bfloat16"),
        ("exp_avg_sq", torch.zeros(9, dtype=torch.float64), "exp_avg_sq is torch.float64"),
        ("low_precision", torch.zeros(9), "low_precision is torch.float32"),
        ("low_precision", torch.zeros(8, dtype=torch.float16), "low_precision is 8 elements"),
        ("exp_avg", torch.zeros(8), "exp_avg is 8 elements on cpu.*it must be 9 contiguous ones on cpu"),
        ("gradient", torch.zeros(18)[::2], r"gradient is 9 elements on cpu, strides \(2,\)"),
        ("weights", torch.zeros(9, device="meta"), "weights is 9 elements on meta"),
        ("step", torch.zeros((), dtype=torch.int64), "step is torch.int64"),
        ("step", torch.zeros(2), "step is 2 elements"),
        ("skip", torch.zeros(2), "skip is 2 elements"),
    ],
)
def test_a_shard_that_the_pointers_would_misread_is_refused(name, tensor, complaint):
    runtime = Recorder()
    state = replace(shard(9, torch.float32, torch.float16), **{name: tensor})
    with pytest.raises(ValueError, match=complaint) as seen:
        CudaAdamW(CPU, runtime).adamw([state], numbers(), None)
    assert "\n" not in str(seen.value)
    assert runtime.launched == []


def test_a_control_of_another_type_is_refused():
    wrong = replace(control(), found_inf=torch.zeros((), dtype=torch.float64))
    with pytest.raises(ValueError, match=r"found_inf is torch\.float64"):
        CudaAdamW(CPU, Recorder()).adamw([shard(9, torch.float32, None)], numbers(), wrong)


def test_a_sum_of_another_type_is_refused():
    with pytest.raises(ValueError, match=r"gradient is torch\.int32; the CUDA kernel takes torch\.float32"):
        CudaAdamW(CPU, Recorder()).sum_of_squares([torch.zeros(3, dtype=torch.int32)])
