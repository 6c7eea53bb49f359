"""What holds of the peak of any job: signs, bounds, and which way it goes."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from walk_jobs import BF16, FP32, of_shape, peak_bytes, terms, with_overlap

from zprof.model.job import Backend, Degrees, Job, Overlap, Residual
from zprof.model.tenants import Tenant
from zprof.planner.memory.walk.layout import model_state_bytes, sum_padded_elements
from zprof.planner.memory.walk.peak import walk_step

STAGES = st.integers(0, 3)
STATES = (Tenant.PARAMETERS, Tenant.OPTIMIZER_STATE)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    return of_shape(
        layers=draw(st.integers(1, 6)),
        hidden=draw(st.sampled_from([8, 16, 48])),
        vocabulary=draw(st.sampled_from([0, 16, 400])),
        samples=draw(st.integers(1, 8)),
        dp=draw(st.sampled_from([1, 2, 4])),
        mp=draw(st.sampled_from([1, 2])),
        element_bytes=draw(st.sampled_from([FP32, BF16])),
        overlap=Overlap(
            prefetch=draw(st.integers(0, 3)),
            keep_last=draw(st.booleans()),
            reductions_in_flight=draw(st.integers(1, 3)),
            alignment_elements=draw(st.sampled_from([1, 8])),
        ),
        residual=draw(
            st.sampled_from(
                [
                    Residual(),
                    Residual(checkpointing=True),
                    Residual(defragment=True),
                    Residual(constant_buffer_elements=64),
                    Residual(checkpointing=True, partition=True, defragment=True),
                ]
            )
        ),
        backend=draw(st.sampled_from(list(Backend))),
        micro_batches=draw(st.integers(1, 3)),
        tied=draw(st.booleans()),
    )


@settings(max_examples=30)
@given(jobs(), STAGES)
def test_no_term_is_negative_and_states_are_below_the_peak(job: Job, stage: int) -> None:
    found = terms(job, stage)
    assert all((term.bytes or 0) > 0 for term in found)
    states = model_state_bytes(job, stage)
    held = {tenant: sum(t.bytes or 0 for t in found if t.tenant is tenant) for tenant in STATES}
    assert held == {tenant: states[tenant] for tenant in STATES}
    assert peak_bytes(job, stage) >= sum(states.values())


@settings(max_examples=30)
@given(jobs(), STAGES)
def test_checkpointing_never_raises_the_peak_by_more_than_a_recomputation_needs(job: Job, stage: int) -> None:
    """It keeps inputs instead of all; what it adds is the gradient that waits, and places in a chunk."""
    plain = replace(job, residual=replace(job.residual, checkpointing=False, partition=False))
    kept = replace(plain, residual=Residual(checkpointing=True))
    without = replace(plain, residual=Residual())
    activations = [
        sum(term.bytes or 0 for term in terms(each, stage) if term.tenant is Tenant.ACTIVATIONS)
        for each in (kept, without)
    ]
    stream = max(unit.checkpoint_bytes or 0 for unit in job.units if not unit.encloses)
    assert peak_bytes(kept, stage) <= peak_bytes(without, stage) + stream
    assert activations[0] <= max(activations[1], _all_of_one(job))


def _all_of_one(job: Job) -> int:
    """Checkpoints of all units beside one that is whole."""
    inner = [unit for unit in job.units if not unit.encloses]
    around = sum(unit.saved_bytes or 0 for unit in job.units if unit.encloses)
    checkpoints = sum(unit.checkpoint_bytes or 0 for unit in inner)
    return around + checkpoints + max(unit.saved_bytes or 0 for unit in inner)


@settings(max_examples=30)
@given(jobs(), st.integers(1, 4))
def test_more_ranks_never_raise_the_peak_of_stage_3(job: Job, times: int) -> None:
    """Padding apart: the alignment is that of elements, and shards are rounded up to it."""
    fewer = with_overlap(job, alignment_elements=1)
    more = replace(fewer, degrees=Degrees(dp=fewer.degrees.dp * times, mp=fewer.degrees.mp))
    wider = (
        16 * (sum_padded_elements(more) - sum_padded_elements(fewer))
        if sum_padded_elements(more) > sum_padded_elements(fewer)
        else 0
    )
    buffers = 4 * 3 * 64 * times  # a constant buffer has whole parts of all ranks
    assert peak_bytes(more, 3) <= peak_bytes(fewer, 3) + wider + buffers


@settings(max_examples=30)
@given(jobs())
def test_more_units_ahead_never_lower_the_peak(job: Job) -> None:
    """Copies of gloo apart, which come earlier then."""
    nccl = replace(job, backend=Backend.NCCL)
    peaks = [peak_bytes(with_overlap(nccl, prefetch=ahead), 3) for ahead in range(4)]
    assert peaks == sorted(peaks)


@settings(max_examples=30)
@given(jobs(), st.sampled_from([0, 1, 2]))
def test_prefetch_is_of_stage_3_alone(job: Job, stage: int) -> None:
    peaks = {peak_bytes(with_overlap(job, prefetch=ahead), stage) for ahead in (0, 3)}
    assert len(peaks) == 1


@settings(max_examples=30)
@given(jobs(), STAGES)
def test_nccl_needs_no_more_than_gloo(job: Job, stage: int) -> None:
    nccl, gloo = (replace(job, backend=backend) for backend in (Backend.NCCL, Backend.GLOO))
    assert peak_bytes(nccl, stage) <= peak_bytes(gloo, stage)


@settings(max_examples=20)
@given(jobs(), STAGES, st.integers(20, 60))
def test_units_left_out_of_a_long_row_change_nothing(job: Job, stage: int, layers: int) -> None:
    """The same step with every unit walked through."""
    blocks = [unit for unit in job.units if not unit.encloses]
    around = [unit for unit in job.units if unit.encloses]
    long = replace(
        job,
        units=(*around, *(replace(blocks[0], name=f"blocks.{index}") for index in range(layers))),
        overlap=replace(job.overlap, prefetch=min(job.overlap.prefetch, 2)),
    )
    whole = walk_step(long, stage, ends=layers)
    assert peak_bytes(long, stage) == whole.peak_bytes
