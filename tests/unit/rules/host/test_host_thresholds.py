"""Thresholds of the rules about hosts, on hand-made tables: at the threshold, and just below."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.host_idle import HOST_COLUMNS
from zprof.model.findings import Confidence, Finding, Severity
from zprof.model.gaps import Gap
from zprof.rules.compute.allocator_retries import allocator_retries
from zprof.rules.compute.blocking_sync import blocking_sync
from zprof.rules.compute.cpu_bound_launch import cpu_bound_launch
from zprof.rules.compute.data_loader import data_loader
from zprof.rules.compute.offload_on_critical_path import offload_on_critical_path

WALL = 100 * MS
RANKS, STEPS = 4, 6


def hosts(*, on_device: bool = True, ranks: int = RANKS, steps: int = STEPS, **columns: float) -> RunAnalysis:
    """Ranks that all do the same in each step of 100 ms."""
    made = analysis_of(Scenario(ranks=ranks, steps=steps))
    pairs = [{"rank": rank, "step": step} for rank in range(ranks) for step in range(steps)]
    table = pd.DataFrame(pairs).reindex(columns=list(HOST_COLUMNS), fill_value=0)
    table = table.assign(on_device=on_device, launches_seen=True, loads=1).assign(**columns)
    flat = made.steps.assign(wall_ns=WALL, compute_ns=WALL // 2, overlapped_ns=0)
    return replace(made, host=table, steps=flat)


def with_rows(analysis: RunAnalysis, chosen: "pd.Series[bool]", **columns: float) -> RunAnalysis:
    """The same with other values in some rows."""
    table = analysis.host.copy()
    for name, value in columns.items():
        table[name] = table[name].astype(object).where(~chosen, value).infer_objects()
    return replace(analysis, host=table)


STATE = {"to_host_bytes": 1 << 20, "to_device_bytes": 1 << 20}
#: rule, what is always there, the column, and at which shares of a step it says what.
LADDERS = [
    (data_loader, {}, "loader_ns", {0.02: Confidence.MEDIUM, 0.05: Confidence.HIGH}),
    (cpu_bound_launch, {}, "launch_ns", {0.10: Confidence.MEDIUM, 0.15: Confidence.HIGH}),
    (
        blocking_sync,
        {"dry_syncs": 3},
        "sync_ns",
        {0.01: Confidence.LOW, 0.02: Confidence.MEDIUM, 0.05: Confidence.HIGH},
    ),
    (offload_on_critical_path, STATE, "host_copy_ns", {0.05: Confidence.MEDIUM, 0.10: Confidence.HIGH}),
    (offload_on_critical_path, STATE, "optimizer_ns", {0.05: Confidence.MEDIUM, 0.10: Confidence.HIGH}),
]
CASES = [
    pytest.param(rule, always, column, share, confidence, id=f"{rule.__name__}-{column}-{share}")
    for rule, always, column, ladder in LADDERS
    for share, confidence in ladder.items()
]


@pytest.mark.parametrize(("rule", "always", "column", "share", "confidence"), CASES)
def test_at_a_threshold_and_below(rule, always, column, share, confidence) -> None:
    at = rule(hosts(**always, **{column: share * WALL}), None)
    assert isinstance(at, Finding)
    assert at.confidence is confidence
    below = rule(hosts(**always, **{column: share * WALL - 1000}), None)
    assert below is None or below.confidence is not confidence
    low, high = at.saving_ns
    assert 0 < low <= share * WALL <= high <= 3 * low + 1


@pytest.mark.parametrize(("rule", "always", "column", "share", "confidence"), CASES)
def test_one_step_alone_is_never_sure(rule, always, column, share, confidence) -> None:
    found = rule(hosts(steps=1, **always, **{column: share * WALL}), None)
    assert found.confidence is (Confidence.MEDIUM if confidence is Confidence.HIGH else confidence)


@pytest.mark.parametrize(("rule", "always", "column", "share", "confidence"), CASES)
def test_what_one_rank_or_one_step_does_is_not_said_of_all(rule, always, column, share, confidence) -> None:
    healthy = hosts(**always)
    one_rank, one_step = healthy.host["rank"] == 2, healthy.host["step"] == 3
    for chosen in (one_rank, one_step):
        assert rule(with_rows(healthy, chosen, **{column: STEPS * share * WALL}), None) is None


ONCE = [
    pytest.param(blocking_sync, {"dry_syncs": 3}, "sync_ns", id="blocking_sync"),
    pytest.param(data_loader, {}, "loader_ns", id="data_loader"),
    pytest.param(cpu_bound_launch, {}, "launch_ns", id="cpu_bound_launch"),
    pytest.param(offload_on_critical_path, STATE, "host_copy_ns", id="offload_on_critical_path"),
]


@pytest.mark.parametrize("steps", [2, 3, 6])
@pytest.mark.parametrize(("rule", "always", "column"), ONCE)
def test_a_profiler_that_starts_or_a_cold_start_happens_once(rule, always, column, steps) -> None:
    quiet = hosts(steps=steps, **always)
    started = with_rows(quiet, quiet.host["step"] == 0, **{column: 300 * MS})
    assert rule(started, None) is None
    busy = hosts(steps=steps, **always, **{column: 20 * MS})
    priced = rule(busy, None)
    again = rule(with_rows(busy, busy.host["step"] == 0, **{column: 300 * MS}), None)
    assert again.saving_ns == priced.saving_ns, "what happened once is no part of the price"


@pytest.mark.parametrize(("rule", "always", "column"), ONCE[:3])
def test_of_a_single_step_the_longest_occurrence_proves_nothing(rule, always, column) -> None:
    longest = column.replace("_ns", "_largest_ns")
    once = rule(hosts(steps=1, **always, **{column: 30 * MS, longest: 30 * MS}), None)
    assert isinstance(once, Gap)
    assert once.what.startswith(f"rule {rule.__name__}")
    several = rule(hosts(steps=1, **always, **{column: 50 * MS, longest: 20 * MS}), None)
    assert isinstance(several, Finding)
    assert several.saving_ns[0] <= 30 * MS
    assert several.confidence is Confidence.MEDIUM


@pytest.mark.parametrize(("rule", "always", "column"), ONCE[::2])
def test_advice_about_training_is_for_training(rule, always, column) -> None:
    trains = rule(hosts(**always, **{column: 20 * MS}), None)
    serves = rule(hosts(**always, **{column: 20 * MS}, is_inference=True), None)
    assert serves.saving_ns == trains.saving_ns
    assert serves.fix != trains.fix
    for word in ("loss", "optim", "grad", "micro-batch"):
        assert word not in serves.fix


def test_of_a_cpu_nothing_more_is_said_than_was_recorded() -> None:
    """A thread that sleeps looks like one that is busy: never sure, and no graphs of kernels to try."""
    for share, confidence in ((0.3, Confidence.MEDIUM), (0.15, Confidence.MEDIUM), (0.12, Confidence.LOW)):
        found = cpu_bound_launch(hosts(on_device=False, launch_ns=share * WALL), None)
        assert found.confidence is confidence
        assert "CUDA" not in found.fix


@pytest.mark.parametrize("on_device", [True, False])
def test_what_is_compiled_is_not_to_be_compiled(*, on_device: bool) -> None:
    eager = cpu_bound_launch(hosts(on_device=on_device, launch_ns=0.3 * WALL), None)
    compiled = cpu_bound_launch(hosts(on_device=on_device, launch_ns=0.3 * WALL, is_compiled=True), None)
    assert "torch.compile(model)" in eager.fix
    assert "torch.compile(model)" not in compiled.fix
    assert ("CUDA graphs" in compiled.fix) is on_device


def test_one_wait_a_step_is_how_a_loss_is_read() -> None:
    assert blocking_sync(hosts(dry_syncs=1, sync_ns=0.2 * WALL), None).confidence is Confidence.LOW
    assert blocking_sync(hosts(dry_syncs=2, sync_ns=0.2 * WALL), None).confidence is Confidence.HIGH


def test_a_cpu_rank_that_waits_for_all_that_is_in_flight() -> None:
    found = blocking_sync(hosts(on_device=False, held_reads=6, read_exposed_ns=9 * MS), None)
    assert found.saving_ns == (3 * MS, pytest.approx(1.15 * 9 * MS, abs=1))
    assert "6 times" in found.sentence
    assert blocking_sync(hosts(on_device=False, sync_ns=9 * MS, dry_syncs=6), None) is None


def test_copies_one_way_are_no_offload_and_a_slow_optimizer_without_them_is_launches() -> None:
    for name in STATE:
        planted = hosts(**(STATE | {name: (1 << 20) - 1}), host_copy_ns=20 * MS, optimizer_ns=20 * MS)
        assert offload_on_critical_path(planted, None) is None
        assert isinstance(cpu_bound_launch(planted, None), Finding)
    planted = hosts(**STATE, host_copy_ns=20 * MS, optimizer_ns=20 * MS)
    assert cpu_bound_launch(planted, None) is None


def test_copies_of_a_cpu_rank_need_no_bytes() -> None:
    found = offload_on_critical_path(hosts(on_device=False, host_copy_ns=10 * MS, copy_ns=4 * MS), None)
    assert found.saving_ns == (7 * MS, pytest.approx(1.15 * 14 * MS, abs=1))


def test_gaps_that_alone_hide_collectives_save_less() -> None:
    """Compute has room for 50 ms of them."""
    room = cpu_bound_launch(hosts(on_device=False, launch_ns=60 * MS, launch_under_ns=50 * MS), None)
    none = cpu_bound_launch(hosts(on_device=False, launch_ns=60 * MS, launch_under_ns=58 * MS), None)
    assert room.saving_ns[0] == 30 * MS
    assert none.saving_ns[0] == 26 * MS


def test_a_collective_behind_the_loader_loses_what_hid_it() -> None:
    found = data_loader(hosts(on_device=False, loader_ns=20 * MS, loader_under_ns=5 * MS), None)
    assert found.saving_ns == (9 * MS, 20 * MS)


def test_without_the_inputs_nothing_is_tested() -> None:
    healthy = hosts()
    rules = (data_loader, cpu_bound_launch, blocking_sync, offload_on_critical_path)
    for rule in rules:
        assert rule(healthy, None) is None
        assert isinstance(rule(replace(healthy, host=pd.DataFrame()), None), Gap)
    unseen = with_rows(healthy, healthy.host["rank"] >= 0, launches_seen=False)
    for rule in rules[1:]:
        assert isinstance(rule(unseen, None), Gap)
    assert isinstance(data_loader(with_rows(healthy, healthy.host["rank"] >= 0, loads=0), None), Gap)
    silent = replace(hosts(on_device=False), steps=healthy.steps.assign(compute_ns=0))
    assert isinstance(cpu_bound_launch(silent, None), Gap)


CALLS = {"gives": 4, "takes": 4, "allocator_ns": 2 * MS}


def test_frees_in_steps_are_priced_on_the_rank_that_loses_most() -> None:
    healthy = hosts()
    assert allocator_retries(healthy, None) is None
    found = allocator_retries(with_rows(healthy, healthy.host["rank"] == 3, **CALLS), None)
    assert isinstance(found, Finding)
    assert "rank 3" in found.sentence
    assert found.confidence is Confidence.HIGH
    assert found.severity is Severity.LOW
    assert found.saving_ns == (1.4 * MS, pytest.approx(2.3 * MS, abs=1))


@pytest.mark.parametrize(("steps", "confidence"), [(3, Confidence.HIGH), (2, Confidence.LOW)])
def test_frees_in_few_steps_may_be_the_warm_up(steps, confidence) -> None:
    healthy = hosts()
    found = allocator_retries(with_rows(healthy, healthy.host["step"] < steps, **CALLS), None)
    assert found.confidence is confidence


@pytest.mark.parametrize(("lost", "confidence"), [(MS, Confidence.HIGH), (MS - 1, Confidence.MEDIUM)])
def test_how_much_of_the_step_frees_take(lost, confidence) -> None:
    assert allocator_retries(hosts(**(CALLS | {"allocator_ns": lost})), None).confidence is confidence


def test_a_cache_that_only_grows_is_a_note_from_one_percent_on() -> None:
    growing = CALLS | {"gives": 0}
    at = allocator_retries(hosts(**(growing | {"allocator_ns": MS})), None)
    assert at.confidence is Confidence.LOW
    assert allocator_retries(hosts(**(growing | {"allocator_ns": MS - 1})), None) is None
    assert allocator_retries(hosts(on_device=False, **CALLS), None) is None


@pytest.mark.parametrize(
    ("ranks", "idle", "seen"), [(5, 1, True), (8, 1, True), (8, 2, False), (4, 1, False)]
)
def test_a_quarter_of_the_ranks_may_lose_less(ranks: int, idle: int, *, seen: bool) -> None:
    busy = hosts(ranks=ranks, loader_ns=20 * MS)
    found = data_loader(with_rows(busy, busy.host["rank"] < idle, loader_ns=0), None)
    assert (found is not None) is seen


@pytest.mark.parametrize(("count", "confidence"), [(1.5, Confidence.LOW), (1.6, Confidence.HIGH)])
def test_waits_are_counted_in_the_mean(count: float, confidence: Confidence) -> None:
    """In some steps the loss is read, in others a norm as well."""
    assert blocking_sync(hosts(dry_syncs=count, sync_ns=0.2 * WALL), None).confidence is confidence
    assert blocking_sync(hosts(dry_syncs=1.3, sync_ns=0.2 * WALL), None).confidence is Confidence.LOW


def test_ranks_that_run_dry_in_turn_win_a_little_more() -> None:
    found = cpu_bound_launch(hosts(launch_ns=20 * MS, launch_exposed_ns=4 * MS), None)
    assert found.saving_ns == (10 * MS, pytest.approx(1.15 * 24 * MS, abs=1))


def test_frees_in_three_of_seven_steps_may_be_the_warm_up() -> None:
    healthy = hosts(steps=7)
    found = allocator_retries(with_rows(healthy, healthy.host["step"] < 3, **CALLS), None)
    assert found.confidence is Confidence.LOW
    assert allocator_retries(hosts(steps=1, **CALLS), None).confidence is Confidence.LOW


def test_waits_of_a_device_save_half_of_them_to_a_little_more_than_all() -> None:
    found = blocking_sync(hosts(dry_syncs=6, sync_ns=20 * MS, sync_exposed_ns=4 * MS), None)
    assert found.saving_ns == (10 * MS, pytest.approx(1.15 * 24 * MS, abs=1))
