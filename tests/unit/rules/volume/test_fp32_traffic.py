"""fp32_reduce and fp32_gather: types on the wire, what proves that two bytes would do, what they save."""

from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import MS, ORIGIN, Scenario, without_rank
from tests.support.rule_runs import (
    GAP,
    Answer,
    fires,
    found,
    judged,
    run_of,
    wall_for,
    with_walls,
    without_collectives,
)
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.rules.rule import Check
from zprof.rules.volume.fp32_gather import fp32_gather
from zprof.rules.volume.fp32_reduce import fp32_reduce
from zprof.rules.volume.half_precision import price_half_bytes
from zprof.rules.volume.model_traffic import read_model_traffic

HIGH, MEDIUM = Confidence.HIGH, Confidence.MEDIUM
FULL, HALF = "float32", "bfloat16"
KERNELS = {
    "half": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "full": "ampere_sgemm_128x64_nn",
    "other": "void at::native::elementwise<c10::BFloat16>",
}
BOTH = pytest.mark.parametrize("rule", [fp32_reduce, fp32_gather], ids=["reduce", "gather"])


def job(
    gathered: str, reduced: str, *, bytes_per_s: float = 120e6, stage: int = 3, **facts: int
) -> RunAnalysis:
    """A job with these types on the wire; its program states only these facts."""
    analysis = run_of(Scenario(bytes_per_s=bytes_per_s, engine="FSDP2", stage=stage))
    types = {"all_gather": gathered, "reduce_scatter": reduced, "all_reduce": reduced}
    kinds = analysis.collectives["kind"].astype(str)
    unknown = {"parameter_bytes": None, "communication_bytes": None}
    return replace(
        analysis,
        collectives=analysis.collectives.assign(dtype=kinds.map(types)),
        training=replace(analysis.training, **(unknown | facts)),
    )


def computing(analysis: RunAnalysis, **total_ns: int) -> RunAnalysis:
    rows = [{"rank": 0, "name": KERNELS[name], "total_ns": total} for name, total in total_ns.items()]
    return replace(analysis, kernels=pd.DataFrame(rows), run=replace(analysis.run, device="cuda"))


def autocast(half: int, full: int) -> RunAnalysis:
    """Both travel in float32; matrix products name the type in which the model computes."""
    return computing(job(FULL, FULL), half=half, full=full, other=10**9)


def partly_reduced_in_half(share: float) -> RunAnalysis:
    """Some gradients, of norms, are reduced in float32 by healthy programs too: this share of them."""
    analysis = job(HALF, FULL)
    rows = analysis.collectives
    scattered = rows["kind"].astype(str) == "reduce_scatter"
    rank = rows["sequence"].where(scattered).rank(pct=True)
    return replace(analysis, collectives=rows.assign(dtype=rows["dtype"].mask(rank <= 1 - share, HALF)))


@pytest.mark.parametrize(
    ("run", "reduce", "gather"),
    [
        (lambda: job(HALF, FULL), HIGH, None),  # gathered in half
        (lambda: job("float8_e4m3fn", FULL), HIGH, None),  # gathered in a byte
        (lambda: job(FULL, HALF), None, HIGH),  # reduced in half
        (lambda: job(FULL, FULL), None, GAP),  # a CPU program that states nothing
        (lambda: job(HALF, HALF), None, None),  # both in half
        (lambda: partly_reduced_in_half(0.45), None, None),  # less than half of the bytes
        (lambda: partly_reduced_in_half(0.55), HIGH, None),  # more than half of the bytes
        (lambda: autocast(51, 49), MEDIUM, HIGH),  # kernels in half
        (lambda: autocast(49, 51), None, None),  # kernels in full
        (lambda: computing(job(FULL, HALF), full=10), None, None),  # compressed gradients
        (lambda: job(FULL, FULL, stage=0), GAP, None),  # replicated
        (lambda: job(FULL, FULL, stage=0, communication_bytes=2, reduction_bytes=4), HIGH, None),  # stated
        (lambda: job(FULL, FULL, parameter_bytes=2), None, MEDIUM),  # stated parameters
        (lambda: run_of(bytes_per_s=120e6), None, None),  # the reference engine
        (lambda: run_of(bytes_per_s=120e6, stage=0), None, None),  # the engine replicated
        (lambda: without_collectives(job(HALF, FULL)), GAP, GAP),  # no collectives
        (lambda: run_of(ranks=1), None, None),  # one rank
    ],
)
def test_what_proves_that_two_bytes_would_do(
    run: Callable[[], RunAnalysis], reduce: Answer, gather: Answer
) -> None:
    analysis = run()
    assert (judged(fp32_reduce, analysis), judged(fp32_gather, analysis)) == (reduce, gather)


