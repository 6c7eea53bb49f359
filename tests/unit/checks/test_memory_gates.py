"""Peaks, tenants and the untagged share: exact to the byte, with bounds, missing ranks and unknowns."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.check_runs import BASE, ENVIRONMENT, Made, judged, limit
from zprof.analysis.compare.judgement import is_within
from zprof.checks.check import check, compute_allowed
from zprof.model.comparison import Figure, Outcome, Sense
from zprof.model.memory import MemoryPart
from zprof.model.tenants import BACKEND_SCRATCH, Tenant


def alone(peak: int) -> Made:
    return Made(peaks=(peak,), world=1, timed=(0,), tenants={Tenant.ACTIVATIONS: 1})


@pytest.mark.parametrize(
    ("base", "change", "edge"),
    [
        (100, 0.29, 129),  # 100 * 1.29 is less than 129 in floats
        (10**17, 0.01, 101 * 10**15),  # 1 byte more is beyond what a float can tell
    ],
)
def test_one_byte_beyond_the_limit_fails(base: int, change: float, edge: int) -> None:
    held = limit("peak_memory", change_ratio=change)
    assert judged(held, alone(edge), alone(base)).outcome == "passed"
    assert judged(held, alone(edge + 1), alone(base)).outcome == "failed"


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.integers(0, 100), st.sampled_from(Sense))
def test_the_edge_is_where_whole_numbers_put_it(base: int, size: int, percent: int, sense: Sense) -> None:
    held = replace(limit("peak_memory", change_ratio=percent / 100), sense=sense)
    allowed = compute_allowed(held, Figure(value=Fraction(base)))[0]
    left, right = 100 * size, base * (100 + percent)
    within = left <= right if sense is Sense.AT_MOST else left >= right
    assert is_within(Figure(value=Fraction(size)), allowed, sense) is within


def test_a_failure_names_the_rank_the_leaf_and_the_tenant_that_grew() -> None:
    base, run = Made(peaks=(20 << 20, 1 << 20)), Made(peaks=(1 << 20, 21 << 20))
    found = judged(limit("peak_memory", change_ratio=0.02), run, base)
    assert (found.leaf, found.subject) == ("memory.per_rank[1].peak_bytes", "rank 1")
    assert (found.value, found.baseline, found.allowed) == (21 << 20, 20 << 20, (20 << 20) * 1.02)
    assert "activations" in found.grew
    assert "1.0 MiB" in found.grew
    assert "backward" in found.sentence


def test_the_largest_tenant_or_part_is_named_where_there_is_no_baseline() -> None:
    sizes = (("parameters", "", 9), ("parameters", "master", 5), ("parameters", "shard", 7))
    parts = [MemoryPart(tenant=tenant, sub=sub, bytes=size) for tenant, sub, size in sizes]
    assert "activations" in judged(limit("peak_memory", value=1.0), BASE, None).grew
    run = replace(BASE, parts=parts)
    assert "shard" in judged(limit("peak_memory.parameters", value=1.0), run, None).grew


def test_a_tenant_is_judged_by_itself() -> None:
    run = replace(BASE, peaks=(1100, 900))
    grown = judged(limit("peak_memory.activations", change_ratio=0.0), run)
    assert (grown.outcome, grown.value, grown.baseline) == ("failed", 790, 690)
    assert grown.leaf == "memory.per_rank[0].tenant_peaks.activations"
    assert judged(limit("peak_memory.parameters", change_ratio=0.0), run).outcome == "passed"
    untagged = judged(limit("peak_memory.untagged", change_ratio=0.0), replace(BASE, untagged=11))
    assert (untagged.outcome, untagged.leaf) == ("failed", "memory.per_rank[0].tenant_peaks.untagged")
    unknown = replace(BASE, tenants={Tenant.PARAMETERS: 1})
    assert judged(limit("peak_memory.gradients", value=1.0), unknown, None).outcome == "unknown"


def test_a_tenant_is_held_at_its_own_peak() -> None:
    """A peak in the optimizer has no activations; those of the backward doubled all the same."""
    tenants = {Tenant.ACTIVATIONS: 0, Tenant.OPTIMIZER_STATE: 990}
    base = replace(BASE, tenants=tenants, tenant_peaks={"activations": 300})
    held = limit("peak_memory.activations", change_ratio=0.0)
    assert judged(held, base, base).outcome == "passed"
    doubled = judged(held, replace(base, tenant_peaks={"activations": 600}), base)
    assert (doubled.outcome, doubled.value, doubled.baseline) == ("failed", 600, 300)


def test_a_tenant_that_one_side_did_not_measure_is_not_judged() -> None:
    """A baseline of before tenants' own peaks were kept, a snapshot in which nothing was attributed to it."""
    old = BASE.baseline
    assert old.memory is not None
    old = replace(old, memory=replace(old.memory, tenant_peaks=None))
    held = limit("peak_memory.activations", change_ratio=0.0)
    (found,) = check(BASE.report, [held], old, environment=ENVIRONMENT).results
    assert (found.outcome, "zprof baseline update" in found.remedy) == ("unknown", True)
    rank = BASE.report.memory.per_rank[0]
    memory = replace(BASE.report.memory, per_rank=(replace(rank, unknown=(Tenant.ACTIVATIONS,)),))
    report = replace(BASE.report, memory=memory)
    (found,) = check(report, [held], BASE.baseline, environment=ENVIRONMENT).results
    assert found.outcome == "unknown"


