"""Gradients are the mean over ranks and micro-batches whatever way they took, and backwards are counted."""

import pytest
import torch
from fast_pairs import pairs_fast
from gradient_helpers import (
    LAYERS,
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
}


def ways(**fewer: object) -> list[object]:
    """All ways, or those of fewer choices; that every two choices meet is fast."""
    return [pytest.param(way, marks=marks, id=str(way)) for way, marks in pairs_fast(FACTORS | fewer)]


def settings_of(way: tuple[object, ...]) -> dict[str, object]:
    stage, each, (dtype, reduce_dtype), constant, defragment = way  # type: ignore[misc]
    return {
        "stage": stage,
        "reduce_each_micro_batch": each,
        "dtype": dtype,
        "reduce_dtype": reduce_dtype,
        "constant_buffers": constant,
        "defragment": defragment,
        "alignment": 2,
    }


def accumulate(count: int, times: int = 1) -> object:
    """Work of a rank: so many backwards, as often as said, the last time without a step."""

    def work(rank: Rank) -> None:
        for time in range(times):
            rank.optimizer.zero_grad()
            for micro_batch in range(count):
                assert not rank.model._reducer.reduced
                assert rank.model._reducer.missing_backwards == count - micro_batch
                rank.backward(micro_batch)
            assert rank.model._reducer.reduced, time

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


@pytest.mark.parametrize("way", ways())
def test_gradients_are_the_mean_over_ranks_and_micro_batches(way):
    settings = settings_of(way)
    micro_batches = 3
    ranks = run_steps(2, accumulate(micro_batches, times=2), micro_batches=micro_batches, **settings)
    assert_mean(ranks, settings, micro_batches)


@pytest.mark.parametrize("way", ways(each=(None,)))
def test_one_micro_batch_on_three_ranks(way):
    settings = settings_of(way)
    assert_mean(run_steps(3, accumulate(1, times=2), **settings), settings, 1)


@pytest.mark.parametrize("defragment", [False, True])
@pytest.mark.parametrize("constant", [None, CONSTANT])
@pytest.mark.parametrize("stage", [2, 3])
def test_fp32_reduction_of_bf16_gradients_loses_nothing_of_their_sum(stage, constant, defragment):
    settings = settings_of((stage, None, (BF16, FP32), constant, defragment))
    ranks = run_steps(2, accumulate(3), micro_batches=3, **settings)
    found = gathered_gradients(ranks, stage)
    for name, gradient in mean_gradients(BF16, ranks=2, micro_batches=3).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-7)
    assert all(owned.dtype == FP32 for _, owned in ranks[0].gradients_of_units())


@pytest.mark.parametrize("stage", [0, 1])
def test_stages_0_and_1_round_the_fp32_mean_back_once(stage):
    settings = settings_of((stage, None, (BF16, FP32), None, False))
    found = gathered_gradients(run_steps(2, accumulate(1), **settings), stage)
    for name, gradient in mean_gradients(BF16, ranks=2, micro_batches=1).items():
        assert torch.equal(found[name], gradient.float().bfloat16().double())


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_without_overlap_the_mean_is_the_same(stage, each):
    settings = settings_of((stage, each, (FP32, None), CONSTANT, False)) | {"overlap_reduce": False}
    assert_mean(run_steps(2, accumulate(2), micro_batches=2, **settings), settings, 2)


@pytest.mark.parametrize("way", ways(wire=[(FP32, None)]))
def test_a_step_that_is_broken_off_starts_clean_after_zero_grad(way):
    settings = settings_of(way)

    def work(rank: Rank) -> None:
        broken = {"now": True}

        def fail(_: torch.Tensor) -> None:
            if broken["now"]:
                raise KeyError("planted")

        rank.backward(0)
        rank.model.module.layers[0].linear.weight.register_hook(fail)
        with pytest.raises(KeyError, match="planted"):
            rank.backward(1)
        with pytest.raises(RuntimeError, match="did not end: call zero_grad"):
            rank.backward(1)
        broken["now"] = False
        rank.optimizer.zero_grad()
        assert rank.model._reducer.missing_backwards == 3
        for micro_batch in range(3):
            rank.backward(micro_batch)

    assert_mean(run_steps(2, work, micro_batches=3, **settings), settings, 3)


