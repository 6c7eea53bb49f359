"""Bytes and counts are held exactly: closed forms, the edges, bounds, and what was not measured."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.check_runs import ENVIRONMENT, Made, at_least, limit
from zprof.checks.check import check
from zprof.checks.gates.reading import Figure, compute_allowed, holds
from zprof.model.check import GateResult, Limit, Outcome, Sense
from zprof.model.tenants import Tenant

BASE = Made()
PEAK = limit("peak_memory", change_ratio=0.02, origin="default")


def result(held: Limit, run: Made, base: Made | None = BASE) -> GateResult:
    baseline = None if base is None else base.baseline
    (only,) = check(run.report, [held], baseline, environment=ENVIRONMENT).results
    return only


@pytest.mark.parametrize(
    ("base", "change", "peak", "outcome"),
    [
        (1000, 0.0, 1000, "passed"),
        (1000, 0.0, 1001, "failed"),
        (1000, 0.02, 1020, "passed"),
        (1000, 0.02, 1021, "failed"),
        (100, 0.29, 129, "passed"),  # 100 * 1.29 is 129 less a little in floats
        (100, 0.29, 130, "failed"),
        (10**17, 0.01, 101 * 10**15, "passed"),
        (10**17, 0.01, 101 * 10**15 + 1, "failed"),  # beyond what a float can tell
        (1000, -0.1, 900, "passed"),
        (1000, -0.1, 901, "failed"),
    ],
)
def test_a_peak_beyond_its_share_of_the_baseline_by_one_byte(
    base: int, change: float, peak: int, outcome: str
) -> None:
    tenants = {Tenant.ACTIVATIONS: 1}
    sides = [Made(peaks=(size,), world=1, timed=(0,), tenants=tenants) for size in (peak, base)]
    found = result(limit("peak_memory", change_ratio=change), *sides)
    assert found.outcome == outcome


@pytest.mark.parametrize(("peak", "outcome"), [(1000, "passed"), (1001, "failed"), (0, "passed")])
def test_an_absolute_limit_needs_no_baseline(peak: int, outcome: str) -> None:
    run = Made(peaks=(peak,), world=1, timed=(0,), tenants={Tenant.ACTIVATIONS: 0})
    assert result(limit("peak_memory", value=1000.0), run, None).outcome == outcome


def test_the_sentence_names_rank_phase_change_and_the_tenant_that_grew() -> None:
    base = Made(peaks=(20 << 20, 1 << 20))
    run = Made(peaks=(1 << 20, 21 << 20))
    found = result(limit("peak_memory", change_ratio=0.02, said="+2%"), run, base)
    assert found.sentence == (
        "peak_memory: 21.0 MiB on rank 1 in the backward is 5.0 % above the baseline's 20.0 MiB, "
        "allowed +2% (20.4 MiB); activations grew most, +1.0 MiB"
    )
    assert (found.leaf, found.subject) == ("memory.per_rank[1].peak_bytes", "rank 1")
    assert (found.value, found.baseline, found.allowed) == (21 << 20, 20 << 20, (20 << 20) * 1.02)
    assert found.grew == "activations grew most, +1.0 MiB"


def test_one_byte_is_seen_in_the_sentence() -> None:
    base, run = Made(peaks=(20 << 20,)), Made(peaks=((20 << 20) + 1,))
    found = result(limit("peak_memory", change_ratio=0.0, said="exact"), run, base)
    assert "1 B above the baseline's 20.0 MiB" in found.sentence
    assert "1 B beyond it" in found.sentence


def test_a_tenant_is_held_by_itself() -> None:
    run = replace(BASE, peaks=(1100, 900))
    grown = result(limit("peak_memory.activations", change_ratio=0.0), run)
    assert (grown.outcome, grown.value, grown.baseline) == ("failed", 790, 690)
    assert grown.leaf == "memory.per_rank[0].tenants.activations"
    assert result(limit("peak_memory.parameters", change_ratio=0.0), run).outcome == "passed"
    untagged = result(limit("peak_memory.untagged", change_ratio=0.0), replace(BASE, untagged=11))
    assert (untagged.outcome, untagged.leaf) == ("failed", "memory.per_rank[0].untagged_bytes")


@pytest.mark.parametrize(
    ("part", "leaf"), [("activations", "tenants.activations"), ("untagged", "untagged_bytes")]
)
def test_against_a_value_a_tenant_is_that_of_the_rank_that_has_most_of_it(part: str, leaf: str) -> None:
    report = BASE.report
    first, second = report.memory.per_rank
    second = replace(second, tenants={**second.tenants, Tenant.ACTIVATIONS: 800}, untagged_bytes=800)
    report = replace(report, memory=replace(report.memory, per_rank=(first, second)))
    gate = f"peak_memory.{part}"
    limits = [limit(gate, value=799.0), limit(gate, value=800.0), limit(gate, change_ratio=0.0)]
    broken, held, changed = check(report, limits, BASE.baseline, environment=ENVIRONMENT).results
    assert [one.outcome for one in (broken, held, changed)] == ["failed", "passed", "passed"]
    assert (broken.value, broken.subject) == (800, f"{part} on rank 1")
    assert broken.leaf == f"memory.per_rank[1].{leaf}"
    assert changed.subject == f"{part} on rank 0"


def test_the_untagged_share_is_that_of_the_worst_rank_against_a_value() -> None:
    run = Made(peaks=(1000, 500), untagged=10)
    assert result(limit("untagged_ratio", value=0.02), run).outcome == "passed"
    found = result(limit("untagged_ratio", value=0.0199), run)
    assert (found.outcome, found.value, found.subject) == ("failed", 0.02, "rank 1")
    # the baseline knows the rank with the highest peak only
    assert result(limit("untagged_ratio", change_points=0.0), run, run).outcome == "passed"
    assert (
        result(limit("untagged_ratio", change_points=0.0), replace(run, untagged=11), run).outcome == "failed"
    )


COLLECTIVES = [
    # what the run has, bytes, count, what is said
    (BASE.collectives, "passed", "passed", "is that of the baseline"),
    (
        [("all_gather", "float32", 18.0, 1201), ("reduce_scatter", "float32", 9.0, 600)],
        "failed", "passed", "all_gather of float32 over 2 ranks grew most, +1 B",
    ),
    (
        [("all_gather", "float32", 18.125, 1200), ("reduce_scatter", "float32", 9.0, 600)],
        "passed", "failed", "all_gather of float32 over 2 ranks grew most, +0.125",
    ),
    (
        [("all_gather", "float32", 18.0, 1200), ("reduce_scatter", "float32", 9.0, 600),
         ("all_reduce", "float64", 1.0, 8)],
        "failed", "failed", "all_reduce of float64 over 2 ranks is new, +8 B",
    ),
    (
        [("all_gather", "float32", 18.0, 1200)],
        "warned", "warned", "reduce_scatter of float32 over 2 ranks is gone, -600 B",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "of_bytes", "of_count", "says"), COLLECTIVES)
def test_collectives_are_named_by_kind_type_and_group(
    seen: list[tuple[str, str, float, int]], of_bytes: str, of_count: str, says: str
) -> None:
    run = replace(BASE, collectives=seen)
    found = [result(limit(f"collective_{what}", change_ratio=0.0), run) for what in ("bytes", "count")]
    assert [one.outcome for one in found] == [of_bytes, of_count]
    assert says in " ".join(one.sentence for one in found)


def test_sums_that_trade_against_each_other_warn_with_the_name() -> None:
    traded = replace(
        BASE, collectives=[("all_gather", "float32", 18.0, 1200), ("all_reduce", "float32", 9.0, 600)]
    )
    for gate in ("collective_bytes", "collective_count"):
        found = result(limit(gate, change_ratio=0.0), traded)
        assert found.outcome == "warned"
        assert "all_reduce of float32 over 2 ranks is new" in found.sentence
        assert "reduce_scatter of float32 over 2 ranks is gone" in found.sentence
        assert result(limit(gate, value=1800.0), traded).outcome == "passed"
        assert result(limit(gate, change_ratio=-0.1), traded).outcome == "failed"


def test_groups_of_part_of_the_ranks_count_as_much_as_a_rank_has_of_them() -> None:
    run = Made(world=4, timed=(0, 1, 2, 3), peaks=(1000,) * 4)
    entries = [
        replace(entry, group=group, group_size=2)
        for group in ("0,1", "2,3")
        for entry in run.report.time.collectives
    ]
    report = replace(run.report, time=replace(run.report.time, collectives=tuple(entries)))
    (found,) = check(report, [limit("collective_bytes", value=1800.0)], None, environment=ENVIRONMENT).results
    assert (found.value, found.outcome, found.leaf) == (1800, "passed", "time.collectives")


@pytest.mark.parametrize(("seen", "outcome"), [(1800, "passed"), (1801, "failed")])
def test_the_law_counts_in_parameters(seen: int, outcome: str) -> None:
    found = result(limit("collective_bytes_law", value=3.0), replace(BASE, seen=seen))
    assert found.outcome == outcome
    assert found.value == pytest.approx(seen / 600)
    assert found.leaf == "volume.seen_bytes"


@pytest.mark.parametrize("origin", ["default", "zprof.toml"])
@pytest.mark.parametrize(
    "gate", ["peak_memory", "peak_memory.gradients", "untagged_ratio", "collective_bytes"]
)
def test_what_the_run_lacks_is_unknown_and_never_green(gate: str, origin: str) -> None:
    empty = replace(BASE, memory=False, walls=())
    held = limit(gate, change_ratio=0.02, origin=origin)
    lacks = result(held, empty)
    assert (lacks.outcome, lacks.value) == ("unknown", None)
    assert lacks.remedy
    neither = result(held, empty, empty)
    assert neither.outcome == ("skipped" if origin == "default" else "unknown")
    only_now = result(held, BASE, empty)
    assert only_now.outcome == ("warned" if origin == "default" else "unknown")
    assert "not have it" in only_now.sentence
    assert "zprof baseline update" in only_now.remedy


def test_a_missing_rank_can_only_have_more_memory() -> None:
    run = replace(BASE, peaks=(1000,))
    assert result(limit("peak_memory", change_ratio=0.02), run).outcome == "unknown"
    found = result(limit("peak_memory", change_ratio=-0.02), run)
    assert (found.outcome, found.leaf) == ("failed", "memory.per_rank[0].peak_bytes")
    assert "without rank 1" in found.sentence
    assert result(limit("collective_bytes", change_ratio=0.0), replace(BASE, timed=(0,))).outcome == "unknown"
    # a baseline without that rank, too, is like for like
    assert result(limit("peak_memory", change_ratio=0.02), run, run).outcome == "passed"
    half = replace(BASE, timed=(0,))
    assert result(limit("collective_bytes", change_ratio=0.0), half, half).outcome == "passed"


@pytest.mark.parametrize("gate", ["peak_memory", "peak_memory.parameters", "collective_bytes"])
@pytest.mark.parametrize("base", [None, "like the run", "whole"])
def test_a_value_is_of_all_ranks_whatever_the_baseline_lacks(gate: str, base: str | None) -> None:
    run = replace(BASE, peaks=(1000,), timed=(0,))
    before = {None: None, "like the run": run, "whole": BASE}[base]
    assert result(limit(gate, value=2000.0), run, before).outcome == "unknown"


BOUNDS = [
    # run, baseline, peak of the run, what it is against 1000 and +2 %
    ({"upper_memory": True}, {}, 1020, "passed"),
    ({"upper_memory": True}, {}, 1021, "unknown"),
    ({"lower_memory": True}, {}, 1020, "unknown"),
    ({"lower_memory": True}, {}, 1021, "failed"),
    ({}, {"upper_memory": True}, 1020, "unknown"),
    ({}, {"upper_memory": True}, 1021, "failed"),
    ({}, {"lower_memory": True}, 1020, "passed"),
    ({}, {"lower_memory": True}, 1021, "unknown"),
]


@pytest.mark.parametrize(("run", "base", "peak", "outcome"), BOUNDS)
def test_a_bound_that_decides_is_used(
    run: dict[str, bool], base: dict[str, bool], peak: int, outcome: str
) -> None:
    sides = (replace(BASE, peaks=(peak, 1), **run), replace(BASE, **base))
    assert result(limit("peak_memory", change_ratio=0.02), *sides).outcome == outcome
    quiet = result(limit("peak_memory", change_ratio=0.02, origin="default"), *sides)
    open_before = outcome == "unknown" and bool(base)
    left_open = "warned" if peak > 1020 else "skipped"
    assert quiet.outcome == (left_open if open_before else outcome)


def test_a_baseline_that_is_a_bound_silences_no_default() -> None:
    found = result(PEAK, replace(BASE, peaks=(10_000, 1)), replace(BASE, lower_memory=True))
    assert found.outcome == "warned"
    assert "cannot decide it" in found.sentence


def test_collectives_without_a_size_may_move_more() -> None:
    silent = [("all_gather", "float32", 18.0, 0), ("reduce_scatter", "float32", 9.0, 600)]
    found = result(limit("collective_bytes", change_ratio=0.0), replace(BASE, collectives=silent))
    assert found.outcome == "unknown"
    barrier = [*BASE.collectives, ("barrier", "", 1.0, 0)]
    assert (
        result(limit("collective_bytes", value=1800.0), replace(BASE, collectives=barrier)).outcome
        == "passed"
    )


def test_a_limit_that_warns_never_fails() -> None:
    found = result(limit("peak_memory", value=1.0, warns=True), BASE)
    assert found.outcome == "warned"


_SIZES = st.integers(0, 1 << 50)
_LIMITS = st.one_of(
    st.builds(lambda ratio: {"change_ratio": ratio}, st.floats(-0.9, 9, allow_nan=False)),
    st.builds(lambda value: {"value": float(value)}, _SIZES),
)


@given(_SIZES, st.tuples(_SIZES, _SIZES), _LIMITS)
def test_more_bytes_never_turn_a_failure_into_a_pass(
    base: int, sizes: tuple[int, int], said: dict[str, float]
) -> None:
    held = limit("peak_memory", **said)
    less, more = (
        result(held, replace(BASE, peaks=(size, 0), tenants={}), replace(BASE, peaks=(base, 0), tenants={}))
        for size in sorted(sizes)
    )
    assert (less.outcome, more.outcome) != (Outcome.FAILED, Outcome.PASSED)


@given(_SIZES, _SIZES, st.integers(0, 100), st.sampled_from(Sense))
def test_the_edge_is_where_whole_numbers_put_it(base: int, size: int, percent: int, sense: Sense) -> None:
    held = replace(limit("peak_memory", change_ratio=percent / 100), sense=sense)
    allowed = compute_allowed(held, Figure(value=Fraction(base)))
    left, right = 100 * size, base * (100 + percent)
    at_most = left <= right if sense is Sense.AT_MOST else left >= right
    assert holds(Figure(value=Fraction(size)), allowed, sense) is at_most


def test_a_lower_limit_fails_below_it() -> None:
    assert result(at_least("collective_count", value=27.0), BASE).outcome == "passed"
    assert result(at_least("collective_count", value=27.1), BASE).outcome == "failed"
