"""Late ranks, planted in simulated jobs: found, priced, explained; healthy jobs accuse nobody."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.diagnoses import assert_first_and_priced, diagnosed, planted, step_ns, true_saving_ns
from zprof.model.findings import Cause as Found
from zprof.model.findings import Finding
from zprof.rules.waiting.straggler_rank import straggler_rank
from zprof.simulator.causes import Cause, plant
from zprof.simulator.plan import Allocator, HostDelay, Plan, Vendor
from zprof.simulator.simulate import simulate

WAITING = (Found.STRAGGLER_RANK, Found.ROTATING_STRAGGLER)


def small(seed: int, vendor: Vendor, ranks: int = 4, *, tight: bool = False) -> Plan:
    plan = Plan(seed=seed, vendor=vendor, ranks=ranks, steps=4, units=3)
    return plant(plan, Cause.TIGHT) if tight else plan


#: A device's host stands before 24 queued kernels here, between its calls.  No driver does that, and a replay
#: takes the time for the host's own: who rotates on devices is judged by :mod:`zprof.simulator.jobs`.
JOBS = [
    (0, Vendor.GLOO, 4, 0.5, True),
    (1, Vendor.NVIDIA, 4, 0.5, True),
    (2, Vendor.NVIDIA, 2, 1.0, False),
    (3, Vendor.GLOO, 2, 2.0, False),
]
#: By cause: two of the jobs, of two vendors, tight and not, of four ranks and two.
FAST = {Cause.STRAGGLER_RANK: (0, 2), Cause.ROTATING_STRAGGLER: (0, 3)}


@pytest.mark.parametrize(
    ("cause", "seed", "vendor", "ranks", "strength", "tight"),
    [
        pytest.param(cause, *job, marks=[] if job[0] in fast else pytest.mark.slow)
        for cause, fast in FAST.items()
        for job in JOBS
        if cause is Cause.STRAGGLER_RANK or job[1] is Vendor.GLOO
    ],
)
def test_the_late_rank_is_first_and_its_price_is_true(
    cause: Cause, seed: int, vendor: Vendor, ranks: int, strength: float, tight: bool, tmp_path: Path
) -> None:
    plan = small(seed, vendor, ranks, tight=tight)
    job = planted(cause, plan, tmp_path, strength)
    assert_first_and_priced(job, cause, plan, tmp_path / "cured", strength, widest=3)


@pytest.mark.parametrize(
    ("vendor", "tight", "ranks"),
    [
        (Vendor.NVIDIA, True, 2),
        (Vendor.NVIDIA, False, 5),
        (Vendor.GLOO, True, 5),
        (Vendor.GLOO, False, 2),
        pytest.param(Vendor.NVIDIA, True, 5, marks=pytest.mark.slow),
        pytest.param(Vendor.NVIDIA, False, 2, marks=pytest.mark.slow),
        pytest.param(Vendor.GLOO, True, 2, marks=pytest.mark.slow),
        pytest.param(Vendor.GLOO, False, 5, marks=pytest.mark.slow),
    ],
)
def test_healthy_jobs_accuse_nobody(vendor: Vendor, tight: bool, ranks: int, tmp_path: Path) -> None:
    job = diagnosed(small(10 + ranks, vendor, ranks, tight=tight), tmp_path)
    assert not [finding for finding in job.sure if finding.cause in WAITING]


def test_a_straggler_whose_waits_hide_is_found_all_the_same(tmp_path: Path) -> None:
    """Its others have a third of its cost as exposed wait: the rest is transfer that began late."""
    plan = replace(small(0, Vendor.NVIDIA, tight=True), units=6)
    job = planted(Cause.STRAGGLER_RANK, plan, tmp_path, 0.5)
    exposed = max(rank.exposed_wait_ns for rank in job.analysis.time.per_rank)
    saving = true_saving_ns(Cause.STRAGGLER_RANK, plan, tmp_path / "cured", 0.5)
    assert exposed < 0.5 * saving
    assert job.first is not None
    assert job.first.cause is Found.STRAGGLER_RANK
    assert "its compute takes longer" in job.first.sentence


LATE = {
    "its data comes late": {"delays": (HostDelay(rank=2, ns=6_000_000, data=True),)},
    "its host stalls": {"delays": (HostDelay(rank=2, ns=9_000_000, unit=1),)},
    "its allocator holds it up": {"allocator": Allocator(retries_per_step=6, ranks=(2,))},
    "its compute takes longer": {"speed": {2: 0.8}},
}


@pytest.mark.parametrize("why", LATE)
def test_it_is_said_why_the_rank_is_late(why: str, tmp_path: Path) -> None:
    """Also where it is late once a step, at the first collective: last in one of many."""
    plan = small(5, Vendor.NVIDIA)
    sick = replace(plan, **LATE[why])
    job = diagnosed(sick, tmp_path / "sick")
    finding = straggler_rank(job.analysis, None)  # its saving before those of other rules take their part
    assert isinstance(finding, Finding)
    assert finding.sentence.startswith("rank 2 is ")
    assert why in finding.sentence
    saving = step_ns(job.truth) - step_ns(simulate(plan, tmp_path / "well"))
    assert finding.saving_ns[0] <= saving <= finding.saving_ns[1]


def test_two_late_ranks_are_named_together(tmp_path: Path) -> None:
    """A slow host has several: to cure one of them wins nothing."""
    plan = replace(small(6, Vendor.NVIDIA, 6), speed={2: 0.85, 3: 0.85})
    first = diagnosed(plan, tmp_path / "sick").first
    assert first is not None
    assert first.sentence.startswith("ranks 2, 3 are ")
    saving = step_ns(simulate(plan, tmp_path / "again")) - step_ns(
        simulate(replace(plan, speed={}), tmp_path / "well")
    )
    assert first.saving_ns[0] <= saving <= first.saving_ns[1]


def test_of_many_groups_most_wait_for_ranks_that_the_late_one_made_late(tmp_path: Path) -> None:
    """Of three groups that shard, one has the late rank, and of three that replicate one."""
    plan = Plan(seed=3, ranks=9, shard=3, steps=4, units=3)
    job = planted(Cause.STRAGGLER_RANK, plan, tmp_path)
    assert_first_and_priced(job, Cause.STRAGGLER_RANK, plan, tmp_path / "cured", widest=4)


@pytest.mark.parametrize("vendor", [pytest.param(Vendor.NVIDIA, marks=pytest.mark.slow), Vendor.GLOO])
def test_profilers_that_start_apart_are_no_late_ranks(vendor: Vendor, tmp_path: Path) -> None:
    job = planted(Cause.MEASUREMENT_ARTIFACT, small(0, vendor), tmp_path)
    assert job.first is not None
    assert job.first.cause is Found.MEASUREMENT_ARTIFACT
    assert not [finding for finding in job.sure if finding.cause in WAITING]


def test_where_the_link_is_the_limit_a_late_rank_costs_next_to_nothing(tmp_path: Path) -> None:
    plan = plant(small(7, Vendor.NVIDIA), Cause.LOW_BUS_BANDWIDTH)
    job = planted(Cause.STRAGGLER_RANK, plan, tmp_path)
    assert not [finding for finding in job.sure if finding.cause in WAITING]