@pytest.mark.parametrize("each", [None, True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_zero_grad_in_the_middle_starts_over(stage, each):
    settings = settings_of((stage, each, (FP32, None), None, False))

    def work(rank: Rank) -> None:
        for micro_batch in (2, 0):
            rank.backward(micro_batch)
        rank.model.zero_grad()
        for micro_batch in range(3):
            rank.backward(micro_batch)

    assert_mean(run_steps(2, work, micro_batches=3, **settings), settings, 3)


@pytest.mark.parametrize("each", [None, True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_all_forwards_may_come_before_all_backwards(stage, each):
    inputs = torch.rand(3, 2, WIDTH)

    def one_by_one(rank: Rank) -> None:
        for x in inputs:
            rank.model(x + rank.comm.rank, NONE_LEFT_OUT).backward()

    def forwards_first(rank: Rank) -> None:
        for loss in [rank.model(x + rank.comm.rank, NONE_LEFT_OUT) for x in inputs]:
            loss.backward()

    settings = settings_of((stage, each, (FP32, None), None, False)) | {"micro_batches": 3}
    expected, found = (
        gathered_gradients(run_steps(2, work, **settings), stage) for work in (one_by_one, forwards_first)
    )
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize("stage", STAGES)
def test_gradients_that_somebody_drops_between_micro_batches_count_as_zero(stage):
    def work(rank: Rank) -> None:
        rank.backward(1)
        rank.model.module.zero_grad(set_to_none=True)
        rank.backward(0)

    settings = settings_of((stage, False, (FP32, None), None, False))
    ranks = run_steps(2, work, micro_batches=2, **settings)
    expected = mean_gradients(FP32, ranks=2, micro_batches=1)
    for name, gradient in gathered_gradients(ranks, stage).items():
        torch.testing.assert_close(gradient, expected[name] / 2, rtol=0, atol=1e-6)


@pytest.mark.parametrize("each", [None, True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_one_backward_too_many_is_refused_and_spoils_the_step(stage, each):
    def work(rank: Rank) -> None:
        for micro_batch in range(2):
            rank.backward(micro_batch)
        with pytest.raises(RuntimeError, match=r"micro_batches is 2.*call zero_grad\(\)") as caught:
            rank.backward(0)
        assert "\n" not in str(caught.value)
        assert not rank.model._reducer.reduced
        with pytest.raises(RuntimeError):
            rank.optimizer.step()
        rank.optimizer.zero_grad()
        for micro_batch in range(2):
            rank.backward(micro_batch)

    settings = settings_of((stage, each, (FP32, None), None, False))
    assert_mean(run_steps(2, work, micro_batches=2, **settings), settings, 2)


@pytest.mark.parametrize("each", [None, True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_a_step_before_the_last_backward_is_refused(stage, each):
    def work(rank: Rank) -> None:
        rank.backward(0)
        assert rank.model._reducer.missing_backwards == 1
        with pytest.raises(RuntimeError):
            rank.optimizer.step()
        rank.backward(1)
        rank.optimizer.step()

    run_steps(2, work, **settings_of((stage, each, (FP32, None), None, False)), micro_batches=2)


def test_a_constant_buffer_that_is_too_small_is_refused_before_anything_is_changed():
    launched = []

    def work(comm: ThreadComm) -> None:
        try:
            make_rank(comm, stage=2, constant_buffers=31, alignment=16)
        finally:
            launched.extend(comm.launched)

    with pytest.raises(ValueError, match="constant_buffers is 31 elements; make it 32") as caught:
        on_ranks(2, work)
    assert "\n" not in str(caught.value)
    assert launched == []
