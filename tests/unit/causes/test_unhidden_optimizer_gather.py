"""unhidden_optimizer_gather: the gather behind the step, and gradients that are all-reduced beside it."""

import pytest
from msgspec import Struct
from msgspec.structs import replace

from tests.support.analyses import MS, ORIGIN, Scenario, without_rank
from tests.support.rule_runs import Run, found, judged, run_of, values, without_collectives
from tests.support.tables import changed
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, OptionalInts, make_column
from zprof.causes.unhidden_optimizer_gather import CAUSE as unhidden_optimizer_gather

PSI = 8 << 20


class Step(Struct, frozen=True, kw_only=True):
    """A step of 100 ms: two reductions under the backward, then two gathers; both of ``psi`` bytes."""

    reduction: str = "reduce_scatter"
    sharing: str = "all_gather"
    psi: int = PSI
    gathered: int = PSI
    dtype: str = "bfloat16"
    reduced_exposed_ms: float = 0.0
    exposed_ms: float = 10.0
    exposed_ratio: float = 0.8
    gather_first: bool = False
    micro_batches: int = 1


def job(plan: Step | None = None, **fields: object) -> RunAnalysis:
    plan = replace(plan or Step(), **fields)  # type: ignore[arg-type]
    shell = run_of(steps=4, engine="DeepSpeed")
    rows = [row for rank in (0, 1) for step in range(4) for row in _rows(plan, rank, step)]
    steps = changed(shell.steps, wall_ns=100 * MS, compute_ns=60 * MS)
    facts = replace(shell.training, stage=None, micro_batches=plan.micro_batches)
    return replace(shell, collectives=table(rows), steps=steps, training=facts)


def table(rows: list[dict[str, object]]) -> Columns:
    return Columns(
        {name: make_column([row[name] for row in rows]) for name in rows[0]}
        | {"wait_start_ns": OptionalInts.of([None] * len(rows))}
    )


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
        "wait_ns": 0, "transfer_ns": 10 * MS, "exposed_wait_ns": 0,
        "exposed_transfer_ns": 0, "matched": True, "first_of_window": False, "bound": False,
    }  # fmt: skip


def with_rows(analysis: RunAnalysis, kind: str, at_ms: int, size: int) -> RunAnalysis:
    """One collective more in each step."""
    more = [_row(rank, step, kind, ORIGIN + (step * 100 + at_ms) * MS, size, Step())
            for rank in (0, 1) for step in range(4)]  # fmt: skip
    return replace(analysis, collectives=Columns.concat([analysis.collectives, table(more)]))


def exposed_in_the_last_step() -> RunAnalysis:
    """Nothing follows that the last gather could hide under."""
    analysis = job(exposed_ratio=0.4)
    rows = analysis.collectives
    last = rows.texts("kind").equals("all_gather") & (rows.ints("step") == 3)
    return replace(analysis, collectives=changed(rows, last, exposed_transfer_ns=rows.ints("transfer_ns")))


def started_with_the_last_reduction() -> RunAnalysis:
    analysis = job()
    rows = analysis.collectives
    begun = ORIGIN + rows.ints("step") * 100 * MS + 40 * MS
    return replace(
        analysis, collectives=changed(rows, rows.texts("kind").equals("all_gather"), start_ns=begun)
    )


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (job, "high"),  # behind the step
        (lambda: job(sharing="broadcast"), "high"),  # broadcast
        (lambda: job(gather_first=True), None),  # stage 3
        (started_with_the_last_reduction, None),  # with the last reduction
        # a twentieth may be gathered before
        (lambda: with_rows(job(gathered=9_500_000), "all_gather", 1, 510_000), None),  # more before
        (lambda: job(exposed_ms=2.9), None),  # less than 3 %
        (lambda: job(exposed_ratio=0.45), None),  # mostly hidden
        (exposed_in_the_last_step, None),  # only the last is exposed
        # a tenth of what is reduced: less are metrics
        (lambda: job(psi=8_000_000, gathered=790_000), None),  # metrics
        # parameters have at most four times the bytes of their gradients
        (lambda: job(psi=8_000_000, gathered=33_000_000), None),  # embeddings
        (lambda: job(reduction="all_reduce", exposed_ms=0, reduced_exposed_ms=20), "low"),  # hidden 3 psi
        (lambda: without_collectives(job()), "gap"),  # no collectives
        (lambda: run_of(Scenario(stage=0)), None),  # replicated
        (lambda: run_of(Scenario(ranks=1)), None),  # one rank
    ],
)
def test_thresholds(run: Run, expected: str | None) -> None:
    assert judged(unhidden_optimizer_gather, run()) == expected


