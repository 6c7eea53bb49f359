"""Causes planted in simulated jobs: each comes first, and its saving holds what the cure truly saves."""

from pathlib import Path

import pytest

from tests.support.diagnoses import Cause, assert_first_and_priced, base, diagnosed, planted
from zprof.rules.registry import HOST_RULES
from zprof.simulator.causes import plant
from zprof.simulator.plan import Vendor

HOST = {rule.cause.value for rule in HOST_RULES}
#: Each cause once, on GPUs or on CPUs.
CASES = [
    (Cause.CPU_BOUND_LAUNCH, Vendor.GLOO, 0.5),
    (Cause.ALLOCATOR_RETRIES, Vendor.AMD, 2.0),
    (Cause.BLOCKING_SYNC, Vendor.NVIDIA, 0.5),
    (Cause.DATA_LOADER, Vendor.NVIDIA, 0.5),
    (Cause.OFFLOAD_ON_CRITICAL_PATH, Vendor.GLOO, 1.0),
]
MORE = [
    (Cause.CPU_BOUND_LAUNCH, Vendor.NVIDIA, 0.5),
    (Cause.ALLOCATOR_RETRIES, Vendor.NVIDIA, 0.5),
    (Cause.BLOCKING_SYNC, Vendor.GLOO, 1.0),
    (Cause.DATA_LOADER, Vendor.GLOO, 1.0),
    (Cause.OFFLOAD_ON_CRITICAL_PATH, Vendor.NVIDIA, 0.5),
]


@pytest.mark.parametrize(
    ("cause", "vendor", "strength"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
)
def test_a_planted_cause_is_first_and_priced(
    tmp_path: Path, cause: Cause, vendor: Vendor, strength: float
) -> None:
    plan = base(2, vendor)
    job = planted(cause, plan, tmp_path / "planted", strength)
    assert_first_and_priced(job, cause, plan, tmp_path / "true", strength, widest=3.6)


@pytest.mark.parametrize(
    ("cause", "vendor"),
    [
        (Cause.TIGHT, Vendor.NVIDIA),
        pytest.param(Cause.NONE, Vendor.GLOO, marks=pytest.mark.slow),
        (Cause.ROTATING_STRAGGLER, Vendor.GLOO),
        (Cause.RATE_LIMITED_PREFETCH, Vendor.NVIDIA),
        (Cause.ALLOCATOR_RETRIES, Vendor.GLOO),
    ],
)
def test_what_others_explain_is_not_the_hosts(tmp_path: Path, cause: Cause, vendor: Vendor) -> None:
    job = diagnosed(plant(base(4, vendor), cause), tmp_path)
    sure = {f.cause.value for f in job.sure}
    assert not sure & HOST
