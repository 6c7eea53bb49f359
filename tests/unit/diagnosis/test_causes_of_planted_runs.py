"""Causes planted in simulated jobs come first, at a price that holds the truth; healthy jobs have none."""

from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet

from tests.support.diagnoses import (
    Diagnosed,
    assert_first_and_priced,
    base,
    diagnosed,
    planted,
    planted_beside_healthy,
    step_ns,
    true_saving_ns,
    true_step_ns,
)
from tests.support.rule_runs import found
from tests.support.simulations import with_pace
from zprof.analysis.analysis import analyse_time_only
from zprof.causes import load_causes
from zprof.causes.straggler_rank import CAUSE as straggler_rank
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.diagnosis.find_causes import look_at_step
from zprof.model.findings import Finding
from zprof.run.reader import load
from zprof.simulator.ground_truth import write_job
from zprof.simulator.job import VENDORS, Job, Pace, Vendor
from zprof.simulator.regular import make_job, plant
from zprof.step.play import PlayedStep

NVIDIA, AMD, GLOO = VENDORS
SLOW = pytest.mark.slow


class Case(NamedTuple):
    """A cause planted in a job; ``widest``: of the range, the most by which its end may be its start.

    ``also``: a cause that zprof names beside it, wrongly.
    """

    cause: str
    vendor: Vendor
    strength: float = 1.0
    seed: int = 2
    units: int = 6
    widest: float | None = 3.6
    also: str = ""

    def job(self) -> Job:
        return base(self.seed, self.vendor, units=self.units)


def missed(case: Case, why: str) -> ParameterSet:
    """A case that zprof gets wrong today; the test fails as soon as it gets it right."""
    return pytest.param(
        case, marks=[SLOW, pytest.mark.xfail(strict=True, raises=AssertionError, reason=why)], id=str(case)
    )


#: Each cause once; the default run has one of each family of rules and each way to price a saving.
CASES = [
    Case("fp32_reduce", NVIDIA, 0.5, 0),
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
    Case("cpu_bound_launch", NVIDIA, 0.5),
    Case("comm_slows_compute", NVIDIA, 0.5, 3, widest=None),
    Case("compute_blocks_comm", NVIDIA, 2.0, widest=None, also="no_prefetch"),
    Case("single_unit", GLOO, seed=3, units=8, widest=4),
    Case("blocking_sync", NVIDIA, 0.5),
    Case("straggler_rank", GLOO, 0.5, 0, 3),
    Case("fp32_gather", GLOO, 2.0, 4),
    Case("fp32_reduce", AMD, 2.0, 2),
    Case("unhidden_optimizer_gather", NVIDIA, 2.0, 7),
    Case("accumulation_regathers", GLOO, 2.0),
    Case("needless_reshard_after_forward", NVIDIA, seed=3),
    Case("checkpoint_regathers", NVIDIA, seed=1),
    Case("allocator_retries", AMD, 2.0),
    Case("offload_on_critical_path", GLOO),
    Case("no_prefetch", AMD),
    Case("units_too_small", AMD, seed=3, units=4, widest=4),
    Case("sharding_spans_nodes", GLOO, 2.0, 3, 4, widest=4),
]
MISSED = [
    missed(
        Case("uneven_shapes", NVIDIA, seed=8),
        "only the kernels that pad are priced, not the bytes: 0.40 to 0.63 ms, truth 1.30 ms",
    ),
    missed(
        Case("accumulation_regathers", GLOO, 0.5),
        "the copies and calls of a dropped gather are kept: 1.72 to 2.60 ms, truth 3.04 ms",
    ),
    missed(
        Case("copy_overhead", GLOO, 0.5, widest=None),
        "copies into gathers are not seen on CPU ranks: 2.20 to 3.20 ms, truth 3.48 ms",
    ),
    missed(
        Case("latency_bound_collectives", NVIDIA, seed=3, units=4, widest=6),
        "units_too_small is first, with 0.49 to 0.67 ms; the latency costs 0.39 ms",
    ),
]


#: What the replay of a device's step finds by itself, without a rule.
REPLAYED = {"straggler_rank", "data_loader", "rate_limited_prefetch"}
#: Copies around collectives and a first gather, which any step has, and waits that another cause makes.
BESIDE = {"copy_overhead", "blocking_sync", "first_gather_exposed"}


def sure(job: Diagnosed) -> set[str]:
    return {finding.cause for finding in job.sure}


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=SLOW) for case in MORE), *MISSED], ids=str
)
def test_a_planted_cause_is_first_and_alone_and_priced(case: Case, tmp_path: Path) -> None:
    job = planted(case.cause, case.job(), tmp_path / "job", case.strength)
    assert_first_and_priced(job, case.cause, widest=case.widest)
    assert sure(job) - {case.cause, *BESIDE} == {case.also} - {""}
    if case.cause in REPLAYED and case.vendor is not GLOO:
        seen = look_at_step(PlayedStep(analysis=job.analysis), load_causes()[case.cause])
        assert isinstance(seen, Finding)


@pytest.mark.parametrize(
    "case",
    [
        Case("low_bus_bandwidth", GLOO, seed=4, units=4, widest=1.5),
        pytest.param(Case("lost_compute_efficiency", NVIDIA, 0.5, widest=None), marks=SLOW),
        pytest.param(Case("lost_compute_efficiency", GLOO, 2.0, widest=None), marks=SLOW),
    ],
    ids=str,
)
def test_what_only_a_baseline_shows_is_first_and_priced(case: Case, tmp_path: Path) -> None:
    job = planted_beside_healthy(case.cause, case.job(), tmp_path / "job", case.strength)
    assert_first_and_priced(job, case.cause, widest=case.widest)


