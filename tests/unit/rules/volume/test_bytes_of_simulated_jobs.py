"""Planted causes about bytes are found first and priced right, from one rank too; healthy jobs have none."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.slow_halves import on_one_vendor

from tests.support.diagnoses import (
    Diagnosed,
    assert_first_and_priced,
    base,
    diagnosed,
    planted,
    planted_beside_healthy,
    true_saving_ns,
)
from zprof.model.findings import Cause as Named
from zprof.model.findings import Confidence, Finding
from zprof.model.report import Report
from zprof.rules.diagnose import diagnose
from zprof.simulator.causes import Cause, plant
from zprof.simulator.plan import Vendor

MINE = {Named.FP32_REDUCE, Named.FP32_GATHER, Named.UNHIDDEN_OPTIMIZER_GATHER, Named.UNEVEN_SHAPES}
#: Each cause once, on GPUs or on CPUs.
CASES = [
    (Cause.FP32_REDUCE, Vendor.NVIDIA, 0.5, 0),
    (Cause.FP32_GATHER, Vendor.GLOO, 2.0, 4),
    (Cause.UNHIDDEN_OPTIMIZER_GATHER, Vendor.GLOO, 1.0, 6),
    (Cause.UNEVEN_SHAPES, Vendor.NVIDIA, 1.0, 8),
]
MORE = [
    (Cause.FP32_REDUCE, Vendor.GLOO, 1.0, 1),
    (Cause.FP32_REDUCE, Vendor.AMD, 2.0, 2),
    (Cause.FP32_GATHER, Vendor.NVIDIA, 1.0, 3),
    (Cause.UNHIDDEN_OPTIMIZER_GATHER, Vendor.NVIDIA, 0.5, 5),
    (Cause.UNHIDDEN_OPTIMIZER_GATHER, Vendor.NVIDIA, 2.0, 7),
]


def of(report: Report, cause: Cause) -> Finding | None:
    return next((finding for finding in report.findings if finding.cause.value == cause.value), None)


def sure(job: Diagnosed) -> set[Named]:
    return {finding.cause for finding in job.sure}


@pytest.mark.parametrize(
    ("cause", "vendor", "strength", "seed"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
)
def test_planted_is_first_and_its_saving_holds_the_true_one(
    tmp_path: Path, cause: Cause, vendor: Vendor, strength: float, seed: int
) -> None:
    plan = base(seed, vendor)
    job = planted(cause, plan, tmp_path / "job", strength)
    assert_first_and_priced(job, cause, plan, tmp_path, strength, widest=3)


@pytest.mark.parametrize(
    "cause",
    [
        Cause.FP32_GATHER,
        Cause.UNHIDDEN_OPTIMIZER_GATHER,
        pytest.param(Cause.FP32_REDUCE, marks=pytest.mark.slow),
    ],
)
def test_one_rank_of_four_proves_it(tmp_path: Path, cause: Cause) -> None:
    """Its clock tells nothing of the others': the range is as wide as that needs, and holds the truth."""
    plan = base(1)
    alone = replace(plant(plan, cause, 1.0), missing=(0, 1, 3))
    found = of(diagnosed(alone, tmp_path / "job").report, cause)
    assert found is not None
    assert found.confidence is not Confidence.LOW
    assert "ranks are missing" in found.sentence
    low, high = found.saving_ns
    assert 0 < low <= true_saving_ns(cause, plan, tmp_path) <= high


def test_on_a_cpu_padding_is_found_beside_a_baseline_only(tmp_path: Path) -> None:
    """Operators that fill up are slow there where nothing is padded, too: without it that is a gap."""
    plan = base(9, Vendor.GLOO)
    seen = planted_beside_healthy(Cause.UNEVEN_SHAPES, plan, tmp_path / "both")
    found = of(seen.report, Cause.UNEVEN_SHAPES)
    assert found is not None
    assert found.confidence is Confidence.MEDIUM
    assert found.saving_ns[0] <= true_saving_ns(Cause.UNEVEN_SHAPES, plan, tmp_path) <= found.saving_ns[1]
    alone = diagnose(seen.analysis)
    assert of(alone, Cause.UNEVEN_SHAPES) is None
    assert any(Cause.UNEVEN_SHAPES.value in gap.what for gap in alone.gaps)


@pytest.mark.parametrize(
    ("cause", "vendor"),
    on_one_vendor(Cause.NONE, Cause.TIGHT, Cause.LOW_BUS_BANDWIDTH, Cause.STRAGGLER_RANK),
)
def test_healthy_jobs_and_those_of_neighbours_have_none(tmp_path: Path, cause: Cause, vendor: Vendor) -> None:
    assert not MINE & sure(planted(cause, base(3, vendor), tmp_path))


def test_a_hidden_gather_of_new_parameters_is_healthy(tmp_path: Path) -> None:
    plan = replace(plant(base(2), Cause.UNHIDDEN_OPTIMIZER_GATHER, 0.5), hide_optimizer_gather=True, steps=5)
    assert not MINE & sure(diagnosed(plan, tmp_path))
