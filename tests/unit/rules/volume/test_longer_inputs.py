"""Longer inputs, on the thresholds that tell them from a slow device."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from zprof.analysis.analysis import RunAnalysis
from zprof.model.memory import Memory, PhasePeak
from zprof.model.tenants import Tenant
from zprof.rules.volume.uneven_shapes import find_longer_inputs

ADAM, NORM = "multi_tensor_apply_kernel<FusedAdam>", "void vectorized_layer_norm_kernel<c10::BFloat16>"


def computing(ratio: float, *, ranks: int = 3) -> RunAnalysis:
    """Rank 1 computes so many times the 100 ms of the others."""
    made = analysis_of(Scenario(ranks=ranks, steps=2))
    compute = made.steps["rank"].map({1: round(ratio * 100 * MS)}).fillna(100 * MS).astype("int64")
    return replace(made, steps=made.steps.assign(compute_ns=compute), memory=Memory())


def keeping(analysis: RunAnalysis, *held: int) -> RunAnalysis:
    """The ranks keep so many bytes of activations."""
    phases = tuple(
        PhasePeak(
            rank=rank, phase="forward", step=0, peak_bytes=size, tenants={Tenant.ACTIVATIONS: size},
            untagged_bytes=0,
        )
        for rank, size in enumerate(held)
    )  # fmt: skip
    return replace(analysis, memory=Memory(phases=phases))


def running(
    analysis: RunAnalysis, adam: float, norm: float, *, count: int = 1000, others: int = 1000, before: int = 0
) -> RunAnalysis:
    """Kernels of rank 1 take so many times as long; ``before`` their names stand so many letters."""
    rows = [
        {"rank": rank, "name": "x" * before + name, "count": count if rank == 1 else others,
         "total_ns": round(8000 * (times if rank == 1 else 1))}
        for rank in analysis.run.ranks_loaded for name, times in ((ADAM, adam), (NORM, norm))
    ]  # fmt: skip
    return replace(analysis, kernels=pd.DataFrame(rows))


def test_a_tenth_more_compute_is_longer() -> None:
    assert find_longer_inputs(keeping(computing(1.1), 1000, 2000, 1000)) is not None
    assert find_longer_inputs(keeping(computing(1.09), 1000, 2000, 1000)) is None


@pytest.mark.parametrize(("held", "is_longer"), [(1250, True), (1249, False)])
def test_half_as_much_more_activations_tell_it(held: int, *, is_longer: bool) -> None:
    assert (find_longer_inputs(keeping(computing(1.5), 1000, held, 1000)) is not None) is is_longer


@pytest.mark.parametrize(
    ("adam", "norm", "is_longer"), [(1.125, 1.25, True), (1.126, 1.25, False), (1.125, 1.249, False)]
)
def test_kernels_tell_it_on_their_thresholds(adam: float, norm: float, *, is_longer: bool) -> None:
    assert (find_longer_inputs(running(computing(1.5), adam, norm)) is not None) is is_longer


def test_two_ranks_are_enough() -> None:
    two = computing(1.5, ranks=2)
    assert find_longer_inputs(keeping(two, 1000, 1500)) is not None
    assert find_longer_inputs(running(two, 1.0, 1.5)) is not None


def test_activations_that_nobody_counted_leave_it_to_the_kernels() -> None:
    assert find_longer_inputs(running(keeping(computing(1.5), 0, 0, 0), 1.0, 1.5)) is not None


def test_others_without_kernels_tell_nothing() -> None:
    assert find_longer_inputs(running(computing(1.5), 1.0, 1.5, others=0)) is None


@pytest.mark.parametrize(("before", "read"), [(330, True), (405, False)])
def test_four_hundred_letters_of_a_name_are_read(before: int, *, read: bool) -> None:
    assert (find_longer_inputs(running(computing(1.5), 1.0, 1.5, before=before)) is not None) is read
