"""Which kernel is launched, over how many blocks, and what is refused before a pointer is handed out."""

from dataclasses import replace

import pytest
import torch

from tests.support.adamw_kernel.cases import GRADIENT_TYPES, LOW_TYPES, control, numbers, shard
from zprof.reference_engine.optimizer.cuda import CudaAdamW, program
from zprof.reference_engine.optimizer.cuda.launch import MAX_PARTIALS, PACK
from zprof.reference_engine.optimizer.cuda.runtime import THREADS

CPU = torch.device("cpu")


class Recorder:
    """A runtime that computes nothing."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, int]] = []
        self.asked = 0

    def resident_blocks(self, kernel: str) -> int:
        self.asked += 1
        return 5

    def launch(self, kernel: str, blocks: int, *arguments: int | float) -> None:
        self.launched.append((kernel, blocks))


def test_source_and_launch_agree_on_the_shape_of_a_block():
    assert f"constexpr int THREADS = {THREADS};" in program.source()
    assert f"constexpr int PACK = {PACK}; " in program.source()


@pytest.mark.parametrize("gradient", GRADIENT_TYPES)
@pytest.mark.parametrize("low", LOW_TYPES)
def test_the_kernel_is_chosen_by_the_types(gradient, low):
    runtime = Recorder()
    CudaAdamW(CPU, runtime).adamw(shard(9, gradient, low), numbers(), None)
    low_name = "none" if low is None else str(low).removeprefix("torch.")
    assert runtime.launched == [(f"adamw_{str(gradient).removeprefix('torch.')}_{low_name}", 1)]


def test_the_grid_covers_a_shard_and_is_never_more_than_one_wave():
    runtime = Recorder()
    kernel = CudaAdamW(CPU, runtime)
    block = THREADS * PACK
    for elements in (1, block, block + 1, 4 * block + 1, 100 * block):
        kernel.adamw(shard(elements, torch.float32, None), numbers(), None)
    assert [blocks for _, blocks in runtime.launched] == [1, 1, 2, 5, 5]
    assert runtime.asked == 1


def test_the_grid_of_a_sum_does_not_depend_on_the_gpu():
    runtime = Recorder()
    CudaAdamW(CPU, runtime).sum_of_squares(torch.zeros(THREADS * PACK * (MAX_PARTIALS + 1)))
    assert runtime.launched == [("sum_of_squares_float32", MAX_PARTIALS), ("sum_partials", 1)]
    assert runtime.asked == 0


def test_an_empty_shard_launches_nothing_and_an_empty_sum_is_zero(kernel):
    runtime = Recorder()
    CudaAdamW(CPU, runtime).adamw(shard(0, torch.float32, None), numbers(), control())
    assert runtime.launched == []
    assert kernel.sum_of_squares(torch.zeros(0)).item() == 0.0


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
    ],
)
def test_a_shard_that_the_pointers_would_misread_is_refused(name, tensor, complaint):
    runtime = Recorder()
    state = replace(shard(9, torch.float32, torch.float16), **{name: tensor})
    with pytest.raises(ValueError, match=complaint) as seen:
        CudaAdamW(CPU, runtime).adamw(state, numbers(), None)
    assert "\n" not in str(seen.value)
    assert runtime.launched == []


def test_a_control_of_another_type_is_refused():
    wrong = replace(control(), found_inf=torch.zeros((), dtype=torch.float64))
    with pytest.raises(ValueError, match=r"found_inf is torch\.float64"):
        CudaAdamW(CPU, Recorder()).adamw(shard(9, torch.float32, None), numbers(), wrong)


def test_a_sum_of_another_type_is_refused():
    with pytest.raises(ValueError, match=r"gradient is torch\.int32; the CUDA kernel takes torch\.float32"):
        CudaAdamW(CPU, Recorder()).sum_of_squares(torch.zeros(3, dtype=torch.int32))
