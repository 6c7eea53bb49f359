"""compute_blocks_comm fires on gathers that stood behind kernels and are exposed for it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from tests.support.diagnoses import assert_first_and_priced, base, planted
from tests.support.exact import with_walls
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.rule import wall_ns
from zprof.rules.transfer.compute_blocks_comm import compute_blocks_comm
from zprof.simulator.causes import Cause as Planted


def blocked(each_ns: int, exposed_ns: int = 20 * MS, *, every: int = 1, known: bool = True) -> RunAnalysis:
    """Each so-many-th gather stood behind kernels for so long; 12 gathers a step."""
    run = analysis_of(Scenario())
    rows = run.collectives
    gather = (rows["kind"] == "all_gather").to_numpy()
    number = np.cumsum(gather)
    values = pd.Series(np.where(gather & (number % every == 0), each_ns, 0), index=rows.index, dtype="Int64")
    rows = rows.assign(
        blocked_ns=values.where(pd.Series(gather & known, index=rows.index)),
        exposed_transfer_ns=np.where(gather, exposed_ns, 0),
    )
    return replace(run, collectives=rows, run=replace(run.run, device="cuda"))


def found(analysis: RunAnalysis) -> Finding:
    answer = compute_blocks_comm(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


def test_names_gathers_and_cost() -> None:
    finding = found(blocked(2 * MS))
    assert (finding.id, finding.cause, finding.confidence) == (
        "ZP407",
        Cause.COMPUTE_BLOCKS_COMM,
        Confidence.HIGH,
    )
    assert finding.sentence.startswith("190 of 190 all_gathers")
    cost = 190 * 2 * MS / 16
    assert finding.saving_ns == pytest.approx((0.7 * cost, cost), rel=1e-3)


def test_only_what_is_exposed_costs() -> None:
    finding = found(blocked(4 * MS, MS))
    cost = 190 * MS / 16
    assert finding.saving_ns == pytest.approx((0.7 * cost, 1.1 * cost), rel=1e-3)
    assert compute_blocks_comm(blocked(4 * MS, 0), None) is None


@pytest.mark.parametrize(("ratio", "there"), [(0.0195, False), (0.0205, True)])
def test_threshold(ratio: float, there: bool) -> None:
    each = int(ratio * wall_ns(blocked(0)) * 16 / 190)
    assert isinstance(compute_blocks_comm(blocked(each), None), Finding) is there


@pytest.mark.parametrize(("every", "there"), [(4, True), (5, False)])
def test_a_few_are_chance(every: int, there: bool) -> None:
    assert isinstance(compute_blocks_comm(blocked(20 * MS, every=every), None), Finding) is there


def test_a_quarter_of_them_is_no_chance() -> None:
    run = blocked(20 * MS)
    gathers = run.collectives[run.collectives["kind"] == "all_gather"].iloc[10:170]
    for count, there in ((40, True), (39, False)):
        values = pd.Series([20 * MS] * count + [0] * (160 - count), index=gathers.index, dtype="Int64")
        some = replace(run, collectives=gathers.assign(blocked_ns=values))
        assert isinstance(compute_blocks_comm(some, None), Finding) is there


def test_what_starts_within_50_us_was_not_blocked() -> None:
    long = analysis_of(Scenario(compute_ms=0.02, noise_ms=0.0, bytes_per_s=1e12))
    run = blocked(50_000)
    small = replace(run, steps=long.steps)
    assert compute_blocks_comm(small, None) is None
    assert compute_blocks_comm(replace(blocked(50_001), steps=long.steps), None) is not None


def test_not_known_is_a_gap_and_a_cpu_has_no_queue() -> None:
    run = blocked(2 * MS, known=False)
    assert isinstance(compute_blocks_comm(run, None), Gap)
    assert isinstance(compute_blocks_comm(replace(run, collectives=run.collectives.iloc[:0]), None), Gap)
    on_cpu = blocked(2 * MS)
    assert compute_blocks_comm(replace(on_cpu, run=replace(on_cpu.run, device="cpu")), None) is None


def test_planted(tmp_path: Path) -> None:
    cause, plan = Planted.COMPUTE_BLOCKS_COMM, base(2)
    job = planted(cause, plan, tmp_path / "run", 2.0)
    assert_first_and_priced(job, cause, plan, tmp_path / "truth", 2.0)


def test_two_hundredths_of_the_step_are_not_worth_it() -> None:
    """160 gathers of eight steps of two ranks, 0.2 ms each."""
    run = with_walls(blocked(0))
    gathers = run.collectives[run.collectives["kind"] == "all_gather"].iloc[10:170]
    for each, there in ((MS // 5, False), (MS // 5 + 1, True)):
        values = pd.Series(each, index=gathers.index, dtype="Int64")
        all_of_them = replace(run, collectives=gathers.assign(blocked_ns=values))
        assert isinstance(compute_blocks_comm(all_of_them, None), Finding) is there


@pytest.mark.parametrize(
    ("late", "confidence"), [(10, Confidence.HIGH), (9, Confidence.MEDIUM), (8, Confidence.MEDIUM)]
)
def test_ten_of_them_make_it_sure(late: int, confidence: Confidence) -> None:
    run = blocked(20 * MS)
    gathers = run.collectives[run.collectives["kind"] == "all_gather"].iloc[10 : 10 + 3 * late]
    values = pd.Series([80 * MS] * late + [0] * 2 * late, index=gathers.index, dtype="Int64")
    exposed = gathers.assign(blocked_ns=values, exposed_transfer_ns=80 * MS)
    finding = found(replace(run, collectives=exposed))
    assert finding.confidence is confidence
    facts = {fact.what: fact.value for fact in finding.evidence}
    assert facts["exposed transfer of these a step"] == late * 80 * MS / 16
