"""uneven_shapes: padding by bytes or kernels, and longer inputs, which are no slow device."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.analyses import MS, Scenario
from tests.support.rule_runs import Run, found, judged, run_of, values, with_walls
from tests.support.tables import changed
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.time.kernel_comparison import find_longer_inputs
from zprof.causes.uneven_shapes import CAUSE as uneven_shapes
from zprof.model.memory import Memory, PhasePeak
from zprof.model.tenants import Tenant
from zprof.step.needless_bytes import measure_filling, measure_padding

PAD, COPY = "void chunk_cat_cuda_kernel<c10::BFloat16>", "split_with_sizes_copy_kernel"
ADAM, NORM = "multi_tensor_apply_kernel<FusedAdam>", "void vectorized_layer_norm_kernel<c10::BFloat16>"
#: A step takes about 216 ms, and gathers twice the bytes that it reduces.
PLAN = Scenario(ranks=3, steps=4, units=6, unit_bytes=3_960_000, bytes_per_s=2e9, engine="FSDP2")
SLOW = replace(PLAN, bytes_per_s=120e6)
ELEMENTS = 6 * 990_000
KERNEL = ("rank", "name", "role", "count", "total_ns", "uncovered_ns")


def job(
    parameters: float | None = None, *, plan: Scenario = PLAN, device: str = "cuda", micro_batches: int = 1
) -> RunAnalysis:
    """A program that states this number of parameters."""
    analysis = run_of(plan)
    known = None if parameters is None else round(parameters)
    facts = replace(analysis.training, parameters=known, padding_elements=0, micro_batches=micro_batches)
    return replace(analysis, training=facts, run=replace(analysis.run, device=device))


def copying(analysis: RunAnalysis, pad: float, copy: float = 0, *, role: str = "copy") -> RunAnalysis:
    """Kernels that pad, and that copy, for this many ms in a step of each rank."""
    steps = PLAN.steps
    rows = [
        {
            "rank": rank, "name": name, "role": role, "count": steps,
            "total_ns": int(ms * MS * steps), "uncovered_ns": int(ms * MS * steps),
        }
        for rank in range(PLAN.ranks) for name, ms in ((PAD, pad), (COPY, copy)) if ms
    ]  # fmt: skip
    return replace(analysis, kernels=Columns.from_rows(rows, KERNEL))


def other_model(size: float) -> RunAnalysis:
    """A baseline of stage 0 whose units are smaller by this factor."""
    return run_of(replace(PLAN, stage=0, unit_bytes=int(PLAN.unit_bytes / size)))


@pytest.mark.parametrize(
    ("run", "baseline", "expected"),
    [
        # 1 % of what travels is padding
        (lambda: copying(job(ELEMENTS / 1.008), 9, 9), None, None),  # 0.8 % padding
        (lambda: copying(job(ELEMENTS / 1.012), 9, 9), None, "high"),  # 1.2 % padding
        # a baseline of the same model, whatever its stage
        (lambda: copying(job(), 9), lambda: other_model(1.1), "medium"),  # baseline
        (lambda: copying(job(), 9), lambda: other_model(1.0), None),  # no padding
        (lambda: copying(job(), 9), lambda: other_model(1.6), "gap"),  # another model
        (lambda: job(plan=SLOW), lambda: other_model(1.3), None),  # nothing pads
        # reductions of each micro-batch are no padding
        (lambda: copying(job(ELEMENTS / 4, micro_batches=4), 9, 9), None, None),  # micro-batches
        (lambda: copying(job(ELEMENTS / 4 / 1.1, micro_batches=4), 9, 9), None, "high"),  # padded as well
        # per byte three times a plain copy, of twice the bytes
        (lambda: copying(job(), 9, 6.2), None, "gap"),  # 2.9 times a copy
        (lambda: copying(job(), 9, 6), None, "medium"),  # 3 times a copy
        (lambda: with_walls(copying(job(), 1.99, 0.9)), None, None),  # below 2 %
        # on a CPU padding touches new memory
        (lambda: copying(job(device="cpu"), 20, 1), None, "gap"),  # cpu
        (lambda: copying(job(ELEMENTS, device="cpu"), 20, 1), None, None),  # cpu, no padding
        (job, None, None),  # nothing known
        (lambda: run_of(ranks=1), None, None),  # one rank
    ],
)
def test_padding(run: Run, baseline: Run | None, expected: str | None) -> None:
    assert judged(uneven_shapes, run(), baseline and baseline()) == expected


def ratio(analysis: RunAnalysis) -> float | None:
    known = measure_padding(analysis, None)
    return known and known.ratio


def partly_reduced() -> RunAnalysis:
    """Half of the units are all-reduced; only what is scattered counts as the model."""
    analysis = job(ELEMENTS / 2 / 1.1)
    rows = analysis.collectives
    norms = rows.texts("unit").equals("blocks.6", "blocks.7", "blocks.8")
    norms &= rows.texts("kind").equals("reduce_scatter")
    return replace(analysis, collectives=changed(rows, norms, kind="all_reduce"))


@pytest.mark.parametrize(
    ("run", "padding"),
    [
        (lambda: job(ELEMENTS / 1.95), 0.95),
        (lambda: job(ELEMENTS / 2.0), None),  # another model
        (lambda: job(ELEMENTS / 4 / 1.3, micro_batches=4), 0.3),
        (lambda: job(1_500_000, micro_batches=4), None),  # a hundredth less is all of them
        (partly_reduced, 0.1),
    ],
)
def test_padding_is_counted_in_elements(run: Run, padding: float | None) -> None:
    known = ratio(run())
    assert known == (padding and pytest.approx(padding, abs=1e-6))


def test_copies_cost_what_nothing_runs_beside() -> None:
    def filled_ms(role: str, before: int = 0) -> float:
        row = {
            "rank": 0, "name": "x" * before + "chunk_cat_cuda_kernel", "role": role, "count": 1,
            "total_ns": 120 * MS, "uncovered_ns": 12 * MS,
        }  # fmt: skip
        found = measure_filling(replace(job(ELEMENTS), kernels=Columns.from_rows([row], KERNEL)))
        return found.total_ns / MS if found else 0.0

    assert (filled_ms("compute"), filled_ms("copy")) == (10, 1)  # twelve steps
    assert (filled_ms("copy", 330), filled_ms("copy", 405)) == (1, 0)  # 400 letters of a name are read


def test_padding_on_the_link_is_lost() -> None:
    padded, well = job(ELEMENTS / 1.1, plan=SLOW), run_of(SLOW, unit_bytes=int(SLOW.unit_bytes / 1.1))
    true = float(padded.steps.ints("wall_ns").mean() - well.steps.ints("wall_ns").mean())
    finding = found(uneven_shapes, padded)
    assert true <= finding.saving_ns[1] <= 1.2 * true
    assert (finding.id, values(finding, "ratio")) == ("ZP417", [pytest.approx(0.1, rel=0.01)])


def with_messages(analysis: RunAnalysis) -> RunAnalysis:
    return replace(analysis, collectives=changed(analysis.collectives, kind="send"))


def longer(
    compute_ratio: float, *, held: tuple[int, ...] = (), ranks: int = 3, wall_ms: int = 300
) -> RunAnalysis:
    """Rank 1 computes this many times the 100 ms of the others; the ranks keep these activations."""
    made = job(ELEMENTS, plan=replace(PLAN, ranks=ranks))
    compute = np.where(made.steps.ints("rank") == 1, round(compute_ratio * 100 * MS), 100 * MS)
    phases = tuple(
        PhasePeak(
            rank=rank, phase="forward", step=0, peak_bytes=size, tenants={Tenant.ACTIVATIONS: size},
            untagged_bytes=0,
        )
        for rank, size in enumerate(held)
    )  # fmt: skip
    steps = changed(made.steps, compute_ns=compute, wall_ns=wall_ms * MS)
    return replace(made, steps=steps, memory=Memory(phases=phases))


def told_by_kernels(
    analysis: RunAnalysis, adam: float = 1.0, norm: float = 1.5, *, count: int = 1000, others: int = 1000,
    before: int = 0,
) -> RunAnalysis:  # fmt: skip
    """Kernels of rank 1 take this many times as long as those of the others."""
    rows = [
        {"rank": rank, "name": "x" * before + name, "role": "compute", "uncovered_ns": 0,
         "count": count if rank == 1 else others, "total_ns": round(8000 * (times if rank == 1 else 1))}
        for rank in analysis.run.ranks_loaded for name, times in ((ADAM, adam), (NORM, norm))
    ]  # fmt: skip
    return replace(analysis, kernels=Columns.from_rows(rows, KERNEL))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: longer(1.1, held=(1000, 2000, 1000)), "high"),  # a tenth more compute
        (lambda: longer(1.5, held=(1000, 1249, 1000)), None),  # fewer activations
        (lambda: longer(1.5, held=(1000, 1500), ranks=2), "high"),  # two ranks
        (lambda: longer(1.5), None),  # nothing but a late rank
        (lambda: with_messages(longer(1.5, held=(1000, 1500), ranks=2)), None),  # stages of a pipeline
        (lambda: told_by_kernels(longer(1.5), 1.126, 1.25), None),  # slow at everything
        (lambda: told_by_kernels(longer(1.5), 1.125, 1.249), None),  # slow at products alone
        (lambda: told_by_kernels(longer(1.5), count=1011), None),  # another program
        (lambda: told_by_kernels(longer(1.5), others=0), None),  # others without kernels
        (lambda: told_by_kernels(longer(1.5, held=(0, 0, 0))), "medium"),  # no activations counted
        (lambda: told_by_kernels(longer(1.5), before=405), None),  # 405 letters before a name
    ],
)
def test_longer_inputs(run: Run, expected: str | None) -> None:
    seen = find_longer_inputs(run())
    assert (seen and (seen.rank, seen.confidence)) == (expected and (1, expected))


@pytest.mark.parametrize(("wall_ms", "expected"), [(1000, "high"), (1001, None)])
def test_all_above_the_others_is_lost_to_longer_inputs(wall_ms: int, expected: str | None) -> None:
    """Of 100, 130 and 100 ms 20 are above the mean, and 2 % of the step are worth it."""
    analysis = longer(1.3, held=(1000, 2000, 1000), wall_ms=wall_ms)
    assert judged(uneven_shapes, analysis) == expected
    if expected:
        assert found(uneven_shapes, analysis).saving_ns == (0, pytest.approx(30 * MS, rel=0.01))


def test_the_form_that_costs_more_is_reported() -> None:
    both = longer(1.6, held=(1000, 2000, 1000))
    both = replace(both, training=replace(both.training, parameters=int(ELEMENTS / 1.1)))
    ranks = [
        {fact.rank for fact in found(uneven_shapes, copying(both, pad)).evidence} for pad in (9.0, 300.0)
    ]
    assert ranks == [{1}, {None}]
