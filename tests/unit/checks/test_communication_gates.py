"""Bytes and counts of collectives: exact, by kind, type and group, and against the ZeRO formula."""

import pytest
from msgspec.structs import replace

from tests.support.check_runs import BASE, ENVIRONMENT, Made, at_least, judged, limit
from zprof.checks.check import check

GATHER, REDUCE = BASE.collectives


@pytest.mark.parametrize(
    ("seen", "of_bytes", "of_count", "named"),
    [
        ((GATHER, REDUCE), "passed", "passed", ()),
        (
            (("all_gather", "float32", 18.0, 1201), REDUCE),
            "failed",
            "passed",
            ("all_gather of float32", "1 B"),
        ),
        ((("all_gather", "float32", 18.125, 1200), REDUCE), "passed", "failed", ("all_gather", "0.125")),
        ((GATHER, REDUCE, ("all_reduce", "float64", 1.0, 8)), "failed", "failed", ("all_reduce of float64",)),
        ((GATHER,), "warned", "warned", ("reduce_scatter of float32",)),
        (
            (GATHER, ("all_reduce", "float32", 9.0, 600)),  # the sums are equal
            "warned",
            "warned",
            ("all_reduce of float32 over 2 ranks", "reduce_scatter of float32 over 2 ranks"),
        ),
    ],
)
def test_a_change_is_named_by_kind_type_and_group(
    seen: tuple[tuple[str, str, float, int], ...], of_bytes: str, of_count: str, named: tuple[str, ...]
) -> None:
    run = replace(BASE, collectives=seen)
    found = [judged(limit(f"collective_{what}", change_ratio=0.0), run) for what in ("bytes", "count")]
    assert [one.outcome for one in found] == [of_bytes, of_count]
    assert all(any(name in one.grew for one in found) for name in named)


def test_a_lower_limit_fails_below_it() -> None:
    assert judged(at_least("collective_count", value=27.0)).outcome == "passed"
    assert judged(at_least("collective_count", value=27.1)).outcome == "failed"


def test_groups_of_part_of_the_ranks_count_as_much_as_a_rank_has_of_them() -> None:
    run = Made(world=4, timed=(0, 1, 2, 3), peaks=(1000,) * 4)
    entries = tuple(
        replace(entry, group=group, group_size=2)
        for group in ("0,1", "2,3")
        for entry in run.report.time.collectives
    )
    report = replace(run.report, time=replace(run.report.time, collectives=entries))
    (found,) = check(report, [limit("collective_bytes", value=1800.0)], None, environment=ENVIRONMENT).results
    assert (found.value, found.outcome, found.leaf) == (1800, "passed", "time.collectives")


def test_collectives_without_a_size_may_move_more_but_a_barrier_moves_nothing() -> None:
    silent = replace(BASE, collectives=(("all_gather", "float32", 18.0, 0), REDUCE))
    assert judged(limit("collective_bytes", change_ratio=0.0), silent).outcome == "unknown"
    assert judged(limit("collective_count", change_ratio=0.0), silent).outcome == "passed"
    barrier = replace(BASE, collectives=(GATHER, REDUCE, ("barrier", "", 1.0, 0)))
    assert judged(limit("collective_bytes", value=1800.0), barrier).outcome == "passed"


def test_the_formula_counts_in_parameters() -> None:
    held = limit("collective_bytes_law", value=3.0)
    for seen, outcome in ((1800, "passed"), (1801, "failed")):
        found = judged(held, replace(BASE, seen=seen))
        assert (found.outcome, found.leaf) == (outcome, "volume.seen_bytes")
        assert found.value == pytest.approx(seen / 600)
    assert judged(held, replace(BASE, timed=(0,)), None).outcome == "unknown"
    assert judged(held, replace(BASE, parameter_bytes=0), None).outcome == "unknown"
    unknown = judged(held, replace(BASE, seen=None, volume_gap=True), None)
    assert (unknown.outcome, unknown.remedy) == ("unknown", "say it: report --stage"), "as its gap says"


UNMET = replace(BASE, collectives=(), exposed=(0,) * 8, collective=(0,) * 8, wait=0, seen=0)


@pytest.mark.parametrize(
    "gate", ["exposed_ratio", "exposed_wait", "collective_bytes", "collective_bytes_law"]
)
def test_ranks_that_never_met_pass_no_gate_of_communication(gate: str) -> None:
    found = judged(limit(gate, value=0.9), UNMET, None)
    assert (found.outcome, found.value, bool(found.remedy)) == ("unknown", None, True)
    single = replace(UNMET, world=1, timed=(0,), peaks=(1000,))
    assert judged(limit(gate, value=0.9), single, None).outcome == "passed"


@pytest.mark.parametrize("gate", ["exposed_ratio", "exposed_wait"])
def test_a_baseline_of_ranks_that_never_met_says_nothing_of_communication(gate: str) -> None:
    assert judged(limit(gate, change_ratio=0.0), BASE, UNMET).outcome == "unknown"
    assert judged(limit(gate, change_ratio=0.0, origin="default"), UNMET, UNMET).outcome == "warned"
    assert judged(limit("step_time", change_ratio=0.0), UNMET, UNMET).outcome == "passed"
