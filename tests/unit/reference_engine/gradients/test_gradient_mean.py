"""Gradients are the mean over ranks and micro-batches whichever way they take."""

import pytest
import torch
from fast_pairs import pairs_fast
from gradient_helpers import (
    LAYERS,
    ONLY_GRADIENTS,
    WIDTH,
    Rank,
    gathered_gradients,
    make_rank,
    mean_gradients,
    run_steps,
)
from thread_comm import ThreadComm, on_ranks

STAGES = range(4)
FP32, BF16 = torch.float32, torch.bfloat16
#: parameters' dtype, reduce_dtype
WIRES = [(FP32, None), (BF16, None), (BF16, FP32)]
#: Elements.  Smaller than any unit of the model, so that each goes in several pieces.
CONSTANT = 20
NONE_LEFT_OUT = LAYERS

FACTORS = {
    "stage": STAGES,
    "each": (None, True, False),
    "wire": WIRES,
    "constant": (None, CONSTANT),
    "defragment": (False, True),
    "overlap": (True, False),
    "ranks and micro-batches": ((2, 3), (3, 1)),
}
STAGE_AND_EACH = [(0, True), (1, None), (2, False), (3, None)]


def settings_of(way: tuple[object, ...], **more: object) -> dict[str, object]:
    stage, each, (dtype, reduce_dtype), constant, defragment, overlap = way  # type: ignore[misc]
    return {
        "stage": stage,
        "reduce_each_micro_batch": each,
        "dtype": dtype,
        "reduce_dtype": reduce_dtype,
        "constant_buffers": constant,
        "defragment": defragment,
        "overlap_reduce": overlap,
        "alignment": 2,
        **ONLY_GRADIENTS,
        **more,
    }


def plain(stage: int, each: bool | None, **more: object) -> dict[str, object]:
    return settings_of((stage, each, (FP32, None), None, False, True), **more)


def accumulate(count: int, times: int = 1) -> object:
    """Work of a rank: steps of so many backwards."""

    def work(rank: Rank) -> None:
        for _ in range(times):
            rank.optimizer.zero_grad()
            for micro_batch in range(count):
                rank.backward(micro_batch)
            rank.optimizer.step()

    return work


def assert_mean(ranks: list[Rank], settings: dict[str, object], micro_batches: int) -> None:
    dtype = settings["dtype"]
    expected = mean_gradients(dtype, ranks=len(ranks), micro_batches=micro_batches)
    found = gathered_gradients(ranks, settings["stage"])
    assert set(found) == set(expected)
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    # bfloat16 keeps 8 bits; a handful of additions and the last rounding cost a few halves of the last one.
    tolerance = 1e-6 if dtype == FP32 else 4 * 2.0**-9
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=tolerance * largest, msg=name)


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=marks) for way, marks in pairs_fast(FACTORS)], ids=str
)
def test_gradients_are_the_mean_over_ranks_and_micro_batches(way):
    *way, (ranks, micro_batches) = way
    settings = settings_of(way, micro_batches=micro_batches)
    assert_mean(run_steps(ranks, accumulate(micro_batches, times=2), **settings), settings, micro_batches)


@pytest.mark.parametrize(("constant", "defragment"), [(None, False), (CONSTANT, True)])
@pytest.mark.parametrize("stage", [2, 3])
def test_fp32_reduction_of_bf16_gradients_loses_nothing_of_their_sum(stage, constant, defragment):
    settings = settings_of((stage, None, (BF16, FP32), constant, defragment, True))
    found = gathered_gradients(run_steps(2, accumulate(3), micro_batches=3, **settings), stage)
    for name, gradient in mean_gradients(BF16, ranks=2, micro_batches=3).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("stage", [0, 1])
def test_stages_0_and_1_round_the_fp32_mean_back_once(stage):
    settings = settings_of((stage, None, (BF16, FP32), None, False, True))
    found = gathered_gradients(run_steps(2, accumulate(1), **settings), stage)
    for name, gradient in mean_gradients(BF16, ranks=2, micro_batches=1).items():
        assert torch.equal(found[name], gradient.float().bfloat16().double())


@pytest.mark.parametrize("constant", [None, CONSTANT])
@pytest.mark.parametrize(("stage", "each"), STAGE_AND_EACH)
def test_a_step_that_is_broken_off_starts_clean_after_zero_grad(stage, each, constant):
    settings = plain(stage, each, constant_buffers=constant)

    def work(rank: Rank) -> None:
        broken = {"now": True}

        def fail(_: torch.Tensor) -> None:
            if broken["now"]:
                raise KeyError("planted")

        rank.backward(0)
        rank.model.module.layers[0].linear.weight.register_hook(fail)
        with pytest.raises(KeyError, match="planted"):
            rank.backward(1)
        with pytest.raises(RuntimeError, match="zero_grad"):
            rank.backward(1)
        broken["now"] = False
        accumulate(3)(rank)

    assert_mean(run_steps(2, work, micro_batches=3, **settings), settings, 3)


@pytest.mark.parametrize(("stage", "each"), STAGE_AND_EACH)
def test_all_forwards_may_come_before_all_backwards(stage, each):
    inputs = torch.rand(3, 2, WIDTH)

    def one_by_one(rank: Rank) -> None:
        for x in inputs:
            rank.model(x + rank.comm.rank, NONE_LEFT_OUT).backward()
        rank.optimizer.step()

    def forwards_first(rank: Rank) -> None:
        for loss in [rank.model(x + rank.comm.rank, NONE_LEFT_OUT) for x in inputs]:
            loss.backward()
        rank.optimizer.step()

    settings = plain(stage, each, micro_batches=3)
    expected, found = (
        gathered_gradients(run_steps(2, work, **settings), stage) for work in (one_by_one, forwards_first)
    )
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize(("stage", "each"), STAGE_AND_EACH)
def test_too_few_or_too_many_backwards_are_refused(stage, each):
    def work(rank: Rank) -> None:
        rank.backward(0)
        with pytest.raises(RuntimeError, match="1 of the step's 2"):
            rank.optimizer.step()
        rank.backward(1)
        with pytest.raises(RuntimeError, match="micro_batches is 2") as caught:
            rank.backward(0)
        assert "\n" not in str(caught.value)
        with pytest.raises(RuntimeError):
            rank.optimizer.step()
        accumulate(2)(rank)

    settings = plain(stage, each)
    assert_mean(run_steps(2, work, micro_batches=2, **settings), settings, 2)


def test_a_constant_buffer_that_is_too_small_is_refused_before_anything_is_changed():
    launched = []

    def work(comm: ThreadComm) -> None:
        try:
            make_rank(comm, stage=2, constant_buffers=31, alignment=16)
        finally:
            launched.extend(comm.launched)

    with pytest.raises(ValueError, match="constant_buffers is 31"):
        on_ranks(2, work)
    assert launched == []
