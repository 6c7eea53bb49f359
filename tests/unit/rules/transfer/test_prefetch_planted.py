"""Simulated jobs: gathers that begin too late, or are held back, come first, with what the cure wins."""

from pathlib import Path

import pytest

from tests.support.diagnoses import assert_first_and_priced, base, planted
from zprof.model.findings import Cause as Named
from zprof.model.findings import Confidence
from zprof.simulator.causes import Cause
from zprof.simulator.plan import Vendor

MINE = {Named.NO_PREFETCH, Named.RATE_LIMITED_PREFETCH}


@pytest.mark.parametrize(
    ("cause", "vendor", "strength", "seed"),
    [
        pytest.param(Cause.NO_PREFETCH, Vendor.NVIDIA, 0.5, 1, marks=pytest.mark.slow),
        (Cause.NO_PREFETCH, Vendor.AMD, 1.0, 2),
        (Cause.NO_PREFETCH, Vendor.GLOO, 2.0, 3),
        (Cause.RATE_LIMITED_PREFETCH, Vendor.NVIDIA, 0.5, 1),
        pytest.param(Cause.RATE_LIMITED_PREFETCH, Vendor.AMD, 2.0, 2, marks=pytest.mark.slow),
    ],
)
def test_is_first_and_holds_the_true_saving(
    cause: Cause, vendor: Vendor, strength: float, seed: int, tmp_path: Path
) -> None:
    plan = base(seed, vendor)
    job = planted(cause, plan, tmp_path / "job", strength)
    first = assert_first_and_priced(job, cause, plan, tmp_path, strength, widest=3)
    assert first.confidence is Confidence.HIGH


@pytest.mark.parametrize(
    ("cause", "vendor"),
    [
        (Cause.TIGHT, Vendor.NVIDIA),
        pytest.param(Cause.TIGHT, Vendor.GLOO, marks=pytest.mark.slow),
        (Cause.COMPUTE_BLOCKS_COMM, Vendor.NVIDIA),
        (Cause.LOW_BUS_BANDWIDTH, Vendor.NVIDIA),
        (Cause.SINGLE_UNIT, Vendor.NVIDIA),
        (Cause.CHECKPOINT_REGATHERS, Vendor.NVIDIA),
        (Cause.STRAGGLER_RANK, Vendor.NVIDIA),
        (Cause.RATE_LIMITED_PREFETCH, Vendor.GLOO),
    ],
)
def test_nothing_above_a_note_where_prefetch_is_as_it_should_be(
    cause: Cause, vendor: Vendor, tmp_path: Path
) -> None:
    accused = {f.cause for f in planted(cause, base(4, vendor), tmp_path).sure}
    assert not accused & MINE
