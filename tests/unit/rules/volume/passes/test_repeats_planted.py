"""What a step repeats, planted in simulated jobs: the first finding, with a range that holds its cost."""

from pathlib import Path

import pytest

from tests.support.diagnoses import assert_first_and_priced, base, planted
from zprof.model.findings import Cause as Name
from zprof.simulator.causes import Cause
from zprof.simulator.plan import Vendor

OURS = {
    Name.ACCUMULATION_SYNCS,
    Name.ACCUMULATION_REGATHERS,
    Name.NEEDLESS_RESHARD_AFTER_FORWARD,
    Name.LAST_UNIT_REGATHERED,
    Name.CHECKPOINT_REGATHERS,
}


@pytest.mark.parametrize(
    ("cause", "vendor", "seed", "strength"),
    [
        (Cause.ACCUMULATION_SYNCS, Vendor.NVIDIA, 1, 0.5),
        (Cause.ACCUMULATION_REGATHERS, Vendor.GLOO, 2, 0.5),
        (Cause.NEEDLESS_RESHARD_AFTER_FORWARD, Vendor.NVIDIA, 3, 1.0),
        (Cause.LAST_UNIT_REGATHERED, Vendor.GLOO, 4, 1.0),
        pytest.param(Cause.LAST_UNIT_REGATHERED, Vendor.NVIDIA, 5, 0.5, marks=pytest.mark.slow),
        (Cause.CHECKPOINT_REGATHERS, Vendor.NVIDIA, 1, 1.0),
    ],
)
def test_planted(cause: Cause, vendor: Vendor, seed: int, strength: float, tmp_path: Path) -> None:
    plan = base(seed, vendor)
    job = planted(cause, plan, tmp_path / "run", strength)
    assert_first_and_priced(job, cause, plan, tmp_path / "true", strength, widest=3)


@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, pytest.param(Vendor.GLOO, marks=pytest.mark.slow)])
def test_a_healthy_job_repeats_nothing_that_costs(vendor: Vendor, tmp_path: Path) -> None:
    loud = {f.cause for f in planted(Cause.TIGHT, base(6, vendor), tmp_path).sure}
    assert not loud & OURS
