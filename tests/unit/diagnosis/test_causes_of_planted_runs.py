"""Causes planted in simulated jobs come first, at a price that holds the truth; healthy jobs have none."""

from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from tests.support.planned_diagnoses import (
    Diagnosed,
    assert_first_and_priced,
    base,
    diagnosed,
    planted,
    planted_beside_healthy,
    step_ns,
    true_saving_ns,
)
from tests.support.rule_runs import found
from zprof.causes import load_causes
from zprof.causes.straggler_rank import CAUSE as straggler_rank
from zprof.diagnosis.diagnose import diagnose
from zprof.diagnosis.find_causes import look_at_step
from zprof.model.findings import Finding
from zprof.simulator.causes import NONE, TIGHT, plant
from zprof.simulator.plan import AllocatorRetries, HostDelay, Network, SimulationPlan, Vendor
from zprof.simulator.simulate import simulate
from zprof.step.play import PlayedStep

NVIDIA, AMD, GLOO = Vendor.NVIDIA, Vendor.AMD, Vendor.GLOO
SLOW = pytest.mark.slow


class Case(NamedTuple):
    """A cause planted in a job; ``widest``: of the range, the most by which its end may be its start."""

    cause: str
    vendor: Vendor
    strength: float = 1.0
    seed: int = 2
    units: int = 6
    widest: float | None = 3.6

    def plan(self) -> SimulationPlan:
        return replace(base(self.seed, self.vendor), units=self.units)


#: Each cause once; the default run has one of each family of rules and each way to price a saving.
CASES = [
    Case("fp32_reduce", NVIDIA, 0.5, 0),
    Case("uneven_shapes", NVIDIA, seed=8),
    Case("no_prefetch", GLOO, 2.0, 3),
    Case("rate_limited_prefetch", NVIDIA, 0.5, 1),
    Case("straggler_rank", NVIDIA, 0.5, 1, 3),
]
MORE = [
    Case("last_unit_regathered", GLOO, seed=4),
    Case("data_loader", NVIDIA, 0.5),
    Case("rotating_straggler", GLOO, 2.0, 3, 3),
    Case("unhidden_optimizer_gather", GLOO, seed=6),
    Case("accumulation_syncs", NVIDIA, 0.5, 1),
    Case("cpu_bound_launch", GLOO, 0.5),
    Case("comm_slows_compute", NVIDIA, 0.5, 3, widest=None),
    Case("compute_blocks_comm", NVIDIA, 2.0, widest=None),
    Case("single_unit", GLOO, seed=3, units=4, widest=4),
    Case("blocking_sync", NVIDIA, 0.5),
    Case("straggler_rank", GLOO, 0.5, 0, 3),
    Case("fp32_gather", GLOO, 2.0, 4),
    Case("fp32_reduce", AMD, 2.0, 2),
    Case("unhidden_optimizer_gather", NVIDIA, 2.0, 7),
    Case("accumulation_regathers", GLOO, 0.5),
    Case("needless_reshard_after_forward", NVIDIA, seed=3),
    Case("checkpoint_regathers", NVIDIA, seed=1),
    Case("allocator_retries", AMD, 2.0),
    Case("offload_on_critical_path", GLOO),
    Case("copy_overhead", GLOO, 0.5, widest=None),
    Case("no_prefetch", AMD),
    Case("latency_bound_collectives", NVIDIA, seed=3, units=4, widest=6),
    Case("units_too_small", AMD, seed=3, units=4, widest=4),
    Case("sharding_spans_nodes", GLOO, 2.0, 3, 4, widest=4),
]


#: What the replay of a device's step finds by itself, without a rule.
REPLAYED = {"straggler_rank", "data_loader", "rate_limited_prefetch"}
#: Copies around collectives, which any step has, and waits that another cause makes.
BESIDE = {"copy_overhead", "blocking_sync"}


def sure(job: Diagnosed) -> set[str]:
    return {finding.cause for finding in job.sure}


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=SLOW) for case in MORE)], ids=str)
def test_a_planted_cause_is_first_and_alone_and_priced(case: Case, tmp_path: Path) -> None:
    job = planted(case.cause, case.plan(), tmp_path / "job", case.strength)
    assert_first_and_priced(job, case.cause, case.plan(), tmp_path, case.strength, widest=case.widest)
    assert sure(job) <= {case.cause, *BESIDE}
    if case.cause in REPLAYED and case.vendor is not GLOO:
        seen = look_at_step(PlayedStep(analysis=job.analysis), load_causes()[case.cause])
        assert isinstance(seen, Finding)


@pytest.mark.parametrize(
    "case",
    [
        Case("low_bus_bandwidth", GLOO, seed=4, units=4, widest=1.2),
        pytest.param(Case("lost_compute_efficiency", NVIDIA, 0.5, widest=None), marks=SLOW),
        pytest.param(Case("lost_compute_efficiency", GLOO, 2.0, widest=None), marks=SLOW),
    ],
    ids=str,
)
def test_what_only_a_baseline_shows_is_first_and_priced(case: Case, tmp_path: Path) -> None:
    job = planted_beside_healthy(case.cause, case.plan(), tmp_path / "job", case.strength)
    assert_first_and_priced(job, case.cause, case.plan(), tmp_path, case.strength, widest=case.widest)


