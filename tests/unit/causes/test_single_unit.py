"""single_unit: few messages, one with most of the bytes, and nothing beside the first."""

import pytest
from msgspec.structs import replace

from tests.support.link_runs import MS, Sent, gathers, link_run, norm, reduces
from tests.support.rule_runs import Run, found, judged, on_one_rank, without_collectives
from tests.support.tables import changed, selected
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.single_unit import CAUSE as single_unit

MIB = 1 << 20
WHOLE, REDUCE = gathers(1, 200 * MIB, 10 * MS), reduces(1, 200 * MIB, 10 * MS)
MODEL = replace(WHOLE, units=["model"], begins_ns=30 * MS)
BUCKETS = replace(REDUCE, count=20, bytes=10 * MIB, each_ns=MS // 2)


def run(*sent: Sent) -> RunAnalysis:
    return link_run(*(sent or (WHOLE, REDUCE)), norm(20_000), compute_ns=75 * MS)


def same(count: int, shows: float, shows_first: float) -> Sent:
    """The model gathered several times a step."""
    return gathers(count, 200 * MIB, 10 * MS, units=["model"], shows=shows, shows_first=shows_first)


def first_steps(count: int) -> RunAnalysis:
    steps, rows = (selected(table, table.ints("step") < count) for table in (run().steps, run().collectives))
    return replace(run(), steps=steps, collectives=rows)


def head(size: int, *, shows: float = 1.0, begins_ns: int = 0) -> Sent:
    return gathers(1, size, 10 * MS, units=["head"], shows=shows, begins_ns=begins_ns)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (run, "high"),  # one unit
        (lambda: run(same(2, 0.1, 1.0), REDUCE), "high"),  # gathered twice
        (lambda: run(same(3, 0.1, 1.0), REDUCE), None),  # gathered three times
        # two units
        (lambda: run(replace(MODEL, begins_ns=0), head(200 * MIB, begins_ns=30 * MS), REDUCE), None),
        # one is larger
        (lambda: run(replace(MODEL, begins_ns=0), head(199 * MIB, begins_ns=30 * MS), REDUCE), "high"),
        (lambda: run(same(2, 0.0, 0.81), REDUCE), "high"),  # more than 80 %
        (lambda: run(head(100 * MIB, shows=0.0), MODEL, REDUCE), None),  # a large first one hides
        # gradients in one bucket; of the usual size they are a note
        (lambda: run(REDUCE), "high"),  # one bucket
        (lambda: run(replace(REDUCE, shows=0.5)), None),  # a hidden bucket
        (lambda: run(replace(REDUCE, bytes=23 * MIB, begins_ns=30 * MS), REDUCE), None),  # two buckets
        (lambda: run(replace(REDUCE, bytes=25 * MIB)), "low"),  # a usual bucket
        (lambda: run(replace(WHOLE, begins_ns=700 * MS), BUCKETS), None),  # after the update: stages 1 and 2
        (lambda: run(gathers(1, 16, MS // 5), BUCKETS), None),  # a flag is no model
        (lambda: run(gathers(1, 16, MS // 5), REDUCE), "high"),  # nor does it hide the bucket
        (lambda: first_steps(2), "medium"),  # two steps
        (lambda: without_collectives(run()), "gap"),  # no collectives
        (lambda: on_one_rank(run()), None),  # one rank
        (lambda: on_one_rank(without_collectives(run())), None),  # one rank without collectives
    ],
)  # fmt: skip
def test_thresholds(run: Run, expected: str | None) -> None:
    assert judged(single_unit, run()) == expected


def test_units_of_blocks_win_most_of_the_gather_and_the_reduction() -> None:
    """With n units a message takes 10 ms / n: the first, the last and the one at the turn stay."""
    finding = found(single_unit, run())
    low, high = finding.saving_ns
    assert finding.id == "ZP405"
    assert 11 * MS < low < 12.6 * MS
    assert 18 * MS < high <= 20 * MS


@pytest.mark.parametrize(("launch_ms", "least_ms"), [(0.5, 116), (1, 94.8), (82, 94.8)])
def test_launching_many_small_messages_takes_a_cpu_a_millisecond_each_at_most(
    launch_ms: float, least_ms: float
) -> None:
    sent = (gathers(1, 200 * MIB, 100 * MS), reduces(1, 200 * MIB, 100 * MS), norm(20_000))
    analysis = link_run(*sent, device="cpu", wall_ns=1_000 * MS, compute_ns=750 * MS)
    launched = analysis.collectives.ints("launch_start_ns") + round(launch_ms * MS)
    slow = replace(analysis, collectives=changed(analysis.collectives, launch_end_ns=launched))
    assert found(single_unit, slow).saving_ns[0] == pytest.approx(least_ms * MS, rel=0.01)