@pytest.mark.parametrize("part", ["activations", "untagged"])
def test_the_rank_that_holds_most_of_a_tenant_is_judged(part: str) -> None:
    first, second = BASE.report.memory.per_rank
    second = replace(second, tenant_peaks={"activations": 800, "untagged": 800})
    report = replace(BASE.report, memory=replace(BASE.report.memory, per_rank=(first, second)))
    gate = f"peak_memory.{part}"
    limits = [limit(gate, value=799.0), limit(gate, value=800.0), limit(gate, change_ratio=0.0)]
    broken, held, changed = check(report, limits, BASE.baseline, environment=ENVIRONMENT).results
    assert [one.outcome for one in (broken, held, changed)] == ["failed", "passed", "failed"]
    assert (broken.value, broken.leaf) == (800, f"memory.per_rank[1].tenant_peaks.{part}")
    assert "rank 1" in broken.subject
    assert changed.subject == broken.subject


def test_the_untagged_share_is_that_of_the_worst_rank_or_of_the_highest_peak() -> None:
    run = Made(peaks=(1000, 500), untagged=10)
    assert judged(limit("untagged_ratio", value=0.02), run).outcome == "passed"
    found = judged(limit("untagged_ratio", value=0.0199), run)
    assert (found.outcome, found.value, found.subject) == ("failed", 0.02, "rank 1")
    # a baseline has the highest peak only
    held = limit("untagged_ratio", change_points=0.0)
    assert judged(held, run, run).outcome == "passed"
    assert judged(held, replace(run, untagged=11), run).outcome == "failed"
    assert judged(held, replace(run, upper_memory=True), run).outcome == "unknown"
    assert judged(held, replace(BASE, peaks=(0, 0), untagged=0), BASE).outcome == "unknown"


@pytest.mark.parametrize("origin", ["default", "zprof.toml"])
@pytest.mark.parametrize(
    "gate", ["peak_memory", "peak_memory.gradients", "untagged_ratio", "collective_bytes", "step_time"]
)
def test_what_was_not_measured_is_never_green(gate: str, origin: str) -> None:
    empty = replace(BASE, memory=False, walls=())
    held = limit(gate, change_ratio=0.02, origin=origin)
    is_default = origin == "default"
    lacks = judged(held, empty)
    assert (lacks.outcome, lacks.value, bool(lacks.remedy)) == ("unknown", None, True)
    assert judged(held, empty, empty).outcome == ("warned" if is_default else "unknown")
    only_now = judged(held, BASE, empty)
    assert only_now.outcome == ("warned" if is_default else "unknown")
    assert "zprof baseline update" in only_now.remedy


@pytest.mark.parametrize("gate", ["peak_memory", "peak_memory.parameters", "collective_bytes", "step_time"])
def test_a_missing_rank_leaves_a_value_open(gate: str) -> None:
    run = replace(BASE, peaks=(1000,), timed=(0,))
    for base in (None, run, BASE):
        assert judged(limit(gate, value=1e12), run, base).outcome == "unknown"
    held = limit(gate, change_ratio=0.02)
    assert judged(held, run).outcome == "unknown"
    assert judged(held, run, run).outcome == "passed", "the baseline lacks the same rank"
    of_baseline = "passed" if gate.startswith("peak") else "unknown"  # it can only have had more
    assert judged(held, BASE, run).outcome == of_baseline


def test_a_missing_rank_cannot_undo_a_failure() -> None:
    found = judged(limit("peak_memory", change_ratio=-0.02), replace(BASE, peaks=(1000,)))
    assert (found.outcome, found.leaf) == ("failed", "memory.per_rank[0].peak_bytes")
    assert "rank 1" in found.sentence


#: Bounds of the run and of the baseline, and how peaks of 1020 and 1021 end against 1000 and +2 %.
BOUNDS = [
    ({"upper_memory": True}, {}, ("passed", "unknown")),
    ({"lower_memory": True}, {}, ("unknown", "failed")),
    ({}, {"upper_memory": True}, ("unknown", "failed")),
    ({}, {"lower_memory": True}, ("passed", "unknown")),
]