def test_what_is_gathered_and_exposed_is_evidence() -> None:
    finding = found(unhidden_optimizer_gather, job())
    assert (finding.id, values(finding, "bytes")) == ("ZP416", [PSI])
    assert 10 * MS in values(finding, "ns")


@pytest.mark.parametrize(
    ("exposed_ms", "micro_batches", "lost_ms"),
    [(10.0, 1, 10.0), (20.0, 1, 20.0), (40.0, 1, 24.0), (40.0, 4, 6.0)],
)
def test_no_more_than_the_next_forward_hides_is_lost(
    exposed_ms: float, micro_batches: int, lost_ms: float
) -> None:
    """Of 60 ms of compute the forward is at most 24; only its first micro-batch counts."""
    finding = found(unhidden_optimizer_gather, job(exposed_ms=exposed_ms, micro_batches=micro_batches))
    assert finding.saving_ns == (0, pytest.approx(lost_ms * MS))


def as_gloo() -> RunAnalysis:
    """Without launches a reduce-scatter of gloo is seen as the all-reduce that carries it out."""
    analysis = job(reduction="all_reduce")
    seen = replace(analysis.time.collectives[0], method="gloo_execution_order")
    return replace(analysis, time=replace(analysis.time, collectives=(seen,)))


def reduced_in_full_precision() -> RunAnalysis:
    """Half as many elements in twice the bytes are not all gradients."""
    analysis = job(reduction="all_reduce")
    rows = analysis.collectives
    reductions = rows.texts("kind").equals("all_reduce")
    return replace(analysis, collectives=changed(rows, reductions, dtype="float32"))


def reduced(size: int) -> RunAnalysis:
    return job(reduction="all_reduce", psi=size, gathered=10_000_000)


@pytest.mark.parametrize(
    ("run", "three"),
    [
        (job, False),  # reduce-scatters
        (lambda: reduced(8_800_000), False),  # 88 % of what is gathered
        (lambda: reduced(9_000_000), True),  # 90 %
        (lambda: reduced(40_000_000), True),  # in each of four micro-batches
        (reduced_in_full_precision, False),  # half of the elements
        (as_gloo, False),  # gloo
        (lambda: with_rows(reduced(9_000_000), "reduce_scatter", 30, 1_000_000), True),  # a tenth scattered
        (lambda: with_rows(reduced(9_000_000), "reduce_scatter", 30, 1_100_000), False),  # more scattered
    ],
)
def test_gradients_that_are_all_reduced_move_three_times_the_parameters(run: Run, *, three: bool) -> None:
    gathered, *others = values(found(unhidden_optimizer_gather, run()), "bytes")
    assert len(others) == 2 * three
    if three:
        assert others[1] == 2 * others[0] + gathered


def test_a_missing_rank_may_have_been_late() -> None:
    analysis = job()
    rows = analysis.collectives
    fast = rows.texts("kind").equals("all_gather") & (rows.ints("step") == 0)
    rows = changed(changed(rows, bound=True), fast, end_ns=rows.ints("start_ns") + MS)
    finding = found(unhidden_optimizer_gather, without_rank(replace(analysis, collectives=rows), 1))
    assert finding.confidence == "medium"
