"""fp32_reduce and fp32_gather: which types travel, what proves that two bytes would do, what it is worth."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import Scenario, analysis_of, without_rank
from tests.support.exact import wall_for, with_walls
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.rule import Check
from zprof.rules.volume.fp32_gather import fp32_gather
from zprof.rules.volume.fp32_reduce import fp32_reduce
from zprof.rules.volume.half_precision import price_half_bytes
from zprof.rules.volume.model_traffic import read_model_traffic

HALF_GEMM, FULL_GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "ampere_sgemm_128x64_nn"
GATHER, SCATTER = "all_gather", "reduce_scatter"
BOTH = pytest.mark.parametrize("rule", [fp32_reduce, fp32_gather], ids=["reduce", "gather"])


def job(bytes_per_s: float = 120e6, engine: str = "FSDP2", stage: int = 3) -> RunAnalysis:
    """A job whose types the test says; its program says nothing."""
    analysis = analysis_of(Scenario(bytes_per_s=bytes_per_s, engine=engine, stage=stage))
    facts = replace(analysis.training, parameter_bytes=None, communication_bytes=None)
    return replace(analysis, training=facts)


def typed(analysis: RunAnalysis, **types: str) -> RunAnalysis:
    """With these types of element, by kind of collective."""
    rows = analysis.collectives
    return replace(analysis, collectives=rows.assign(dtype=rows["kind"].astype(str).map(types)))


def gathered_half(bytes_per_s: float = 120e6) -> RunAnalysis:
    return typed(job(bytes_per_s), all_gather="bfloat16", reduce_scatter="float32")


def computing(analysis: RunAnalysis, **total_ns: int) -> RunAnalysis:
    names = {"half": HALF_GEMM, "full": FULL_GEMM, "other": "void at::native::elementwise<c10::BFloat16>"}
    rows = [{"rank": 0, "name": names[name], "total_ns": total} for name, total in total_ns.items()]
    return replace(analysis, kernels=pd.DataFrame(rows), run=replace(analysis.run, device="cuda"))


def found(rule: Check, analysis: RunAnalysis) -> Finding:
    answer = rule(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


@pytest.mark.parametrize("half", ["bfloat16", "float16", "float8_e4m3fn"])
def test_reduced_in_more_than_gathered(half: str) -> None:
    finding = found(fp32_reduce, typed(job(), all_gather=half, reduce_scatter="float32"))
    assert (finding.id, finding.confidence) == ("ZP409", Confidence.HIGH)
    assert half in finding.sentence
    assert "compare the loss" in finding.fix


def test_gathered_in_more_than_reduced() -> None:
    finding = found(fp32_gather, typed(job(), all_gather="float32", reduce_scatter="bfloat16"))
    assert (finding.id, finding.confidence) == ("ZP410", Confidence.HIGH)
    assert "gradients travel in bfloat16" in finding.sentence


@BOTH
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_one_type_for_both_is_no_finding(rule: Check, kind: str) -> None:
    answer = rule(typed(job(), all_gather=kind, reduce_scatter=kind), None)
    assert not isinstance(answer, Finding)


@BOTH
def test_types_the_other_way_round_are_the_other_cause(rule: Check) -> None:
    gather, scatter = ("float32", "bfloat16") if rule is fp32_reduce else ("bfloat16", "float32")
    assert rule(typed(job(), all_gather=gather, reduce_scatter=scatter), None) is None


@pytest.mark.parametrize("share", [0.45, 0.55])
def test_most_bytes_must_be_full(share: float) -> None:
    """Some gradients (of norms) are reduced in float32 by healthy programs too."""
    analysis = gathered_half()
    rows = analysis.collectives
    scattered = rows["kind"].astype(str) == SCATTER
    few = scattered & (rows["sequence"].rank(pct=True).where(scattered).rank(pct=True) <= 1 - share)
    mixed = rows.assign(dtype=rows["dtype"].mask(few, "bfloat16"))
    assert isinstance(fp32_reduce(replace(analysis, collectives=mixed), None), Finding) == (share > 0.5)


@pytest.mark.parametrize(("half", "full", "fires"), [(51, 49, True), (49, 51, False), (0, 10, False)])
def test_kernels_that_compute_in_half_prove_both(half: int, full: int, fires: bool) -> None:
    """With autocast both travel in float32; matrix products name the type in which the model computes."""
    analysis = computing(
        typed(job(), all_gather="float32", reduce_scatter="float32"), half=half, full=full, other=10**9
    )
    for rule, confidence in ((fp32_reduce, Confidence.MEDIUM), (fp32_gather, Confidence.HIGH)):
        answer = rule(analysis, None)
        assert isinstance(answer, Finding) == fires
        if isinstance(answer, Finding):
            assert answer.confidence is confidence
            assert "nvjet_tst" in answer.sentence
        else:
            assert answer is None


def test_products_in_float32_need_what_they_gather() -> None:
    """Gradients may be compressed: that does not make the parameters too wide."""
    analysis = typed(job(), all_gather="float32", reduce_scatter="bfloat16")
    assert fp32_gather(computing(analysis, full=10), None) is None


def test_a_program_of_the_cpu_that_says_nothing_is_a_gap() -> None:
    full = typed(job(), all_gather="float32", reduce_scatter="float32")
    answer = fp32_gather(full, None)
    assert isinstance(answer, Gap)
    assert answer.what == "rule fp32_gather not tested"
    replicated = typed(job(stage=0), all_reduce="float32")
    assert isinstance(fp32_reduce(replicated, None), Gap)


def test_the_reference_engine_computes_in_the_type_of_its_parameters() -> None:
    for stage, rule in ((3, fp32_gather), (0, fp32_reduce)):
        analysis = analysis_of(Scenario(bytes_per_s=120e6, stage=stage))
        assert analysis.training.parameter_bytes == 4
        assert rule(analysis, None) is None


def test_what_the_program_says_of_its_types_is_a_proof() -> None:
    analysis = typed(job(stage=0), all_reduce="float32")
    facts = replace(analysis.training, communication_bytes=2, reduction_bytes=4)
    assert found(fp32_reduce, replace(analysis, training=facts)).confidence is Confidence.HIGH
    kept = replace(typed(job(), all_gather="float32", reduce_scatter="float32"), training=replace(
        analysis.training, parameter_bytes=2))  # fmt: skip
    assert found(fp32_gather, kept).confidence is Confidence.MEDIUM


def test_saving_never_exceeds_half_of_the_transfer_nor_what_is_exposed() -> None:
    for speed in (40e6, 80e6, 120e6, 200e6):
        analysis = gathered_half(speed)
        low, high = found(fp32_reduce, analysis).saving_ns
        rows, steps = analysis.collectives, len(analysis.steps)
        scattered = rows[rows["kind"].astype(str) == SCATTER]
        assert 0 < low < high <= 0.5 * scattered["transfer_ns"].sum() / steps
        assert high <= rows["exposed_transfer_ns"].sum() / steps


@pytest.mark.parametrize(("exposed_ratio", "fires"), [(0.012, True), (0.008, False)])
def test_from_a_hundredth_of_the_step_on(exposed_ratio: float, fires: bool) -> None:
    """A job that hides all but the end of one reduction."""
    analysis = gathered_half(2e9)
    rows = analysis.collectives.assign(exposed_transfer_ns=0, exposed_wait_ns=0, wait_start_ns=pd.NA)
    last = rows[rows["kind"].astype(str) == SCATTER].groupby(["rank", "step"])["end_ns"].idxmax()
    blocked = int(exposed_ratio * analysis.steps["wall_ns"].mean())
    rows.loc[last, "exposed_transfer_ns"] = blocked
    rows.loc[last, "start_ns"] = rows.loc[last, "end_ns"] - 4 * blocked
    rows.loc[last, "transfer_ns"] = 4 * blocked
    assert isinstance(fp32_reduce(replace(analysis, collectives=rows), None), Finding) == fires


def test_a_rank_that_is_missing_widens_the_range() -> None:
    """What the others were waited for looks like transfer then: fast collectives say how much it was."""
    slow = analysis_of(Scenario(ranks=2, bytes_per_s=120e6, delay_ms={1: 30.0}, engine="FSDP2"))
    whole = typed(slow, all_gather="bfloat16", reduce_scatter="float32")
    rows = whole.collectives
    blind = rows.assign(
        transfer_ns=rows["transfer_ns"] + rows["wait_ns"],
        exposed_transfer_ns=rows["exposed_transfer_ns"] + rows["exposed_wait_ns"],
        wait_ns=0,
        exposed_wait_ns=0,
    )
    alone = without_rank(replace(whole, collectives=blind), 1)
    seen, bound = found(fp32_reduce, whole), found(fp32_reduce, alone)
    assert bound.saving_ns[1] >= seen.saving_ns[1]
    assert bound.saving_ns[0] <= 1.1 * seen.saving_ns[0]
    assert "ranks are missing" in bound.sentence
    assert "ranks are missing" not in seen.sentence


@BOTH
def test_without_collectives_it_is_a_gap(rule: Check) -> None:
    analysis = gathered_half()
    assert isinstance(rule(replace(analysis, collectives=analysis.collectives.iloc[:0]), None), Gap)


@BOTH
def test_one_rank_alone_moves_nothing(rule: Check) -> None:
    assert rule(analysis_of(Scenario(ranks=1)), None) is None


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("fsdp2", "MixedPrecisionPolicy"),
        ("deepspeed", "communication_data_type"),
        ("reference", "ZeroConfig"),
    ],
)
def test_fix_is_for_the_engine(engine: str, words: str) -> None:
    analysis = gathered_half()
    facts = replace(analysis.training, engine=engine)
    finding = found(fp32_reduce, replace(analysis, training=facts))
    assert words in finding.fix
    assert finding.cause is Cause.FP32_REDUCE


@pytest.mark.parametrize("rule", [fp32_reduce, fp32_gather], ids=["reduce", "gather"])
def test_on_a_hundredth_of_the_step(rule: Check) -> None:
    reducing = rule is fp32_reduce
    types = {"all_gather": "bfloat16", "reduce_scatter": "float32"}
    types = types if reducing else dict(zip(types, reversed(types.values()), strict=True))
    analysis = typed(job(), **types)
    way = read_model_traffic(analysis).reductions if reducing else read_model_traffic(analysis).gathers
    wall = wall_for(price_half_bytes(analysis, way.full_rows).saving_ns[1], 0.01)
    assert isinstance(rule(with_walls(analysis, wall), None), Finding)
    assert rule(with_walls(analysis, 1.001 * wall), None) is None