@pytest.mark.parametrize(
    ("cause", "vendor", "units"),
    [
        (TIGHT, NVIDIA, 6),
        pytest.param(NONE, GLOO, 3, marks=SLOW),
        pytest.param(TIGHT, GLOO, 3, marks=SLOW),
        pytest.param(NONE, NVIDIA, 4, marks=SLOW),
    ],
)
def test_healthy_jobs_have_nothing(cause: str, vendor: Vendor, units: int, tmp_path: Path) -> None:
    assert sure(planted(cause, replace(base(4, vendor), units=units), tmp_path)) <= BESIDE


def test_profilers_that_start_apart_are_no_late_ranks(tmp_path: Path) -> None:
    plan = replace(base(0, GLOO), units=3)
    assert sure(planted("measurement_artifact", plan, tmp_path)) == {"measurement_artifact"}


@pytest.mark.parametrize(
    "cause",
    [
        pytest.param("fp32_gather", marks=SLOW),
        pytest.param("unhidden_optimizer_gather", marks=SLOW),
    ],
)
def test_one_rank_of_four_proves_it(cause: str, tmp_path: Path) -> None:
    plan = base(1)
    job = diagnosed(replace(plant(plan, cause, 1.0), missing=(0, 1, 3)), tmp_path / "job")
    finding = next(finding for finding in job.sure if finding.cause == cause)
    low, high = finding.saving_ns
    assert 0 < low <= true_saving_ns(cause, plan, tmp_path) <= high


@SLOW
def test_on_a_cpu_padding_is_found_beside_a_baseline_only(tmp_path: Path) -> None:
    """Operators that pad are slow there where nothing is padded, too."""
    cause, plan = "uneven_shapes", base(9, GLOO)
    job = planted_beside_healthy(cause, plan, tmp_path / "both")
    finding = next(finding for finding in job.sure if finding.cause == cause)
    assert finding.confidence == "medium"
    assert finding.saving_ns[0] <= true_saving_ns(cause, plan, tmp_path) <= finding.saving_ns[1]
    alone = diagnose(job.analysis)
    assert cause not in {finding.cause for finding in alone.findings}
    assert any(cause in gap.what for gap in alone.gaps)


LATE = {
    "data": {"delays": (HostDelay(rank=2, ns=6_000_000, data=True),)},
    "host": {"delays": (HostDelay(rank=2, ns=9_000_000, unit=1),)},
    "allocator": {"allocator": AllocatorRetries(retries_per_step=6, ranks=(2,))},
    "compute": {"speed": {2: 0.8}},
}


@pytest.mark.parametrize("why", ["host", *(pytest.param(why, marks=SLOW) for why in LATE if why != "host")])
def test_a_rank_is_late_for_any_reason(why: str, tmp_path: Path) -> None:
    """Also where it is late once a step, at the first collective."""
    plan = SimulationPlan(seed=5, ranks=4, steps=4, units=3)
    job = diagnosed(replace(plan, **LATE[why]), tmp_path / "job")  # type: ignore[arg-type]
    finding = found(straggler_rank, job.analysis)
    saving = step_ns(job.truth) - step_ns(simulate(plan, tmp_path / "well"))
    assert finding.evidence[0].rank == 2
    assert finding.saving_ns[0] <= saving <= finding.saving_ns[1]


@SLOW
def test_two_late_ranks_are_named_together(tmp_path: Path) -> None:
    plan = SimulationPlan(seed=6, ranks=6, steps=4, units=3)
    job = diagnosed(replace(plan, speed={2: 0.85, 3: 0.85}), tmp_path / "job")
    assert job.first is not None
    assert "ranks 2, 3" in job.first.sentence
    saving = step_ns(job.truth) - step_ns(simulate(plan, tmp_path / "well"))
    assert job.first.saving_ns[0] <= saving <= job.first.saving_ns[1]


@SLOW
def test_on_a_slow_link_a_late_rank_costs_next_to_nothing(tmp_path: Path) -> None:
    plan = plant(SimulationPlan(seed=7, ranks=4, steps=4, units=3), "low_bus_bandwidth")
    assert "straggler_rank" not in sure(planted("straggler_rank", plan, tmp_path))


def test_the_link_of_one_rank_is_named_without_a_baseline(tmp_path: Path) -> None:
    """Shards of two ranks, two replicas: rank 1 slows its shard group and its replicas."""
    network = Network(beta_bytes_per_s=25e9, links=((1, 0.2),))
    job = diagnosed(SimulationPlan(seed=5, ranks=4, steps=3, units=4, shard=2, network=network), tmp_path)
    findings = [each for each in job.report.findings if each.cause == "low_bus_bandwidth"]
    assert {fact.rank for finding in findings for fact in finding.evidence} - {None} == {1}