@pytest.mark.parametrize("bytes_per_s", [40e6, 200e6])
def test_it_saves_at_most_half_of_the_transfer_and_what_is_exposed(bytes_per_s: float) -> None:
    analysis = job(HALF, FULL, bytes_per_s=bytes_per_s)
    low, high = found(fp32_reduce, analysis).saving_ns
    rows, steps = analysis.collectives, len(analysis.steps)
    scattered = rows[rows["kind"].astype(str) == "reduce_scatter"]
    assert 0 < low < high <= 0.5 * scattered["transfer_ns"].sum() / steps
    assert high <= rows["exposed_transfer_ns"].sum() / steps


@BOTH
def test_a_hundredth_of_the_step_is_worth_it(rule: Check) -> None:
    reducing = rule is fp32_reduce
    analysis = job(HALF, FULL) if reducing else job(FULL, HALF)
    traffic = read_model_traffic(analysis)
    way = traffic.reductions if reducing else traffic.gathers
    wall = wall_for(price_half_bytes(analysis, way.full_rows).saving_ns[1], 0.01)
    assert fires(rule, with_walls(analysis, wall))
    assert not fires(rule, with_walls(analysis, 1.001 * wall))


def test_a_missing_rank_widens_the_range() -> None:
    """Its late arrival looks like transfer then; fast collectives tell how much it was."""
    slow = run_of(bytes_per_s=120e6, delay_ms={1: 30.0}, engine="FSDP2")
    types = {"all_gather": HALF, "reduce_scatter": FULL}
    rows = slow.collectives.assign(dtype=slow.collectives["kind"].astype(str).map(types))
    blind = rows.assign(
        transfer_ns=rows["transfer_ns"] + rows["wait_ns"],
        exposed_transfer_ns=rows["exposed_transfer_ns"] + rows["exposed_wait_ns"],
        wait_ns=0,
        exposed_wait_ns=0,
    )
    seen = found(fp32_reduce, replace(slow, collectives=rows)).saving_ns
    bound = found(fp32_reduce, without_rank(replace(slow, collectives=blind), 1)).saving_ns
    assert bound[1] >= seen[1]
    assert bound[0] <= 1.1 * seen[0]


def one_step(*rows: tuple[float, float, float]) -> RunAnalysis:
    """One step of one rank: (start, transfer, of it exposed) of each collective, in ms."""
    analysis = run_of(steps=1)
    starts = [ORIGIN + int(start * MS) for start, _, _ in rows]
    frame = pd.DataFrame(
        {
            "rank": 0, "step": 0, "kind": "reduce_scatter", "group": "0,1", "bytes": 1_000, "matched": True,
            "bound": False, "start_ns": starts,
            "end_ns": [ORIGIN + int((start + transfer) * MS) for start, transfer, _ in rows],
            "launch_start_ns": pd.array(starts, dtype="Int64"),
            "wait_start_ns": pd.array([pd.NA] * len(rows), dtype="Int64"),
            "transfer_ns": [int(transfer * MS) for _, transfer, _ in rows],
            "exposed_transfer_ns": [int(exposed * MS) for _, _, exposed in rows], "exposed_wait_ns": 0,
        }
    )  # fmt: skip
    return replace(analysis, collectives=frame, steps=analysis.steps.head(1))


@pytest.mark.parametrize(
    ("rows", "halved", "saving_ms"),
    [
        ([(0, 10, 10)], 1, (3.75, 5)),  # all exposed
        ([(0, 10, 2)], 1, (1.5, 2)),  # no more than shows
        ([(0, 6, 4), (40, 6, 4)], 2, (4.5, 6)),  # at most half of the transfer
        ([(0, 10, 2), (40, 10, 10)], 1, (1.5, 2.3)),  # a little more than the replay wins
    ],
)
def test_half_of_the_bytes_saves(
    rows: list[tuple[float, float, float]], halved: int, saving_ms: tuple[float, float]
) -> None:
    analysis = one_step(*rows)
    low, high = price_half_bytes(analysis, analysis.collectives.head(halved)).saving_ns
    assert (low / MS, high / MS) == pytest.approx(saving_ms)
