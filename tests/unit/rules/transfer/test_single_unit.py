"""One unit for the whole model: few messages, one with most bytes, nothing beside the first."""

from dataclasses import replace

import pytest

from tests.support.exact import wall_for, with_walls
from tests.support.link_runs import MS, Sent, gathers, link_run, norm, reduces
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.transfer.single_unit import single_unit

MIB = 1 << 20
WHOLE = gathers(1, 200 * MIB, 10 * MS)
REDUCE = reduces(1, 200 * MIB, 10 * MS)


def run(*sent: Sent, wall_ns: int = 100 * MS) -> RunAnalysis:
    return link_run(*(sent or (WHOLE, REDUCE)), norm(20_000), wall_ns=wall_ns, compute_ns=75 * MS)


def fires(*sent: Sent) -> bool:
    return isinstance(single_unit(run(*sent), None), Finding)


def test_names_the_unit_and_what_units_of_blocks_win() -> None:
    finding = single_unit(run(), None)
    assert isinstance(finding, Finding)
    assert (finding.id, finding.cause, finding.confidence) == ("ZP405", Cause.SINGLE_UNIT, Confidence.HIGH)
    assert finding.sentence.startswith("the model is one unit: an all_gather of 200.0 MiB takes 10.0 ms")
    # with n units a message takes 10 ms / n: the first, the last and the one at the turn stay
    assert 11 * MS < finding.saving_ns[0] < 12.6 * MS
    assert 18 * MS < finding.saving_ns[1] <= 20 * MS


@pytest.mark.parametrize(("count", "one"), [(1, True), (2, True), (3, False)])
def test_at_most_two_gathers_a_step(count: int, *, one: bool) -> None:
    same = gathers(count, 200 * MIB, 10 * MS, units=["model"], shows=0.1, shows_first=1.0)
    assert fires(same, REDUCE) == one


@pytest.mark.parametrize(("other", "one"), [(200 * MIB, False), (199 * MIB, True)])
def test_one_gather_has_most_of_the_bytes(other: int, *, one: bool) -> None:
    root = replace(WHOLE, bytes=other, units=["head"], begins_ns=30 * MS)
    assert fires(replace(WHOLE, units=["model"]), root, REDUCE) == one


@pytest.mark.parametrize(("shows", "one"), [(0.80, False), (0.81, True)])
def test_the_first_gather_shows(shows: float, *, one: bool) -> None:
    assert fires(gathers(2, 200 * MIB, 10 * MS, units=["model"], shows=0.0, shows_first=shows), REDUCE) == one


@pytest.mark.parametrize(("wall_ms", "worth"), [(600, True), (700, False)])
def test_it_is_worth_three_per_cent(wall_ms: int, *, worth: bool) -> None:
    """At most 20 ms are won: 3.3 % or 2.9 % of the step."""
    assert isinstance(single_unit(run(wall_ns=wall_ms * MS), None), Finding) == worth


def test_gradients_in_one_bucket() -> None:
    """Data parallel: the reduction begins when the backward is done."""
    finding = single_unit(run(REDUCE), None)
    assert isinstance(finding, Finding)
    assert finding.sentence.startswith("the gradients are one bucket")
    assert not fires(replace(REDUCE, shows=0.5))


@pytest.mark.parametrize(("other", "one"), [(22 * MIB, True), (23 * MIB, False)])
def test_of_two_buckets_none_is_the_model(other: int, *, one: bool) -> None:
    """The first hides under the backward; beside one bucket there is a tenth of the gradients at most."""
    assert fires(replace(REDUCE, bytes=other, begins_ns=30 * MS), REDUCE) == one


@pytest.mark.parametrize(("size", "sure"), [(25 * MIB, False), (25 * MIB + 1, True)])
def test_a_bucket_of_the_usual_size_is_a_note(size: int, *, sure: bool) -> None:
    finding = single_unit(run(replace(REDUCE, bytes=size)), None)
    assert isinstance(finding, Finding)
    assert (finding.confidence is not Confidence.LOW) == sure


@pytest.mark.parametrize(("launch_ms", "least_ms"), [(0.5, 116), (1, 94.8), (2, 94.8), (82, 94.8)])
def test_what_launching_a_large_message_takes_goes_with_its_bytes(launch_ms: float, least_ms: float) -> None:
    """On a CPU: of many smaller ones each takes a millisecond at most, not as long as the large one."""
    sent = (gathers(1, 200 * MIB, 100 * MS), reduces(1, 200 * MIB, 100 * MS), norm(20_000))
    analysis = link_run(*sent, device="cpu", wall_ns=1_000 * MS, compute_ns=750 * MS)
    launched = analysis.collectives["launch_start_ns"] + round(launch_ms * MS)
    finding = single_unit(
        replace(analysis, collectives=analysis.collectives.assign(launch_end_ns=launched)), None
    )
    assert isinstance(finding, Finding)
    assert finding.confidence is Confidence.HIGH
    assert finding.saving_ns[0] == pytest.approx(least_ms * MS, rel=0.01)


def test_a_gather_that_follows_the_update_is_no_unit() -> None:
    """Stages 1 and 2 gather once, after the reductions."""
    after = replace(WHOLE, begins_ns=700 * MS)
    assert not fires(after, replace(REDUCE, count=20, bytes=10 * MIB, each_ns=MS // 2))


def test_confidence_is_medium_with_few_steps() -> None:
    analysis = run()
    short = replace(
        analysis,
        steps=analysis.steps[analysis.steps["step"] < 2],
        collectives=analysis.collectives[analysis.collectives["step"] < 2],
    )
    finding = single_unit(short, None)
    assert isinstance(finding, Finding)
    assert finding.confidence is Confidence.MEDIUM


def test_silent_or_not_tested_without_collectives() -> None:
    analysis = run()
    nothing = replace(analysis, collectives=analysis.collectives.iloc[:0])
    assert isinstance(single_unit(nothing, None), Gap)
    assert single_unit(replace(nothing, run=replace(nothing.run, world_size=1)), None) is None


def test_three_steps_are_enough() -> None:
    analysis = run()
    steps, rows = analysis.steps, analysis.collectives
    short = replace(analysis, steps=steps[steps["step"] < 3], collectives=rows[rows["step"] < 3])
    finding = single_unit(short, None)
    assert isinstance(finding, Finding)
    assert finding.confidence is Confidence.HIGH


def test_half_of_the_largest_gather_is_large_too() -> None:
    """The first of them is hidden: what shows of the second says nothing of the first unit."""
    half = gathers(1, 100 * MIB, 10 * MS, units=["head"], shows=0.0)
    rest = replace(WHOLE, units=["model"], begins_ns=30 * MS)
    assert not fires(half, rest, REDUCE)
    assert fires(replace(half, bytes=99 * MIB), rest, REDUCE)


def test_on_three_hundredths_of_the_step() -> None:
    finding = single_unit(run(), None)
    assert isinstance(finding, Finding)
    wall = wall_for(finding.saving_ns[1], 0.03)
    assert isinstance(single_unit(with_walls(run(), wall), None), Finding)
    assert single_unit(with_walls(run(), 1.001 * wall), None) is None