@pytest.mark.parametrize(
    ("cause", "vendor", "units"),
    [
        ("tight", NVIDIA, 6),
        pytest.param("none", GLOO, 3, marks=SLOW),
        pytest.param("tight", GLOO, 3, marks=SLOW),
        pytest.param("none", NVIDIA, 4, marks=SLOW),
    ],
)
def test_healthy_jobs_have_nothing(cause: str, vendor: Vendor, units: int, tmp_path: Path) -> None:
    assert sure(planted(cause, base(4, vendor, units=units), tmp_path)) <= BESIDE


def test_profilers_that_start_apart_are_no_late_ranks(tmp_path: Path) -> None:
    assert sure(planted("measurement_artifact", base(0, GLOO, units=3), tmp_path)) == {"measurement_artifact"}


@pytest.mark.parametrize(
    "cause",
    [
        pytest.param("fp32_gather", marks=SLOW),
        pytest.param("unhidden_optimizer_gather", marks=SLOW),
    ],
)
def test_one_rank_of_four_proves_it(cause: str, tmp_path: Path) -> None:
    job = plant(base(1), cause)
    write_job(job, tmp_path / "traces")
    import_paths([tmp_path / "traces/rank2.json.gz"], tmp_path / "run.zprof")
    report = diagnose(analyse_time_only(load(tmp_path / "run.zprof")))
    finding = next(finding for finding in report.findings if finding.cause == cause)
    low, high = finding.saving_ns
    assert 0 < low <= true_saving_ns(cause, job) <= high


@SLOW
def test_on_a_cpu_padding_is_found_beside_a_baseline_only(tmp_path: Path) -> None:
    """Operators that pad are slow there where nothing is padded, too."""
    cause = "uneven_shapes"
    job = planted_beside_healthy(cause, base(9, GLOO), tmp_path / "both")
    finding = next(finding for finding in job.sure if finding.cause == cause)
    assert finding.confidence == "medium"
    assert finding.saving_ns[0] <= true_saving_ns(cause, job.job) <= finding.saving_ns[1]
    alone = diagnose(job.analysis)
    assert cause not in {finding.cause for finding in alone.findings}
    assert any(cause in gap.what for gap in alone.gaps)


LATE = {
    "data": Pace(data_ns=6_000_000),
    "host": Pace(stall_ns=9_000_000, stall_block=1),
    "allocator": Pace(retries=2),
    "compute": Pace(gpu=1.25),
}


@pytest.mark.parametrize("why", ["host", *(pytest.param(why, marks=SLOW) for why in LATE if why != "host")])
def test_a_rank_is_late_for_any_reason(why: str, tmp_path: Path) -> None:
    """Also where it is late once a step, at the first collective; a cause that says more of it is first."""
    healthy = base(5, units=3, retry_ns=600_000)
    job = diagnosed(with_pace(healthy, LATE[why], 2), tmp_path / "job")
    saving = step_ns(job.truth) - true_step_ns(healthy)
    assert found(straggler_rank, job.analysis).evidence[0].rank == 2
    assert job.first is not None
    assert "straggler_rank" in sure(job)
    assert job.first.saving_ns[0] <= saving <= job.first.saving_ns[1]


@SLOW
def test_two_late_ranks_are_named_together(tmp_path: Path) -> None:
    healthy = base(6, ranks=6, units=3)
    job = diagnosed(with_pace(healthy, Pace(gpu=1.18), 2, 3), tmp_path / "job")
    assert job.first is not None
    assert "ranks 2, 3" in job.first.sentence
    saving = step_ns(job.truth) - true_step_ns(healthy)
    assert job.first.saving_ns[0] <= saving <= job.first.saving_ns[1]


@SLOW
def test_on_a_slow_link_a_late_rank_costs_next_to_nothing(tmp_path: Path) -> None:
    slow = base(7, units=3, bus=2.0)
    job = diagnosed(with_pace(slow, Pace(gpu=1.1), 2), tmp_path)
    assert step_ns(job.truth) < 1.02 * true_step_ns(slow)
    assert "straggler_rank" not in sure(job)


@SLOW
def test_python_of_a_cpu_rank_is_untested_without_samples_of_it(tmp_path: Path) -> None:
    """A trace does not say whether a thread that runs no operator runs Python, sleeps or waits for a lock."""
    job = planted("cpu_bound_launch", base(2, GLOO), tmp_path, 0.5)
    assert "cpu_bound_launch" in {cause for gap in job.report.gaps for cause in gap.causes}
    assert "cpu_bound_launch" not in sure(job)


def test_the_link_of_one_rank_is_named_without_a_baseline(tmp_path: Path) -> None:
    """Shards of two ranks, two replicas: rank 1 slows its shard group and its replicas."""
    even = make_job(seed=5, ranks=4, steps=3, units=4, shard_size=2, bus=25.0)
    job = diagnosed(with_pace(even, Pace(link=0.2), 1), tmp_path)
    findings = [each for each in job.report.findings if each.cause == "low_bus_bandwidth"]
    assert {fact.rank for finding in findings for fact in finding.evidence} - {None} == {1}
