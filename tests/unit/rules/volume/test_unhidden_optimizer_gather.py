"""The gather behind the step is told from those of stage 3 by its place, and 3 psi by bytes."""

from dataclasses import dataclass, replace

import pandas as pd
import pytest

from tests.support.analyses import MS, ORIGIN, Scenario, analysis_of, without_rank
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.model.time import CollectiveTime
from zprof.rules.volume.unhidden_optimizer_gather import unhidden_optimizer_gather

COMPUTE_MS = 60.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of 100 ms: two reductions under the backward, then two gathers; both of ``psi`` bytes."""

    reduction: str = "reduce_scatter"
    sharing: str = "all_gather"
    psi: int = 8 << 20
    gathered: int = 8 << 20
    dtype: str = "bfloat16"
    reduced_exposed_ms: float = 0.0
    exposed_ms: float = 10.0
    exposed_ratio: float = 0.8
    gather_first: bool = False
    micro_batches: int = 1


def job(plan: Step) -> RunAnalysis:
    shell = analysis_of(Scenario(ranks=2, steps=4, engine="DeepSpeed"))
    rows = [row for rank in (0, 1) for step in range(4) for row in _rows(plan, rank, step)]
    frame = pd.DataFrame(rows).astype({"launch_start_ns": "Int64", "wait_start_ns": "Int64"})
    steps = shell.steps.assign(wall_ns=100 * MS, compute_ns=int(COMPUTE_MS * MS))
    facts = replace(shell.training, stage=None, micro_batches=plan.micro_batches)
    return replace(shell, collectives=frame, steps=steps, training=facts)


def _rows(plan: Step, rank: int, step: int) -> list[dict[str, object]]:
    begin = ORIGIN + step * 100 * MS
    gather_at = (0, 5) if plan.gather_first else (80, 90)
    reduced = [_row(rank, step, plan.reduction, begin + at * MS, plan.psi // 2, plan) for at in (20, 40)]
    reduced[1]["exposed_transfer_ns"] = int(plan.reduced_exposed_ms * MS)
    shared = [_row(rank, step, plan.sharing, begin + at * MS, plan.gathered // 2, plan) for at in gather_at]
    for row in shared:
        row["exposed_transfer_ns"] = int(plan.exposed_ms / 2 * MS)
        row["transfer_ns"] = int(plan.exposed_ms / 2 / plan.exposed_ratio * MS)
    norm = _row(rank, step, "all_reduce", begin + 95 * MS, 4, plan)
    return [*reduced, *shared, norm]


def _row(rank: int, step: int, kind: str, start: int, size: int, plan: Step) -> dict[str, object]:
    return {
        "rank": rank, "step": step, "kind": kind, "group": "0,1", "group_size": 2, "dtype": plan.dtype,
        "bytes": size, "start_ns": start, "end_ns": start + 10 * MS, "launch_start_ns": start,
        "wait_start_ns": pd.NA, "wait_ns": 0, "transfer_ns": 10 * MS, "exposed_wait_ns": 0,
        "exposed_transfer_ns": 0, "matched": True, "first_of_window": False, "bound": False,
    }  # fmt: skip


def found(plan: Step) -> Finding:
    answer = unhidden_optimizer_gather(job(plan), None)
    assert isinstance(answer, Finding), answer
    return answer


def evidence(finding: Finding, start: str) -> float:
    return next(fact.value for fact in finding.evidence if fact.what.startswith(start))


@pytest.mark.parametrize("sharing", ["all_gather", "broadcast"])
def test_names_the_gather_behind_the_step(sharing: str) -> None:
    finding = found(Step(sharing=sharing))
    assert (finding.id, finding.confidence) == ("ZP416", Confidence.HIGH)
    assert evidence(finding, "new parameters gathered") == 8 << 20
    assert evidence(finding, "of it exposed") == 10 * MS
    assert "allgather_bucket_size" in finding.fix


def test_gathers_of_stage_3_are_not_it() -> None:
    """They come before the reductions: parameters are gathered to compute with them."""
    assert unhidden_optimizer_gather(job(Step(gather_first=True)), None) is None


@pytest.mark.parametrize(("before_ratio", "fires"), [(0.04, True), (0.06, False)])
def test_all_large_gathers_must_stand_behind(before_ratio: float, fires: bool) -> None:
    analysis = job(Step())
    size = int(before_ratio / (1 - before_ratio) * (8 << 20))
    early = [_row(rank, step, "all_gather", ORIGIN + (step * 100 + 1) * MS, size, Step())
             for rank in (0, 1) for step in range(4)]  # fmt: skip
    rows = pd.concat([analysis.collectives, pd.DataFrame(early)], ignore_index=True)
    rows = rows.astype({"launch_start_ns": "Int64", "wait_start_ns": "Int64"})
    answer = unhidden_optimizer_gather(replace(analysis, collectives=rows), None)
    assert isinstance(answer, Finding) == fires


@pytest.mark.parametrize(("exposed_ms", "fires"), [(2.9, False), (3.1, True)])
def test_from_three_hundredths_of_the_step_on(exposed_ms: float, fires: bool) -> None:
    answer = unhidden_optimizer_gather(job(Step(exposed_ms=exposed_ms)), None)
    assert isinstance(answer, Finding) == fires


@pytest.mark.parametrize(("ratio", "fires"), [(0.45, False), (0.55, True)])
def test_where_most_of_it_hides_the_rest_is_the_first_units(ratio: float, fires: bool) -> None:
    answer = unhidden_optimizer_gather(job(Step(exposed_ratio=ratio)), None)
    assert isinstance(answer, Finding) == fires


def test_the_gather_behind_the_last_step_of_a_program_does_not_count() -> None:
    """Nothing follows that it could hide under: of the four steps only the last is exposed in full."""
    analysis = job(Step(exposed_ratio=0.4))
    rows = analysis.collectives
    last = (rows["kind"] == "all_gather") & (rows["step"] == 3)
    exposed = rows["exposed_transfer_ns"].mask(last, rows["transfer_ns"])
    assert exposed.sum() > 0.5 * rows.loc[rows["kind"] == "all_gather", "transfer_ns"].sum()
    ended = replace(analysis, collectives=rows.assign(exposed_transfer_ns=exposed))
    assert unhidden_optimizer_gather(ended, None) is None


@pytest.mark.parametrize(
    ("exposed_ms", "low", "high"), [(10.0, 6.0, 10.0), (20.0, 0.6 * 18, 20.0), (40.0, 0.6 * 18, 24.0)]
)
def test_no_more_can_hide_than_the_next_forward(exposed_ms: float, low: float, high: float) -> None:
    """Of 60 ms of compute, the forward is 18 to 24."""
    saving = found(Step(exposed_ms=exposed_ms)).saving_ns
    assert saving == (pytest.approx(low * MS), pytest.approx(high * MS))


def test_only_the_first_micro_batch_of_the_next_step_hides_it() -> None:
    assert found(Step(exposed_ms=40.0, micro_batches=4)).saving_ns[1] == pytest.approx(6 * MS)


@pytest.mark.parametrize(("part", "fires"), [(0.09, False), (0.11, True)])
def test_small_gathers_at_the_end_are_no_parameters(part: float, fires: bool) -> None:
    """Predictions and metrics are gathered at the end of a step too."""
    answer = unhidden_optimizer_gather(job(Step(gathered=int(part * (8 << 20)))), None)
    assert isinstance(answer, Finding) == fires


@pytest.mark.parametrize(("reduced", "three"), [(0.85, False), (0.95, True), (4.0, True)])
def test_an_all_reduce_of_as_much_as_is_gathered_is_3_psi(reduced: float, three: bool) -> None:
    finding = found(Step(reduction="all_reduce", psi=int(reduced * (8 << 20))))
    assert ("three times the parameters" in finding.sentence) == three
    if three:
        moved = 2 * evidence(finding, "gradients all-reduced") + evidence(finding, "new parameters")
        assert evidence(finding, "moved a step") == moved


def test_types_do_not_make_it_3_psi() -> None:
    """Half as many elements in twice the bytes: not the whole of the gradients."""
    analysis = job(Step(reduction="all_reduce", psi=8 << 20))
    kinds = analysis.collectives["kind"]
    rows = analysis.collectives.assign(
        dtype=analysis.collectives["dtype"].mask(kinds == "all_reduce", "float32")
    )
    answer = unhidden_optimizer_gather(replace(analysis, collectives=rows), None)
    assert isinstance(answer, Finding)
    assert "three times" not in answer.sentence


def test_reduce_scatters_are_no_3_psi() -> None:
    assert "three times" not in found(Step()).sentence


def test_scatters_that_gloo_hides_are_no_3_psi() -> None:
    """Without launches a reduce-scatter of gloo is seen as the all-reduce that carries it out."""
    analysis = job(Step(reduction="all_reduce"))
    seen = replace(analysis.time.collectives[0], method="gloo_execution_order")
    assert isinstance(seen, CollectiveTime)
    answer = unhidden_optimizer_gather(
        replace(analysis, time=replace(analysis.time, collectives=(seen,))), None
    )
    assert isinstance(answer, Finding)
    assert "three times" not in answer.sentence


def test_what_3_psi_exposes_is_priced_too() -> None:
    hidden, exposed = (
        found(Step(reduction="all_reduce", exposed_ms=4.0, reduced_exposed_ms=ms)) for ms in (0.0, 8.0)
    )
    assert exposed.saving_ns[1] > hidden.saving_ns[1] + 3 * MS


@pytest.mark.parametrize("reduced_ms", [0.0, 20.0])
def test_3_psi_whose_gather_is_hidden_is_a_note(reduced_ms: float) -> None:
    finding = found(Step(reduction="all_reduce", exposed_ms=0.0, reduced_exposed_ms=reduced_ms))
    assert finding.confidence is Confidence.LOW
    assert "three times" in finding.sentence


def test_a_rank_that_is_missing_widens_the_range() -> None:
    analysis = job(Step())
    rows = analysis.collectives
    # one gather in ten is fast: the others may have waited for the rank that is not there
    fast = (rows["kind"] == "all_gather") & (rows["step"] == 0)
    rows = rows.assign(end_ns=rows["end_ns"].mask(fast, rows["start_ns"] + MS))
    alone = without_rank(replace(analysis, collectives=rows.assign(bound=True)), 1)
    answer = unhidden_optimizer_gather(alone, None)
    assert isinstance(answer, Finding)
    assert answer.saving_ns == (pytest.approx(0.6 * 2 * MS, rel=0.2), pytest.approx(10 * MS))
    assert answer.confidence is Confidence.MEDIUM
    assert "ranks are missing" in answer.sentence


def test_gaps() -> None:
    analysis = job(Step())
    empty = replace(analysis, collectives=analysis.collectives.iloc[:0])
    assert isinstance(unhidden_optimizer_gather(empty, None), Gap)
    assert unhidden_optimizer_gather(analysis_of(Scenario(stage=0)), None) is None
    assert unhidden_optimizer_gather(analysis_of(Scenario(ranks=1)), None) is None


def with_rows(analysis: RunAnalysis, kind: str, at_ms: int, size: int) -> RunAnalysis:
    """One collective more in each step."""
    more = [_row(rank, step, kind, ORIGIN + (step * 100 + at_ms) * MS, size, Step())
            for rank in (0, 1) for step in range(4)]  # fmt: skip
    rows = pd.concat([analysis.collectives, pd.DataFrame(more)], ignore_index=True)
    return replace(analysis, collectives=rows.astype({"launch_start_ns": "Int64", "wait_start_ns": "Int64"}))


def sentence(analysis: RunAnalysis) -> str:
    answer = unhidden_optimizer_gather(analysis, None)
    return answer.sentence if isinstance(answer, Finding) else ""


def test_on_the_thresholds_of_bytes() -> None:
    """A twentieth gathered before; a tenth of what is reduced; begun with the last reduction."""
    assert sentence(with_rows(job(Step(gathered=9_500_000)), "all_gather", 1, 500_000))
    assert sentence(job(Step(psi=8_000_000, gathered=800_000)))
    analysis = job(Step())
    rows = analysis.collectives
    begun = rows["start_ns"].mask(
        rows["kind"] == "all_gather", rows["start_ns"] - rows["start_ns"] % (100 * MS)
    )
    at_once = replace(
        analysis, collectives=rows.assign(start_ns=begun + 40 * MS * (rows["kind"] == "all_gather"))
    )
    assert not sentence(at_once)


@pytest.mark.parametrize(("reduced", "three"), [(8_800_000, False), (9_000_000, True)])
def test_nine_tenths_all_reduced_are_3_psi(reduced: int, *, three: bool) -> None:
    plan = Step(reduction="all_reduce", psi=reduced, gathered=10_000_000)
    assert ("three times" in sentence(job(plan))) is three


@pytest.mark.parametrize(("scattered", "three"), [(1_000_000, True), (1_100_000, False)])
def test_a_tenth_scattered_beside_it_is_none_of_it(scattered: int, *, three: bool) -> None:
    analysis = job(Step(reduction="all_reduce", psi=9_000_000, gathered=10_000_000))
    assert ("three times" in sentence(with_rows(analysis, "reduce_scatter", 30, scattered))) is three


def test_on_the_thresholds_of_what_is_exposed() -> None:
    """3 % of the step, half of the transfer."""
    assert found(Step(exposed_ms=3.0)).confidence is Confidence.HIGH
    assert found(Step(exposed_ms=10.0, exposed_ratio=0.5)).confidence is Confidence.HIGH
