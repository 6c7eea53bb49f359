"""A job in fp32 computes at the fp32 peak, and has no time where that is not known."""

from dataclasses import replace

import pytest

from zprof.model.job import Batch, Degrees, ElementBytes, Hardware, Job
from zprof.model.plan import Scheme
from zprof.planner.hardware import A100, H100, V100
from zprof.planner.model_shapes import find_preset
from zprof.planner.plan import plan

FP32 = ElementBytes(parameter=4, gradient=4, optimizer_state=8, gathered=4, reduced=4, gradient_copy=0)
SMALL = find_preset("1.5b")
HALF = Job(
    parameters=SMALL.parameters,
    shape=SMALL.shape,
    degrees=Degrees(dp=16),
    batch=Batch(samples=1, sequence=1024),
    hardware=H100,
)


@pytest.mark.parametrize(
    ("hardware", "ratio"),
    [
        (V100, 125 / 15.7),
        pytest.param(A100, 312 / 19.5, marks=pytest.mark.slow),
        pytest.param(H100, 989 / 67, marks=pytest.mark.slow),
    ],
)
def test_compute_is_slower_by_the_ratio_of_the_peaks(hardware: Hardware, ratio: float) -> None:
    half = replace(HALF, hardware=hardware)
    for there, whole in zip(plan(half).rows, plan(replace(half, element_bytes=FP32)).rows, strict=True):
        assert there.step is not None
        assert whole.step is not None
        assert whole.step.compute_ns / there.step.compute_ns == pytest.approx(ratio, rel=1e-4)


def test_without_an_fp32_peak_there_is_no_time_and_a_gap_says_what_to_state() -> None:
    unknown = replace(HALF, hardware=replace(H100, fp32_flops_per_s=None), element_bytes=FP32)
    made = plan(unknown, with_sensitivity=True)
    assert [row.step for row in made.rows] == [None] * len(Scheme)
    assert all(row.fits is not None for row in made.rows), "memory needs no peak"
    assert [gap.remedy for gap in made.gaps if gap.what == "times of a step"] == [
        "state peak_fp32_tflops in the hardware's file, or plan with --precision bf16"
    ]
    assert made.sensitivity is not None
    assert not made.sensitivity.break_even
    assert not made.sensitivity.answers


def test_16_bits_need_no_fp32_peak() -> None:
    made = plan(replace(HALF, hardware=replace(H100, fp32_flops_per_s=None)))
    assert not made.gaps
    assert all(row.step is not None for row in made.rows)


def test_the_break_even_moves_with_the_peak_and_the_bytes() -> None:
    """T* = b F eta / (2 beta): twice the bytes at 67/989 of the speed."""
    sensitivities = [
        plan(replace(HALF, element_bytes=sizes), schemes=(), with_sensitivity=True).sensitivity
        for sizes in (ElementBytes(), FP32)
    ]
    half, whole = (found.break_even[0].forward_tokens for found in sensitivities if found)
    assert whole / half == pytest.approx(2 * 67 / 989)
