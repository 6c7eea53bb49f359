"""Padding is proven by bytes, or shown by kernels; a rank with longer inputs is no slow one."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from tests.support.exact import wall_for, with_walls
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.model.memory import Memory, PhasePeak
from zprof.model.tenants import Tenant
from zprof.rules.volume.uneven_shapes import _saving, measure_filling, measure_padding, uneven_shapes

PAD, COPY, CAST = "void chunk_cat_cuda_kernel<c10::BFloat16>", "split_with_sizes_copy_kernel", "nvjet_tst_NNT"
ADAM, NORM = "multi_tensor_apply_kernel<FusedAdam>", "void vectorized_layer_norm_kernel<c10::BFloat16>"
#: A step of the scenario below takes about 216 ms, and gathers twice the bytes that it reduces.
PLAN = Scenario(ranks=3, steps=4, units=6, unit_bytes=4 << 20, bytes_per_s=2e9, engine="FSDP2")
ELEMENTS = PLAN.units * PLAN.unit_bytes // 4


def job(parameters: int | None = None, device: str = "cuda") -> RunAnalysis:
    analysis = analysis_of(PLAN)
    return replace(
        analysis,
        run=replace(analysis.run, device=device),
        training=replace(analysis.training, parameters=parameters, padding_elements=0),
    )


def kernels(analysis: RunAnalysis, **a_step_ms: float) -> RunAnalysis:
    """Kernels that take so long in a step of each rank."""
    names = {"pad": PAD, "copy": COPY}
    steps = len(analysis.steps) // PLAN.ranks
    rows = [
        {
            "rank": rank, "name": names[name], "role": "copy", "count": steps,
            "total_ns": int(ms * MS * steps), "uncovered_ns": int(ms * MS * steps),
        }
        for rank in range(PLAN.ranks) for name, ms in a_step_ms.items()
    ]  # fmt: skip
    return replace(analysis, kernels=pd.DataFrame(rows))


def wall_ms(analysis: RunAnalysis) -> float:
    return float(analysis.steps["wall_ns"].mean()) / MS


def found(analysis: RunAnalysis, baseline: RunAnalysis | None = None) -> Finding:
    answer = uneven_shapes(analysis, baseline)
    assert isinstance(answer, Finding), answer
    return answer


def fires(analysis: RunAnalysis, baseline: RunAnalysis | None = None) -> bool:
    return isinstance(uneven_shapes(analysis, baseline), Finding)


@pytest.mark.parametrize(("ratio", "is_padding"), [(0.008, False), (0.012, True), (0.45, True), (0.95, True)])
def test_padding_is_what_travels_beyond_the_model(ratio: float, is_padding: bool) -> None:
    analysis = kernels(job(int(ELEMENTS / (1 + ratio))), pad=9.0, copy=9.0)
    assert fires(analysis) == is_padding
    if is_padding:
        finding = found(analysis)
        assert (finding.id, finding.confidence) == ("ZP417", Confidence.HIGH)
        padding = next(fact.value for fact in finding.evidence if fact.what.startswith("padding, of"))
        assert padding == pytest.approx(ratio, rel=0.01)


def test_the_baseline_of_the_same_model_says_how_much_it_has() -> None:
    """Whatever its stage: gradients of the whole model are reduced once."""
    theirs = analysis_of(replace(PLAN, stage=0, unit_bytes=int(PLAN.unit_bytes / 1.1)))
    analysis = kernels(job(), pad=9.0)
    assert found(analysis, theirs).confidence is Confidence.MEDIUM
    assert "10.0 %" in found(analysis, theirs).sentence
    assert not fires(analysis, analysis_of(replace(PLAN, stage=0)))


def test_a_baseline_of_another_model_says_nothing() -> None:
    """It is one where nothing fills up, or where it is smaller by more than padding ever is."""
    theirs = analysis_of(replace(PLAN, stage=0, unit_bytes=int(PLAN.unit_bytes / 1.3)))
    slow = replace(PLAN, bytes_per_s=120e6)
    mine = replace(analysis_of(slow), training=replace(job().training, parameters=None))
    assert not fires(mine, theirs)
    small = analysis_of(replace(PLAN, stage=0, unit_bytes=int(PLAN.unit_bytes / 1.6)))
    assert not fires(kernels(job(), pad=9.0), small)


def test_reductions_in_each_micro_batch_are_no_padding() -> None:
    analysis = kernels(job(ELEMENTS // 4), pad=9.0, copy=9.0)
    facts = replace(analysis.training, micro_batches=4)
    assert not fires(replace(analysis, training=facts))
    assert fires(replace(analysis, training=replace(facts, parameters=int(ELEMENTS / 4 / 1.1))))


@pytest.mark.parametrize(("ratio", "is_slow"), [(2.9, False), (3.1, True)])
def test_on_a_device_filling_up_slower_than_a_copy_shows_it(ratio: float, is_slow: bool) -> None:
    """Twice as many bytes are copied out as are filled up: for each that is half the time of the copies."""
    analysis = kernels(job(), pad=9.0, copy=2 * 9.0 / ratio)
    assert fires(analysis) == is_slow
    if is_slow:
        assert found(analysis).confidence is Confidence.MEDIUM


@pytest.mark.parametrize(("share", "is_worth"), [(0.018, False), (0.022, True)])
def test_from_a_fiftieth_of_the_step_on(share: float, is_worth: bool) -> None:
    analysis = job()
    spent = share * wall_ms(analysis)
    assert fires(kernels(analysis, pad=spent, copy=spent / 5)) == is_worth


def test_on_a_cpu_a_slow_copy_is_no_padding() -> None:
    """It touches new memory; without the size of the model that is a gap, with it nothing."""
    analysis = kernels(job(device="cpu"), pad=20.0, copy=1.0)
    assert isinstance(uneven_shapes(analysis, None), Gap)
    known = replace(analysis, training=replace(analysis.training, parameters=ELEMENTS))
    assert uneven_shapes(known, None) is None


def test_padding_off_the_link_is_priced_by_replay() -> None:
    """Nothing fills up; a tenth of what the link carries is padding, on a link that is the limit."""
    analysis = analysis_of(replace(PLAN, bytes_per_s=120e6))
    padded = replace(analysis, training=replace(analysis.training, parameters=int(ELEMENTS / 1.1)))
    well = analysis_of(replace(PLAN, bytes_per_s=120e6, unit_bytes=int(PLAN.unit_bytes / 1.1)))
    true = float(analysis.steps["wall_ns"].mean() - well.steps["wall_ns"].mean())
    low, high = found(padded).saving_ns
    assert low <= true <= high <= 2 * low


def longer(compute_ratio: float, **activations: int) -> RunAnalysis:
    """Rank 1 computes so much longer, and all keep these activations (of ranks r0, r1, r2)."""
    analysis = job(ELEMENTS)
    steps = analysis.steps
    more = steps["compute_ns"].where(
        steps["rank"] != 1, (steps["compute_ns"] * compute_ratio).astype("int64")
    )
    phases = tuple(
        PhasePeak(
            rank=int(name[1:]), phase="forward", step=0, peak_bytes=held, tenants={Tenant.ACTIVATIONS: held},
            untagged_bytes=0,
        )
        for name, held in activations.items()
    )  # fmt: skip
    return replace(analysis, steps=steps.assign(compute_ns=more), memory=Memory(phases=phases))


@pytest.mark.parametrize(("held", "is_longer"), [(1190, False), (1210, True), (1000, False)])
def test_more_activations_tell_longer_inputs_from_a_slow_device(held: int, is_longer: bool) -> None:
    """40 % longer at 19 or 21 % more activations: half as much more is where it begins."""
    analysis = longer(1.4, r0=1000, r1=held, r2=1000)
    assert fires(analysis) == is_longer
    if is_longer:
        finding = found(analysis)
        assert finding.confidence is Confidence.HIGH
        assert "rank 1 has 1.2 times the activations" in finding.sentence


@pytest.mark.parametrize(("ratio", "is_longer"), [(1.08, False), (1.12, True)])
def test_from_a_tenth_more_compute_on(ratio: float, is_longer: bool) -> None:
    assert fires(longer(ratio, r0=1000, r1=2000, r2=1000)) == is_longer


def test_even_shares_take_off_what_is_above_the_mean() -> None:
    analysis = longer(1.6, r0=1000, r1=2000, r2=1000)
    compute = analysis.steps.groupby("rank")["compute_ns"].mean()
    low, high = found(analysis).saving_ns
    assert low == pytest.approx(0.5 * (compute[1] - compute.mean()), rel=0.01)
    assert high == pytest.approx(compute[1] - compute.drop(1).median(), rel=0.01)


def told_by_kernels(adam: float, norm: float, count: int = 1000) -> RunAnalysis:
    """Rank 1 computes 40 % longer; its kernels take so many times as long as those of the others."""
    rows = [
        {"rank": rank, "name": name, "role": "compute", "count": count if rank == 1 else 1000,
         "total_ns": int(10 * MS * (times if rank == 1 else 1)), "uncovered_ns": 0}
        for rank in range(3) for name, times in ((ADAM, adam), (NORM, norm), (CAST, 1.4))
    ]  # fmt: skip
    return replace(longer(1.4), kernels=pd.DataFrame(rows))


@pytest.mark.parametrize(
    ("adam", "norm", "count", "is_longer"),
    [
        (1.0, 1.4, 1000, True),
        (1.09, 1.21, 1009, True),
        (1.11, 1.4, 1000, False),  # slow at everything: the device
        (1.0, 1.19, 1000, False),  # slow at products alone: its clocks
        (1.0, 1.4, 1011, False),  # more kernels: another program
        (1.4, 1.4, 1000, False),
    ],
)
def test_kernels_tell_longer_inputs_from_a_slow_device(
    adam: float, norm: float, count: int, is_longer: bool
) -> None:
    analysis = told_by_kernels(adam, norm, count)
    assert fires(analysis) == is_longer
    if is_longer:
        assert found(analysis).confidence is Confidence.MEDIUM


def test_without_memory_and_kernels_a_late_rank_is_not_ours() -> None:
    assert uneven_shapes(longer(1.6), None) is None


def test_the_dearer_form_is_reported() -> None:
    analysis = longer(1.6, r0=1000, r1=2000, r2=1000)
    facts = replace(analysis.training, parameters=int(ELEMENTS / 1.1))
    assert "rank 1" in found(kernels(replace(analysis, training=facts), pad=9.0)).sentence
    assert "padding" in found(kernels(replace(analysis, training=facts), pad=300.0)).sentence


def test_silent_alone_and_where_nothing_is_known() -> None:
    assert uneven_shapes(job(), None) is None
    assert uneven_shapes(analysis_of(Scenario(ranks=1)), None) is None


def test_filling_up_saves_what_a_plain_copy_would_not_take() -> None:
    """Where it takes 3.6 times as long for a byte as a copy."""
    low, high = found(kernels(job(), pad=9.0, copy=5.0)).saving_ns
    assert low == pytest.approx(0.8 * 9 * MS * (1 - 1 / 3.6), abs=2)
    assert high == pytest.approx(1.15 * 9 * MS, abs=2)


def test_padding_saves_three_quarters_to_all_that_the_replay_wins() -> None:
    padded = analysis_of(replace(PLAN, bytes_per_s=120e6))
    facts = replace(padded.training, parameters=int(ELEMENTS / 1.1))
    low, high = found(replace(padded, training=facts)).saving_ns
    assert high / low == pytest.approx(1.15 / 0.75, rel=1e-6)


def test_filling_up_on_the_thresholds() -> None:
    """2 % of the step; three times a plain copy, whose bytes are twice as many."""
    assert fires(with_walls(kernels(job(), pad=2.0, copy=1.0)))
    assert not fires(with_walls(kernels(job(), pad=1.99, copy=0.9)))
    assert fires(with_walls(kernels(job(), pad=9.0, copy=6.0)))


def test_padding_on_a_fiftieth_of_the_step() -> None:
    analysis = kernels(job(int(ELEMENTS / 1.1)), pad=3.0, copy=3.0)
    wall = wall_for(
        _saving(analysis, measure_filling(analysis), measure_padding(analysis, None).ratio)[1], 0.02
    )
    assert fires(with_walls(analysis, wall))
    assert not fires(with_walls(analysis, 1.001 * wall))


def test_a_fill_as_fast_as_a_plain_copy_is_taken_to_be_half_in_vain() -> None:
    analysis = kernels(job(int(ELEMENTS / 1.1)), pad=9.0, copy=18.0)
    assert found(analysis).saving_ns[0] >= 0.8 * 9 * MS / 2


def test_longer_inputs_on_a_fiftieth_of_the_step() -> None:
    """100, 130 and 100 ms: 20 above the mean."""
    analysis = longer(1.4, r0=1000, r1=2000, r2=1000)
    compute = analysis.steps["rank"].map({0: 100 * MS, 1: 130 * MS, 2: 100 * MS})
    exact = replace(analysis, steps=analysis.steps.assign(compute_ns=compute))
    assert fires(with_walls(exact, 1000 * MS))
    assert not fires(with_walls(exact, 1001 * MS))