@pytest.mark.parametrize(("run", "base", "outcomes"), BOUNDS)
@pytest.mark.parametrize("gate", ["peak_memory", "peak_memory.untagged"])
def test_a_bound_that_decides_is_used(
    gate: str, run: dict[str, bool], base: dict[str, bool], outcomes: tuple[str, str]
) -> None:
    for size, outcome in zip((1020, 1021), outcomes, strict=True):
        sides = (
            replace(BASE, peaks=(size, 1), untagged=size, **run),
            replace(BASE, peaks=(1000, 1), untagged=1000, **base),
        )
        assert judged(limit(gate, change_ratio=0.02), *sides).outcome == outcome
        is_left_to_default = outcome == "unknown" and bool(base)
        default = judged(limit(gate, change_ratio=0.02, origin="default"), *sides).outcome
        assert default == ("warned" if is_left_to_default else outcome)


@given(st.integers(0, 1 << 50), st.tuples(st.integers(0, 1 << 50), st.integers(0, 1 << 50)))
def test_more_bytes_never_turn_a_failure_into_a_pass(base: int, sizes: tuple[int, int]) -> None:
    for held in (limit("peak_memory", change_ratio=0.1), limit("peak_memory", value=float(base))):
        less, more = (judged(held, alone(size), alone(base)) for size in sorted(sizes))
        assert (less.outcome, more.outcome) != (Outcome.FAILED, Outcome.PASSED)


def copied(scratch: int, own: int) -> Made:
    """A rank of 500 bytes of activations, with communication buffers of the program and of the backend."""
    buffers = Tenant.COMMUNICATION_BUFFERS
    parts = [
        MemoryPart(tenant=buffers.value, sub=sub, bytes=size, basis="tagged")
        for sub, size in ((BACKEND_SCRATCH, scratch), ("gathered_param", own))
    ]
    tenants = {Tenant.ACTIVATIONS: 500, buffers: scratch + own}
    peak = 500 + scratch + own
    return Made(peaks=(peak,), world=1, timed=(0,), tenants=tenants, untagged=0, parts=parts)


@pytest.mark.parametrize("gate", ["peak_memory", "peak_memory.communication_buffers"])
@pytest.mark.parametrize(("scratch", "own", "outcome"), [(300, 200, "within_noise"), (100, 400, "failed")])
def test_copies_of_the_backend_break_no_limit(gate: str, scratch: int, own: int, outcome: str) -> None:
    """How many copies gloo holds at the peak depends on how late the ranks are."""
    held = limit(gate, change_ratio=0.02)
    assert judged(held, copied(scratch, own), copied(100, 200)).outcome == outcome


@pytest.mark.parametrize(("scratch", "own", "outcome"), [(300, 200, "within_noise"), (100, 400, "unknown")])
@pytest.mark.parametrize("gate", ["peak_memory", "peak_memory.communication_buffers"])
def test_a_copy_that_was_freed_unseen_leaves_no_limit_open(
    gate: str, scratch: int, own: int, outcome: str
) -> None:
    run = replace(copied(scratch, own), upper_memory=True)
    assert judged(limit(gate, change_ratio=0.02), run, copied(100, 200)).outcome == outcome


@given(st.integers(1, 400), st.integers(0, 400), st.integers(0, 400))
def test_the_untagged_share_of_an_upper_bound_is_its_highest(scratch: int, freed: int, untagged: int) -> None:
    """Whatever part of the backend's copies was freed unseen, the true share is not above the value."""
    freed = min(scratch, freed)
    made = copied(scratch, 200)
    peak = made.peaks[0]
    run = replace(made, upper_memory=True, untagged=untagged, peaks=(peak + untagged,))
    found = judged(limit("untagged_ratio", value=0.1), run, None)
    true_ratio = untagged / (peak + untagged - freed)
    assert found.value is not None
    assert found.value >= true_ratio
    assert found.outcome == ("passed" if found.value <= 0.1 else "unknown")


def test_the_untagged_share_has_the_bounds_of_the_rank_that_it_is_of() -> None:
    """The rank with the highest peak has a copy that was freed unseen; the other one decides."""
    run = replace(copied(300, 200), peaks=(1300, 500), world=2, untagged=1)
    first, second = run.report.memory.per_rank
    ranks = (replace(first, upper_bound=True), second)
    report = replace(run.report, memory=replace(run.report.memory, per_rank=ranks))
    held = limit("untagged_ratio", value=0.1)
    (found,) = check(report, [held], None, environment=ENVIRONMENT).results
    assert (found.outcome, found.subject) == ("passed", "rank 1")
